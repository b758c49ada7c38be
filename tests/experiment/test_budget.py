"""GPU minutes: an engine's start is planned in before it happens, and given up when it overruns."""

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from experiment_fakes import FakeEndpoint

from ridgeline.domain.knobs import Configuration, Knobs, Launch
from ridgeline.domain.records import RecordSink
from ridgeline.domain.run import RunFacts, Watch
from ridgeline.domain.slo import parse_slo
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.base import DrivePlan, Endpoint, Engine
from ridgeline.engines.resident import ResidentEngine
from ridgeline.engines.started import ServerLaunch
from ridgeline.engines.vllm import VllmEngine
from ridgeline.experiment import budget as budget_module
from ridgeline.experiment.plan import Plan, PlannedExperiment
from ridgeline.experiment.runner import Outcome, SilentStudyWatch, run_plan
from ridgeline.store.study_directory import StudyDirectory

FAKE = Path(__file__).parents[1] / "engines" / "fake_engine.py"
WORK = Workload(
    Arrivals(users=4), Prompts(Lengths(20)), Outputs(Lengths(30)), duration_s=20.0, warmup_s=2.0
)
TRAFFIC_S = 22.0


class Started(FakeEndpoint):
    def alive(self) -> bool:
        return True

    def drive(self, plan: DrivePlan, sink: RecordSink, watch: Watch) -> RunFacts:
        facts = super().drive(plan, sink, watch)
        return replace(facts, server={**facts.server, "replicas": [{"ready_s": 7.0}]})


class Starter:
    name = "fake"

    def __init__(self) -> None:
        self.started: list[int | None] = []

    @contextlib.contextmanager
    def start(self, configuration: Configuration) -> Iterator[Endpoint]:
        self.started.append(configuration.knobs.max_num_seqs)
        yield Started(configuration)  # type: ignore[misc]

    def log_to(self, folder: Path) -> None:
        pass

    left_behind: tuple[str, ...] = ()

    def abandon(self) -> None:
        pass


def plan(*seqs: int, **launch: object) -> Plan:
    given = Launch(cold_s=0.0, **launch)  # type: ignore[arg-type]
    made = tuple(
        PlannedExperiment(
            f"s{n}", Configuration("m", Knobs(max_num_seqs=n), "fake", launch=given), WORK
        )
        for n in seqs
    )
    return Plan("s", "study", made[0].name, made, parse_slo(""))


def go(the_plan: Plan, folder: Path, engine: Engine, seconds: float) -> Outcome:
    return run_plan(
        the_plan, StudyDirectory(folder), lambda _: engine, SilentStudyWatch(), command="",
        gpu_minutes=seconds / 60,
    )  # fmt: skip


def resident(starter: Starter) -> Engine:
    return ResidentEngine(starter)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(("launch", "start_s"), [({}, 120.0), ({"ready_s": 60.0}, 60.0)])
def test_no_engine_is_started_for_a_run_that_would_not_fit(
    tmp_path: Path, launch: dict[str, object], start_s: float
) -> None:
    starter = Starter()
    short = go(plan(100, **launch), tmp_path / "a", resident(starter), start_s + TRAFFIC_S - 0.1)
    assert starter.started == []
    reason = short.index.runs["s100-r1"].reason or ""
    assert f"{start_s:.0f} s of engine start with it" in reason
    go(plan(100, **launch), tmp_path / "b", resident(starter), start_s + TRAFFIC_S + 0.1)
    assert starter.started == [100]


def test_what_a_start_took_is_expected_of_the_next(tmp_path: Path) -> None:
    """7 s as the first told, not 120 s: by the clock of these fakes hardly anything is used."""
    starter = Starter()
    outcome = go(plan(100, 90, 80), tmp_path, resident(starter), 120.0 + TRAFFIC_S + 5.0)
    assert starter.started == [100, 90, 80]
    assert {e.state for e in outcome.index.runs.values()} == {"done"}
    assert not any("GPU minutes" in note for note in outcome.index.notes)


def test_starts_one_after_another_add_up(tmp_path: Path) -> None:
    shared = {"resident": 3, "ready_s": 60.0}
    the_plan = plan(100, 90, 80, **shared)
    with_memory = replace(
        the_plan,
        experiments=tuple(
            replace(e, configuration=replace(
                e.configuration,
                knobs=replace(e.configuration.knobs, kv_cache_memory_bytes=1),
                launch=replace(e.configuration.launch or Launch(), start_together=False),
            ))
            for e in the_plan.experiments
        ),
    )  # fmt: skip
    starter = Starter()
    outcome = go(with_memory, tmp_path, resident(starter), 3 * 60.0 + TRAFFIC_S - 0.1)
    assert starter.started == []
    assert "180 s of engine start" in (outcome.index.runs["s100-r1"].reason or "")


def hanging(tmp_path: Path, ending: str, *arguments: str) -> tuple[Plan, Engine]:
    """A study of one experiment whose engine is never ready."""
    (tmp_path / "prepared.log").write_text("INFO loading")
    command = (sys.executable, str(FAKE), str(tmp_path / "prepared.log"), ending, "{model}")
    launch = Launch(command=command, arguments=arguments, ready_s=120.0, cold_s=0.0)
    work = replace(WORK, duration_s=1.0, warmup_s=0.0)
    one = PlannedExperiment("a", Configuration("m", Knobs(), "vllm", launch=launch), work)
    engine = ResidentEngine(VllmEngine(ServerLaunch(log_folder=tmp_path / "logs")))
    return Plan("s", "study", "a", (one,), parse_slo("")), engine


ENDLESS = [("serve", "--not-healthy"), ("hang",)]  # no health; health, and no completion


@pytest.mark.parametrize("ending", ENDLESS)
def test_a_start_is_given_up_when_the_user_asks_to_stop(
    tmp_path: Path, ending: tuple[str, ...]
) -> None:
    class Stopper(SilentStudyWatch):
        def stop_asked(self) -> bool:
            return time.monotonic() - begun > 2.0

    the_plan, engine = hanging(tmp_path, *ending)
    begun = time.monotonic()
    outcome = run_plan(
        the_plan, StudyDirectory(tmp_path / "s"), lambda _: engine, Stopper(), command=""
    )
    assert time.monotonic() - begun < 20.0
    assert outcome.interrupted
    assert outcome.index.runs["a-r1"].state != "done"


@pytest.mark.parametrize("ending", ENDLESS)
def test_a_start_that_takes_all_that_is_left_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: tuple[str, ...]
) -> None:
    monkeypatch.setattr(budget_module, "EXPECTED_START_S", 0.5)
    the_plan, engine = hanging(tmp_path, *ending)
    begun = time.monotonic()
    outcome = go(the_plan, tmp_path / "s", engine, 3.0)
    assert 2.5 < time.monotonic() - begun < 20.0  # not the 120 s of the start's own limit
    assert outcome.index.runs["a-r1"].state == "failed"
    assert "given up" in (outcome.index.runs["a-r1"].reason or "")
    assert any("given up when 0.05 GPU minutes were used" in n for n in outcome.index.notes)


def test_traffic_beyond_the_minutes_is_no_start_that_was_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is there at once; its requests take 1.5 s longer than the minutes."""
    monkeypatch.setattr(budget_module, "EXPECTED_START_S", 0.1)
    abandoned: list[str] = []

    class Slow(Started):
        def drive(self, plan: DrivePlan, sink: RecordSink, watch: Watch) -> RunFacts:
            time.sleep(2.0)
            return super().drive(plan, sink, watch)

    class SlowStarter(Starter):
        @contextlib.contextmanager
        def start(self, configuration: Configuration) -> Iterator[Endpoint]:
            yield Slow(configuration)  # type: ignore[misc]

        left_behind: tuple[str, ...] = ()

        def abandon(self) -> None:
            abandoned.append("now")

    work = replace(WORK, duration_s=0.3, warmup_s=0.0)
    launch = Launch(cold_s=0.0)
    one = PlannedExperiment("a", Configuration("m", Knobs(), "fake", launch=launch), work)
    the_plan = Plan("s", "study", "a", (one,), parse_slo(""))
    outcome = go(the_plan, tmp_path, resident(SlowStarter()), 0.5)
    assert abandoned == []
    assert outcome.index.runs["a-r1"].state in ("done", "void")
    assert not any("given up" in note for note in outcome.index.notes)
    assert any("GPU minutes were used, " in note for note in outcome.index.notes)
