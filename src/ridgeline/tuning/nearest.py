"""Where nothing was shown to meet the targets: what came nearest, by how much, and what it meets.

How near a configuration is: the largest factor by which any of its figures exceeds its limit, by
its runs in a duel, else by its latest trial with figures. The smallest is the nearest; of those
within what runs of one configuration differ by anyway, the one with the better objective.
"""

import math
from typing import TYPE_CHECKING

from ridgeline.domain.slo import SHARE_KEYS
from ridgeline.tuning.concluding import side_of
from ridgeline.tuning.finalists import crashed
from ridgeline.tuning.objective import BETWEEN_RUNS, over_limit
from ridgeline.tuning.outcome import Nearest, Side
from ridgeline.tuning.saying import claim_words, unpaired_words
from ridgeline.tuning.search import Search
from ridgeline.tuning.session import Found, Session
from ridgeline.tuning.trial import Candidate, Miss

if TYPE_CHECKING:
    from collections.abc import Iterator

DIGITS = 2  # of a target that would be met


def nearest_of(session: Session, found: Found, baseline: Side) -> Nearest | None:
    """The nearest of all that were measured, the baseline included; None where something meets the
    targets, may be recommended, or has no figures.
    """
    if found.winner.change or found.recommended or not session.setting.slo.limits:
        return None
    sides = [(over, side) for side in _sides(session, found) if (over := _over(side)) < math.inf]
    if not sides:
        return None
    least = min(over for over, _ in sides)
    near = [pair for pair in sides if pair[0] <= least + BETWEEN_RUNS]
    over, side = max(near, key=lambda pair: (pair[1].value or 0.0, -pair[0]))
    words, clearly = _against(session, found, side, baseline)
    chance, looks = None, 0
    if session.oracle.known and isinstance(session.policy, Search):
        chance, looks = session.policy.likeliest(session.journal.told().known)
    return Nearest(side, math.exp(over), _would_meet(side), words, clearly, chance, looks)


def _sides(session: Session, found: Found) -> "Iterator[Side]":
    """Each measured configuration that may be served: none that crashed, died or fell in a soak."""
    history = found.told.history
    lost = {s.words for s in found.soak if s.state == "failed"}
    for candidate in {t.candidate.key: t.candidate for t in history.trials}.values():
        duel = found.duel_with(candidate)
        died = duel is not None and duel.died(candidate)
        if died or candidate.words in lost or any(map(crashed, history.of(candidate))):
            continue
        side = side_of(session, found, candidate)
        if side.measured is not None:
            yield side


def _over(side: Side) -> float:
    """Logarithm of the largest factor by which a limit is exceeded."""
    return max((over_limit(m) for m in side.limits), default=math.inf)


def _would_meet(side: Side) -> tuple[str, ...]:
    """For each limit that is not met, the one that its whole interval would meet: the end of the
    interval, to two digits away from the figure ("itl_p95_ms 26").
    """
    return tuple(
        f"{m.key} {end:g}" for m in side.limits
        if m.met is not True and (end := _met_end(m)) is not None
    )  # fmt: skip


def _met_end(miss: Miss) -> float | None:
    end = miss.low if miss.key == "attainment" else miss.high
    if end is None or not math.isfinite(end) or end <= 0:
        return None
    step = 10.0 ** (math.floor(math.log10(end)) + 1 - DIGITS)
    whole = math.floor(end / step) if miss.key == "attainment" else math.ceil(end / step)
    found = round(whole * step, 12)
    return min(found, 1.0) if miss.key in SHARE_KEYS else found


def _against(session: Session, found: Found, side: Side, baseline: Side) -> tuple[str, bool]:
    """What it gives over the baseline in words, by paired rounds where there are any, and whether
    that is clearly more.
    """
    candidate = Candidate(side.change)
    if not side.change:
        return "", False
    duel = found.duel_with(candidate)
    claim = None if duel is None else duel.claim(candidate)
    if claim is not None:
        clearly = claim.verdict == "clearly better"
        return claim_words(claim, session.setting.goal), clearly
    if not side.value or not baseline.value:
        return "", False
    return unpaired_words(side.value / baseline.value, session.setting.goal), False
