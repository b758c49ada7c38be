"""The roofline, log-log: both roofs with their numbers, the ridge point, every run's two points."""

import math

from ridgeline.report import numbers
from ridgeline.report.charts.base import (
    Chart,
    DataTable,
    Json,
    Label,
    View,
    axis,
    hover,
    log_ticks,
    note,
    safe,
)
from ridgeline.report.figures import sorted_rows
from ridgeline.report.model import ExperimentRow, Roof, RooflinePoint, StudyReport
from ridgeline.report.style import Style, styles

_Drawn = tuple[ExperimentRow, Roof, RooflinePoint]
_ROOF_DASHES = ("solid", "dash", "dot", "dashdot")


def roofline(report: StudyReport) -> Chart | None:
    """None when no run has a roof and a point under it."""
    drawn = [
        (row, row.roof, point)
        for row in sorted_rows(report)
        if row.roof is not None and row.ranked
        for point in row.roofline
        if point.intensity > 0 and point.flops_per_s > 0
    ]
    if not drawn:
        return None
    roofs: list[Roof] = []
    for _, roof, _ in drawn:
        if roof not in roofs:
            roofs.append(roof)
    roofs.sort(key=lambda roof: (-roof.bandwidth_bytes_per_s, roof.peak_flops_per_s))
    view = _view(report, drawn, roofs)
    return Chart(
        "roofline",
        {"all": view},
        _table(drawn),
        520 if len(drawn) > 12 else 430,
        "all",
        drop_labels=True,
    )


def _view(report: StudyReport, drawn: list[_Drawn], roofs: list[Roof]) -> View:
    looks = styles(report)
    x_low = min(p.intensity for _, _, p in drawn) / 5
    x_high = max([p.intensity for _, _, p in drawn] + [r.ridge for r in roofs]) * 7
    y_low = min(p.flops_per_s for _, _, p in drawn) / 3
    y_high = max(r.peak_flops_per_s for r in roofs) * (1.9 + 0.3 * len(roofs))
    layout: Json = {
        "xaxis": axis("arithmetic intensity, FLOP/byte (log)", type="log",
                      range=[math.log10(x_low), math.log10(x_high)], **log_ticks(x_low, x_high)),
        "yaxis": axis("TFLOP/s per GPU while such steps run (log)", type="log",
                      range=[math.log10(y_low / 1e12), math.log10(y_high / 1e12)],
                      **log_ticks(y_low / 1e12, y_high / 1e12)),
        "annotations": [],
    }  # fmt: skip
    data: list[Json] = []
    for index, roof in enumerate(roofs):
        data.append(_roof_trace(roof, x_low, x_high, _ROOF_DASHES[index % len(_ROOF_DASHES)]))
    layout["annotations"] += _slope_words(roofs) + _ridge_words(roofs)
    layout["annotations"] += _flat_words(roofs, x_high) + _phase_words(drawn)
    for row, roof, point in drawn:
        data += _point_traces(report, row, roof, point, looks[row.name])
    # Names stand at the decode points; at the prefill points they would only cover each other.
    named = [d for d in drawn if d[2].phase == "decode"] or drawn
    labels = tuple(
        Label(math.log10(p.intensity), math.log10(p.flops_per_s / 1e12), row.name,
              looks[row.name].colour)
        for row, _, p in named
    )  # fmt: skip
    return View(_title(drawn), data, layout, labels)


def _roof_trace(roof: Roof, x_low: float, x_high: float, dash: str) -> Json:
    xs = [x_low, roof.ridge, x_high]
    return {
        "type": "scatter", "mode": "lines", "name": safe(f"{roof.name} {roof.dtype}"),
        "x": xs, "y": [roof.attainable(x) / 1e12 for x in xs], "hoverinfo": "skip",
        "line": {"color": "@ink", "width": 1.4, "dash": dash},
    }  # fmt: skip


def _flat_words(roofs: list[Roof], x_high: float) -> list[Json]:
    """The compute roofs' numbers, each once."""
    peaks = dict.fromkeys((roof.peak_flops_per_s, roof.dtype) for roof in roofs)
    return [
        note(math.log10(x_high), math.log10(peak / 1e12),
             f"{numbers.si(peak, 'FLOP/s')} {safe(dtype)}, dense",
             xanchor="right", yanchor="bottom", yshift=1)
        for peak, dtype in peaks
    ]  # fmt: skip


def _phase_words(drawn: list[_Drawn]) -> list[Json]:
    """Says which cloud of points is which, below its lowest point."""
    words = []
    for phase, text in (("decode", "decode (filled)"), ("prefill", "steps with a prefill (open)")):
        points = [p for _, _, p in drawn if p.phase == phase]
        if points:
            x = math.exp(sum(math.log(p.intensity) for p in points) / len(points))
            y = min(p.flops_per_s for p in points)
            words.append(
                note(
                    math.log10(x),
                    math.log10(y / 1e12),
                    text,
                    yanchor="top",
                    yshift=-14,
                    font={"size": 11, "color": "@ink"},
                )
            )
    return words


def _slope_words(roofs: list[Roof]) -> list[Json]:
    """The memory roofs' numbers, one for each GPU; `roofs` come with the steepest first.

    The steepest is named on its left, the others on their right, where no other roof is.
    """
    words: list[Json] = []
    seen: list[tuple[str, float]] = []
    for roof in roofs:
        key = (roof.name, roof.bandwidth_bytes_per_s)
        if key in seen:
            continue
        left = not seen
        x = roof.ridge / (2.4 if left else 2.0 + 0.6 * len(seen))
        seen.append(key)
        words.append(
            note(
                math.log10(x),
                math.log10(roof.attainable(x) / 1e12),
                f"{numbers.si(roof.bandwidth_bytes_per_s, 'B/s')} ({safe(roof.name)})",
                xanchor="right" if left else "left",
                yanchor="bottom" if left else "top",
                xshift=-2 if left else 6,
            )
        )
    return words


def _ridge_words(roofs: list[Roof]) -> list[Json]:
    """Every ridge point named; of those at one height each further right stands a line higher."""
    words: list[Json] = []
    heights: dict[float, int] = {}
    for roof in sorted(roofs, key=lambda one: one.ridge):
        level = heights.get(roof.peak_flops_per_s, 0)
        heights[roof.peak_flops_per_s] = level + 1
        words.append(
            note(
                math.log10(roof.ridge),
                math.log10(roof.peak_flops_per_s / 1e12),
                f"ridge {numbers.significant(roof.ridge)} FLOP/byte",
                showarrow=True,
                arrowhead=0,
                arrowwidth=0.8,
                arrowcolor="@muted",
                ax=-12,
                # a line above the roof's own number, which reaches this far where it is narrow
                ay=-24 - 14 * level,
                xanchor="right",
            )
        )
    return words


def _point_traces(
    report: StudyReport, row: ExperimentRow, roof: Roof, point: RooflinePoint, look: Style
) -> list[Json]:
    attainable = roof.attainable(point.intensity)
    open_mark = "" if point.phase == "decode" else "-open"
    text = (
        f"{point.phase}: {numbers.significant(point.intensity)} FLOP/byte, "
        f"{numbers.si(point.flops_per_s, 'FLOP/s')}, "
        f"{numbers.percent(point.flops_per_s / attainable)} of the roof above it"
    )
    return [
        {
            "type": "scatter", "mode": "lines", "hoverinfo": "skip",
            "x": [point.intensity] * 2, "y": [point.flops_per_s / 1e12, attainable / 1e12],
            "line": {"color": look.colour, "width": 0.7, "dash": "dot"},
        },
        {
            "type": "scatter", "mode": "markers", "name": safe(row.name), "meta": row.name,
            "x": [point.intensity], "y": [point.flops_per_s / 1e12],
            "marker": {"color": look.colour, "symbol": look.symbol + open_mark, "size": 9,
                       "line": {"width": 1.4, "color": look.colour}},
            "hovertemplate": f"{text}<br>{hover(report, row)}<extra></extra>",
        },
    ]  # fmt: skip


def _title(drawn: list[_Drawn]) -> str:
    decode = [(roof, p) for _, roof, p in drawn if p.phase == "decode"]
    prefill = [(roof, p) for _, roof, p in drawn if p.phase == "prefill"]
    if not decode:
        at = [p.intensity for _, p in prefill]
        return f"Prefill runs at {numbers.significant(min(at))} FLOP/byte or more"
    low, high = (f(p.intensity for _, p in decode) for f in (min, max))
    ridges = [roof.ridge for roof, _ in decode]
    span = (
        numbers.significant(low)
        if high / low < 1.02
        else f"{numbers.significant(low)} to {numbers.significant(high)}"
    )
    under = sum(p.intensity < roof.ridge for roof, p in decode)
    bound = (
        "memory-bound in every run" if under == len(decode)
        else "compute-bound in every run" if under == 0
        else f"memory-bound in {under} of {len(decode)} runs"
    )  # fmt: skip
    return (
        f"Decode is {bound}: {span} FLOP/byte against a ridge at "
        f"{numbers.significant(min(ridges))}"
        + (f" to {numbers.significant(max(ridges))}" if max(ridges) > min(ridges) * 1.02 else "")
    )


def _table(drawn: list[_Drawn]) -> DataTable:
    head = ("experiment", "steps", "FLOP/byte", "reached per GPU", "attainable there", "share")
    rows = tuple(
        (
            row.name,
            p.phase,
            numbers.significant(p.intensity),
            numbers.si(p.flops_per_s, "FLOP/s"),
            numbers.si(roof.attainable(p.intensity), "FLOP/s"),
            numbers.percent(p.flops_per_s / roof.attainable(p.intensity)),
        )
        for row, roof, p in drawn
    )
    return DataTable(head, rows)
