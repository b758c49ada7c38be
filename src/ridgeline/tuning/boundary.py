"""Where engines crash: what failed starts teach about configurations that were not started.

A crash has a cause: one setting at or beyond a value, or two of them together. Every such cause
that contains the crash and none of the configurations that ran is a hypothesis; a configuration is
under suspicion by the weight of the hypotheses that contain it. A cause that explains several
crashes weighs more, so that after a second crash nearby the region is left.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from ridgeline.domain.records import Floats

PAIR = 1.0  # weight of all causes of two settings together against all those of one
BOOST = 8.0  # for each further crash that the same cause explains
LEAVE = 0.85  # suspicion from which a configuration is not started any more: one more start may
# tell which of the causes it was, if it leaves enough of them out
LEAVE_TWICE = 0.2  # the same, once one cause explains two crashes
ALONE = 0.5  # that it was this very configuration, or chance: it speaks against no other


def suspicion(places: Floats, crashed: Sequence[int], ran: Sequence[int]) -> Floats:
    """Probability-like suspicion (0..1) for every row of `places` (n x features).

    crashed, ran: rows of configurations that crashed, and of those that came up.
    """
    found = np.zeros(len(places))
    if not crashed:
        return found
    possible = _causes(places, crashed, ran)
    for row in crashed:
        total, held = ALONE, np.zeros(len(places))
        for inside, weight in possible:
            if inside[row]:
                strong = weight * BOOST ** (int(inside[list(crashed)].sum()) - 1)
                total += strong
                held += strong * inside
        found = np.maximum(found, held / total)
        found[row] = 1.0
    return found


def left(
    places: Floats, crashed: Sequence[int], ran: Sequence[int], *, stuck: bool = False
) -> np.ndarray:
    """Mask of the rows that are not started any more, the crashed ones among them.

    Two crashes that one setting may explain say as well that its edge lies somewhere between them
    and the nearest configuration that ran. Stepping down value by value would pay for a start each
    time; so what is nearer to the crashes than to that one is left too, until one nearer has run.
    stuck: nothing that ran may be the answer; the next value after what ran is then tried.
    """
    found = suspicion(places, crashed, ran)
    explains = [int(c[list(crashed)].sum()) for c, _ in _causes(places, crashed, ran)]
    gone = found >= (LEAVE_TWICE if max(explains, default=0) > 1 else LEAVE)
    for half in _gaps(places, crashed, ran, stuck) if len(set(crashed)) > 1 else ():
        gone |= half
    gone[list(ran)] = False
    return gone


def _gaps(
    places: Floats, crashed: Sequence[int], ran: Sequence[int], stuck: bool
) -> list[np.ndarray]:
    """By feature and direction that may explain every crash: what is nearer to the crashes than to
    the nearest that ran; where the search is stuck, beyond the next value after that one.
    """
    found = []
    for feature in range(places.shape[1]):
        for column in (places[:, feature], -places[:, feature]):
            edge = float(column[list(crashed)].min())
            below = column[list(ran)]
            if not len(below) or float(below.max()) >= edge - 1e-9:
                continue
            highest = float(below.max())
            gap = column >= (edge + highest) / 2 - 1e-9
            if stuck:
                gap &= column > float(column[column > highest + 1e-9].min()) + 1e-9
            found.append(gap)
    return found


def _causes(
    places: Floats, crashed: Sequence[int], ran: Sequence[int]
) -> list[tuple[np.ndarray, float]]:
    """What may be the cause of a crash, as masks over rows, with their weights."""
    halves = _halves(places, crashed)
    pair = PAIR * 2.0 / max(len(halves) - 1, 1)  # there are many more of them
    inside = [*((h, 1.0) for h in halves),
              *((a & b, pair) for a, b in combinations(halves, 2))]  # fmt: skip
    unique = {h.tobytes(): (h, w) for h, w in reversed(inside)}
    return [(h, w) for h, w in unique.values() if not h[list(ran)].any()]


def _halves(places: Floats, crashed: Sequence[int]) -> list[np.ndarray]:
    """One setting at or beyond the value of a crash, in either direction, as masks over rows."""
    found = []
    for feature in range(places.shape[1]):
        column = places[:, feature]
        for value in {float(column[row]) for row in crashed}:
            for mask in (column >= value - 1e-9, column <= value + 1e-9):
                if not mask.all():
                    found.append(mask)
    return found
