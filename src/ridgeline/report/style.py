"""One look per experiment for the whole page: colour, marker and dash, so that it also reads in
black and white. Colours are names ("@c0") that the page resolves for light and dark."""

from dataclasses import dataclass

from ridgeline.report.model import StudyReport

COLOURS = 6
BASELINE = "@base"
# plotly symbol -> polygon points in a 12 x 12 box; None is a circle.
SYMBOLS: dict[str, str | None] = {
    "circle": None,
    "square": "2,2 10,2 10,10 2,10",
    "diamond": "6,0.5 11.5,6 6,11.5 0.5,6",
    "triangle-up": "6,1 11.3,10.5 0.7,10.5",
    "triangle-down": "6,11 11.3,1.5 0.7,1.5",
    "cross": "4,1 8,1 8,4 11,4 11,8 8,8 8,11 4,11 4,8 1,8 1,4 4,4",
    "x": "3.2,0.8 6,3.6 8.8,0.8 11.2,3.2 8.4,6 11.2,8.8 "
    "8.8,11.2 6,8.4 3.2,11.2 0.8,8.8 3.6,6 0.8,3.2",
}  # fmt: skip
_OTHERS = [name for name in SYMBOLS if name != "circle"]


@dataclass(frozen=True, slots=True)
class Style:
    """colour: a theme name. symbol: a plotly marker symbol. dash: a plotly line dash."""

    colour: str
    symbol: str
    dash: str


def styles(report: StudyReport) -> dict[str, Style]:
    """By experiment name, in the study's own order: re-sorting never changes a colour."""
    found: dict[str, Style] = {}
    index = 0
    for row in report.rows:
        if row.name == report.baseline:
            found[row.name] = Style(BASELINE, "circle", "dash")
            continue
        # Colour and symbol together repeat only after 6 x 6 experiments.
        symbol = _OTHERS[(index + index // COLOURS) % len(_OTHERS)]
        found[row.name] = Style(f"@c{index % COLOURS}", symbol, "solid")
        index += 1
    return found
