"""Whether a contender of a duel meets its limits: by the noise that all contenders show together.

Three runs of one contender alone tell their noise with two degrees of freedom, so that a p95 half
as large again as its limit, three times out of three, would still be "may miss". All contenders of
a duel tell it with many more. A limit is absolute, so what a round has in common counts as noise
here, while it cancels in a pair: log value = round + contender + error with random rounds, and

    V = (MS_rounds + (c - 1) MS_error) / c

estimates the variance of one run of one contender without bias (c contenders; Searle, Casella and
McCulloch, Variance Components, 1992, ch. 4), with Satterthwaite's degrees of freedom (Biometrics
Bulletin 2, 1946). On a host that drifts MS_rounds is large and has few of them: less is shown.

One round decides nothing: what an hour does to all of its runs is in no run's own interval. A limit
may be looked at after every round, and who is called missed at one look is measured no more, so the
caller says which part of the error a look may use for that (`DuelPlan.missing`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.domain.records import Floats
from ridgeline.domain.slo import SHARE_KEYS
from ridgeline.domain.summary import Summary
from ridgeline.experiment.statistics import f_quantile, merge, t_quantile
from ridgeline.tuning.blocks import table, two_way
from ridgeline.tuning.objective import judge
from ridgeline.tuning.trial import Miss, State

SURE = 0.95  # two-sided: 2.5 % of limits that are just missed are called met
TAIL = (1 - SURE) / 2
LEAST = 2  # rounds with a value, of a contender that is judged
OWN = 0.9  # a contender whose runs scatter more than the others' would in 9 of 10 has its own noise

Runs = Mapping[int, Summary]  # valid runs by round


@dataclass(frozen=True, slots=True)
class Spread:
    """Variance of the logarithm of one run's figure, in absolute terms, and what it is worth."""

    variance: float
    freedom: float


@dataclass(frozen=True, slots=True)
class Mean:
    """Of the logarithm of so many runs' figure, with the spread of one run. freedom_each: degrees
    of freedom that each round after the first brings.
    """

    log: float
    runs: int
    spread: Spread
    freedom_each: float

    @staticmethod
    def of_one(value: float, noise: float, contenders: int) -> "Mean":
        """Of one run alone, with a noise (0.1 = 10 %) that is taken for it."""
        return Mean(math.log(value), 1, Spread(noise**2, 0.0), float(contenders))

    def half(self, runs: int | None = None, tail: float = TAIL) -> float:
        """Half-width (log) of its interval now; after so many runs in all (2 or more), if they go
        on as they did. tail: the chance that it leaves out on one side.
        """
        count = self.runs if runs is None else runs
        freedom = self.freedom_each * (count - 1)
        return t_quantile(freedom, 1 - tail) * math.sqrt(self.spread.variance / count)

    @property
    def bounds(self) -> tuple[float, float]:
        """Its interval, in the figures' unit."""
        return math.exp(self.log - self.half()), math.exp(self.log + self.half())


def judge_together(
    contenders: Sequence[Runs], which: int, missing: float = TAIL
) -> tuple[State, tuple[Miss, ...]]:
    """The state of one contender and each of its limits, by the runs of all of them.

    contenders: of the duel, each with its valid runs by round; `which` has at least one. A limit
    on a latency is met when the upper bound of the mean over rounds is, and every run of it was;
    missed when the lower bound is, which leaves out `missing` on its side. Other limits are judged
    as `objective.judge` does. With fewer than `LEAST` runs nothing is met or missed.
    """
    own = contenders[which]
    state, limits = judge(merge(list(own.values())))
    if state == "void":
        return state, limits
    if limits and len(own) < LEAST:
        return "unsure", tuple(replace(miss, met=None) for miss in limits)
    found = tuple(_judged(contenders, which, n, miss, missing) for n, miss in enumerate(limits))
    if any(miss.met is False for miss in found):
        return "infeasible", found
    return ("feasible" if all(miss.met for miss in found) else "unsure"), found


def _judged(
    contenders: Sequence[Runs], which: int, number: int, miss: Miss, missing: float
) -> Miss:
    """The limit with that number in the study, by all runs' figures for it."""
    if miss.value is None or not math.isfinite(miss.value):
        return miss
    if miss.key in SHARE_KEYS:
        return _share(miss, len(contenders[which]), missing)
    mean = mean_of_runs(contenders, which, number)
    if mean is None:
        return miss
    least = math.exp(mean.log - mean.half(tail=missing))
    low, high = min(least, miss.value), max(mean.bounds[1], miss.value)
    met = True if high <= miss.limit else False if low > miss.limit else None
    return replace(miss, low=low, high=high, met=met)


def _share(miss: Miss, runs: int, missing: float) -> Miss:
    """A share that is missed by its interval over so many runs (Student's t), drawn as wide as the
    look asks for on the side of missing it.
    """
    end = miss.high if miss.key == "attainment" else miss.low
    if miss.met is not False or end is None or miss.value is None:
        return miss
    wider = t_quantile(runs - 1, 1 - missing) / t_quantile(runs - 1, 1 - TAIL)
    end = min(max(miss.value + (end - miss.value) * max(wider, 1.0), 0.0), 1.0)
    if miss.key == "attainment":
        return replace(miss, high=end, met=False if end < miss.limit else None)
    return replace(miss, low=end, met=False if end > miss.limit else None)


def mean_of_runs(contenders: Sequence[Runs], which: int, number: int) -> Mean | None:
    """A contender's mean of the figure of the limit with that number in the study."""
    last = max(n for runs in contenders for n in runs)
    rounds = [
        {i: _value(runs.get(n), number) for i, runs in enumerate(contenders)}
        for n in range(1, last + 1)
    ]
    return mean_of(rounds, which, len(contenders))


def _value(run: Summary | None, number: int) -> float | None:
    if run is None or number >= len(run.slo):
        return None
    value = run.slo[number].value
    return value if value is not None and math.isfinite(value) and value > 0 else None


def mean_bounds(
    rounds: Sequence[Mapping[int, float | None]], which: int, contenders: int
) -> tuple[float, float] | None:
    """Bounds of a contender's geometric mean over rounds, in the figures' unit.

    None with fewer than `LEAST` of its runs.
    """
    mean = mean_of(rounds, which, contenders)
    return None if mean is None else mean.bounds


def mean_of(
    rounds: Sequence[Mapping[int, float | None]], which: int, contenders: int
) -> Mean | None:
    """A contender's mean over rounds; None with fewer than `LEAST` of its runs."""
    logs = table(rounds, range(contenders))
    own = logs[np.isfinite(logs[:, which]), which]
    spread = None if len(own) < LEAST else _spread_for(logs, which, own)
    if spread is None:
        return None
    return Mean(float(own.mean()), len(own), spread, spread.freedom / (len(own) - 1))


def _spread_for(logs: Floats, which: int, own: Floats) -> Spread:
    """Of all together, never less than the contender's own; its own alone where it is another."""
    alone = Spread(float(own.var(ddof=1)), len(own) - 1)
    together = spread_of(logs)
    others = spread_of(np.delete(logs, which, axis=1))
    if together is None or others is None:
        return alone
    limit = f_quantile(alone.freedom, others.freedom, OWN) * others.variance
    if alone.variance > limit:
        return alone
    return Spread(max(alone.variance, together.variance), together.freedom)


def spread_of(logs: Floats) -> Spread | None:
    """Of one run of one contender; (rounds x contenders) logarithms, NaN where there is none.

    None where no contender has two runs. Where some have left, c is the mean number a round.
    """
    here = np.isfinite(logs)
    logs = logs[here.any(axis=1)][:, here.sum(axis=0) >= LEAST]
    logs = logs[np.isfinite(logs).any(axis=1)]
    if logs.size == 0:
        return None
    fit, rounds = two_way(logs), len(logs)
    count = float(np.isfinite(logs).sum()) / rounds
    between = count * float((fit.rounds**2).sum()) / (rounds - 1)
    if fit.variance is None:
        return Spread(between / count, rounds - 1)
    parts = between / count, (count - 1) / count * fit.variance
    worth = parts[0] ** 2 / (rounds - 1) + parts[1] ** 2 / fit.freedom
    return Spread(sum(parts), max(sum(parts) ** 2 / worth, 1.0) if worth > 0 else rounds - 1)
