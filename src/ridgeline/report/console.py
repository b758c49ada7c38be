"""The answer and the table for a terminal, and the summary of one run: rich renderables.

Nothing is printed here. The words are the page's; nothing depends on colour; 80 columns suffice.
Texts from files and servers go in as `Text`, never as markup.
"""

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ridgeline.domain.summary import Summary
from ridgeline.report import numbers
from ridgeline.report.figures import bounds, comparisons_words, metric, slo_lines
from ridgeline.report.model import (
    COST,
    TOKENS,
    TOKENS_PER_GPU,
    ExperimentRow,
    FindingLine,
    StudyReport,
)
from ridgeline.report.parts import PartTable, part_tables
from ridgeline.report.remarks import remarks
from ridgeline.report.sentence import Answer, answer
from ridgeline.report.statistics import STATISTICS, statistics_lines
from ridgeline.report.table import (
    GROUPS,
    Cell,
    TableRow,
    band_words,
    error_texts,
    metric_words,
    table_rows,
)
from ridgeline.report.verdict import run_counts, void_lines

WIDE = 118  # from this width on the table also has intervals, published values and per-GPU figures
_TONES = {"good": "bold", "neutral": "bold", "bad": "bold red"}
_MARKS = {"reproduced": "✓", "not reproduced": "○", "reversed": "⇄", None: "?"}

DEFINITIONS = (
    "TTFT: first content chunk - sending (from intent: - scheduled start). ITL: gaps between "
    "chunks, pooled. TPOT: (last - first) / (tokens - 1). E2E: last - sending. Worst stall: a "
    "request's largest gap. Intervals: 95 %."
)


def study(report: StudyReport) -> RenderableType:
    """Badge, answer, table, findings and void runs of a study."""
    parts: list[RenderableType] = [_head(report), _sentence(answer(report)), _Experiments(report)]
    parts += [part for table in part_tables(report) for part in _part_table(table)]
    if report.findings:
        parts.append(_findings(report.findings, report.findings_source))
    if comparisons_words(report):
        parts.insert(3, Text(comparisons_words(report), style="dim"))
    parts += [Text(cost) for cost in report.router_costs]
    parts += [Text(line) for line in report.speculation]
    parts += [Text(f"warning: {warning}", style="yellow") for warning in report.warnings]
    if report.badge.source == "twin":  # what its constants are worth here, requests it left
        notes = [text for label, text in report.how if label == "Note"]
        parts += [Text(f"note: {note}", style="dim") for note in notes]
    parts += [Text(f"not counted: {run} {state}: {why}", style="yellow")
              for run, state, why in void_lines(report)]  # fmt: skip
    return Group(*parts)


def single_run(report: StudyReport) -> RenderableType:
    """One run: what `bench` prints. `report` has one row."""
    found = answer(report)
    parts: list[RenderableType] = [_head(report), _sentence(found)]
    if not report.rows:
        return Group(*parts)
    row = report.rows[0]
    said = found.text
    if row.summary is not None:
        summary = row.summary
        parts += [_latencies(summary), *_rates(row), *_remarks(summary), *_errors(row)]
        parts += [part for table in part_tables(report) for part in _part_table(table)]
        parts += _judgement(summary, said)
        said += "; ".join(summary.verdict.reasons)
        if summary.warmup is not None:
            parts.append(Text(f"warm-up: {summary.warmup.reason}", style="dim"))
        able = dict(report.how).get("Client calibration")
        parts += [Text(f"client calibration: {able}", style="dim")] if able else []
        parts += [*_client(summary), *(Text(f"note: {n}", style="dim") for n in summary.notes)]
    parts += [Text(f"{run} {'are' if ',' in run else 'is'} {state}: {why}", style="yellow")
              for run, state, why in void_lines(report) if why not in said]  # fmt: skip
    parts += [Text(f"warning: {warning}", style="yellow") for warning in report.warnings]
    parts.append(Text(DEFINITIONS, style="dim"))
    return Group(*parts)


def _head(report: StudyReport) -> Text:
    text = Text()
    text.append(report.badge.word, style="bold reverse")
    text.append(f" {report.badge.explanation}\n")
    text.append(" · ".join(filter(None, (report.name, report.model, run_counts(report)[2]))))
    return text


def _sentence(found: Answer) -> RenderableType:
    mark = "✗ " if found.tone == "bad" else ""
    text = Text(mark + found.text, style=_TONES[found.tone])
    for line in found.notes:
        text.append(f"\n{line}", style="red" if found.tone == "bad" else "not bold")
    return Padding(text, (1, 0))


class _Experiments:
    """The table; it drops what the width cannot carry and says so."""

    def __init__(self, report: StudyReport) -> None:
        self.report = report

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        wide = options.max_width >= WIDE
        yield _table(self.report, wide=wide)
        bands = band_words(self.report)
        if wide and bands:
            yield Text(bands, style="dim")
        if not wide:
            what = "95 % interval" + (", band" if bands else "")
            yield Text(
                f"TTFT and ITL in ms. Each figure's {what}, published values and per-GPU "
                f"figures: {WIDE} columns or the page (ridgeline report).",
                style="dim",
            )


def _table(report: StudyReport, *, wide: bool) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("experiment", min_width=18, overflow="fold")
    unit = "" if wide else " ms"
    intent = " from intent" if report.open_loop else ""
    for head in (f"p95 TTFT{intent}", "p95 ITL"):
        table.add_column(
            head if wide else f"{head}{unit}".replace("p95 ", "p95\n"), justify="right"
        )
    table.add_column("output tokens/s" if wide else "output\ntok/s", justify="right")
    if wide:
        table.add_column("per GPU", justify="right")
    table.add_column("$/Mtok" if wide else "\n$/Mtok", justify="right")
    table.add_column("errors" if wide else "\nerrors", justify="right")
    if report.baseline is not None:
        words = metric_words(table_rows(report)[0].metric_path) if report.rows else ""
        table.add_column(f"{words} against the baseline" if wide else f"{words} against\nbaseline")
    rows = table_rows(report)
    for state, words in GROUPS:
        members = [row for row in rows if row.state == state]
        if members:
            table.add_row(Text(words, style="dim"))
        for row in members:
            table.add_row(*_cells(report, row, wide=wide))
    return table


def _cells(report: StudyReport, row: TableRow, *, wide: bool) -> list[Text]:
    name = Text(row.name, style="bold")
    if row.is_baseline:
        name.append(" (baseline)", style="dim")
    detail = row.why if row.state in ("void", "failed") else row.change if wide else ""
    if detail and detail != row.name:
        name.append(f"\n{detail}", style="yellow" if row.state in ("void", "failed") else "dim")
    if row.traffic:
        name.append(f"\n{row.traffic if wide else 'other workload'}", style="yellow")
    if row.worst:
        name.append(f"\n{row.worst}", style="red")
    if row.numerics:
        name.append(f"\n{row.numerics if wide else 'numerics change'}", style="yellow")
    cells = [name]
    cells += [_cell(c, wide=wide, unit=" ms") for c in (row.ttft, row.itl)]
    cells += [_cell(c, wide=wide) for c in (row.tokens, *((row.per_gpu,) if wide else ()))]
    cells += [_cell(row.cost, wide=wide), _cell(row.errors, wide=wide)]
    if report.baseline is not None:
        clear = row.difference is not None and row.difference.verdict != "no clear difference"
        cells.append(Text(row.difference_text, style="" if clear else "dim"))
    return cells


def _cell(cell: Cell, *, wide: bool, unit: str = "") -> Text:
    value = cell.value if wide else cell.value.removesuffix(unit)
    text = Text(f"✗ {value}" if cell.missed else value)
    if cell.missed or cell.alarm:
        text.stylize("red")
    if wide and cell.interval:
        text.append(f"\n{cell.interval}", style="dim")
    if wide and cell.band:
        text.append(f"\n[{cell.band}]", style="dim")
    if wide and cell.published:
        text.append(f"\npub. {cell.published}", style="dim italic")
    return text


def _findings(findings: tuple[FindingLine, ...], source: str | None) -> RenderableType:
    title = "Findings" if source is None else "Published findings, re-run"
    lines: list[RenderableType] = [Text(title, style="bold")]
    for one in findings:
        text = Text(f"{_MARKS[one.mark]} {one.mark or 'not decided'}: ", style="bold")
        text.append(one.claim, style="not bold")
        if one.as_expected is False:
            text.append(f" ✗ not as expected ({one.expected})", style="red")
        text.append(f"\n  ours: {one.ours}. {one.reason}", style="dim not bold")
        lines.append(text)
    return Padding(Group(*lines), (1, 0, 0, 0))


def _part_table(found: PartTable) -> list[RenderableType]:
    """The classes of requests, or the steps of the load."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    for i, head in enumerate(found.head):
        last = i in (0, len(found.head) - 1)
        align: JustifyMethod = "left" if last else "right"
        table.add_column(head, justify=align, overflow="fold", no_wrap=last)
    for row in found.rows:
        table.add_row(*(Text(cell, style="red" if "✗" in cell else "") for cell in row))
    title = Text(f"\n{found.title}", style="bold").append(f" {found.note}", style="dim not bold")
    return [title, table]


def _latencies(summary: Summary) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("ms unless said", no_wrap=True)
    for statistic in STATISTICS:
        table.add_column(statistic, justify="right")
    table.add_column("p95 interval", justify="right")
    for line in statistics_lines(summary):
        style = "dim" if line.failures_as_infinite else ""
        name = "  failures as ∞" if line.failures_as_infinite else line.name
        cells = [Text(cell.removesuffix(" ms"), style=style) for cell in line.values]
        interval = Text(line.interval.removesuffix(" ms"), style=style)
        table.add_row(Text(name, style=style), *cells, interval)
    return table


def _with_interval(summary: Summary, path: str, unit: str, *, money: bool = False) -> str | None:
    value = metric(summary, path)
    if value is None:
        return None
    both = bounds(summary, path)
    shown = numbers.dollars(value) if money else numbers.number(value)
    between = f" ({numbers.number_range(*both)})" if both else ""
    return f"{shown} {unit}{between}"


def _rates(row: ExperimentRow) -> list[Text]:
    summary = row.summary
    assert summary is not None
    estimated = ", estimated from chunks" if summary.tokens_estimated else ""
    parts = [
        _with_interval(summary, TOKENS, f"output tokens/s{estimated}"),
        _with_interval(summary, TOKENS_PER_GPU, "per GPU") if row.gpus_known else None,
        _with_interval(summary, "throughput.input_tokens_per_s", "input tokens/s"),
        _with_interval(summary, "throughput.chunks_per_s", "chunks/s"),
        _peak(summary),
        _with_interval(summary, "throughput.requests_per_s", "requests/s"),
    ]
    text = Text("\nthroughput: ", style="bold")
    text.append("; ".join(p for p in parts if p) or numbers.NOT_MEASURED, style="not bold")
    if summary.requests.failed:
        text.append(" (successes only)", style="not bold")
    lines = [text]
    price = _with_interval(summary, COST, "per million output tokens", money=True)
    if price:
        lines.append(Text("cost: ", style="bold").append(price, style="not bold"))
    return lines


def _peak(summary: Summary) -> str | None:
    peak = summary.throughput.peak_output_tokens_per_s
    return None if peak is None else f"{numbers.number(peak)} output tokens in the best second"


def _remarks(summary: Summary) -> list[Text]:
    return [
        Text(f"{label}: ", style="bold").append(text, style="not bold")
        for label, text in remarks(summary)
    ]


def _errors(row: ExperimentRow) -> list[Text]:
    assert row.summary is not None
    counts = row.summary.requests
    sent = numbers.grouped(str(counts.sent))
    if not counts.failed:
        return [Text("errors: ", style="bold").append(f"0 of {sent} requests", style="not bold")]
    rate = numbers.share(counts.error_rate)
    line = f"errors: {numbers.grouped(str(counts.failed))} of {sent} requests failed"
    lines = [Text(f"{line} (error rate {rate})", style="bold red")]
    lines += [Text(f"  {text}", style="red") for text in error_texts(row)]
    return lines


def _judgement(summary: Summary, said: str) -> list[Text]:
    """The targets and the verdict; reasons that are in `said`, above, are not told again."""
    lines = []
    for words, met in slo_lines(summary):
        mark = {True: "✓ met", False: "✗ missed", None: "? not judged"}[met]
        lines.append(Text(f"SLO {mark}: {words}", style="red" if met is False else ""))
    verdict = summary.verdict
    if verdict.valid:
        lines.append(Text("verdict: valid", style="bold"))
    else:
        more = [reason for reason in verdict.reasons if reason not in said]
        also = f", also: {'; '.join(more)}" if more else ", for the reason above"
        lines.append(Text(f"verdict: void{also}", style="bold yellow"))
    lines += [Text(f"warning: {warning}", style="yellow") for warning in verdict.warnings]
    if summary.itl_note:
        lines.append(Text(f"ITL: {summary.itl_note}", style="yellow"))
    return lines


def _client(summary: Summary) -> list[Text]:
    client = summary.client
    parts = []
    if client.send_lateness_p99_s is not None:
        parts.append(f"send lateness p99 {numbers.duration(client.send_lateness_p99_s)}")
    if client.loop_lag_p99_s is not None:
        parts.append(f"loop lag p99 {numbers.duration(client.loop_lag_p99_s)}")
    if client.cpu_share is not None:
        parts.append(f"CPU {numbers.percent(client.cpu_share)} of a core")
    if client.receive_clock:
        parts.append(f"receive clock: {client.receive_clock}")
    if not parts:
        return []
    return [Text("client: ", style="bold").append(", ".join(parts), style="not bold")]
