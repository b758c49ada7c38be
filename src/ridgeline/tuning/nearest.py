"""Where nothing was shown to meet the targets: what came nearest, by how much, and what it meets.

How near a configuration is: the largest factor by which any of its figures exceeds its limit, by
its runs in a duel, else by its latest trial with figures. The smallest is the nearest; of those
within what runs of one configuration differ by anyway, the one with the better objective.
"""

import math
from typing import TYPE_CHECKING

from ridgeline.tuning.concluding import side_of
from ridgeline.tuning.finalists import crashed
from ridgeline.tuning.objective import BETWEEN_RUNS, over_limit
from ridgeline.tuning.outcome import Nearest, Side
from ridgeline.tuning.promised import had, is_firm, would_meet
from ridgeline.tuning.saying import claim_words, unpaired_words
from ridgeline.tuning.search import Search
from ridgeline.tuning.session import Found, Session
from ridgeline.tuning.trial import Candidate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


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
    meets, run_had, among = _promises(session, found, side, [s for _, s in sides])
    return Nearest(
        side, math.exp(over), meets, words, clearly, chance, looks, run_had, among,
    )  # fmt: skip


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


def _promises(
    session: Session, found: Found, side: Side, sides: "Sequence[Side]"
) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    """What it would meet, or what its run had, and among how many of its kind it was picked."""
    among = sum(is_firm(s) == is_firm(side) for s in sides)
    duel = found.duel_with(Candidate(side.change))
    if duel is not None and is_firm(side):
        return would_meet(side, duel, among), (), among
    return (), had(side, session.journal.told().trials, among), among


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
