"""Classes and load steps on the console and on the page: the figures of the summary, in words."""

import io
from pathlib import Path

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
from ridgeline.engines.twin import TwinEngine
from ridgeline.experiment.plan import Plan, PlannedExperiment
from ridgeline.experiment.runner import SilentStudyWatch, run_plan
from ridgeline.report.console import single_run
from ridgeline.report.html import render
from ridgeline.report.load import load_report
from ridgeline.report.model import StudyReport
from ridgeline.store.study_directory import StudyDirectory


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
