"""The engines of a study: order, memory checks, cold runs, and what is kept beside a run."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from experiment_builders import evidence, request
from experiment_fakes import FakeEndpoint

from ridgeline.domain.errors import BadInput, RunFailed
from ridgeline.domain.knobs import Configuration, Knobs, Launch
from ridgeline.domain.records import RecordSink, TelemetryRow
from ridgeline.domain.run import RunFacts, Watch
from ridgeline.domain.slo import parse_slo
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.base import DrivePlan, Endpoint
from ridgeline.engines.beside import Beside
from ridgeline.engines.resident import ResidentEngine
from ridgeline.experiment import verdict
from ridgeline.experiment.engines import BLOCKS_NOTE, COLD_NOTE, arrange
from ridgeline.experiment.ledger import judge_study_again
from ridgeline.experiment.plan import Plan, PlannedExperiment, PlannedRun, plan_runs
from ridgeline.experiment.results import load_results
from ridgeline.experiment.runner import (
    Outcome,
    SilentStudyWatch,
    run_plan,
)
from ridgeline.experiment.verdict import Doubt, Evidence, judge
from ridgeline.store.run_directory import read_run
from ridgeline.store.study_directory import StudyDirectory
from ridgeline.store.tables import read_telemetry

SIXTEEN_GIB = 16 * 2**30
SECOND = 1_000_000_000


def workload(users: int = 8) -> Workload:
    return Workload(
        Arrivals(users=users), Prompts(Lengths(20, 0.5)), Outputs(Lengths(30, 0.5)),
        duration_s=20.0, warmup_s=2.0, seed=7,
    )  # fmt: skip


def plan(launch: Launch | None, *experiments: tuple[str, int, int], **knobs: object) -> Plan:
    """Experiments by (name, max_num_seqs, users), with one repeat each way."""
    shared = Knobs(kv_cache_memory_bytes=SIXTEEN_GIB).with_changes(knobs)
    made = tuple(
        PlannedExperiment(
            name,
            Configuration("m", shared.with_changes({"max_num_seqs": s}), "fake", launch=launch),
            workload(users),
        )
        for name, s, users in experiments
    )
    return Plan("s", "study", made[0].name, made, parse_slo(""), repeats=2)


ABC = (("a", 100, 8), ("b", 200, 8), ("c", 50, 8))


def names_of(runs: Sequence[PlannedRun]) -> list[str]:
    return [run.run_id for run in runs]


def test_engines_that_all_fit_leave_the_order_interleaved() -> None:
    the_plan = plan(Launch(resident=3), *ABC)
    assert arrange(plan_runs(the_plan)).runs == plan_runs(the_plan)
    assert not arrange(plan_runs(the_plan)).in_blocks


def test_one_engine_at_a_time_means_blocks_and_each_is_started_once() -> None:
    for launch in (None, Launch(), Launch(resident=1)):
        found = arrange(plan_runs(plan(launch, *ABC)))
        assert names_of(found.runs) == ["a-r1", "a-r2", "b-r1", "b-r2", "c-r1", "c-r2"]
        assert found.in_blocks
        assert [len(g) for g in found.groups] == [1, 1, 1]


def test_the_baseline_stays_up_beside_groups_of_the_others() -> None:
    found = arrange(plan_runs(plan(Launch(resident=2), *ABC)))
    groups = [[c.knobs.max_num_seqs for c in group] for group in found.groups]
    assert groups == [[100, 200], [100, 50]]
    assert [r.experiment for r in found.runs] == ["a", "b", "b", "a", "c", "c"]
    assert found.in_blocks


def test_experiments_that_differ_in_load_share_one_engine() -> None:
    found = arrange(plan_runs(plan(None, ("a", 100, 8), ("crowd", 100, 30))))
    assert len(found.groups) == 1
    assert [r.experiment for r in found.runs] == ["a", "crowd", "crowd", "a"]
    assert not found.in_blocks


def test_engines_side_by_side_must_say_how_much_memory_they_take() -> None:
    with pytest.raises(BadInput, match=r"launch.resident.*kv_cache_memory_bytes"):
        arrange(plan_runs(plan(Launch(resident=3), *ABC, kv_cache_memory_bytes=None)))
    on_gpu = plan(Launch(resident=3), *ABC)

    def with_share(share: float | None) -> Plan:
        return replace(
            on_gpu,
            experiments=tuple(
                replace(
                    e,
                    configuration=replace(
                        e.configuration,
                        gpu="H200-SXM",
                        knobs=e.configuration.knobs.with_changes({"gpu_memory_utilization": share}),
                    ),
                )
                for e in on_gpu.experiments
            ),
        )

    with pytest.raises(BadInput, match="gpu_memory_utilization"):
        arrange(plan_runs(with_share(None)))
    with pytest.raises(BadInput, match="102%"):
        arrange(plan_runs(with_share(0.34)))
    assert len(arrange(plan_runs(with_share(0.33))).groups) == 1


class Started(FakeEndpoint):
    """A fake endpoint with processes, telemetry and a log."""

    living = True

    def alive(self) -> bool:
        return self.living

    def beside(self) -> Beside:
        rows = (TelemetryRow(5 * SECOND, "engine", "replica 0", "running", 3.0),)
        return Beside(rows, "the engine's words\n")

    def drive(self, plan: DrivePlan, sink: RecordSink, watch: Watch) -> RunFacts:
        facts = super().drive(plan, sink, watch)
        Starter.driven.append(
            f"{self.configuration.knobs.max_num_seqs}/{plan.schedule.workload.arrivals.users}"
            f"/{plan.schedule.workload.duration_s:g}"
        )
        return facts


class Starter:
    name = "fake"
    driven: list[str] = []  # noqa: RUF012

    def __init__(self, fails: Sequence[int] = ()) -> None:
        self.fails, self.up, self.starts = fails, 0, 0
        Starter.driven = []

    @contextlib.contextmanager
    def start(self, configuration: Configuration) -> Iterator[Endpoint]:
        self.starts += 1
        if configuration.knobs.max_num_seqs in self.fails:
            raise RunFailed("oom_weights: it does not fit", where="fake")
        self.up += 1
        try:
            yield Started(configuration)  # type: ignore[misc]
        finally:
            self.up -= 1

    def log_to(self, folder: Path) -> None:
        self.logs = folder

    left_behind: tuple[str, ...] = ()

    def abandon(self) -> None:
        pass


def go(the_plan: Plan, folder: Path, starter: Starter) -> Outcome:
    return run_plan(
        the_plan,
        StudyDirectory(folder),
        lambda name: ResidentEngine(starter),  # type: ignore[arg-type]
        SilentStudyWatch(),
        command="",
    )


def test_a_fresh_engine_is_loaded_cold_by_its_busiest_traffic_first(tmp_path: Path) -> None:
    starter = Starter()
    launch = Launch(resident=2, cold_s=3.0)
    outcome = go(plan(launch, ("a", 100, 8), ("b", 200, 8), ("crowd", 100, 30)), tmp_path, starter)
    # a and crowd share an engine: its cold run has 30 users, although a comes first
    assert Starter.driven[:4] == ["100/30/3", "100/8/20", "200/8/3", "200/8/20"]
    assert len(Starter.driven) == 6 + 2
    assert (starter.starts, starter.up) == (2, 0)
    assert starter.logs == tmp_path / "engines"
    cold = read_run(tmp_path / "cold" / "crowd-1")
    assert cold.meta.workload.warmup_s == 0.0
    assert cold.facts is not None
    assert cold.facts.notes == (COLD_NOTE,)
    assert cold.summary is not None
    run = read_run(tmp_path / "a-r2")
    assert run.facts is not None
    shown = run.facts.server["cold"]
    assert isinstance(shown, dict)
    assert shown["run"] == "cold/crowd-1"
    assert shown["output_tokens_per_s"] == cold.summary.throughput.output_tokens_per_s
    # beside, never merged: the study's own runs are as many as planned
    assert set(outcome.index.runs) == {f"{n}-r{r}" for n in ("a", "b", "crowd") for r in (1, 2)}
    a = load_results(tmp_path).experiment("a")
    assert a is not None
    assert sorted(a.valid) == [1, 2]
    assert not outcome.index.notes


def test_no_cold_run_when_none_is_wanted(tmp_path: Path) -> None:
    go(plan(Launch(resident=2, cold_s=0.0), ("a", 100, 8), ("b", 200, 8)), tmp_path, Starter())
    assert len(Starter.driven) == 4
    assert not (tmp_path / "cold").exists()


def test_blocks_are_said_in_the_study_and_in_every_run(tmp_path: Path) -> None:
    outcome = go(plan(Launch(cold_s=1.0), ("a", 100, 8), ("b", 200, 8)), tmp_path, Starter())
    assert outcome.index.notes == (BLOCKS_NOTE,)
    for run_id in outcome.index.runs:
        run = read_run(tmp_path / run_id)
        assert run.facts is not None
        assert BLOCKS_NOTE in run.facts.notes
        assert run.valid


def test_a_failed_start_is_the_result_of_its_runs_and_of_no_others(tmp_path: Path) -> None:
    starter = Starter(fails=(200,))
    outcome = go(
        plan(Launch(resident=2, cold_s=1.0), ("a", 100, 8), ("b", 200, 8)), tmp_path, starter
    )
    states = {r: e.state for r, e in outcome.index.runs.items()}
    assert states == {"a-r1": "done", "a-r2": "done", "b-r1": "failed", "b-r2": "failed"}
    assert starter.starts == 2
    assert starter.up == 0


def test_telemetry_and_log_lie_with_the_run(tmp_path: Path) -> None:
    go(plan(Launch(resident=1, cold_s=0.0), ("a", 100, 8)), tmp_path, Starter())
    assert (tmp_path / "a-r1" / "engine.log").read_text() == "the engine's words\n"
    assert read_telemetry(tmp_path / "a-r1") == (
        TelemetryRow(5 * SECOND, "engine", "replica 0", "running", 3.0),
    )
    assert read_telemetry(tmp_path) == ()
    body = json.loads((tmp_path / "a-r1" / "run.json").read_text())
    assert body["run"]["configuration"]["launch"]["cold_s"] == 0.0


@pytest.mark.parametrize(
    ("throttled", "strangers", "reason", "warning"),
    [
        ({}, [], None, None),
        ({}, None, None, None),
        ({"hardware thermal slowdown": 0.05}, [], None, None),
        ({"hardware thermal slowdown": 0.1}, [], "GPU 0: clocks held down by hardware", None),
        ({"power cap": 0.9}, [], None, "GPU 0: clocks held down by power cap in 90%"),
        ({}, [4711], "GPU 0: another process used it (4711)", None),
    ],
)
def test_a_disturbed_gpu_voids_a_run(
    throttled: dict[str, float],
    strangers: list[int] | None,
    reason: str | None,
    warning: str | None,
) -> None:
    fine = evidence([request(i, i * 0.1) for i in range(299)])
    gpu = {"index": 0, "throttled": throttled, "strangers": strangers}
    facts = replace(fine.facts, server={"telemetry": {"gpus": [gpu]}})
    judged = judge(replace(fine, facts=facts))
    assert judge(fine).valid
    assert judged.valid == (reason is None)
    assert any(r.startswith(reason) for r in judged.reasons) if reason else not judged.reasons
    found = [w for w in judged.warnings if warning and w.startswith(warning)]
    assert bool(found) == (warning is not None)


@pytest.mark.parametrize(
    ("machine", "warning"),
    [
        (None, None),
        ({}, None),
        ({"busy_cores_mean": 1.9}, None),  # not a virtual machine's reading
        ({"busy_cores_mean": 2.0, "stolen_cores_mean": 0.02, "stolen_cores_max": 0.1}, None),
        (
            {"busy_cores_mean": 1.8, "stolen_cores_mean": 0.2, "stolen_cores_max": 0.7},
            "the host: its hypervisor gave 10% of the CPU time that was wanted to others"
            " (0.2 cores of steal, at most 0.7)",
        ),
    ],
)
def test_stolen_time_of_a_virtual_host_is_said(
    machine: dict[str, float] | None, warning: str | None
) -> None:
    fine = evidence([request(i, i * 0.1) for i in range(299)])
    host = {"replica 0: engine core": {"cpu_cores_mean": 1.0}}
    told = host if machine is None else {**host, "machine": machine}
    facts = replace(fine.facts, server={"telemetry": {"gpus": [], "host": told}})
    judged = judge(replace(fine, facts=facts))
    assert judged.valid, "slower than it might be is no reason to throw a run away"
    found = [w for w in judged.warnings if w.startswith("the host")]
    assert len(found) == (warning is not None)
    assert warning is None or found[0].startswith(warning)


def test_a_study_is_judged_again_from_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Evidence) -> Iterator[Doubt]:
        yield Doubt("a rule of another day")

    go(plan(Launch(resident=2, cold_s=0.0), ("a", 100, 8), ("b", 200, 8)), tmp_path, Starter())
    directory = StudyDirectory(tmp_path)
    before = read_run(tmp_path / "b-r1")
    monkeypatch.setattr(verdict, "RULES", (*verdict.RULES, refuse))
    index = judge_study_again(directory)
    assert {e.state for e in index.runs.values()} == {"void"}
    assert {e.reason for e in index.runs.values()} == {"a rule of another day"}
    monkeypatch.undo()
    index = judge_study_again(directory)
    assert {e.state for e in index.runs.values()} == {"done"}
    assert directory.index() == index
    assert read_run(tmp_path / "b-r1") == before


def test_what_engines_leave_behind_is_kept_with_the_study(tmp_path: Path) -> None:
    starter = Starter()
    starter.left_behind = ("GPU 0 holds 12.5 GiB more than before",)
    outcome = go(plan(Launch(cold_s=0.0), ("a", 100, 8)), tmp_path, starter)
    assert "GPU 0 holds 12.5 GiB more than before" in outcome.index.notes
