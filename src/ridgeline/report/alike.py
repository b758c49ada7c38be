"""Texts that differ in their figures only are told once, with how many there are."""

import re
from collections.abc import Iterable

_FIGURES = re.compile(r"[-+]?\d[\d.,\u2009]*")


def kind_of(text: str) -> str:
    """The text without its figures: equal for texts that say the same of different runs."""
    return _FIGURES.sub("#", text)


def told_once(texts: Iterable[str]) -> list[str]:
    """The first text of each kind; "(and N more like it)" where figures differ."""
    groups: dict[str, list[str]] = {}
    for text in texts:
        groups.setdefault(kind_of(text), []).append(text)
    lines = []
    for first, *rest in groups.values():
        others = sum(text != first for text in rest)
        lines.append(first if not others else f"{first} (and {others} more like it)")
    return lines
