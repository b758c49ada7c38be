"""What more rounds of a duel would decide of what its intervals leave open.

A limit is open while the interval of the mean over rounds, as `meeting` draws it, lies across it.
After n runs its half-width is t(f) s / sqrt(n) with the noise s of one run that all contenders
show now; the degrees of freedom f grow with the rounds. A pair is told apart from the difference
on that `DuelPlan.tells` gives.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING

from ridgeline.domain.slo import SHARE_KEYS
from ridgeline.tuning.duel import NOISE, DuelPlan, DuelState
from ridgeline.tuning.meeting import TAIL, Mean, Runs, judge_together, mean_of_runs
from ridgeline.tuning.trial import Miss

if TYPE_CHECKING:
    from ridgeline.tuning.dueling import Duel


def runs_of(
    mean: Mean, worst: float, limit: float, most: int, plan: DuelPlan | None = None
) -> int | None:
    """Of how many runs in all the interval would lie on one side of a limit on a latency, if they
    go on as they did; None: of more than `most`.

    worst: the largest of the runs, which must be within the limit for it to be met; worst and limit
    in the figures' unit. Further runs may be worse: the median of their largest, under normal
    noise of the logarithm, has to be within the limit, too. plan: of the duel, whose looks share
    the error of calling it missed; without one there is a single look.
    """
    away = math.log(limit) - mean.log
    if away > 0 and worst > limit:
        return None  # one run is outside, the runs on the whole are inside
    noise = math.sqrt(mean.spread.variance)
    for runs in range(max(mean.runs + 1, 2), most + 1):
        largest = noise * NormalDist().inv_cdf(0.5 ** (1 / (runs - mean.runs)))
        tail = TAIL if plan is None or away > 0 else plan.missing(runs)
        if mean.half(runs, tail) < abs(away) and (away < 0 or largest < away):
            return runs
    return None


def runs_of_one(miss: Miss, contenders: int, most: int, plan: DuelPlan | None = None) -> int | None:
    """The same of one run alone, which takes the usual noise (`duel.NOISE`), in a duel of so
    many contenders.
    """
    if not miss.value or not miss.limit:
        return None
    mean = Mean.of_one(miss.value, NOISE, contenders)
    return runs_of(mean, miss.value, miss.limit, most, plan)


def runs_to_decide(contenders: Sequence[Runs], which: int, plan: DuelPlan) -> dict[str, int | None]:
    """For each open limit on a latency, by its key: the runs in all that would decide it.

    contenders, which: as `judge_together` has them; None as a value: more than the duel
    may have by its plan.
    """
    if not contenders[which]:
        return {}
    missing = plan.missing(max(n for runs in contenders for n in runs))
    found: dict[str, int | None] = {}
    for number, miss in enumerate(judge_together(contenders, which, missing)[1]):
        if miss.met is not None or miss.key in SHARE_KEYS or not miss.value or not miss.limit:
            continue
        mean = mean_of_runs(contenders, which, number)
        if mean is None:
            count = runs_of_one(miss, len(contenders), plan.most, plan)
        else:
            count = runs_of(mean, miss.value, miss.limit, plan.most, plan)
        before = found.get(miss.key, 0)
        found[miss.key] = None if count is None or before is None else max(count, before)
    return found


def rounds_to_tell(plan: DuelPlan, ratio: float, noise: float, held: int) -> int | None:
    """After how many rounds in all a pair with that ratio of its values would be told apart, if
    they go on as they did; None: not after all that a duel may have.

    noise: of one run (0.1 = 10 %); held: rounds that there are.
    """
    off = max(ratio, 1 / ratio) - 1
    return next((n for n in range(held + 1, plan.most + 1) if plan.tells(n, noise) <= off), None)


def more_would_tell(duel: "Duel", state: DuelState) -> bool:
    """Whether rounds go on although one finalist alone is left: they can decide its targets, or
    how it stands to the baseline. What is too near to tell is no reason.
    """
    if state.leader in (None, 0) or not state.best or duel.held >= duel.judging.most:
        return False
    left = duel.candidates[state.leader or 0]
    counts = duel.runs_to_decide(left)
    if counts and None not in counts.values():
        return True
    claim, found = duel.claim(left), duel.judging.noise(duel.rounds)
    if claim is None or found is None or claim.verdict != "no clear difference":
        return False
    noise = math.sqrt(found.variance)
    return rounds_to_tell(duel.judging, claim.ratio, noise, duel.held) is not None
