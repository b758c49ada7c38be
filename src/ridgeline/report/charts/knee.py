"""Throughput and p95 latencies against load, with the knee and the capacity marked."""

import math

from ridgeline.domain.knee import Estimate, KneeLevel, KneeResult
from ridgeline.report import numbers
from ridgeline.report.charts.base import (
    Chart,
    DataTable,
    Json,
    View,
    axis,
    finite,
    limit_words_at,
    log_ticks,
    note,
)
from ridgeline.report.kneetext import HEAD, UNITS, level_cells
from ridgeline.report.model import StudyReport

LOG_FROM = 10.0  # largest latency over the smallest
_LINES = (("p95 TTFT", "ttft_p95_s", "y2", "solid"), ("p95 ITL", "itl_p95_s", "y3", "solid"))


def knee_chart(report: StudyReport) -> Chart | None:
    """None when the report is of no load sweep, or of one without two levels that count."""
    result = report.knee
    if result is None:
        return None
    levels = [level for level in result.levels if level.counts]
    if len(levels) < 2:
        return None
    told = " ".join(f"{line}." for line in result.notes)
    view = {"knee": _view(result, levels)}
    return Chart("knee", view, level_table(result), 460, "knee", wide=True, note=told)


def level_table(result: KneeResult) -> DataTable:
    """Every level with its figures, in the order of the loads."""
    return DataTable(
        (f"load, {UNITS[result.load]}", *HEAD[1:-1], "state"),
        tuple((*level_cells(level)[:-1], level.state) for level in result.levels),
    )


def _view(result: KneeResult, levels: list[KneeLevel]) -> View:
    low, high = levels[0].load * 0.85, levels[-1].load * 1.18
    unit = UNITS[result.load]
    layout: Json = {
        "xaxis": axis(f"load, {unit} (log)", type="log", anchor="free", position=0,
                      range=[math.log10(low), math.log10(high)], **log_ticks(low, high)),
        "yaxis": axis("output tokens/s", domain=[0.56, 0.97], rangemode="tozero", nticks=5),
        "yaxis2": _latency_axis(levels, "TTFT", "ttft_p95_s", [0.28, 0.5]),
        "yaxis3": _latency_axis(levels, "ITL", "itl_p95_s", [0.0, 0.22]),
        "shapes": [],
        "annotations": [],
        "margin": {"t": 26},
    }  # fmt: skip
    data = [_throughput(levels)]
    for name, key, y, dash in _LINES:
        data.append(_latency(levels, name, key, y, dash))
    ends = (math.log10(low), math.log10(high))
    _mark(layout, "knee", result.knee, "@ink", ends=ends, y=1.0)
    if result.capacity is not None:
        _mark(layout, "capacity", result.capacity, "@bad", ends=ends, y=0.93)
    return View(_title(result), data, layout)


def _latency_axis(levels: list[KneeLevel], name: str, key: str, domain: list[float]) -> Json:
    """Logarithmic where a growing queue would press all other levels onto the axis."""
    known = [v * 1e3 for level in levels if (v := finite(getattr(level, key))) and v > 0]
    if not known or max(known) <= LOG_FROM * min(known):
        return axis(f"p95 {name}, ms", domain=domain, rangemode="tozero", nticks=4)
    low, high = min(known) * 0.7, max(known) * 1.4
    ends = [math.log10(low), math.log10(high)]
    return axis(f"p95 {name}, ms", domain=domain, type="log", range=ends,
                **log_ticks(low, high, (1,)))  # fmt: skip


def _throughput(levels: list[KneeLevel]) -> Json:
    values = [level.tokens_per_s or 0.0 for level in levels]
    return {
        "type": "scatter", "mode": "lines+markers", "name": "output tokens/s",
        "x": [level.load for level in levels], "y": values,
        "line": {"color": "@ink", "width": 1.4},
        "marker": {"color": "@ink", "size": 7,
                   "symbol": ["circle" if level.state == "valid" else "x" for level in levels]},
        "error_y": {
            "type": "data", "symmetric": False, "thickness": 0.8, "width": 0, "color": "@ink",
            "array": [max(0.0, (level.tokens_high or v) - v)
                      for level, v in zip(levels, values, strict=True)],
            "arrayminus": [max(0.0, v - (v if level.tokens_low is None else level.tokens_low))
                           for level, v in zip(levels, values, strict=True)],
        },
        "hovertemplate": "%{x:.4~g}: %{y:.4~g} output tokens/s<extra></extra>",
    }  # fmt: skip


def _latency(levels: list[KneeLevel], name: str, key: str, y: str, dash: str) -> Json:
    values = [finite(getattr(level, key)) for level in levels]
    return {
        "type": "scatter", "mode": "lines+markers", "name": name, "yaxis": y,
        "x": [level.load for level in levels],
        "y": [None if value is None else round(value * 1e3, 4) for value in values],
        "line": {"color": "@muted", "width": 1.4, "dash": dash},
        "marker": {"color": "@muted", "size": 6}, "connectgaps": False,
        "hovertemplate": f"%{{x:.4~g}}: {name} %{{y:.4~g}} ms<extra></extra>",
    }  # fmt: skip


def _mark(
    layout: Json, name: str, found: Estimate, colour: str, *, ends: tuple[float, float], y: float
) -> None:
    """A line at the estimate and a shade over its interval."""
    if found.value is None:
        return
    at = math.log10(found.value)
    if found.low is not None and found.high is not None and found.high > found.low > 0:
        layout["shapes"].append({
            "type": "rect", "xref": "x", "yref": "paper", "x0": found.low, "x1": found.high,
            "y0": 0, "y1": 1, "fillcolor": "@shade", "line": {"width": 0}, "layer": "below",
        })  # fmt: skip
    layout["shapes"].append({
        "type": "line", "xref": "x", "yref": "paper", "x0": found.value, "x1": found.value,
        "y0": 0, "y1": 1, "line": {"width": 1.2, "color": colour, "dash": "dot"},
    })  # fmt: skip
    words = f"{name} {numbers.number(found.value)}"
    layout["annotations"].append(
        note(at, y, words, yref="paper", yanchor="bottom",
             font={"size": 11, "color": colour}, **limit_words_at(at, ends))
    )  # fmt: skip


def _title(result: KneeResult) -> str:
    unit = UNITS[result.load]
    parts = []
    if result.knee.value is not None:
        parts.append(f"throughput rises until about {numbers.number(result.knee.value)} {unit}")
    if result.capacity is not None and result.capacity.value is not None:
        parts.append(f"the targets hold up to {numbers.number(result.capacity.value)} {unit}")
    if not parts:
        return "Neither knee nor capacity was found"
    text = "; ".join(parts)
    return text[0].upper() + text[1:]
