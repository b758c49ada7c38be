"""What a chart is before it is drawn: plotly data with theme colours by name, and its table.

Text inside plotly figures is a small HTML dialect of plotly's own, so every text that comes from a
file or a server goes through `safe`.
"""

import html
import math
from dataclasses import dataclass, field
from typing import Any

from ridgeline.report import numbers
from ridgeline.report.figures import latency_text, metric, ttft_path
from ridgeline.report.model import COST, ITL_P95, TOKENS, ExperimentRow, StudyReport

Json = dict[str, Any]
FONT_SMALL = 11


@dataclass(frozen=True, slots=True)
class DataTable:
    """The numbers behind a chart: its text alternative."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Label:
    """A name to place next to a point without covering others; the earlier ones have priority."""

    x: float
    y: float
    text: str
    colour: str


@dataclass(frozen=True, slots=True)
class View:
    """One state of a chart. `title` is a statement made from the data."""

    title: str
    data: list[Json]
    layout: Json
    labels: tuple[Label, ...] = ()

    def to_json(self) -> Json:
        """For the page's script."""
        return {
            "title": self.title,
            "data": self.data,
            "layout": self.layout,
            "labels": [
                {"x": one.x, "y": one.y, "text": safe(one.text), "colour": one.colour}
                for one in self.labels
            ],
        }


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of the page. `views` by name: one view, a choice offered by buttons, or one view for
    each experiment (`by_experiment`), of which the page shows the chosen one."""

    key: str
    views: dict[str, View]
    table: DataTable
    height: int
    first: str
    by_experiment: bool = False
    note: str = ""
    drop_labels: bool = False
    wide: bool = field(default=False)

    @property
    def title(self) -> str:
        """The title of the view that is shown first."""
        return self.views[self.first].title


def safe(text: str) -> str:
    """Escape for plotly's text dialect."""
    return html.escape(text, quote=False)


def finite(value: float | None) -> float | None:
    """None for what cannot be drawn."""
    return value if value is not None and math.isfinite(value) else None


def axis(title: str, **more: Any) -> Json:
    """An axis in the page's style."""
    return {
        "title": {"text": title, "font": {"size": FONT_SMALL}, "standoff": 6},
        "gridcolor": "@grid",
        "linecolor": "@line",
        "tickfont": {"size": FONT_SMALL},
        "zeroline": False,
        "automargin": True,
        "tickformat": ",~g",
        **more,
    }


def log_ticks(low: float, high: float, steps: tuple[float, ...] = (1, 2, 5)) -> Json:
    """Plain numbers on a log axis: 1, 2, 5 per decade (fewer when it spans many)."""
    decades = math.log10(high / low)
    use = steps if decades < 2.2 else (1.0,)
    values = [
        step * 10.0**power
        for power in range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
        for step in use
    ]
    shown = [value for value in values if low * 0.999 <= value <= high * 1.001]
    return {"tickvals": shown, "ticktext": [numbers.significant(v, 2) for v in shown]}


def note(x: float, y: float, text: str, **more: Any) -> Json:
    """A plotly annotation without an arrow. x and y in the axes' own terms (log10 on log axes)."""
    return {
        "x": x,
        "y": y,
        "text": text,
        "showarrow": False,
        "font": {"size": FONT_SMALL, "color": "@muted"},
        **more,
    }


def limit_words_at(at: float, axis_range: tuple[float, float]) -> Json:
    """Anchor for words beside a vertical line: on the side where there is room."""
    low, high = axis_range
    right = (at - low) > 0.6 * (high - low)
    side = "right" if right else "left"
    return {"xanchor": side, "align": side, "xshift": -4 if right else 4}


def hover(report: StudyReport, row: ExperimentRow) -> str:
    """A run's configuration and figures, for hovering."""
    lines = [f"<b>{safe(row.name)}</b>"]
    if row.change:
        lines.append(safe(row.change.replace("->", "→")))
    if row.configuration is not None:
        where = row.configuration.gpu or row.configuration.engine
        lines.append(safe(f"{row.configuration.gpus} × {where}, {row.load or report.load or ''}"))
        knobs = [f"{name}={value}" for name, value in row.configuration.knobs.given().items()]
        lines += [safe(", ".join(knobs[i : i + 3])) for i in range(0, len(knobs), 3)]
    if row.summary is not None:
        summary = row.summary
        path = ttft_path(report)
        lines.append(f"p95 TTFT {safe(latency_text(summary, path))}")
        lines.append(f"p95 ITL {safe(latency_text(summary, ITL_P95))}")
        lines.append(f"{numbers.number(metric(summary, TOKENS))} output tokens/s")
        if metric(summary, COST) is not None:
            lines.append(f"{numbers.dollars(metric(summary, COST))} per million output tokens")
        lines.append("TWIN: prediction" if summary.source == "twin" else "MEASURED")
    return "<br>".join(lines)
