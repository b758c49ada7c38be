"""From how many streams on an option that gains at low load costs: speculative decoding above all.

A gain is the option's throughput over that without it, at a number of streams. Where it falls below
1 lies between two levels; where both levels are clear of 1 the place is told with them as its
bounds. What is not monotone is not interpolated: a schedule that changes with the load may lose in
one step what no line between its neighbours shows.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.domain.numerals import significant

DROP = 0.75  # a level gives less than this share of the whole throughput of a lower one: it fell
RISE = 1.10  # a stream is faster by this factor with more beside it: its speed is not monotone


@dataclass(frozen=True, slots=True)
class Gain:
    """The option over without it at so many streams (1.1 = 10 % more), and its 95 % interval.

    speed: output tokens/s of one stream with the option, None where it is not known.
    """

    streams: float
    ratio: float
    low: float | None = None
    high: float | None = None
    speed: float | None = None

    @property
    def pays(self) -> bool | None:
        """Whether it gains for sure; False: costs for sure; None: not decided.

        Without an interval the point decides.
        """
        low = self.ratio if self.low is None else self.low
        high = self.ratio if self.high is None else self.high
        return True if low > 1 else False if high < 1 else None


@dataclass(frozen=True, slots=True)
class Crossover:
    """Where a gain ends. kind: "crosses", "gains" or "costs" over all levels, "not decided".

    at: the streams of a ratio of 1 on the line between the two levels beside it (logarithms of
    both), None where nothing may be drawn between them. low: the most streams up to which it gains
    for sure, high: the fewest from which it costs for sure.
    breaks: pairs of levels between which the speed of a stream is not monotone.
    """

    kind: str
    gains: tuple[Gain, ...]
    at: float | None = None
    low: float | None = None
    high: float | None = None
    breaks: tuple[tuple[float, float], ...] = ()


def breaks_of(levels: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Between which levels (streams, tokens/s of a stream) the throughput falls, where it does not
    stay down: a later level has faster streams again, though more of them.
    """
    order = sorted(levels)
    found = []
    for i, ((few, fast), (many, slow)) in enumerate(itertools.pairwise(order)):
        falls = many * slow < DROP * few * fast
        later = [speed for _, speed in order[i + 2 :]]
        if falls and any(speed > RISE * slow for speed in later):
            found.append((few, many))
    return tuple(found)


def crossover(gains: Sequence[Gain]) -> Crossover:
    """The crossover of gains at two levels or more, in any order."""
    order = tuple(sorted(gains, key=lambda g: g.streams))
    known = [(g.streams, g.speed) for g in order if g.speed is not None]
    breaks = breaks_of(known)
    pays = [g.pays for g in order]
    if all(p is True for p in pays):
        return Crossover("gains", order, breaks=breaks)
    if all(p is False for p in pays):
        return Crossover("costs", order, breaks=breaks)
    low = max((g.streams for g, rest in _prefix(order, True) if rest), default=None)
    high = min((g.streams for g, rest in _suffix(order) if rest), default=None)
    if low is None and high is None:
        return Crossover("not decided", order, breaks=breaks)
    return Crossover("crosses", order, _at(order, breaks), low, high, breaks)


def _prefix(order: Sequence[Gain], pays: bool) -> list[tuple[Gain, bool]]:
    """Each level, and whether it and all below it have that answer."""
    found, whole = [], True
    for gain in order:
        whole = whole and gain.pays is pays
        found.append((gain, whole))
    return found


def _suffix(order: Sequence[Gain]) -> list[tuple[Gain, bool]]:
    """Each level, and whether it costs at it and at all above it."""
    return _prefix(order[::-1], False)


def _at(order: Sequence[Gain], breaks: Sequence[tuple[float, float]]) -> float | None:
    """Where the points' line meets 1; None where it does not, more than once, or over a break."""
    places = [(a, b) for a, b in itertools.pairwise(order) if (a.ratio > 1) != (b.ratio > 1)]
    if len(places) != 1:
        return None
    a, b = places[0]
    if any(few < b.streams and many > a.streams for few, many in breaks):
        return None
    share = math.log(a.ratio) / (math.log(a.ratio) - math.log(b.ratio))
    return math.exp(math.log(a.streams) + share * (math.log(b.streams) - math.log(a.streams)))


def crossover_words(name: str, found: Crossover) -> tuple[str, ...]:
    """What to do with an option by its gains over load; what is not monotone in a second line."""
    lines = [f"{name}: {_answer(found)}"]
    if found.breaks:
        known = [(g.streams, g.speed) for g in found.gains if g.speed is not None]
        speeds = ", ".join(
            f"{significant(speed)}{' tokens/s a stream' if i == 0 else ''} at {streams:g}"
            for i, (streams, speed) in enumerate(known)
        )
        places = " and ".join(f"between {few:g} and {many:g}" for few, many in found.breaks)
        lines.append(
            f"{name}: its speed is not monotone in load: {speeds}; nothing is interpolated"
            f" {places}, and a setting that changes with the load is not to be relied on there:"
            " prefer a static setting"
        )
    return tuple(lines)


def _answer(found: Crossover) -> str:
    few, many = found.gains[0].streams, found.gains[-1].streams
    if found.kind == "gains":
        return f"pays at every load that was measured, {few:g} to {many:g} streams"
    if found.kind == "costs":
        return f"costs at every load that was measured, {few:g} to {many:g} streams: leave it off"
    if found.kind == "not decided":
        return f"not decided at any load of {few:g} to {many:g} streams: its gain is within noise"
    parts = []
    if found.low is not None:
        parts.append(f"pays up to {found.low:g} streams")
    if found.high is not None:
        parts.append(f"costs from {found.high:g} on")
    text = " and ".join(parts)
    if found.at is not None and found.low is not None and found.high is not None:
        text += (
            f"; the crossover is at about {significant(found.at, 2)} (between"
            f" {found.low:g} and {found.high:g})"
        )
    if found.high is None:
        return f"{text}; above that it is not decided: measure before it is used there"
    return f"{text}: leave it off above {found.high:g}, and between them measure"
