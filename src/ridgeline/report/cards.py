"""Tables that have no room: below which width their rows become cards, and the style for it.

A container query asks for the room of the table's own box: the same table is a table across a page
and cards in a narrow column of it (the row's name, and below it each figure under its own head).
CSS cannot ask what a table needs: that is told here.
"""

from collections.abc import Sequence
from functools import cache
from importlib import resources

WIDTHS_PX = (420, 520, 640, 780, 1000, 1180, 1640)  # the last is wider than any page
FONT_PX = 6.6  # mean advance of a digit or letter at 12.5 px, and
GAP_PX = 14.0  # what a cell is padded with
LONGEST = 44  # characters of a cell; a longer one is prose, and wraps


def below(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The class of a table: the width below which its rows are cards.

    Its cells do not wrap, but for prose. What needs more than a page has is always cards.
    """
    columns = zip(*(row for row in (head, *rows)), strict=False)
    longest = (min(LONGEST, max(map(len, column))) for column in columns)
    needed = sum(FONT_PX * characters + GAP_PX for characters in longest)
    return f"below-{next((w for w in WIDTHS_PX if needed <= w), WIDTHS_PX[-1])}"


@cache
def style() -> str:
    """The style of all widths."""
    text = resources.files("ridgeline.report").joinpath("assets", "cards.css").read_text("utf-8")
    return "".join(
        text.replace("WIDTH", str(width)).replace("WHICH", f"below-{width}") for width in WIDTHS_PX
    )
