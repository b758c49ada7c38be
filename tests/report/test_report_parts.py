"""Classes and load steps on the console and on the page: the figures of the summary, in words."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.slo import parse_slo
from ridgeline.domain.workload import (
    Arrivals,
    Lengths,
    LoadStep,
    Outputs,
    Prompts,
    TrafficClass,
    Workload,
)
from ridgeline.engines.endpoint import EndpointEngine
from ridgeline.engines.twin import TwinEngine
from ridgeline.experiment.plan import Plan, PlannedExperiment
from ridgeline.experiment.runner import SilentStudyWatch, run_plan
from ridgeline.report.console import single_run
from ridgeline.report.html import render
from ridgeline.report.load import load_report
from ridgeline.report.model import StudyReport
from ridgeline.report.table import table_rows
from ridgeline.store.study_directory import StudyDirectory
from support.mock_server import (
    DONE,
    MockProcess,
    Pages,
    Script,
    Served,
    finish,
    models_page,
    stream,
    text,
    usage,
)


def report(workload: Workload, folder: Path) -> StudyReport:
    configuration = Configuration("Qwen/Qwen3-4B", Knobs(), "twin", gpu="H100-SXM")
    plan = Plan("p", "bench", None, (PlannedExperiment("e", configuration, workload),))
    run_plan(plan, StudyDirectory(folder), lambda _: TwinEngine(), SilentStudyWatch(), command="x")
    return load_report(folder, details=False)


def console(found: StudyReport) -> str:
    shown = Console(width=100, record=True, file=io.StringIO())
    shown.print(single_run(found))
    return shown.export_text()


def test_classes_and_steps_are_on_console_and_page(tmp_path: Path) -> None:
    classes = (
        TrafficClass("chat", 0.5, Prompts(Lengths(50)), Outputs(Lengths(20)),
                     parse_slo("e2e_p50_ms=60000,ttft_p50_ms=60000")),
        TrafficClass("batch", 0.5, Prompts(Lengths(50)), Outputs(Lengths(200)),
                     parse_slo("e2e_p50_ms=1")),
    )  # fmt: skip
    steps = (LoadStep(12, users=3), LoadStep(12, users=9))
    workload = Workload(Arrivals(steps=steps), duration_s=24, warmup_s=3, classes=classes)
    found = report(workload, tmp_path / "s")
    summary = found.rows[0].summary
    assert summary is not None
    text, page = console(found), render(found)
    lines = text.splitlines()
    (chat,) = (line for line in lines if line.startswith("chat"))
    (batch,) = (line for line in lines if line.startswith("batch"))
    assert "✓ 2 of 2" in chat
    assert "✗ 0 of 1" in batch
    assert f" {summary.classes['chat'].requests.sent} " in chat.replace("\u202f", "")
    assert any(line.startswith("3 users") and "5.4 s" in line for line in lines)
    assert any(line.startswith("9 users") and "17.4 s" in line for line in lines)
    assert any(line.startswith("SLO ✗ missed: batch: p50 E2E") for line in lines)
    for title in ("Classes of requests", "Steps of the load"):
        assert title in text
        assert "<h2 id=" in page
        assert title in page
    assert "2 steps: 3 users, 9 users" in text + page
    # how the run began is in no figure of the window, and told apart
    begun = summary.warmup_ttft_s
    assert begun is not None
    assert begun.n >= 3
    for shown in (text, page):
        assert "before the window: TTFT mean" in shown


def test_a_ramped_rate_shows_its_plateau_with_start_and_end(tmp_path: Path) -> None:
    """25, 75 .. requests/s by the second up to 500, 20 s of it, and down again."""
    up = [LoadStep(1, rate_per_s=25 + 50 * i) for i in range(10)]
    steps = (*up, LoadStep(20, rate_per_s=500), *reversed(up))
    workload = Workload(
        Arrivals(process="constant", steps=steps), Prompts(Lengths(8)),
        Outputs(Lengths(2), ignore_eos=True), duration_s=40, warmup_s=0,
    )  # fmt: skip
    found = report(workload, tmp_path / "s")
    summary = found.rows[0].summary
    assert summary is not None
    assert summary.throughput.output_tokens_per_s is not None
    held = summary.plateau
    assert held is not None
    assert held.output_tokens_per_s == pytest.approx(1000, rel=0.01)
    assert summary.throughput.output_tokens_per_s == pytest.approx(750, rel=0.01)
    assert 9 <= held.from_s <= 12
    assert 28 <= held.to_s <= 31
    line = f"from {held.from_s:.1f} s to {held.to_s:.1f} s of the run"
    for shown in (" ".join(console(found).split()), render(found)):
        assert "output tokens/s from" in shown
        assert line in shown


def test_a_stall_in_every_stream_is_on_console_and_page(tmp_path: Path) -> None:
    """A server that says nothing for a second after the tenth chunk of each of 30 replies."""

    def answer(served: Served, number: int) -> Script:
        at = [100 + 10.0 * i + (1000 if i >= 10 else 0) for i in range(20)]
        events = [(ms, text()) for ms in at]
        return stream([*events, (at[-1], finish("length") + usage(20, 20) + DONE)])

    pages: Pages = {"/v1/models": models_page("mock")}
    with MockProcess(answer, pages) as mock:
        configuration = Configuration("mock", Knobs(), "endpoint", url=mock.url)
        workload = Workload(
            Arrivals(users=30), Prompts(Lengths(20)), Outputs(Lengths(20)), duration_s=60,
            warmup_s=0, requests=30,
        )  # fmt: skip
        plan = Plan("p", "bench", None, (PlannedExperiment("e", configuration, workload),))
        run_plan(plan, StudyDirectory(tmp_path / "s"), lambda _: EndpointEngine(),
                 SilentStudyWatch(), command="x")  # fmt: skip
    found = load_report(tmp_path / "s", details=True)
    summary = found.rows[0].summary
    assert summary is not None
    assert summary.worst_stall_s.p50 == pytest.approx(1.010, abs=0.02)
    assert summary.stalled_requests_share == 1.0
    (line,) = (x for x in console(found).splitlines() if x.startswith("worst stall"))
    assert re.search(r"\b1\s0[0-4]\d\b", line)
    assert "requests with a gap > 500 ms: 100 %" in console(found)
    page = render(found)
    assert "worst stall" in page
    assert "requests with a gap &gt; 500 ms: 100 %" in page


def test_the_check_of_the_arrivals_is_on_console_and_page(tmp_path: Path) -> None:
    """A Poisson load says how it left: rate, variation, dispersion, memory of its gaps."""
    workload = Workload(
        Arrivals(rate_per_s=50), Prompts(Lengths(8)), Outputs(Lengths(2)), duration_s=60, warmup_s=2
    )
    found = report(workload, tmp_path / "s")
    summary = found.rows[0].summary
    assert summary is not None
    checked = summary.arrivals
    assert checked is not None
    assert checked.gap_cv == pytest.approx(1.0, abs=0.05)
    assert checked.dispersion == pytest.approx(1.0, abs=0.15)
    line = f"variation of gaps {checked.gap_cv:.2f}; dispersion of counts {checked.dispersion:.2f}"
    for shown in (" ".join(console(found).split()), render(found)):
        assert line in shown
        assert "largest autocorrelation of gaps" in shown


def test_a_limit_of_a_class_marks_no_figure_of_all_requests(tmp_path: Path) -> None:
    """The main table's p95 TTFT is of all: what the class misses stands in the class's row."""
    classes = (
        TrafficClass("chat", 0.5, Prompts(Lengths(50)), Outputs(Lengths(20)),
                     parse_slo("ttft_p50_ms=0.001")),
        TrafficClass("batch", 0.5, Prompts(Lengths(50)), Outputs(Lengths(200))),
    )  # fmt: skip
    workload = Workload(Arrivals(users=4), duration_s=12, warmup_s=3, classes=classes)
    (row,) = table_rows(report(workload, tmp_path / "s"))
    assert row.state == "outside"
    assert not row.ttft.missed
