"""What the winner will really give: an estimate without the winner's curse.

The best of several noisy means is too high on average. Two things are done about it. Only the
duel's runs count: they were made with fresh seeds after the finalists had been chosen, so nothing
of the search's luck is in them. And as the winner is chosen again among the finalists, by those
very runs, each finalist's mean is pulled towards their common mean (empirical Bayes: normal means
with the noise's variance from the rounds and the finalists' own variance estimated by moments).
Where they differ by no more than noise all of them get the common mean; where one stands far apart
it keeps nearly all of its lead. The baseline is no finalist and pulls nobody.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.domain.records import Floats
from ridgeline.experiment.statistics import t_quantile
from ridgeline.tuning.blocks import TwoWay, table, two_way
from ridgeline.tuning.duel import Round


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A finalist's objective: as measured (`raw`, the mean over its rounds) and as expected, with
    the 95 % interval of the latter; None where one round does not tell it. kept: share of its
    distance from the finalists' mean that is left.
    """

    raw: float
    value: float
    low: float | None
    high: float | None
    kept: float
    rounds: int


def shrink(rounds: Sequence[Round], finalists: Sequence[int]) -> dict[int, Shrunk]:
    """The estimate of every finalist that has a figure in some round; means are geometric."""
    logs = table(rounds, finalists)
    counts = np.isfinite(logs).sum(axis=0)
    kept = [i for i in range(len(finalists)) if counts[i]]
    if not kept:
        return {}
    logs, counts = logs[:, kept], counts[kept]
    logs = logs[np.isfinite(logs).any(axis=1)]
    fit = two_way(logs)
    effects, means, noise = fit.rounds, fit.means, _noise(logs, fit)
    level = float(means.mean())
    errors = noise / counts
    share = _share(means, errors)
    # The level's own error: rounds differ as a whole, and the noise of the mean over finalists.
    level_variance = float(np.var(effects, ddof=1)) / len(effects) if len(effects) > 1 else math.nan
    level_variance += float(errors.mean()) / len(means)
    found = {}
    for i, row in enumerate(kept):
        middle = level + float(share[i]) * (float(means[i]) - level)
        low = high = None
        if len(effects) > 1:
            own = float(share[i] * errors[i])
            half = t_quantile(len(effects) - 1) * math.sqrt(level_variance + own)
            low, high = math.exp(middle - half), math.exp(middle + half)
        found[finalists[row]] = Shrunk(
            math.exp(float(means[i])), math.exp(middle), low, high, float(share[i]), int(counts[i])
        )
    return found


def _noise(logs: Floats, fit: TwoWay) -> float:
    """The noise's variance; of one contender all that is known is how its rounds differ."""
    if fit.variance is not None:
        return fit.variance
    return float(np.var(logs[np.isfinite(logs)], ddof=1)) if len(logs) > 1 else 0.0


def _share(means: Floats, errors: Floats) -> Floats:
    """How much of each one's distance from the mean is more than noise, by moments, 0..1.

    With m finalists the observed variance has m - 1 degrees of freedom; the factor (m - 3)/(m - 1)
    of James and Stein needs four, below it the plain moment estimate stands.
    """
    if len(means) < 2:
        return np.ones(len(means))
    between = max(0.0, float(np.var(means, ddof=1)) - float(errors.mean()))
    total = between + errors
    return np.asarray(
        np.where(total > 0, between / np.maximum(total, 1e-300), 1.0), dtype=np.float64
    )
