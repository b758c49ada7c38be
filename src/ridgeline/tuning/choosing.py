"""Whom a duel names: what died in it, or is not decided by it, is never called a clear winner."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ridgeline.tuning.dueling import PLAN, Duel
from ridgeline.tuning.objective import BETWEEN_RUNS, judge
from ridgeline.tuning.risk import risk_of
from ridgeline.tuning.trial import Candidate

NO_DUEL = "no duel was held: its budget is used"


@dataclass(frozen=True, slots=True)
class Choice:
    """The winner, whether it is clear, and why. recommended False: not even the baseline is.

    instead: words of those that the duel cannot tell from it and that change more.
    """

    winner: Candidate
    clear: bool
    why: str
    recommended: bool = True
    instead: tuple[str, ...] = ()


def choose(duel: Duel, out: Collection[str]) -> Choice:
    """The baseline, unless one is clearly better than it and no worse in its targets, or meets the
    targets where the baseline misses them or does not run. `out`: words of the disqualified.
    """
    baseline = duel.candidates[0]
    rivals = [
        c for c in duel.candidates[1:]
        if c.words not in out and not duel.died(c) and duel.meets(c) is not False and duel.value(c)
    ]  # fmt: skip
    ranked = sorted(rivals, key=lambda c: duel.estimate(c)[0] or 0.0, reverse=True)
    sure = [c for c in ranked if duel.meets(c) is True]
    died = duel.died(baseline)
    if died:
        why = f"the baseline does not run, it {died}"
        if sure:
            first, instead = simplest(duel, sure)
            return _if_long_enough(duel, first, why, len(duel.summaries(first)), instead)
        none = f"{why}, and no finalist that runs meets the targets for sure"
        return Choice(baseline, False, none, recommended=False)
    if not duel.held:
        return Choice(baseline, False, NO_DUEL)
    if duel.meets(baseline) is False:
        if sure:
            first, instead = simplest(duel, sure)
            pairs = len(set(duel.summaries(first)) & set(duel.summaries(baseline)))
            why = "it meets the targets, which the baseline misses"
            return _if_long_enough(duel, first, why, pairs, instead)
        if ranked:
            first, instead = simplest(duel, ranked)
            why = "the baseline misses the targets; this one may meet them and may miss them"
            return Choice(first, False, why, instead=instead)
        return Choice(baseline, False, "no configuration meets the targets")
    return _better(duel, ranked, sure)


def _better(duel: Duel, ranked: list[Candidate], sure: list[Candidate]) -> Choice:
    """Against a baseline that does not miss the targets: only what is clearly better than it."""
    baseline = duel.candidates[0]
    clear = [c for c in sure if duel.beats(c, baseline)]
    if clear:
        first, instead = simplest(duel, clear)
        return Choice(first, True, "clearly better than the baseline", instead=instead)
    perhaps = [c for c in ranked if duel.beats(c, baseline)]
    if not perhaps:
        why = "no clear winner: no finalist is clearly better than the baseline"
        dead = [f"{c.words} {d}" for c in duel.candidates[1:] if (d := duel.died(c))]
        why += f" ({'; '.join(dead)})" if dead else ""
        return Choice(baseline, False, why)
    first, instead = simplest(duel, perhaps)
    if duel.meets(baseline):
        why = f"no clear winner: {first.words} is clearly better but may miss the targets"
        return Choice(baseline, False, why)
    why = "clearly better than the baseline, but like the baseline it may miss the targets"
    return Choice(first, False, why, instead=instead)


def simplest(duel: Duel, ranked: Sequence[Candidate]) -> tuple[Candidate, tuple[str, ...]]:
    """Of the best and those that the duel cannot tell from it, the one that changes least.

    Told apart are two by a clear difference, or by one above the duel's tie (1 %) in their common
    rounds. Of those that are left: the fewest changes of the baseline, then the lowest class of
    risk, then the lowest latency. Also the words of the others.
    """
    best = ranked[0]
    equal = [best, *(c for c in ranked[1:] if _no_difference(duel, best, c))]
    first = min(equal, key=lambda c: (len(c.change), _risk(duel, c), _latency(duel, c)))
    return first, tuple(c.words for c in equal if c != first)


def simpler_first(ranked: Sequence[tuple[Candidate, float]]) -> list[tuple[Candidate, float]]:
    """Candidates with the search's estimates, the best first; before each those that are a part of
    its changes and that runs of one configuration would not tell from it (`BETWEEN_RUNS`).

    So a change that may do nothing meets, in the duel, the candidate without it.
    """
    found: dict[object, tuple[Candidate, float]] = {}
    for candidate, value in ranked:
        parts = [
            (c, v) for c, v in ranked
            if c.change and c.change.items() < candidate.change.items()
            and v >= value * (1 - BETWEEN_RUNS)
        ]  # fmt: skip
        for c, v in (*sorted(parts, key=lambda pair: len(pair[0].change)), (candidate, value)):
            found.setdefault(c.key, (c, v))
    return list(found.values())


def _no_difference(duel: Duel, one: Candidate, other: Candidate) -> bool:
    pair = duel.against(one, other)
    if pair is None or pair.delta is None or pair.rounds < PLAN.least:
        return False
    return not pair.word.startswith("clearly") and abs(pair.delta) <= PLAN.tie


def _risk(duel: Duel, candidate: Candidate) -> int:
    dtype = duel.setting.configuration.knobs.dtype
    knobs = {n: v for n, v in candidate.change.items() if n != "routing"}
    return risk_of(knobs, "bfloat16" if dtype in (None, "auto") else str(dtype)).risk


def _latency(duel: Duel, candidate: Candidate) -> tuple[float, float]:
    """The largest share of a latency target that its runs use, then their p95 ITL."""
    summary = duel.merged(candidate)
    if summary is None:
        return math.inf, math.inf
    _, limits = judge(summary)
    shares = [m.value / m.limit for m in limits if m.key.endswith("_ms") and m.value is not None]
    itl_s = summary.failures_as_infinite["itl_s"].p95
    return max(shares, default=0.0), math.inf if itl_s is None else itl_s


def _if_long_enough(
    duel: Duel, winner: Candidate, why: str, rounds: int, instead: tuple[str, ...]
) -> Choice:
    if rounds >= PLAN.least:
        return Choice(winner, True, why, instead=instead)
    short = f"{why}; seen in {rounds} round{'s' * (rounds != 1)} only, at least {PLAN.least} tell"
    return Choice(winner, False, short, instead=instead)
