"""Small inline SVG pictures that need no script: the difference bars and the row markers."""

import math

from markupsafe import Markup

from ridgeline.report.model import Difference
from ridgeline.report.style import SYMBOLS, Style

WIDTH, HEIGHT = 168, 12
_MAX_SCALE = 1.0  # differences beyond ±100 % are cut at the edge, with an arrow


def scale_of(differences: list[Difference]) -> float:
    """The bars' common half-width, a relative difference: the widest interval, at most 1."""
    ends = [
        abs(end)
        for one in differences
        for end in (one.delta, one.low, one.high)
        if end is not None and math.isfinite(end)
    ]
    return min(_MAX_SCALE, max(ends, default=0.1) or 0.1)


def difference_bar(difference: Difference, scale: float) -> Markup:
    """A bar from zero to the difference with its interval as a line; zero is marked."""
    assert difference.delta is not None
    middle, half = WIDTH / 2, WIDTH / 2 - 5

    def at(value: float) -> float:
        return middle + max(-1.0, min(1.0, value / scale)) * half

    kind = {"clearly better": "good", "clearly worse": "bad"}.get(difference.verdict, "none")
    left, right = sorted((middle, at(difference.delta)))
    parts = [
        f'<rect class="bar {kind}" x="{left:.1f}" y="3" width="{max(0.8, right - left):.1f}" '
        f'height="{HEIGHT - 6}"/>',
        f'<line class="zero" x1="{middle}" x2="{middle}" y1="0" y2="{HEIGHT}"/>',
    ]
    if difference.low is not None and difference.high is not None:
        low, high = at(difference.low), at(difference.high)
        y = HEIGHT / 2
        parts.append(f'<line class="whisker" x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}"/>')
        parts += [
            f'<line class="whisker" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 3}" y2="{y + 3}"/>'
            for x in (low, high)
        ]
    if abs(difference.delta) > scale:
        edge, inner = (WIDTH - 0.5, WIDTH - 5) if difference.delta > 0 else (0.5, 5)
        parts.append(
            f'<path class="cut" d="M{inner} 2 L{edge} {HEIGHT / 2} L{inner} {HEIGHT - 2}"/>'
        )
    return Markup(  # noqa: S704 - numbers and fixed words only
        f'<svg class="diff" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'aria-hidden="true">{"".join(parts)}</svg>'
    )


def marker(style: Style) -> Markup:
    """The experiment's marker, as in the charts."""
    colour = style.colour.removeprefix("@")
    points = SYMBOLS[style.symbol]
    shape = '<circle cx="6" cy="6" r="4.6"/>' if points is None else f'<polygon points="{points}"/>'
    return Markup(  # noqa: S704 - fixed shapes
        f'<svg class="mark k-{colour}" viewBox="0 0 12 12" width="10" height="10" '
        f'aria-hidden="true">{shape}</svg>'
    )
