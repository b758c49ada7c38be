"""Runs that are not whole on disk: trimmed copies that say so, lost tables, and other targets."""

import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from experiment_fakes import FakeEngine
from rich.console import Console

from ridgeline.domain.errors import BadInput, StoreError
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.slo import Slo, parse_slo
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.experiment.incomplete import on_other_targets
from ridgeline.experiment.ledger import judge_study_again
from ridgeline.experiment.plan import Plan, PlannedExperiment
from ridgeline.experiment.protocol import judge_again
from ridgeline.experiment.results import load_results
from ridgeline.experiment.runner import SilentStudyWatch, run_plan
from ridgeline.report.console import single_run, study
from ridgeline.report.html import render
from ridgeline.report.load import load_report
from ridgeline.report.vllmbench import to_vllm_bench
from ridgeline.store.run_directory import StoredRun, read_run
from ridgeline.store.study_directory import StudyDirectory

TARGETS = parse_slo("itl_p95_ms=500")
ROOT = Path(__file__).parents[2]
LEFT_OUT = "the times of their chunks were left out of this copy"


def go(
    folder: Path, price: float | None = 2.0, slo: Slo = TARGETS, only: str | None = None
) -> list[str]:
    """Two experiments of two repeats, as far as they are not there; returns what was started.

    `only`: as with --only, one of the two is asked for.
    """
    workload = Workload(
        Arrivals(users=8), Prompts(Lengths(20, 0.5)), Outputs(Lengths(30, 0.5)),
        duration_s=20.0, warmup_s=2.0, seed=7,
    )  # fmt: skip
    experiments = tuple(
        PlannedExperiment(
            name,
            Configuration("m", Knobs(max_num_seqs=speed), "fake", price_per_gpu_hour=price),
            workload,
            f"max_num_seqs {speed}",
        )
        for name, speed in (("a", 100), ("b", 200))
    )
    engine = FakeEngine()
    whole = Plan("s", "study", "a", experiments, slo, 2)
    asked = tuple(e for e in experiments if only in (None, e.name))
    run_plan(
        replace(whole, experiments=asked),
        StudyDirectory(folder),
        lambda name: engine,
        SilentStudyWatch(),
        command="ridgeline study s.yaml",
        whole=whole,
    )
    return engine.started


def trimmed(folder: Path, out: Path) -> Path:
    """A copy as the script makes it: b-r2 and a-r2 without chunks, and marked."""
    script = ROOT / "scripts" / "trim_results.py"
    subprocess.run([sys.executable, script, folder, out], check=True, capture_output=True)
    return out


def usd(run: StoredRun) -> tuple[float, float, float, float]:
    assert run.summary is not None
    spent = run.summary.cost
    of = run.summary.intervals["cost.usd_per_million_output_tokens"]
    found = (spent.usd_per_million_output_tokens, spent.usd_per_thousand_requests, of.low, of.high)
    return tuple(value or 0.0 for value in found)  # type: ignore[return-value]


def test_a_new_price_reaches_trimmed_runs_too(tmp_path: Path) -> None:
    """Else one table holds costs at two prices: that of the runs with chunks, and the old one."""
    go(tmp_path / "whole")
    copy = trimmed(tmp_path / "whole", tmp_path / "copy")
    before = {n: read_run(copy / n) for n in ("a-r1", "a-r2", "b-r1", "b-r2")}
    assert [run.trimmed for run in before.values()] == [False, True, False, True]
    assert go(copy, price=20.0) == []
    for name, run in before.items():
        after = read_run(copy / name)
        assert usd(after) == pytest.approx([10 * value for value in usd(run)]), name
        assert after.trimmed == run.trimmed
        assert after.valid
        assert after.summary is not None
        assert run.summary is not None
        assert after.summary.ttft_s == run.summary.ttft_s


def test_a_new_price_and_new_targets_reach_runs_that_are_not_asked_for(tmp_path: Path) -> None:
    """With --only the others stay in the table: they must not stand there at the old price."""
    go(tmp_path)
    before = {n: usd(read_run(tmp_path / n)) for n in ("a-r1", "b-r2")}
    assert go(tmp_path, price=20.0, slo=parse_slo("itl_p95_ms=40"), only="b") == []
    for name, spent in before.items():
        after = read_run(tmp_path / name)
        assert usd(after) == pytest.approx([10 * value for value in spent]), name
        assert str(after.meta.slo.limits[0]) == "itl_p95_ms=40"
    index = StudyDirectory(tmp_path).index()
    assert not [e for e in index.runs.values() if e.outdated]
    assert {e.state for e in index.runs.values()} == {"done"}


def test_a_price_that_comes_and_goes_gives_a_trimmed_run_the_costs_of_a_whole_one(
    tmp_path: Path,
) -> None:
    go(tmp_path / "whole")
    copy = trimmed(tmp_path / "whole", tmp_path / "copy")
    for folder in (tmp_path / "whole", copy):
        go(folder, price=None)
    none = read_run(copy / "b-r2").summary
    assert none is not None
    assert none.cost.usd_per_million_output_tokens is None
    assert not [path for path in none.intervals if path.startswith("cost")]
    for folder in (tmp_path / "whole", copy):
        go(folder, price=3.0)
    assert usd(read_run(copy / "b-r2")) == pytest.approx(usd(read_run(tmp_path / "whole" / "b-r2")))


def test_runs_judged_by_other_targets_are_left_out_with_the_reason(tmp_path: Path) -> None:
    text = (ROOT / "studies" / "h200-one-gpu.yaml").read_text()
    go(tmp_path / "whole")
    copy = trimmed(tmp_path / "whole", tmp_path / "copy")
    go(copy, slo=parse_slo("itl_p95_ms=40"))
    runs = [read_run(copy / n) for n in ("a-r1", "a-r2", "b-r1", "b-r2")]
    assert [str(run.meta.slo.limits[0]) for run in runs] == [
        "itl_p95_ms=40", "itl_p95_ms=500", "itl_p95_ms=40", "itl_p95_ms=500",
    ]  # fmt: skip
    left = on_other_targets(runs, parse_slo("itl_p95_ms=40"))
    assert set(left) == {"a-r2", "b-r2"}
    assert left["a-r2"] == (
        "judged by itl_p95_ms=500, where the study now has itl_p95_ms=40: it cannot be judged"
        " again, because its chunks were left out of this copy"
    )
    assert on_other_targets(runs, None) == {}
    # through the study's own file: by its targets none of the four was judged
    (copy / "study.yaml").write_text(text.replace("name: h200-one-gpu", "name: s"))
    result = load_results(copy)
    assert {n for e in result.experiments for n in e.left_out} == {"a-r1", "a-r2", "b-r1", "b-r2"}
    assert not [e for e in result.experiments if e.against_baseline]


def test_a_trimmed_copy_says_on_its_page_that_it_is_not_judged_again(tmp_path: Path) -> None:
    go(tmp_path / "whole")
    copy = trimmed(tmp_path / "whole", tmp_path / "copy")
    assert LEFT_OUT not in render(load_report(tmp_path / "whole"))
    assert f"2 of 4 runs are not judged again: {LEFT_OUT}" in render(load_report(copy))
    before = {n: read_run(copy / n) for n in ("a-r2", "b-r2")}
    judge_study_again(StudyDirectory(copy))
    assert {n: read_run(copy / n) for n in before} == before


@pytest.mark.parametrize("table", ["chunks.parquet", "requests.parquet"])
def test_a_lost_table_is_damage_and_no_trimming(tmp_path: Path, table: str) -> None:
    go(tmp_path)
    (tmp_path / "b-r1" / table).unlink()
    lost = read_run(tmp_path / "b-r1")
    assert not lost.trimmed
    assert lost.damage == f"is damaged: {table} missing"
    with pytest.raises(StoreError, match=f"{table} missing"):
        lost.records()
    with pytest.raises(StoreError, match=f"{table} missing"):
        judge_again(lost)
    judge_study_again(StudyDirectory(tmp_path))
    assert read_run(tmp_path / "b-r1") == lost, "the others are judged, and it stays"
    page = render(load_report(tmp_path))
    assert f"b-r1 is damaged: {table} missing; the figures are those stored before" in page
    # its figures stand, and take a price; other targets cannot judge it
    assert go(tmp_path, price=20.0, slo=parse_slo("itl_p95_ms=40")) == []
    after = read_run(tmp_path / "b-r1")
    assert usd(after) == pytest.approx([10 * value for value in usd(lost)])
    assert after.meta.slo == lost.meta.slo
    (why,) = on_other_targets([after], parse_slo("itl_p95_ms=40")).values()
    assert why.endswith(f"it cannot be judged again, because it is damaged: {table} missing")


def test_the_terminal_names_damaged_runs_of_a_study_and_of_a_bench(tmp_path: Path) -> None:
    go(tmp_path)
    (tmp_path / "a-r1" / "requests.parquet").unlink()
    report = load_report(tmp_path)
    for shown in (study(report), single_run(replace(report, baseline=None, rows=report.rows[:1]))):
        console = Console(width=200, record=True, file=io.StringIO())
        console.print(shown)
        assert "warning: a-r1 is damaged: requests.parquet missing" in console.export_text()


@pytest.mark.parametrize("table", ["chunks.parquet", "requests.parquet"])
def test_a_table_that_was_cut_off_is_damage(tmp_path: Path, table: str) -> None:
    go(tmp_path)
    path = tmp_path / "b-r1" / table
    path.write_bytes(path.read_bytes()[:-100])
    assert read_run(tmp_path / "b-r1").damage == f"is damaged: {table} cut off or overwritten"
    page = render(load_report(tmp_path))
    assert f"b-r1 is damaged: {table} cut off or overwritten; the figures are those" in page


def test_a_trimmed_copy_that_lost_its_requests_is_damaged(tmp_path: Path) -> None:
    go(tmp_path / "whole")
    copy = trimmed(tmp_path / "whole", tmp_path / "copy")
    assert len(read_run(copy / "b-r2").records()) > 100
    (copy / "b-r2" / "requests.parquet").unlink()
    assert read_run(copy / "b-r2").damage == "is damaged: requests.parquet missing"


def test_a_trimmed_run_is_not_exported_as_one_without_gaps() -> None:
    runs = ROOT / "results" / "h200" / "knobs"
    assert to_vllm_bench(read_run(runs / "seqs-32-r1"))["itls"]
    with pytest.raises(BadInput, match="no gaps between tokens"):
        to_vllm_bench(read_run(runs / "seqs-32-r2"))


def test_every_stored_run_of_the_repository_is_whole_or_says_what_was_left_out() -> None:
    found = [read_run(path.parent) for path in sorted(ROOT.glob("results/**/run.json"))]
    assert [run.folder for run in found if run.damage] == []
    assert sum(run.trimmed for run in found) >= 77
    for run in found:
        assert replace(run, left_out=()).damage is None or run.trimmed
