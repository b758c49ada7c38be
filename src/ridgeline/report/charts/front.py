"""A tuning's front: every configuration inside its targets, tokens/s per GPU against latency."""

import math

from ridgeline.report import numbers
from ridgeline.report.charts.base import (
    Chart,
    DataTable,
    Json,
    Label,
    View,
    axis,
    log_ticks,
    safe,
)
from ridgeline.report.charts.tradeoff import LOG_FROM, forbid
from ridgeline.report.fronttext import AXIS_WORDS, front_head, front_rows, point_name
from ridgeline.report.model import StudyReport
from ridgeline.tuning.outcome import Point, Spread, TuneResult

Known = list[tuple[Point, Spread]]


def front_chart(report: StudyReport) -> Chart | None:
    """None with fewer than two points."""
    result = report.tune
    if result is None:
        return None
    views = {}
    for key, label in AXIS_WORDS.items():
        known = [(p, s) for p in result.front if (s := p.latency(key)) is not None]
        if len(known) >= 2:
            views[label] = _view(report, result, known, key)
    if not views:
        return None
    table = DataTable(front_head(), tuple(front_rows(result)))
    note = (
        "Only what meets the targets or may meet them is a point; the rest is in the history, as a"
        " state. The line is the front."
    )
    return Chart("tradeoff", views, table, 300, next(iter(views)), note=note)


def _view(report: StudyReport, result: TuneResult, known: Known, key: str) -> View:
    label = AXIS_WORDS[key]
    limit = report.slo.get(f"{key}_p95_ms")
    xs = [s.most for _, s in known] + [s.least for _, s in known] + ([limit] if limit else [])
    low, high = min(xs) * 0.85, max(xs) * 1.18
    log = low > 0 and high / low > LOG_FROM
    x_axis = axis(f"p95 {label}, ms ({'log, ' if log else ''}left is faster)",
                  type="log" if log else "linear",
                  range=[math.log10(low), math.log10(high)] if log else [0, high])  # fmt: skip
    if log:
        x_axis |= log_ticks(low, high)
    top = max(p.tokens.most for p, _ in known) * 1.12
    layout: Json = {
        "xaxis": x_axis,
        "yaxis": axis("output tokens/s per GPU", range=[0, top]),
        "shapes": [],
        "annotations": [],
    }
    if limit:
        forbid(layout, limit, high, log, label)
    edge = sorted(((p, s) for p, s in known if key in p.on), key=lambda both: both[1].value)
    data: list[Json] = [_line(edge), *(_dot(result, p, s, key) for p, s in known)]
    labels = tuple(
        Label(math.log10(s.value) if log else s.value, p.tokens.value, point_name(result, p),
              "@ink" if key in p.on else "@muted")
        for p, s in known
    )  # fmt: skip
    return View(_title(result, edge, label), data, layout, labels)


def _title(result: TuneResult, edge: Known, label: str) -> str:
    fast, slow = edge[-1], edge[0]
    most = f"{numbers.number(fast[0].tokens.value)}/s at {numbers.duration(fast[1].value / 1e3)}"
    if len(edge) == 1:
        return (
            f"{point_name(result, fast[0])} has the most tokens and the lowest p95 {label}: {most}"
        )
    least = f"{numbers.number(slow[0].tokens.value)}/s at {numbers.duration(slow[1].value / 1e3)}"
    return (
        f"The front has {len(edge)} points, from {point_name(result, slow[0])} ({least} p95"
        f" {label}) to {point_name(result, fast[0])} ({most})"
    )


def _line(edge: Known) -> Json:
    return {
        "type": "scatter", "mode": "lines", "name": "front", "hoverinfo": "skip",
        "x": [s.value for _, s in edge], "y": [p.tokens.value for p, _ in edge],
        "line": {"color": "@muted", "width": 1.2, "dash": "dot"},
    }  # fmt: skip


def _dot(result: TuneResult, point: Point, span: Spread, key: str) -> Json:
    on = key in point.on
    colour = "@ink" if on else "@muted"
    name = point_name(result, point)
    sure = "meets the targets" if point.state == "feasible" else "may meet the targets"
    hover = f"<b>{safe(name)}</b><br>{safe(point.words)}<br>{sure}"
    trace: Json = {
        "type": "scatter", "mode": "markers", "name": safe(name),
        "x": [span.value], "y": [point.tokens.value],
        "marker": {"color": colour, "symbol": "circle" if on else "circle-open", "size": 9},
        "hovertemplate": hover + "<extra></extra>",
    }  # fmt: skip
    for name_, one in (("x", span), ("y", point.tokens)):
        if one.low is not None and one.high is not None:
            trace[f"error_{name_}"] = {
                "type": "data", "symmetric": False, "thickness": 0.8, "width": 0, "color": colour,
                "array": [one.most - one.value], "arrayminus": [one.value - one.least],
            }  # fmt: skip
    return trace
