"""A run over its time: throughput, requests, p95 TTFT, KV use; warm-up shaded, events as flags."""

import math

from ridgeline.report import numbers
from ridgeline.report.charts.base import Chart, DataTable, Json, View, axis, note, safe
from ridgeline.report.figures import sorted_rows
from ridgeline.report.model import ExperimentRow, Series, StudyReport
from ridgeline.report.style import styles

# title of a panel -> (name in Series.values, what it says, factor, line dash)
_PANELS: tuple[tuple[str, tuple[tuple[str, str, float, str], ...]], ...] = (
    ("output tokens/s", (("output_tokens_per_s", "output tokens/s", 1.0, "solid"),)),
    (
        "requests",
        (
            ("running", "running", 1.0, "solid"),
            ("waiting", "waiting", 1.0, "dot"),
            ("in_flight", "in flight", 1.0, "solid"),
        ),
    ),
    ("p95 TTFT, ms", (("ttft_p95_s", "p95 TTFT, ms", 1e3, "solid"),)),
    ("KV used, %", (("kv_used_share", "KV used, %", 100.0, "solid"),)),
)


def timeline(report: StudyReport, chosen: str) -> Chart | None:
    """None when no run has a series."""
    rows = [row for row in sorted_rows(report) if row.series is not None and row.series.t_s]
    if not rows:
        return None
    looks = styles(report)
    views = {row.name: _view(row, looks[row.name].colour) for row in rows}
    first = chosen if chosen in views else next(iter(views))
    return Chart("time", views, _table(rows), 430, first, by_experiment=True, wide=True)


def _panels(series: Series) -> list[tuple[str, list[tuple[str, str, float, str]]]]:
    found = []
    for title, lines in _PANELS:
        known = [
            line for line in lines
            if line[0] in series.values and any(v is not None for v in series.values[line[0]])
        ]  # fmt: skip
        if known:
            # A line that is alone in its panel is named by the panel.
            alone = f"{title} {known[0][1]}" if title == "requests" and len(known) == 1 else title
            found.append((alone, known))
    return found


def _view(row: ExperimentRow, colour: str) -> View:
    series = row.series
    assert series is not None
    panels = _panels(series)
    start, end = series.window_s
    layout: Json = {
        "xaxis": axis("seconds from the start of the run", range=[0, max(series.t_s[-1] + 1, end)]),
        "shapes": [_warm_up(start), _edge(start), _edge(end)],
        "annotations": [
            note(start / 2, 1.0, "warm-up", yref="paper", yanchor="bottom", yshift=2),
            note((start + end) / 2, 1.0, "window", yref="paper", yanchor="bottom", yshift=2),
        ],
        "margin": {"t": 22},
        # One grid column: every panel shares the time axis.
    }
    data: list[Json] = []
    step = 1 / max(1, len(panels))
    for index, (title, lines) in enumerate(panels):
        number = "" if index == 0 else str(index + 1)
        top = 1 - index * step
        layout[f"yaxis{number}"] = axis(
            "",
            domain=[max(0.0, top - step + 0.05), top - 0.03],
            rangemode="tozero",
            nticks=4,
            anchor="x",
        )
        layout["annotations"].append(
            note(0, top - 0.03, title, xref="paper", yref="paper", xanchor="left", yanchor="bottom",
                 font={"size": 11, "color": "@ink"})
        )  # fmt: skip
        for name, words, factor, dash in lines:
            data.append(_line(series, (name, words, factor, dash), colour, f"y{number}"))
            if len(lines) > 1:
                layout["annotations"].append(_line_name(series, name, words, f"y{number}"))
    # The time axis stands below the lowest panel.
    layout["xaxis"]["anchor"] = "free"
    layout["xaxis"]["position"] = 0
    for at, text in series.events:
        layout["shapes"].append(_edge(at, "@bad"))
        layout["annotations"].append(
            note(
                at,
                0.985,
                f"⚑ {safe(text)}",
                yref="paper",
                xanchor="left",
                yanchor="top",
                xshift=2,
                font={"size": 10, "color": "@bad"},
            )
        )
    return View(_title(row, series), data, layout)


def _line(series: Series, spec: tuple[str, str, float, str], colour: str, y: str) -> Json:
    name, words, factor, dash = spec
    values = [None if v is None or not math.isfinite(v) else round(v * factor, 4)
              for v in series.values[name]]  # fmt: skip
    return {
        "type": "scatter", "mode": "lines", "name": words, "x": list(series.t_s), "y": values,
        "yaxis": y, "line": {"color": colour, "width": 1.4, "dash": dash}, "connectgaps": False,
        "hovertemplate": f"{words}: %{{y:.4~g}} at %{{x:.0f}} s<extra></extra>",
    }  # fmt: skip


def _line_name(series: Series, name: str, words: str, y: str) -> Json:
    values = series.values[name]
    last = next((i for i in range(len(values) - 1, -1, -1) if values[i] is not None), 0)
    height = values[last] or 0.0
    return note(series.t_s[last], height, words, yref=y, xanchor="right", yanchor="bottom")


def _warm_up(start: float) -> Json:
    return {
        "type": "rect", "xref": "x", "yref": "paper", "x0": 0, "x1": start, "y0": 0, "y1": 1,
        "fillcolor": "@shade", "line": {"width": 0}, "layer": "below",
    }  # fmt: skip


def _edge(at: float, colour: str = "@line") -> Json:
    return {
        "type": "line", "xref": "x", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1,
        "line": {"color": colour, "width": 1, "dash": "dot"},
    }  # fmt: skip


def _inside(series: Series, name: str) -> list[float]:
    """The values of the whole seconds inside the window."""
    start, end = series.window_s
    return [
        v for t, v in zip(series.t_s, series.values.get(name, ()), strict=False)
        if v is not None and start <= t and t + 1 <= end
    ]  # fmt: skip


def _title(row: ExperimentRow, series: Series) -> str:
    values = _inside(series, "output_tokens_per_s")
    if not values:
        return f"{row.name} over its time"
    third = max(1, len(values) // 3)
    first = sum(values[:third]) / third
    last = sum(values[-third:]) / third
    if first <= 0:
        return f"{row.name} over its time"
    return (
        f"{row.name}: throughput in the last third of the window is "
        f"{numbers.percent(last / first - 1, signed=True)} of that in the first"
    ).replace("% of that in", "% against")


def _table(rows: list[ExperimentRow]) -> DataTable:
    head = ("experiment", "run", "warm-up ends", "window ends", "tokens/s lowest to highest second")
    body = []
    for row in rows:
        assert row.series is not None
        values = _inside(row.series, "output_tokens_per_s")
        span = "–"
        if values:
            span = f"{numbers.significant(min(values))} to {numbers.significant(max(values))}"
        body.append((
            row.name, row.series.run_id, numbers.duration(row.series.window_s[0]),
            numbers.duration(row.series.window_s[1]), span,
        ))  # fmt: skip
    return DataTable(head, tuple(body))
