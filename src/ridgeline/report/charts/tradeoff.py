"""Throughput against latency: a point an experiment, the Pareto edge, the SLO as forbidden part."""

import math
from dataclasses import dataclass

from ridgeline.report import numbers
from ridgeline.report.charts.base import (
    Chart,
    DataTable,
    Json,
    Label,
    View,
    axis,
    finite,
    hover,
    limit_words_at,
    log_ticks,
    note,
    safe,
)
from ridgeline.report.figures import (
    bounds,
    latency_text,
    metric,
    slo_state,
    sorted_rows,
    throughput_metric,
    ttft_path,
)
from ridgeline.report.model import ITL_P95, TOKENS_PER_GPU, ExperimentRow, StudyReport
from ridgeline.report.style import styles

LOG_FROM = 6.0  # a latency axis that spans more than this factor is logarithmic


@dataclass(frozen=True, slots=True)
class _Point:
    row: ExperimentRow
    x_ms: float
    y: float
    x_bounds: tuple[float, float] | None
    y_bounds: tuple[float, float] | None


def tradeoff(report: StudyReport) -> Chart | None:
    """None with fewer than two experiments that can be drawn."""
    views = {}
    for label, path, key in (
        ("TTFT", ttft_path(report), "ttft_intent_p95_ms" if report.open_loop else "ttft_p95_ms"),
        ("ITL", ITL_P95, "itl_p95_ms"),
    ):
        points = _points(report, path)
        if len(points) >= 2:
            limit = report.slo.get(key) or (
                report.slo.get("ttft_p95_ms") if label == "TTFT" else None
            )
            views[label] = _view(report, points, label, limit)
    if not views:
        return None
    return Chart("tradeoff", views, _table(report), 300, next(iter(views)), note=_left_out(report))


def _points(report: StudyReport, path: str) -> list[_Point]:
    points = []
    y_path = throughput_metric(report)
    for row in sorted_rows(report):
        if not row.ranked or row.summary is None:
            continue
        x, y = finite(metric(row.summary, path)), finite(metric(row.summary, y_path))
        if x is None or y is None or x <= 0:
            continue
        both = bounds(row.summary, path)
        drawable = both is not None and math.isfinite(both[1]) and both[0] > 0
        scaled = (both[0] * 1e3, both[1] * 1e3) if both is not None and drawable else None
        points.append(_Point(row, x * 1e3, y, scaled, bounds(row.summary, y_path)))
    return points


def _left_out(report: StudyReport) -> str:
    names = [
        f"{row.name} ({latency_text(row.summary, ttft_path(report))})"
        for row in report.rows
        if row.ranked
        and row.summary is not None
        and finite(metric(row.summary, ttft_path(report))) is None
    ]
    void = [row.name for row in report.rows if not row.ranked]
    parts = []
    if names:
        parts.append(f"Not drawn: {', '.join(names)}.")
    if void:
        parts.append(f"Void or failed, not drawn: {', '.join(void)}.")
    return " ".join(parts)


def pareto(points: list[tuple[float, float]]) -> list[int]:
    """Indices of points that no other one beats in both (lower x, higher y), by ascending x."""
    edge: list[int] = []
    best = -math.inf
    for index in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        if points[index][1] > best:
            edge.append(index)
            best = points[index][1]
    return edge


def _view(report: StudyReport, points: list[_Point], label: str, limit_ms: float | None) -> View:
    looks = styles(report)
    edge = pareto([(p.x_ms, p.y) for p in points])
    xs = [p.x_ms for p in points] + ([limit_ms] if limit_ms else [])
    low, high = min(xs) * 0.85, max(xs) * 1.18
    log = high / low > LOG_FROM
    data: list[Json] = [_edge_trace([points[i] for i in edge])]
    data += [
        _point_trace(report, p, looks[p.row.name].colour, looks[p.row.name].symbol) for p in points
    ]
    top = max(p.y_bounds[1] if p.y_bounds else p.y for p in points) * 1.12
    from_intent = " from intent" if report.open_loop and label == "TTFT" else ""
    per_gpu = " per GPU" if throughput_metric(report) == TOKENS_PER_GPU else ""
    x_axis = axis(f"p95 {label}{from_intent}, ms ({'log, ' if log else ''}left is faster)",
                  type="log" if log else "linear",
                  range=[math.log10(low), math.log10(high)] if log else [0, high])  # fmt: skip
    if log:
        x_axis |= log_ticks(low, high)
    layout: Json = {
        "xaxis": x_axis,
        "yaxis": axis(f"output tokens/s{per_gpu}", range=[0, top]),
        "shapes": [],
        "annotations": [],
    }
    if limit_ms:
        forbid(layout, limit_ms, high, log, label)
    labels = tuple(Label(math.log10(p.x_ms) if log else p.x_ms, p.y, p.row.name,
                         looks[p.row.name].colour) for p in points)  # fmt: skip
    return View(_title(report, points, edge, label), data, layout, labels)


def forbid(layout: Json, limit_ms: float, high: float, log: bool, label: str) -> None:
    """Shade what lies beyond a limit and say so."""
    # Shapes on a log axis take data values, annotations take their logarithm.
    layout["shapes"].append({
        "type": "rect", "xref": "x", "yref": "paper", "x0": limit_ms, "x1": high,
        "y0": 0, "y1": 1, "fillcolor": "@forbidden", "line": {"width": 0}, "layer": "below",
    })  # fmt: skip
    layout["shapes"].append({
        "type": "line", "xref": "x", "yref": "paper", "x0": limit_ms, "x1": limit_ms,
        "y0": 0, "y1": 1, "line": {"width": 1, "color": "@bad", "dash": "dot"}, "layer": "below",
    })  # fmt: skip
    low, high = layout["xaxis"]["range"]
    at = math.log10(limit_ms) if log else limit_ms
    words = f"outside the SLO<br>p95 {label} > {numbers.significant(limit_ms)} ms"
    layout["annotations"].append(
        note(
            at,
            0.01,
            words,
            yref="paper",
            yanchor="bottom",
            font={"size": 10, "color": "@bad"},
            **limit_words_at(at, (low, high)),
        )
    )


def _edge_trace(edge: list[_Point]) -> Json:
    return {
        "type": "scatter", "mode": "lines", "name": "Pareto edge", "hoverinfo": "skip",
        "x": [p.x_ms for p in edge], "y": [p.y for p in edge],
        "line": {"color": "@muted", "width": 1.2, "dash": "dot"},
    }  # fmt: skip


def _point_trace(report: StudyReport, point: _Point, colour: str, symbol: str) -> Json:
    trace: Json = {
        "type": "scatter", "mode": "markers", "name": safe(point.row.name),
        "x": [point.x_ms], "y": [point.y],
        "marker": {"color": colour, "symbol": symbol, "size": 9,
                   "line": {"color": "@panel", "width": 1}},
        "hovertemplate": hover(report, point.row) + "<extra></extra>",
        "meta": point.row.name,
    }  # fmt: skip
    for name, value, both in (("x", point.x_ms, point.x_bounds), ("y", point.y, point.y_bounds)):
        if both is not None:
            trace[f"error_{name}"] = {
                "type": "data", "symmetric": False, "thickness": 0.8, "width": 0,
                "color": colour, "array": [max(0.0, both[1] - value)],
                "arrayminus": [max(0.0, value - both[0])],
            }  # fmt: skip
    return trace


def _title(report: StudyReport, points: list[_Point], edge: list[int], label: str) -> str:
    per_gpu = " per GPU" if throughput_metric(report) == TOKENS_PER_GPU else ""
    inside = [p for p in points if p.row.summary is not None and slo_state(p.row.summary)]
    if report.slo.limits and not inside:
        return (
            f"No experiment is inside the SLO; {len(edge)} of {len(points)} are on the Pareto edge"
        )
    best = max(inside or points, key=lambda p: p.y)
    where = " inside the SLO" if inside else ""
    return (
        f"{best.row.name} gives the most tokens{per_gpu}{where}: {numbers.significant(best.y)}/s "
        f"at {numbers.duration(best.x_ms / 1e3)} p95 {label}"
    )


def _table(report: StudyReport) -> DataTable:
    y_path = throughput_metric(report)
    per_gpu = " per GPU" if y_path == TOKENS_PER_GPU else ""
    rows = []
    for row in sorted_rows(report):
        if row.summary is None:
            continue
        y_bounds = bounds(row.summary, y_path)
        rows.append((
            row.name,
            latency_text(row.summary, ttft_path(report)),
            latency_text(row.summary, ITL_P95),
            numbers.number(metric(row.summary, y_path)),
            numbers.number_range(*y_bounds) if y_bounds else "no interval",
            "void" if row.void else {True: "inside", False: "outside", None: "not judged"}[
                slo_state(row.summary)] if row.summary.slo else "no SLO",
        ))  # fmt: skip
    head = (
        "experiment",
        "p95 TTFT",
        "p95 ITL",
        f"output tokens/s{per_gpu}",
        "95 % interval",
        "SLO",
    )
    return DataTable(head, tuple(rows))
