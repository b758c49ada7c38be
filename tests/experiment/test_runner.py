"""Studies: order, resuming, failures as results, and nothing lost when a process dies."""

import contextlib
import errno
import itertools
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from experiment_fakes import FakeEngine, killed, twin_like

from ridgeline.domain.errors import BadInput, RunFailed, StoreError
from ridgeline.domain.hardware import gpu
from ridgeline.domain.knobs import Configuration, Knobs, Launch, Router
from ridgeline.domain.records import RecordSink
from ridgeline.domain.run import RunFacts, SilentWatch, Source, Watch
from ridgeline.domain.slo import parse_slo
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.base import DrivePlan, Endpoint
from ridgeline.experiment import plan as plan_module
from ridgeline.experiment import runner as runner_module
from ridgeline.experiment.ledger import recover_study
from ridgeline.experiment.plan import (
    Plan,
    PlannedExperiment,
    PlannedRun,
    fingerprint,
    plan_runs,
)
from ridgeline.experiment.protocol import bounds_of
from ridgeline.experiment.results import load_results, to_json
from ridgeline.experiment.runner import SilentStudyWatch, run_plan
from ridgeline.report.load import report_of
from ridgeline.report.markdown import render as markdown_page
from ridgeline.report.verdict import run_counts
from ridgeline.store.run_directory import StoredRun, read_run, write_run
from ridgeline.store.study_directory import StudyDirectory
from ridgeline.workload.schemas import schema_of

sys.path.insert(0, str(Path(__file__).parent))

WORKLOAD = Workload(
    Arrivals(users=8),
    Prompts(Lengths(20, 0.5)),
    Outputs(Lengths(30, 0.5)),
    duration_s=20.0,
    warmup_s=2.0,
    seed=7,
)


def experiment(name: str, speed: int, engine: str = "fake") -> PlannedExperiment:
    configuration = Configuration("m", Knobs(max_num_seqs=speed), engine, price_per_gpu_hour=2.0)
    return PlannedExperiment(name, configuration, WORKLOAD, f"max_num_seqs {speed}")


def plan(repeats: int = 2, engine: str = "fake", **speeds: int) -> Plan:
    experiments = tuple(
        experiment(n, s, engine) for n, s in (speeds or {"a": 100, "b": 200}).items()
    )
    return Plan("s", "study", experiments[0].name, experiments, parse_slo(""), repeats)


def go(  # type: ignore[no-untyped-def]
    the_plan: Plan,
    folder: Path,
    engine: FakeEngine,
    watch: SilentStudyWatch | None = None,
    whole: Plan | None = None,
):
    return run_plan(
        the_plan,
        StudyDirectory(folder),
        lambda name: engine,
        watch or SilentStudyWatch(),
        command="ridgeline study s.yaml",
        whole=whole,
    )


def test_order_is_interleaved_and_pairs_share_the_seed() -> None:
    runs = plan_runs(plan(repeats=3, a=100, b=200, c=300))
    assert [r.run_id for r in runs] == [
        "a-r1", "b-r1", "c-r1", "c-r2", "b-r2", "a-r2", "a-r3", "b-r3", "c-r3",
    ]  # fmt: skip
    assert {(r.repeat, r.workload.seed) for r in runs} == {(1, 7), (2, 8), (3, 9)}
    assert len({r.fingerprint for r in runs}) == 9


def test_an_experiment_may_have_fewer_repeats_and_stays_in_its_place() -> None:
    whole = plan(repeats=3, a=100, b=200, c=300)
    a, b, c = whole.experiments
    runs = plan_runs(replace(whole, experiments=(a, replace(b, repeats=1), replace(c, repeats=2))))
    assert [r.run_id for r in runs] == ["a-r1", "b-r1", "c-r1", "c-r2", "a-r2", "a-r3"]


def test_repeats_beyond_an_experiments_own_stay_comparable(tmp_path: Path) -> None:
    """Measured with --repeats 2, then resumed by a file that asks one of them for less."""
    go(plan(repeats=2), tmp_path, FakeEngine())
    a, b = plan(repeats=2).experiments
    less = replace(plan(repeats=2), experiments=(a, replace(b, repeats=1)))
    again = FakeEngine()
    outcome = go(less, tmp_path, again)
    assert again.started == []
    assert {r: e.outdated for r, e in outcome.index.runs.items()} == {
        "a-r1": False, "b-r1": False, "a-r2": False, "b-r2": False,
    }  # fmt: skip


class VoidFirst(FakeEngine):
    """Its first tries of a run end in a window without a request: void; the next is as usual."""

    voids = 1

    @contextlib.contextmanager
    def start(self, configuration: Configuration) -> Iterator[Endpoint]:
        with super().start(configuration) as endpoint:
            if len(self.started) > self.voids:
                yield endpoint
            else:
                yield NothingInside(endpoint)


class NothingInside:
    source: Source = "measured"

    def __init__(self, inner: Endpoint) -> None:
        self._inner = inner

    def drive(self, plan: DrivePlan, sink: RecordSink, watch: Watch) -> RunFacts:
        facts = self._inner.drive(plan, sink, watch)
        return replace(facts, server_faults=("the server was restarted",))


@pytest.mark.parametrize(("retries", "started", "state"), [
    (0, [100], "void"), (1, [100, 100], "done"), (3, [100, 100], "done"),
])  # fmt: skip
def test_a_void_run_is_measured_again_at_once_and_kept_beside(
    tmp_path: Path, retries: int, started: list[int], state: str
) -> None:
    engine = VoidFirst()
    outcome = run_plan(
        plan(repeats=1, a=100), StudyDirectory(tmp_path), lambda name: engine,
        SilentStudyWatch(), command="ridgeline study s.yaml", retries=retries,
    )  # fmt: skip
    assert engine.started == started
    assert outcome.index.runs["a-r1"].state == state
    if state == "done":
        run = read_run(tmp_path / "a-r1")
        assert run.facts is not None
        assert any("a-r1.old-1, is void: the server was restarted" in n for n in run.facts.notes)
        assert read_run(tmp_path / "a-r1.old-1").state == "void"


def test_tries_are_counted_over_starts_of_the_command_and_shown(tmp_path: Path) -> None:
    """Started three times by hand, a run that was void twice is not as good as one at once."""
    engine = VoidFirst()
    engine.voids = 2
    for _ in range(3):
        run_plan(
            plan(repeats=1, a=100), StudyDirectory(tmp_path), lambda name: engine,
            SilentStudyWatch(), command="ridgeline study s.yaml",
        )  # fmt: skip
    run = read_run(tmp_path / "a-r1")
    assert (run.state, run.meta.tries) == ("done", 3)
    assert run.facts is not None
    assert any(
        "try 3: the one before it, kept in a-r1.old-2, is void" in n for n in run.facts.notes
    )
    assert read_run(tmp_path / "a-r1.old-2").meta.tries == 2
    assert read_run(tmp_path / "a-r1.old-1").meta.tries == 1
    result = load_results(tmp_path)
    body = to_json(result)
    jsonschema.validate(body, schema_of("study-result"))
    assert body["runs"][0]["repeats"][0]["tries"] == 3
    report = report_of(result, StudyDirectory(tmp_path))
    assert run_counts(report)[2] == "valid, in 3 tries"
    assert "| 1 of 1 in 3 tries |" in markdown_page(report, {})


def test_a_failed_try_is_not_counted_but_those_before_it_are(tmp_path: Path) -> None:
    engine = VoidFirst()
    the_plan = plan(repeats=1, a=100)
    for fails in ((), (100,), ()):
        engine.fails = fails
        run_plan(the_plan, StudyDirectory(tmp_path), lambda name: engine, SilentStudyWatch(),
                 command="")  # fmt: skip
    assert [read_run(tmp_path / f"a-r1{end}").state for end in (".old-1", ".old-2", "")] == [
        "void", "failed", "done",
    ]  # fmt: skip
    assert read_run(tmp_path / "a-r1").meta.tries == 2


def test_retries_end_with_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A try has 22 s of traffic and takes 10 s by this clock: 40 s allow a second, no third."""
    clock = itertools.count(0, 10)
    monkeypatch.setattr(runner_module.time, "monotonic", lambda: float(next(clock)))
    engine = VoidFirst()
    engine.voids = 9
    run_plan(
        plan(repeats=1, a=100), StudyDirectory(tmp_path), lambda name: engine,
        SilentStudyWatch(), command="ridgeline study s.yaml", retries=9, gpu_minutes=40 / 60,
    )  # fmt: skip
    assert engine.started == [100, 100]


def test_names_that_would_share_a_folder_are_refused() -> None:
    with pytest.raises(BadInput, match="a-b-r1"):
        plan_runs(replace(plan(), experiments=(experiment("a b", 1), experiment("a/b", 2))))


def test_what_was_measured_is_on_disk_and_reads_back(tmp_path: Path) -> None:
    engine = FakeEngine()
    outcome = go(plan(), tmp_path, engine)
    assert engine.started == [100, 200, 200, 100]
    assert not outcome.interrupted
    assert {e.state for e in outcome.index.runs.values()} == {"done"}
    run = read_run(tmp_path / "b-r2")
    assert run.meta.workload.seed == 8
    assert run.meta.configuration.knobs == Knobs(max_num_seqs=200)
    assert run.facts is not None
    assert run.summary is not None
    assert run.facts.server == {"engine": "fake", "version": "1"}
    records = run.records()
    gaps = np.diff(records.chunk_ns[: records.chunk_start[1]])
    assert run.summary.itl_s.p50 == pytest.approx(gaps[0] / 1e9)
    assert [e.kind for e in run.events] == ["note"]
    assert not (tmp_path / "b-r2" / "journal.ridgeline").exists()
    salts = {read_run(tmp_path / r).meta.salt for r in outcome.index.order}
    assert len(salts) == 4


def test_finished_runs_are_not_repeated(tmp_path: Path) -> None:
    go(plan(), tmp_path, FakeEngine())
    again = FakeEngine()
    go(plan(repeats=3), tmp_path, again)
    assert again.started == [100, 200]
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == [
        "a-r1", "a-r2", "a-r3", "b-r1", "b-r2", "b-r3",
    ]  # fmt: skip


def test_another_configuration_does_not_pass_for_the_old_one(tmp_path: Path) -> None:
    go(plan(repeats=1), tmp_path, FakeEngine())
    engine = FakeEngine()
    go(plan(repeats=1, a=100, b=300), tmp_path, engine)
    assert engine.started == [300]
    assert read_run(tmp_path / "b-r1.old-1").meta.configuration.knobs.max_num_seqs == 200
    assert read_run(tmp_path / "b-r1").meta.configuration.knobs.max_num_seqs == 300


def test_a_changed_twin_is_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [r.fingerprint for r in plan_runs(plan(engine="twin"))]
    assert before == [r.fingerprint for r in plan_runs(plan(engine="twin"))]
    monkeypatch.setattr(plan_module, "_TWIN_SOURCES", ("domain",))
    assert not set(before) & {r.fingerprint for r in plan_runs(plan(engine="twin"))}


def test_a_failed_run_is_a_result(tmp_path: Path) -> None:
    outcome = go(plan(a=100, broken=666, b=200), tmp_path, FakeEngine(fails=(666,)))
    entry = outcome.index.runs["broken-r1"]
    assert entry.state == "failed"
    assert entry.reason is not None
    assert "CUDA out of memory" in entry.reason
    result = load_results(tmp_path)
    broken = result.experiment("broken")
    assert broken is not None
    assert broken.summary is None
    assert "CUDA out of memory" in (broken.failure or "")
    b = result.experiment("b")
    assert b is not None
    assert b.against_baseline["itl_s.p50"].delta is not None


def test_what_was_measured_before_a_failure_is_kept(tmp_path: Path) -> None:
    def crash(sink: RecordSink) -> None:
        raise StoreErrorFree("the server went away", where="http://x")

    go(plan(repeats=1, a=100), tmp_path, FakeEngine(before_end=crash))
    run = read_run(tmp_path / "a-r1")
    assert run.state == "failed"
    assert len(run.records()) > 100
    assert run.summary is not None
    assert run.summary.requests.ok > 100
    assert run.failure is not None
    assert "went away" in run.failure.text
    assert not run.valid


class StoreErrorFree(BadInput):
    exit_code = 3


def test_a_stop_keeps_what_is_done_and_the_next_start_does_the_rest(tmp_path: Path) -> None:
    class Stopper(SilentStudyWatch):
        def __init__(self) -> None:
            self.ends = 0

        def ended(self, run: StoredRun) -> None:
            self.ends += 1

        def stop_asked(self) -> bool:
            return self.ends == 3

    first = FakeEngine()
    outcome = go(plan(), tmp_path, first, Stopper())
    assert outcome.interrupted
    assert [outcome.index.runs[r].state for r in outcome.index.order] == [
        "done", "done", "done", "planned",
    ]  # fmt: skip
    second = FakeEngine()
    assert not go(plan(), tmp_path, second).interrupted
    assert second.started == [100]
    whole, stopped = go_fresh(tmp_path / "fresh"), load_results(tmp_path)
    assert json.dumps(figures(whole)) == json.dumps(figures(stopped))


def go_fresh(folder: Path):  # type: ignore[no-untyped-def]
    go(plan(), folder, FakeEngine())
    return load_results(folder)


def figures(result) -> list:  # type: ignore[no-untyped-def,type-arg]
    return [[r["summary"], r["against_baseline"]] for r in to_json(result)["runs"]]


def test_a_run_that_was_stopped_half_way_is_shown_but_not_compared(tmp_path: Path) -> None:
    class InRun(SilentWatch):
        def stop_asked(self) -> bool:
            return True

    class Stopper(SilentStudyWatch):
        def started(self, run: PlannedRun) -> Watch:
            return InRun() if run.run_id == "b-r2" else SilentWatch()

    outcome = go(plan(), tmp_path, FakeEngine(), Stopper())
    assert outcome.interrupted
    assert outcome.index.runs["b-r2"].state == "interrupted"
    b = load_results(tmp_path).experiment("b")
    assert b is not None
    assert sorted(b.valid) == [1]


def test_a_process_pool_gives_what_one_process_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "POOL_PAYS", 0)
    the_plan = plan(engine="twin", repeats=2, a=100, b=200)

    def run(folder: Path, cores: int) -> None:
        run_plan(
            the_plan,
            StudyDirectory(folder),
            twin_like,
            SilentStudyWatch(),
            command="",
            cores=cores,
        )

    run(tmp_path / "pool", 2)
    run(tmp_path / "alone", 1)
    assert figures(load_results(tmp_path / "pool")) == figures(load_results(tmp_path / "alone"))
    index = StudyDirectory(tmp_path / "pool").index()
    assert {e.state for e in index.runs.values()} == {"done"}


def test_a_worker_that_is_killed_is_one_line_and_the_rest_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "POOL_PAYS", 0)
    directory = StudyDirectory(tmp_path)
    the_plan = plan(engine="twin", repeats=1)
    with pytest.raises(RunFailed, match="a worker process was killed") as caught:
        run_plan(the_plan, directory, killed, SilentStudyWatch(), command="", cores=2)
    assert "\n" not in str(caught.value)
    assert "interrupted" in {e.state for e in recover_study(directory)[0].runs.values()}
    outcome = run_plan(the_plan, directory, twin_like, SilentStudyWatch(), command="", cores=1)
    assert {e.state for e in outcome.index.runs.values()} == {"done"}


def test_gpu_minutes_are_not_exceeded(tmp_path: Path) -> None:
    """A run offers 22 s of traffic to one GPU: 0.5 minutes hold one run, not two."""
    engine = FakeEngine(before_end=lambda sink: time.sleep(0.01))
    outcome = run_plan(
        plan(repeats=1),
        StudyDirectory(tmp_path),
        lambda name: engine,
        SilentStudyWatch(),
        command="",
        gpu_minutes=22.001 / 60,
    )
    assert engine.started == [100]
    left = outcome.index.runs["b-r1"]
    assert left.state == "planned"
    assert "GPU minutes" in (left.reason or "")


def test_what_has_no_result_comes_before_another_try_of_what_failed(tmp_path: Path) -> None:
    class Stopper(SilentStudyWatch):
        def __init__(self, after: int) -> None:
            self.left = after

        def ended(self, run: StoredRun) -> None:
            self.left -= 1

        def stop_asked(self) -> bool:
            return self.left <= 0

    the_plan = plan(repeats=2, a=100, broken=666, b=200)
    go(the_plan, tmp_path, FakeEngine(fails=(666,)), Stopper(3))
    first = read_run(tmp_path / "broken-r1")
    engine = FakeEngine()
    outcome = go(the_plan, tmp_path, engine, Stopper(3))
    # the three runs that had no result; the failed one still stands in its place
    assert engine.started == [200, 666, 100]
    assert outcome.index.runs["broken-r1"].state == "failed"
    assert read_run(tmp_path / "broken-r1") == first
    engine = FakeEngine()
    outcome = go(the_plan, tmp_path, engine)
    assert engine.started == [666]
    assert {e.state for e in outcome.index.runs.values()} == {"done"}
    assert read_run(tmp_path / "broken-r1.old-1").state == "failed"


def test_a_study_can_be_copied_and_read_elsewhere(tmp_path: Path) -> None:
    go(plan(repeats=3), tmp_path / "here", FakeEngine())
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    shutil.rmtree(tmp_path / "here")
    result = load_results(tmp_path / "there")
    b = result.experiment("b")
    assert b is not None
    assert b.against_baseline["itl_s.p50"].verdict == "clearly better"
    assert len(b.stored[0].records()) > 0


KILLED = """
import sys, os
sys.path.insert(0, {tests!r})
import test_runner as t
from experiment_fakes import FakeEngine
import time

def wait(sink):
    time.sleep(1.0)     # longer than a flush of the journal
    print("now", flush=True)
    time.sleep(60)

t.go(t.plan(repeats=1, a=100), t.Path(sys.argv[1]), FakeEngine(before_end=wait))
"""


def load_on_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """What `report` sees before anybody has made room."""
    before = {p: p.stat().st_size for p in folder.rglob("*")}

    def full(path: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        result = load_results(folder)
    a = result.experiment("a")
    assert a is not None
    assert len(a.stored[0].records()) > 100
    assert {p: p.stat().st_size for p in folder.rglob("*")} == before
    return result


def test_a_killed_run_is_recovered_from_its_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = KILLED.format(tests=str(Path(__file__).parent))
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "now\n"
        going_on, _ = recover_study(StudyDirectory(tmp_path))
        assert going_on.runs["a-r1"].state == "running"
        with pytest.raises(StoreError, match="another Ridgeline"):
            go(plan(repeats=1, a=100), tmp_path, FakeEngine())
    finally:
        child.kill()
        child.communicate()
    full = load_on_full_disk(tmp_path, monkeypatch)
    result = load_results(tmp_path)
    assert json.dumps(figures(full)) == json.dumps(figures(result))
    assert result.index.runs["a-r1"].state == "interrupted"
    a = result.experiment("a")
    assert a is not None
    assert a.summary is not None
    assert a.void  # a torn run is shown, never compared
    whole = FakeEngine()
    go(plan(repeats=1, a=100), tmp_path / "whole", whole)
    complete = read_run(tmp_path / "whole" / "a-r1")
    assert len(a.stored[0].records()) == len(complete.records())
    again = FakeEngine()
    go(plan(repeats=1, a=100), tmp_path, again)
    assert again.started == [100]
    assert (tmp_path / "a-r1.old-1").is_dir()


def test_a_folder_of_another_study_is_left_alone(tmp_path: Path) -> None:
    go(plan(repeats=1), tmp_path, FakeEngine())
    with pytest.raises(StoreError, match="holds the study 's'"):
        go(replace(plan(repeats=1), name="other"), tmp_path, FakeEngine())


def test_a_damaged_run_is_one_line(tmp_path: Path) -> None:
    go(plan(repeats=1), tmp_path, FakeEngine())
    path = tmp_path / "a-r1" / "run.json"
    for text, line in (
        ("{", "not JSON"),
        ('{"schema": 99}', "schema 99"),
        (path.read_text().replace('"duration_s": 20.0', '"duration_s": "x"'), "duration_s"),
    ):
        whole = path.read_text()
        path.write_text(text)
        with pytest.raises(StoreError, match=line) as caught:
            load_results(tmp_path)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)
        path.write_text(whole)
    (tmp_path / "b-r1" / "requests.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(StoreError, match=r"requests\.parquet"):
        read_run(tmp_path / "b-r1").records()


def measured_at(folder: Path, run_id: str, when: str, **server: object) -> None:
    """Rewrite when a stored run was measured, and what its server told about itself."""
    run = read_run(folder / run_id)
    assert run.facts is not None
    facts = replace(run.facts, server={**run.facts.server, **server})
    write_run(replace(run, meta=replace(run.meta, started_at=when), facts=facts))


EARLY, SOON, LATE = (
    "2026-03-01T10:00:00+00:00", "2026-03-01T10:20:00+00:00", "2026-03-02T12:00:00+00:00",
)  # fmt: skip


def test_targets_and_prices_judge_again_and_measure_nothing(tmp_path: Path) -> None:
    go(plan(repeats=1), tmp_path, FakeEngine())
    dearer = plan(repeats=1)
    experiments = tuple(
        replace(e, configuration=replace(e.configuration, price_per_gpu_hour=4.0))
        for e in dearer.experiments
    )
    again = FakeEngine()
    before = read_run(tmp_path / "a-r1").summary
    slo = parse_slo("itl_p50_ms=0.001")
    go(replace(dearer, experiments=experiments, slo=slo), tmp_path, again)
    assert again.started == []
    after = read_run(tmp_path / "a-r1")
    assert before is not None
    assert after.summary is not None
    assert after.summary.slo[0].met is False
    assert after.meta.slo == slo
    assert after.summary.cost.usd_per_million_output_tokens == pytest.approx(
        2 * (before.cost.usd_per_million_output_tokens or 0)
    )
    assert after.summary.itl_s == before.itl_s


def test_another_shape_in_the_models_folder_is_another_measurement(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"num_hidden_layers": 4}')

    def prints(engine: str) -> list[str]:
        experiments = tuple(
            replace(e, configuration=replace(e.configuration, model=str(model)))
            for e in plan(engine=engine).experiments
        )
        return [
            r.fingerprint for r in plan_runs(replace(plan(engine=engine), experiments=experiments))
        ]

    before = prints("twin"), prints("vllm")
    (model / "model.safetensors").write_bytes(b"x" * 10)
    assert prints("twin") == before[0]  # a twin reads the shape only
    assert not set(prints("vllm")) & set(before[1])
    (model / "config.json").write_text('{"num_hidden_layers": 9}')
    assert not set(prints("twin")) & set(before[0])


@pytest.mark.parametrize(
    "part",
    [
        plan(repeats=1, a=100, b=200, c=300),
        plan(repeats=2, a=100, c=300),
        plan(repeats=1, a=100),
    ],
)
def test_what_is_on_disk_stays_in_the_index(tmp_path: Path, part: Plan) -> None:
    """Fewer repeats, or only some experiments: the rest is no part of this run, but not gone."""
    whole = plan(repeats=2, a=100, b=200, c=300)
    go(whole, tmp_path, FakeEngine())
    before = figures(load_results(tmp_path))
    engine = FakeEngine()
    outcome = go(part, tmp_path, engine, whole=whole)
    assert engine.started == []
    assert set(outcome.index.runs) == {f"{n}-r{r}" for n in "abc" for r in (1, 2)}
    assert set(outcome.index.order) == set(outcome.index.runs)
    assert set(outcome.planned) == {r.run_id for r in plan_runs(part)}
    assert json.dumps(figures(load_results(tmp_path))) == json.dumps(before)


def test_runs_of_an_earlier_study_file_are_shown_and_not_compared(tmp_path: Path) -> None:
    go(plan(repeats=3, a=100, b=200, c=300), tmp_path, FakeEngine())
    edited = plan(repeats=2, a=100, b=250)  # another b, no c, fewer repeats
    outcome = go(edited, tmp_path, FakeEngine())
    outdated = {r for r, e in outcome.index.runs.items() if e.outdated}
    assert outdated == {"b-r3", "c-r1", "c-r2", "c-r3"}
    result = load_results(tmp_path)
    b, c = result.experiment("b"), result.experiment("c")
    assert b is not None
    assert c is not None
    assert sorted(b.valid) == [1, 2]
    assert b.configuration is not None
    assert b.configuration.knobs.max_num_seqs == 250
    assert c.void
    assert c.summary is not None
    assert "earlier study file" in (c.failure or "")
    assert c.against_baseline == {}
    jsonschema.validate(json.loads(json.dumps(to_json(result))), schema_of("study-result"))


def test_repeats_on_another_build_are_not_merged_with_those_before(tmp_path: Path) -> None:
    go(plan(repeats=3), tmp_path, FakeEngine())
    for run in ("a-r1", "b-r1"):
        measured_at(tmp_path, run, EARLY, version="0.21.0")
    for run in ("a-r2", "b-r2", "a-r3", "b-r3"):
        measured_at(tmp_path, run, LATE, version="0.33.1")
    result = load_results(tmp_path)
    for name in "ab":
        found = result.experiment(name)
        assert found is not None
        assert sorted(found.valid) == [2, 3]
        assert found.left_out == {
            f"{name}-r1": "measured on fake 0.21.0, later repeats on fake 0.33.1"
        }
    b = result.experiment("b")
    assert b is not None
    assert b.against_baseline["itl_s.p50"].pairs == 2


def test_an_experiment_on_another_build_than_the_baseline_is_not_compared(tmp_path: Path) -> None:
    """Added after the engine was upgraded: its difference would be the upgrade's as well."""
    go(plan(repeats=2), tmp_path, FakeEngine())
    for repeat in (1, 2):
        measured_at(tmp_path, f"a-r{repeat}", EARLY, version="0.21.0")
        measured_at(tmp_path, f"b-r{repeat}", SOON, version="0.33.1")
    result = load_results(tmp_path)
    b = result.experiment("b")
    assert b is not None
    assert b.against_baseline == {}
    assert b.summary is not None
    assert "b was measured on fake 0.33.1 and a on fake 0.21.0: no pair" in result.warnings[0]


@pytest.mark.parametrize(
    ("when", "start", "words"),
    [
        (SOON, 7.0, None),
        (LATE, 7.0, "a are not interleaved in repeat 1: measured up to 26 h apart;"),
        (SOON, 8.0, "20 min apart and another start of the server lies between;"),
    ],
)
def test_pairs_that_lie_far_apart_are_told(
    tmp_path: Path, when: str, start: float, words: str | None
) -> None:
    the_plan = plan(repeats=2)
    experiments = tuple(
        replace(e, configuration=replace(e.configuration, url="http://127.0.0.1:1"))
        for e in the_plan.experiments
    )
    go(replace(the_plan, experiments=experiments), tmp_path, FakeEngine())
    for run in ("a-r1", "a-r2", "b-r2"):
        measured_at(tmp_path, run, EARLY, process_starts=[7.0])
    measured_at(tmp_path, "b-r1", when, process_starts=[start])
    warnings = load_results(tmp_path).warnings
    assert len(warnings) == (words is not None)
    assert words is None or words in warnings[0]


@pytest.mark.parametrize(
    ("quantization", "precision"),
    [
        (None, "bf16"), ("fp8", "fp8"), ("modelopt", "fp8"), ("modelopt_fp4", "fp4"),
        ("fbgemm_fp8", "fp8"), ("awq", "bf16"),
    ],
)  # fmt: skip
def test_the_roof_does_not_depend_on_how_a_quantisation_is_spelled(
    quantization: str | None, precision: str
) -> None:
    configuration = Configuration("m", Knobs(quantization=quantization), gpu="B200")
    bounds = bounds_of(configuration)
    assert bounds is not None
    assert bounds.flops_per_s == gpu("B200").peak_flops(precision)
    unknown = replace(configuration, knobs=Knobs(quantization="brand_new"))
    assert bounds_of(unknown) is None


@pytest.mark.parametrize(
    ("launch", "known"),
    [
        (None, "bf2e622f9185db2f"),
        (Launch(), "64bd1d943f9b7e85"),
        (
            Launch(
                command=("vllm", "serve", "{model}"), arguments=("--x",), environment={"A": "b"},
                ready_s=5.0, resident=2, cold_s=1.0,
            ),
            "3297a222ddf814c8",
        ),
    ],
)  # fmt: skip
def test_runs_measured_before_there_were_routers_are_still_the_same_runs(
    launch: Launch | None, known: str
) -> None:
    """Fingerprints as an earlier version made them: what lies on disk is not measured anew."""
    work = Workload(Arrivals(users=4), Prompts(Lengths(20)), Outputs(Lengths(30)),
                    duration_s=20.0, warmup_s=2.0)  # fmt: skip
    given = Configuration("no-such-model", Knobs(max_num_seqs=4), "vllm", launch=launch)
    versions = {"ridgeline": "0"}
    assert fingerprint(given, work, "chat", versions) == known
    routed = replace(given, launch=replace(launch or Launch(), router=Router()))
    assert fingerprint(routed, work, "chat", versions) != known
