"""Rounds as complete blocks: log value = round + contender + error, and the error's variance.

What a round has in common (the hour, the host's heat, the seed's arrivals) is one number for all
that were measured in it; what is left over after it and after each contender's mean is the noise of
one run. It is estimated from all contenders together: four of them tell it after three rounds with
six degrees of freedom, where one pair has two.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.domain.records import Floats
from ridgeline.experiment.statistics import f_quantile
from ridgeline.tuning.trial import Trial

STEPS = 60  # of the fit where rounds have gaps; without gaps one is enough
STILL = 1e-13
# Degrees of freedom that the search's noise may count for. Its runs are shorter, further apart and
# not of one round, so its noise is the duel's within a factor only: with 4, simulated duels of two
# equals call a difference in 2 % where the noises are the same, 4.1 % where the duel's is 1.5 times
# the search's, 5.7 % where it is twice (20 000 each); with 8 it is 7.7 % there.
MOST_KNOWN = 4
# And where one contender seems noisier than the others (of three equals one does in 40 % of duels).
# Simulated duels of equals, 8 000 each, the search as noisy as the calmest: 6.3 % are called clear
# where one of four has five times the noise of the others, at most 5.6 % in eight other patterns.
MOST_FOR_ONE = 2
# Where the duel's variance is above this quantile of what equal noises would give, the search was
# calmer and does not count. Simulated duels of equals of three rounds, 2 000 each, up to eightfold
# noise of some: without this up to 10 % are called clear.
CALMER = 0.7
TELLING = ("feasible", "unsure", "infeasible")  # trials whose figure is that of a whole, valid run
# Simulated duels of equals (20 000, up to tenfold noise of one or two of three or four): the most
# that is called clear is 4.3 % here, 5.5 % at 0.85; smaller values lose power for nothing.
NOISY = 0.75


@dataclass(frozen=True, slots=True)
class TwoWay:
    """rounds: their effects, mean 0. means: of the contenders. left: sums of their squared
    residuals, together with so many degrees of freedom.
    """

    rounds: Floats
    means: Floats
    left: Floats
    freedom: int

    @property
    def variance(self) -> float | None:
        """Of one run's logarithm; None where nothing is left over to tell it."""
        return float(self.left.sum()) / self.freedom if self.freedom > 0 else None


def table(rounds: Sequence[Mapping[int, float | None]], contenders: Sequence[int]) -> Floats:
    """(rounds x contenders) logarithms, NaN where there is no figure."""
    rows = [[math.log(v) if (v := r.get(c)) and v > 0 else math.nan for c in contenders]
            for r in rounds]  # fmt: skip
    return np.array(rows, dtype=np.float64).reshape(len(rounds), len(contenders))


def two_way(logs: Floats) -> TwoWay:
    """The fit; every row and every column has a value. Who left early is not judged by the rounds
    that they were in.
    """
    here = np.isfinite(logs)
    values = np.where(here, logs, 0.0)
    effects, means = np.zeros(len(logs)), np.zeros(logs.shape[1])
    for _ in range(STEPS):
        before = means
        means = ((values - effects[:, None]) * here).sum(axis=0) / here.sum(axis=0)
        effects = ((values - means) * here).sum(axis=1) / here.sum(axis=1)
        effects -= effects.mean()
        if np.abs(means - before).max(initial=0.0) < STILL:
            break
    left = (values - effects[:, None] - means) * here
    freedom = int(here.sum()) - len(effects) - len(means) + 1
    return TwoWay(effects, means, (left**2).sum(axis=0), freedom)


@dataclass(frozen=True, slots=True)
class Noise:
    """Variance of one run's logarithm over all who were measured, with its degrees of freedom.

    noisy: contenders whose own runs scatter so much more that it does not hold for them.
    """

    variance: float
    freedom: int
    noisy: frozenset[int]


def noise_of(
    rounds: Sequence[Mapping[int, float | None]], contenders: Sequence[int]
) -> Noise | None:
    """The noise; None where no round has two of them, or one round is all there is."""
    logs = table(rounds, contenders)
    logs = logs[np.isfinite(logs).sum(axis=1) > 1]
    kept = [i for i in range(len(contenders)) if np.isfinite(logs[:, i]).any()]
    if not kept:
        return None
    fit = two_way(logs[:, kept])
    if fit.variance is None:
        return None
    return Noise(fit.variance, fit.freedom, frozenset(contenders[kept[i]] for i in _noisy(fit)))


@dataclass(frozen=True, slots=True)
class Known:
    """The variance of one run's logarithm as the search saw it, and what it counts for."""

    variance: float
    freedom: int

    def __add__(self, noise: Noise) -> Noise:
        """Both together, weighted by their degrees of freedom; what is likely to have been a calmer
        hour or calmer configurations is left out.
        """
        if noise.variance > f_quantile(noise.freedom, self.freedom, CALMER) * self.variance:
            return noise
        freedom = self.freedom + noise.freedom
        variance = (self.freedom * self.variance + noise.freedom * noise.variance) / freedom
        return Noise(variance, freedom, noise.noisy)


def known_of(trials: Iterable[Trial]) -> Known | None:
    """The noise of what was measured more than once; None where nothing was."""
    logs: dict[object, list[float]] = {}
    for t in trials:
        if t.value and t.value > 0 and t.state in TELLING and not t.stopped:
            logs.setdefault((t.candidate.key, t.window_s), []).append(math.log(t.value))
    freedom = sum(len(own) - 1 for own in logs.values())
    if not freedom:
        return None
    left = math.fsum(float(np.var(own)) * len(own) for own in logs.values())
    return Known(left / freedom, min(freedom, MOST_KNOWN))


def _noisy(fit: TwoWay) -> list[int]:
    """Contenders with `NOISY` of the largest share of the residuals that one of them can have.

    If one alone were noisy, 1 - 1 / contenders of the sum of squares would be its own. Of two
    nobody can say which.
    """
    total, count = float(fit.left.sum()), len(fit.means)
    if count < 3 or total <= 0:
        return []
    return [i for i, x in enumerate(fit.left) if x / total > NOISY * (1 - 1 / count)]
