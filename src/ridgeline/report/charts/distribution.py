"""TTFT and ITL as empirical distributions: the baseline against one chosen experiment."""

import math

from ridgeline.domain.slo import Limit
from ridgeline.report import numbers
from ridgeline.report.charts.base import (
    Chart,
    DataTable,
    Json,
    View,
    axis,
    limit_words_at,
    log_ticks,
    note,
    safe,
)
from ridgeline.report.figures import limit_figure, limit_words, sorted_rows
from ridgeline.report.model import Distribution, ExperimentRow, StudyReport
from ridgeline.report.style import Style, styles

_TABLE_SHARES = (0.5, 0.9, 0.95, 0.99)


def distributions(report: StudyReport, chosen: str) -> list[Chart]:
    """The two charts, each with one view an experiment; without samples the chart is left out."""
    charts = []
    for label, metrics in (("TTFT", ("ttft", "ttft_intent")), ("ITL", ("itl",))):
        rows = [row for row in sorted_rows(report) if _of(row, label) is not None]
        if not rows:
            continue
        limits = [limit for limit in report.slo.limits if limit.metric in metrics]
        views = {row.name: _view(report, row, label, limits) for row in rows}
        first = chosen if chosen in views else next(iter(views))
        table = _table(report, rows, label)
        ticks = label == "ITL" and any(row.itl is not None and row.itl.worst_s for row in rows)
        told = "Ticks below the curves: the worst stalls, one of a request." if ticks else ""
        charts.append(
            Chart(f"ecdf-{label.lower()}", views, table, 300, first, by_experiment=True, note=told)
        )
    return charts


def _of(row: ExperimentRow, label: str) -> Distribution | None:
    return row.ttft if label == "TTFT" else row.itl


def quantile_s(points: Distribution, share: float) -> float:
    """The smallest value that at least this share of the sample reaches, from the points."""
    for at, value in zip(points.shares, points.values_s, strict=True):
        if at >= share:
            return value
    return points.values_s[-1]


def _view(report: StudyReport, row: ExperimentRow, label: str, limits: list[Limit]) -> View:
    looks = styles(report)
    shown = [row]
    base = report.row(report.baseline)
    if base is not None and base.name != row.name and _of(base, label) is not None:
        shown.insert(0, base)
    data: list[Json] = []
    values: list[float] = []
    for one in shown:
        points = _of(one, label)
        assert points is not None
        data += _traces(one, points, looks[one.name], label)
        stalls = points.worst_s if label == "ITL" else ()
        values += [v * 1e3 for v in (*points.values_s, *stalls) if v > 0]
    values += [limit.value for limit in limits if limit.value > 0]
    low, high = (min(values) * 0.9, max(values) * 1.1) if values else (0.1, 1.0)
    from_intent = " from intent" if report.open_loop and label == "TTFT" else ""
    layout: Json = {
        "xaxis": axis(f"{label}{from_intent}, ms (log)", type="log",
                      range=[math.log10(low), math.log10(high)], **log_ticks(low, high)),
        "yaxis": axis(f"% of {'requests' if label == 'TTFT' else 'gaps'} at or below",
                      range=[-6, 103], tickvals=[0, 25, 50, 75, 95]),
        "shapes": [], "annotations": [],
    }  # fmt: skip
    for limit in limits:
        _limit_lines(layout, limit)
    _name_curves(layout, shown, label, looks)
    return View(_title(report, shown, label), data, layout)


def _traces(row: ExperimentRow, points: Distribution, look: Style, label: str) -> list[Json]:
    curve: Json = {
        "type": "scatter", "mode": "lines", "name": safe(row.name), "meta": row.name,
        "x": [round(v * 1e3, 4) for v in points.values_s],
        "y": [round(s * 100, 3) for s in points.shares],
        "line": {"color": look.colour, "width": 1.8, "dash": look.dash, "shape": "hv"},
        "hovertemplate": f"<b>{safe(row.name)}</b><br>%{{y:.1f}} % at or below %{{x:.4~g}} ms"
                         f"<br>n = {numbers.grouped(str(points.n))}<extra></extra>",
    }  # fmt: skip
    if label == "TTFT" or not points.worst_s:
        return [curve]
    ticks: Json = {
        "type": "scatter", "mode": "markers", "name": "worst stalls",
        "x": [round(v * 1e3, 4) for v in points.worst_s], "y": [-3.0] * len(points.worst_s),
        "marker": {"symbol": "line-ns-open", "size": 9, "color": look.colour,
                   "line": {"width": 1.2, "color": look.colour}},
        "hovertemplate": f"<b>{safe(row.name)}</b><br>one of the worst stalls: %{{x:.4~g}} ms"
                         "<extra></extra>",
    }  # fmt: skip
    return [curve, ticks]


def _limit_lines(layout: Json, limit: Limit) -> None:
    layout["shapes"].append({
        "type": "line", "xref": "x", "yref": "paper", "x0": limit.value, "x1": limit.value,
        "y0": 0, "y1": 1, "line": {"color": "@bad", "width": 1, "dash": "dot"},
    })  # fmt: skip
    level = {"p50": 50, "p90": 90, "p95": 95, "p99": 99}.get(limit.statistic or "")
    if level is not None:
        layout["shapes"].append({
            "type": "line", "xref": "paper", "yref": "y", "x0": 0, "x1": 1, "y0": level,
            "y1": level, "line": {"color": "@line", "width": 0.8, "dash": "dot"},
        })  # fmt: skip
    words = f"SLO: {limit_words(limit)} {limit_figure(limit, limit.value)}"
    low, high = layout["xaxis"]["range"]
    at = math.log10(limit.value) if limit.value > 0 else low
    layout["annotations"].append(
        note(
            at,
            8,
            words,
            font={"size": 10, "color": "@bad"},
            bgcolor="@panel",
            **limit_words_at(at, (low, high)),
        )
    )


def _name_curves(
    layout: Json, shown: list[ExperimentRow], label: str, looks: dict[str, Style]
) -> None:
    """Names at the curves themselves, at different heights so that they cannot meet."""
    for row, share in zip(shown, (0.3, 0.62) if len(shown) == 2 else (0.5,), strict=True):
        points = _of(row, label)
        assert points is not None
        value = quantile_s(points, share)
        if value <= 0:
            continue
        layout["annotations"].append(
            note(
                math.log10(value * 1e3),
                share * 100,
                safe(row.name),
                xanchor="left",
                xshift=5,
                bgcolor="@panel",
                font={"size": 11, "color": looks[row.name].colour},
            )
        )


def _title(report: StudyReport, shown: list[ExperimentRow], label: str) -> str:
    row = shown[-1]
    failed = row.summary is not None and row.summary.requests.failed
    only = " (successes only)" if failed else ""
    own = f"{_figure(report, row, label, 0.5)} at the median, "
    own += f"{_figure(report, row, label, 0.95)} at p95"
    if len(shown) == 1:
        role = " (the baseline)" if row.name == report.baseline else ""
        return f"{label} of {row.name}{role}{only}: {own}"
    theirs = f"{_figure(report, shown[0], label, 0.5)} and "
    theirs += _figure(report, shown[0], label, 0.95)
    return f"{label} of {row.name}{only}: {own}; the baseline has {theirs}"


def _figure(report: StudyReport, row: ExperimentRow, label: str, share: float) -> str:
    """What the tables say of all valid repeats: the curve shows one of them, and as points.

    Where the tables refuse a figure the picture gives none in words either.
    """
    if row.summary is None:
        points = _of(row, label)
        return (
            numbers.NOT_MEASURED if points is None else numbers.duration(quantile_s(points, share))
        )
    group = "itl_s" if label == "ITL" else "ttft_intent_s" if report.open_loop else "ttft_s"
    value = getattr(getattr(row.summary, group), f"p{share * 100:.0f}")
    return "not resolvable" if value is None else numbers.duration(value)


def _table(report: StudyReport, rows: list[ExperimentRow], label: str) -> DataTable:
    head = (
        "experiment",
        "n",
        "p50",
        "p90",
        "p95",
        "p99",
        "worst stall" if label == "ITL" else "largest",
    )
    body = []
    for row in rows:
        points = _of(row, label)
        assert points is not None
        largest = points.worst_s[0] if label == "ITL" and points.worst_s else points.values_s[-1]
        body.append((
            row.name, numbers.grouped(str(points.n)),
            *(_figure(report, row, label, share) for share in _TABLE_SHARES),
            numbers.duration(largest),
        ))  # fmt: skip
    return DataTable(head, tuple(body))
