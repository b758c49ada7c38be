"""Engines outlive the plans of a tuning, and the runner takes them for engines that are kept."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from ridgeline.domain.knobs import Configuration, Knobs, Launch
from ridgeline.domain.slo import Slo
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.resident import GivesUp, KeepsEngines, ResidentEngine
from ridgeline.experiment.engines import Engines
from ridgeline.experiment.plan import Plan, PlannedExperiment, PlannedRun, plan_runs
from ridgeline.tuning.lasting import LastingEngine, LastingEngines

LOAD = Workload(Arrivals(users=4), Prompts(Lengths(8)), Outputs(Lengths(4)), duration_s=1.0)


class Up:
    def alive(self) -> bool:
        return True


class Starter:
    """Notes what it starts and stops."""

    name = "vllm"
    left_behind: tuple[str, ...] = ("GPU 0 holds more",)

    def __init__(self) -> None:
        self.events: list[str] = []

    @contextlib.contextmanager
    def start(self, wanted: Configuration) -> Iterator[Up]:
        self.events.append(f"start {wanted.knobs.max_num_seqs}")
        yield Up()
        self.events.append(f"stop {wanted.knobs.max_num_seqs}")

    def log_to(self, folder: Path) -> None: ...

    def abandon(self) -> None: ...


def served(seqs: int) -> Configuration:
    knobs = Knobs(max_num_seqs=seqs, kv_cache_memory_bytes=2**30, gpu_memory_utilization=0.2)
    launch = Launch(resident=3, start_together=False, cold_s=0.0)
    return Configuration("m", knobs, engine="vllm", gpu="H200-SXM", launch=launch)


def runs(*seqs: int) -> Sequence[PlannedRun]:
    made = tuple(PlannedExperiment(str(s), served(s), LOAD) for s in seqs)
    return plan_runs(Plan("t", "trials", None, made, Slo(), 1, "chat"))


def load(engines: LastingEngines, folder: Path, *seqs: int) -> tuple[str, ...]:
    """One plan of a tuning, as the runner goes about it."""
    used = Engines(engines, folder)
    with contextlib.closing(used):
        for run in used.order(runs(*seqs)):
            with used.of(run).start(run.configuration):
                pass
    return used.left_behind


def test_the_runner_takes_them_for_engines_that_are_kept() -> None:
    lasting = LastingEngine(ResidentEngine(Starter()), 3, served(1))  # type: ignore[arg-type]
    assert isinstance(lasting, KeepsEngines)
    assert isinstance(lasting, GivesUp)


def test_engines_of_one_question_are_up_together_and_stay_for_the_next(tmp_path: Path) -> None:
    starter = Starter()
    with LastingEngines(
        lambda name: ResidentEngine(starter),  # type: ignore[arg-type]
        3, served(1),
    ) as engines:  # fmt: skip
        assert load(engines, tmp_path, 1, 2) == ("GPU 0 holds more",)
        assert starter.events == ["start 1", "start 2"]
        load(engines, tmp_path, 2, 1)
        load(engines, tmp_path, 3)
        assert starter.events == ["start 1", "start 2", "start 3"], "nothing was taken down"
        load(engines, tmp_path, 1, 4)  # three places: one has to go, and it is not the first's
        assert starter.events[3:] in (["stop 2", "start 4"], ["stop 3", "start 4"])
    assert sorted(e for e in starter.events if e.startswith("stop")) == [
        "stop 1", "stop 2", "stop 3", "stop 4",
    ]  # fmt: skip
