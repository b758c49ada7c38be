"""Where a second goes: one stacked bar an experiment, closing to its mean E2E."""

from ridgeline.domain.summary import Summary
from ridgeline.report import numbers
from ridgeline.report.charts.base import Chart, DataTable, Json, View, axis, note, safe
from ridgeline.report.figures import sorted_rows
from ridgeline.report.model import ExperimentRow, StudyReport

# Greys, not the experiments' colours: a part is no experiment. Neighbours differ in lightness.
_FILLS = ("@p0", "@p1", "@p2", "@p3", "@p4", "@p5")
REST = "not accounted for"
UNTIL_FIRST, STREAM = "until the first chunk", "first to last chunk"
CLOSES = 0.01  # the parts may miss the mean E2E by this share without a remainder being shown
NARROW = 0.07  # a segment below this share of the widest bar carries no text
_BAR_PX = 52


def accounted(summary: Summary) -> dict[str, float]:
    """Seconds by part; what the parts miss of the mean E2E stands as its own part, never hidden.

    Without an account of the engine's there is still what the client saw: waiting for the first
    chunk, and the stream.
    """
    parts = {
        name.replace("_", " "): value for name, value in summary.accounting.items() if value > 0
    }
    e2e, ttft = summary.e2e_s.mean, summary.ttft_s.mean
    if not parts and e2e is not None and ttft is not None:
        parts = {UNTIL_FIRST: ttft, STREAM: max(0.0, e2e - ttft)}
    if parts and e2e is not None and e2e - sum(parts.values()) > CLOSES * e2e:
        parts[REST] = e2e - sum(parts.values())
    return parts


def seconds(report: StudyReport) -> Chart | None:
    """None when no run has an account of its seconds."""
    rows = [
        (row, accounted(row.summary))
        for row in sorted_rows(report)
        if row.ranked and row.summary is not None and accounted(row.summary)
    ]
    if not rows:
        return None
    names: list[str] = []
    for _, parts in rows:
        names += [name for name in parts if name not in names]
    height = max(190, 64 + _BAR_PX * len(rows))
    view = View(_title(report, rows), _traces(rows, names), _layout(rows))
    return Chart("seconds", {"all": view}, _table(rows, names), height, "all")


def _traces(rows: list[tuple[ExperimentRow, dict[str, float]]], names: list[str]) -> list[Json]:
    widest = max(sum(parts.values()) for _, parts in rows)
    data: list[Json] = []
    for index, name in enumerate(names):
        colour = _FILLS[index % len(_FILLS)]
        data.append({
            "type": "bar", "orientation": "h", "name": safe(name),
            # Positions, not names: two experiments may not share a bar by sharing a name.
            "y": [index - 0.12 for index in range(len(rows))],
            "x": [parts.get(name, 0.0) for _, parts in rows],
            "width": 0.38,
            "marker": {"color": colour, "line": {"color": "@panel", "width": 1}},
            "text": [safe(name) if _room(parts.get(name, 0.0), widest, name) else ""
                     for _, parts in rows],
            "textposition": "inside", "insidetextanchor": "middle", "textangle": 0,
            "insidetextfont": {"size": 10, "color": f"{colour}t"},
            "hovertemplate": [
                f"<b>{safe(row.name)}</b><br>{safe(name)}: "
                f"{numbers.duration(parts.get(name, 0.0))}, "
                f"{numbers.percent(parts.get(name, 0.0) / sum(parts.values()))}<extra></extra>"
                for row, parts in rows],
        })  # fmt: skip
    return data


def _room(seconds_: float, widest: float, name: str) -> bool:
    """Whether a segment is wide enough for its name."""
    return seconds_ > NARROW * widest * max(1.0, len(name) / 9)


def _layout(rows: list[tuple[ExperimentRow, dict[str, float]]]) -> Json:
    widest = max(sum(parts.values()) for _, parts in rows)
    annotations = []
    for index, (row, parts) in enumerate(rows):
        assert row.summary is not None
        total = sum(parts.values())
        annotations.append(
            note(
                total,
                index - 0.12,
                f"{numbers.duration(total)}",
                xanchor="left",
                xshift=4,
                font={"size": 11, "color": "@ink"},
            )
        )
        words = row.summary.binding_limit
        annotations.append(
            note(
                0,
                index + 0.08,
                safe(words) if words else "binding limit not known: the engine's side was not seen",
                xanchor="left",
                yanchor="top",
                yshift=-1,
                align="left",
                name="wrap",
                font={"size": 10, "color": "@muted"},
            )
        )
    return {
        "barmode": "stack",
        "uniformtext": {"minsize": 8, "mode": "hide"},
        "xaxis": axis("mean seconds, sent to last chunk", range=[0, widest * 1.2]),
        "yaxis": axis("", tickvals=[i - 0.12 for i in range(len(rows))],
                      ticktext=[safe(row.name) for row, _ in rows],
                      range=[len(rows) - 0.4, -0.6], showgrid=False),
        "annotations": annotations,
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0,
                   "font": {"size": 10}, "traceorder": "normal"},
        "showlegend": True,
        "margin": {"t": 24},
    }  # fmt: skip


def _step_words(row: ExperimentRow) -> str:
    """Shares of the step time, largest first: "weights 55 %, launch 15 %"."""
    parts = sorted(row.step_parts.items(), key=lambda item: -item[1])
    shown = [f"{n.replace('_', ' ')} {numbers.percent(v)}" for n, v in parts if v >= 0.005]
    return ", ".join(shown) or "not known"


def _title(report: StudyReport, rows: list[tuple[ExperimentRow, dict[str, float]]]) -> str:
    by_name = {row.name: parts for row, parts in rows}
    base = by_name.get(report.baseline or "")
    row, parts = rows[0]
    largest = max(base or parts, key=lambda name: (base or parts)[name])

    def part(of: dict[str, float]) -> str:
        return numbers.percent(of.get(largest, 0.0) / sum(of.values()))

    if base is None:
        whole = numbers.duration(sum(parts.values()))
        return f"The largest part of a request's {whole} is {largest}: {part(parts)}"
    if row.name == report.baseline:
        return f"A request spends {part(base)} of its time on {largest} at the baseline"
    return (
        f"{largest[:1].upper()}{largest[1:]} takes {part(base)} of a request's time "
        f"at the baseline, {part(parts)} at {row.name}"
    )


def _table(rows: list[tuple[ExperimentRow, dict[str, float]]], names: list[str]) -> DataTable:
    head = ("experiment", *names, "mean E2E", "closes within", "of the step time", "binding limit")
    body = []
    for row, parts in rows:
        assert row.summary is not None
        cells = [numbers.duration(parts[name]) if name in parts else "–" for name in names]
        body.append((
            row.name, *cells,
            numbers.duration(row.summary.steps.get("account_e2e_s") or row.summary.e2e_s.mean),
            numbers.percent(row.summary.steps.get("closure_error"), signed=True), _step_words(row),
            row.summary.binding_limit or "not known",
        ))  # fmt: skip
    return DataTable(head, tuple(body))
