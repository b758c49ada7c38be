"""Whom a duel names: what died in it, or is not decided by it, is never called a clear winner."""

from collections.abc import Collection
from dataclasses import dataclass

from ridgeline.tuning.dueling import PLAN, Duel
from ridgeline.tuning.trial import Candidate

NO_DUEL = "no duel was held: its budget is used"


@dataclass(frozen=True, slots=True)
class Choice:
    """The winner, whether it is clear, and why. recommended False: not even the baseline is."""

    winner: Candidate
    clear: bool
    why: str
    recommended: bool = True


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
            return _if_long_enough(duel, sure[0], why, len(duel.summaries(sure[0])))
        none = f"{why}, and no finalist that runs meets the targets for sure"
        return Choice(baseline, False, none, recommended=False)
    if not duel.held:
        return Choice(baseline, False, NO_DUEL)
    if duel.meets(baseline) is False:
        if sure:
            pairs = len(set(duel.summaries(sure[0])) & set(duel.summaries(baseline)))
            why = "it meets the targets, which the baseline misses"
            return _if_long_enough(duel, sure[0], why, pairs)
        if ranked:
            why = "the baseline misses the targets; this one may meet them and may miss them"
            return Choice(ranked[0], False, why)
        return Choice(baseline, False, "no configuration meets the targets")
    return _better(duel, ranked, sure)


def _better(duel: Duel, ranked: list[Candidate], sure: list[Candidate]) -> Choice:
    """Against a baseline that does not miss the targets: only what is clearly better than it."""
    baseline = duel.candidates[0]
    for candidate in sure:
        if duel.beats(candidate, baseline):
            return Choice(candidate, True, "clearly better than the baseline")
    first = next((c for c in ranked if duel.beats(c, baseline)), None)
    if first is None:
        why = "no clear winner: no finalist is clearly better than the baseline"
        dead = [f"{c.words} {d}" for c in duel.candidates[1:] if (d := duel.died(c))]
        why += f" ({'; '.join(dead)})" if dead else ""
        return Choice(baseline, False, why)
    if duel.meets(baseline):
        why = f"no clear winner: {first.words} is clearly better but may miss the targets"
        return Choice(baseline, False, why)
    why = "clearly better than the baseline, but like the baseline it may miss the targets"
    return Choice(first, False, why)


def _if_long_enough(duel: Duel, winner: Candidate, why: str, rounds: int) -> Choice:
    if rounds >= PLAN.least:
        return Choice(winner, True, why)
    short = f"{why}; seen in {rounds} round{'s' * (rounds != 1)} only, at least {PLAN.least} tell"
    return Choice(winner, False, short)
