"""Which load to measure next: doubling until both ends are seen, then bisection.

Pure: what was measured goes in, the next load comes out, so that a search that was cut off goes on
where it was.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.domain.knee import KneeLevel, LoadKind, knee_bracket, passes, plateau

SAME = 1e-3  # loads that differ by less are one


@dataclass(frozen=True, slots=True)
class Asked:
    """What is looked for. `resolution`: relative width at which a bracket is narrow enough.

    target None: the knee only. most_errors: the SLO's error rate.
    """

    load: LoadKind
    start: float
    least: float
    most: float
    resolution: float = 0.1
    target: float | None = None
    most_errors: float | None = None


def next_load(levels: Sequence[KneeLevel], asked: Asked) -> float | None:
    """The load to measure now; None when there is nothing left to learn."""
    if not levels:
        return _rounded(min(max(asked.start, asked.least), asked.most), asked)
    tried = [level.load for level in levels]
    for wanted in (_higher, _lower, _knee, _capacity):
        load = wanted(levels, asked)
        if load is not None and not any(abs(load - t) <= SAME * t for t in tried):
            return load
    return None


def _higher(levels: Sequence[KneeLevel], asked: Asked) -> float | None:
    """Twice the highest load, as long as no plateau (and no failing load) has been seen."""
    top = max(levels, key=lambda level: level.load)
    if top.state == "void" or top.load >= asked.most:
        return None
    fails = asked.target is None or any(_fails(level, asked) for level in levels)
    if plateau(levels) is not None and fails:
        return None
    return _rounded(min(2 * top.load, asked.most), asked)


def _lower(levels: Sequence[KneeLevel], asked: Asked) -> float | None:
    """Half the lowest load, as long as it fails or is at the plateau."""
    bottom = min(levels, key=lambda level: level.load)
    if bottom.load <= asked.least or bottom.state == "void":
        return None
    bracket = knee_bracket(levels)
    at_plateau = bracket is not None and bracket[0] is None
    if not at_plateau and not (asked.target is not None and _fails(bottom, asked)):
        return None
    return _rounded(max(bottom.load / 2, asked.least), asked)


def _knee(levels: Sequence[KneeLevel], asked: Asked) -> float | None:
    bracket = knee_bracket(levels)
    if bracket is None or bracket[0] is None:
        return None
    return _middle(bracket[0].load, bracket[1].load, asked)


def _capacity(levels: Sequence[KneeLevel], asked: Asked) -> float | None:
    if asked.target is None:
        return None
    failing = [level.load for level in levels if _fails(level, asked)]
    if not failing:
        return None
    high = min(failing)
    passing = [
        level.load
        for level in levels
        if level.load < high and passes(level, asked.target, asked.most_errors)
    ]
    return _middle(max(passing), high, asked) if passing else None


def _fails(level: KneeLevel, asked: Asked) -> bool:
    """Not shown to pass counts as failing here: the search then looks lower. With too few requests
    that would be of no use: a lower rate has even fewer.
    """
    if level.state == "void" or asked.target is None:
        return False
    if level.state != "overloaded" and level.requests < level.wanted:
        return False
    return passes(level, asked.target, asked.most_errors) is not True


def _middle(low: float, high: float, asked: Asked) -> float | None:
    """The load half-way (by ratio) of a bracket that is still too wide."""
    if asked.load == "users":
        if high - low <= 1 or high <= low * (1 + asked.resolution):
            return None
        return float(min(max(round(math.sqrt(low * high)), low + 1), high - 1))
    if high <= low * (1 + asked.resolution):
        return None
    return _rounded(math.sqrt(low * high), asked)


def _rounded(load: float, asked: Asked) -> float:
    """Whole users; rates with four digits, so that a resumed search asks for the same."""
    return float(max(1, round(load))) if asked.load == "users" else float(f"{load:.4g}")
