"""What pages said that could not be: falls at a window's edge, figures that tables refuse."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from study_factory import study

from ridgeline.cli.progress import figures_text, live_text
from ridgeline.domain.records import RequestRecord, RunRecords, records_from_requests
from ridgeline.domain.run import LiveFigures, Warmup, Window
from ridgeline.domain.summary import Cost, Interval
from ridgeline.report import numbers
from ridgeline.report.charts import build_charts
from ridgeline.report.charts.timeline import timeline
from ridgeline.report.evidence import series
from ridgeline.report.html import render
from ridgeline.report.load import load_report
from ridgeline.report.model import COST, Difference, StudyReport
from ridgeline.report.remarks import remarks
from ridgeline.report.sentence import answer
from ridgeline.report.table import table_rows

SECOND = 10**9
H200 = Path(__file__).parents[2] / "results/h200"
T = "\u2009"


def constant(seconds: float) -> RunRecords:
    """One token each 10 ms until `seconds`, in requests of ten."""
    rows = []
    for index in range(int(seconds * 10)):
        sent = index * SECOND // 10
        chunks = sent + np.arange(1, 11) * SECOND // 100
        rows.append(
            RequestRecord(
                index, None, sent, sent, int(chunks[0]), int(chunks[-1]), int(chunks[-1]), 1, 10,
                1, 10, finish_reason="length", chunk_ns=chunks.astype(np.int64),
            )
        )  # fmt: skip
    return records_from_requests(rows)


def test_a_second_that_the_window_cuts_short_is_no_fall() -> None:
    """100 tokens/s all the time, a window from 2.5 s to 11.3 s and nothing sent after it."""
    found = series("r", constant(11.3), Window(round(2.5 * SECOND), round(11.3 * SECOND)))
    assert found is not None
    rates = found.values["output_tokens_per_s"]
    assert len(rates) == 12
    assert rates[11] is None
    assert all(rate == pytest.approx(100, abs=1) for rate in rates[:11])
    row = replace(study().rows[0], series=found)
    report = replace(study(), rows=(row,), baseline=None)
    chart = timeline(report, row.name)
    assert chart is not None
    title = chart.views[row.name].title
    assert title.endswith("throughput in the last third of the window is 0 % against the first")


def test_what_is_in_flight_is_counted_inside_the_window() -> None:
    """A request from 9.95 s to 12 s is under way when the window ends at 10.2 s."""
    late = RequestRecord(
        500, None, 9 * SECOND, round(9.95 * SECOND), 11 * SECOND, 12 * SECOND,
        round(10.5 * SECOND), 1, 1, 1, 1, finish_reason="length",
        chunk_ns=np.array([round(10.5 * SECOND)]),
    )  # fmt: skip
    found = series("r", records_from_requests([late]), Window(0, round(10.2 * SECOND)))
    assert found is not None
    assert found.values["in_flight"][-1] == 1


def clear_winner(delta: float, low: float, high: float) -> StudyReport:
    report = study()
    held = Difference(delta, low, high, "clearly better", 3)
    rows = tuple(
        replace(r, against_baseline={**r.against_baseline, COST: held})
        if r.name == "seqs-64"
        else r
        for r in report.rows
    )
    return replace(report, rows=rows)


def test_a_gain_is_not_rounded_out_of_its_own_interval() -> None:
    report = clear_winner(-0.437, -0.439, -0.435)
    (cell,) = [r.difference_text for r in table_rows(report) if r.name == "seqs-64"]
    assert cell.startswith("−43.7 % (−43.9 to −43.5 %)")
    assert numbers.percent_between(0.437, 0.435, 0.439) == ("43.7 %", "43.5 to 43.9 %")
    assert numbers.percent_between(0.274, 0.22, 0.31, signed=True) == ("+27 %", "22 to 31 %")
    winner = replace(report, rows=tuple(r for r in report.rows if r.name in ("graphs", "seqs-64")))
    assert "43.7 % cheaper than the baseline (95 % interval 43.5 to 43.9 %)" in answer(winner).text


def test_a_moved_window_tells_its_length() -> None:
    (row, *_) = study().rows
    assert row.summary is not None
    warmup = Warmup(Window(10 * SECOND, 70 * SECOND), 60.0, found=True, steady_s=20.0)
    moved = replace(row.summary, window_s=50.0, warmup=warmup)
    assert (
        "window",
        "50.0 s measured, not 60.0 s: the warm-up ended later than it had seemed to",
    ) in (remarks(moved))
    kept = replace(row.summary, window_s=60.0, warmup=warmup)
    assert "window" not in dict(remarks(kept))


def test_rounding_residue_is_no_latency() -> None:
    assert numbers.duration(2.22e-16) == "0 ms"
    assert numbers.duration(-2.22e-16) == "0 ms"
    assert numbers.duration(5e-9) == "0.00000500 ms"


def test_a_picture_gives_no_figure_that_the_table_refuses() -> None:
    report = study()
    row = report.row("seqs-64")
    assert row is not None
    assert row.summary is not None
    for other, words in ((None, "not resolvable at p95"), (0.0123, "12.3 ms at p95")):
        summary = replace(row.summary, ttft_s=replace(row.summary.ttft_s, p95=other))
        changed = replace(row, summary=summary)
        rows = tuple(changed if r is row else r for r in report.rows)
        charts = build_charts(replace(report, rows=rows), "seqs-64")
        found = next(c for c in charts if c.key == "ecdf-ttft")
        assert words in found.views["seqs-64"].title
        (line,) = [cells for cells in found.table.rows if cells[0] == "seqs-64"]
        assert line[4] == words.split(" at")[0]


def test_other_traffic_is_marked_and_wins_no_comparison() -> None:
    """Real H200 runs: the short-* experiments have shorter prompts, users-250 more users."""
    report = load_report(H200 / "one-gpu", details=False)
    marked = {row.name for row in report.rows if row.other_workload}
    assert {"short-seqs-64-capture-1024", "users-250"} <= marked
    assert "seqs-64-capture-1024" not in marked
    cells = {row.name: row.traffic for row in table_rows(report)}
    assert cells["short-seqs-64-capture-1024"] == "other workload than the baseline's"
    assert cells["seqs-64-capture-1024"] == ""
    found = answer(report)
    assert found.row == "seqs-64-capture-1024"
    assert not any("short-" in note for note in (found.text, *found.notes))


def test_words_in_a_figures_place_are_not_struck_out() -> None:
    """A void run whose TTFT the tables refuse: a sentence stands in its cell, once on the page."""
    report = study()
    row = report.row("seqs-64")
    assert row is not None
    assert row.summary is not None
    reason = "the client read late, so no percentile of it can be told"
    refused = Interval(None, None, 100, reason)
    summary = replace(
        row.summary, ttft_s=replace(row.summary.ttft_s, p95=None),
        intervals={**row.summary.intervals, "ttft_s.p95": refused}, failures_as_infinite={},
    )  # fmt: skip
    why = "client limit: it was late"
    runs = (replace(row.runs[0], state="void", reasons=(why,)),)
    void = replace(row, summary=summary, void=True, runs=runs)
    page = render(replace(report, rows=(void,), baseline=None, findings=()))
    assert f'<span class="said">{reason}</span>' in page
    body = page.split("<body>")[1].split('<script type="application/json"')[0]
    # once in the answer, once in the list of runs that are not counted
    assert body.count(why) == 2


def test_what_has_no_price_was_measured_all_the_same() -> None:
    report = study()
    row = report.row("seqs-64")
    assert row is not None
    assert row.summary is not None
    free = replace(row, summary=replace(row.summary, cost=Cost()))
    rows = table_rows(replace(report, rows=(free,), baseline=None))
    assert rows[0].cost.value == "no price"


def test_ticks_below_a_curve_are_explained() -> None:
    charts = {c.key: c for c in build_charts(study(), "seqs-64")}
    assert charts["ecdf-itl"].note.startswith("Ticks below the curves")
    assert charts["ecdf-ttft"].note == ""


def test_the_progress_line_has_the_tables_figures() -> None:
    row = study().row("seqs-64")
    assert row is not None
    assert row.summary is not None
    throughput = replace(row.summary.throughput, output_tokens_per_s=1494.6)
    summary = replace(
        row.summary, throughput=throughput, ttft_s=replace(row.summary.ttft_s, p95=1.7163)
    )
    text = figures_text(summary)
    assert text.startswith(f"1{T}490 output tokens/s, p95 TTFT 1{T}720 ms, ")
    live = LiveFigures(1.0, 10.0, "measuring", 1494.6, 1.7163, sent=5, failed=0, in_flight=1)
    assert live_text(live).startswith(f"1{T}490 tokens/s, p95 TTFT 1{T}720 ms, ")
