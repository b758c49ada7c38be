"""What measurements say about a twin's predictions: a Gaussian process on their log ratio.

For one figure (the objective, or a limit's latency) over configurations x with twin value t(x):

    log y(x) = m + b (log t(x) - m) + c + r(x) + noise

m is the mean of log t over the candidates, c an offset of the host, r a smooth error over the
engine's resolved settings: a part of each setting alone, so that one measurement with FP8 says
something about every configuration with it, and a part of all together. Where b is 1 the twin is
believed and r is its structural error; where b is 0 this is a plain Gaussian process that knows of
no twin, with an amplitude as large as the twin's whole range. b, the amplitude and reach of r and
the noise are not chosen but averaged over a small grid by their marginal likelihood, so the twin's
weight falls as measurements contradict it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from ridgeline.domain.records import Floats, Ints

# Grid points with their prior weights. Amplitudes and noise are standard deviations of logarithms;
# the twin's errors on H200 hosts were 7 to 25 % in throughput (docs/twin.md).
BELIEF = ((0.0, 0.1), (0.5, 0.2), (1.0, 0.7))
AMPLITUDE = ((0.1, 0.3), (0.2, 0.4), (0.4, 0.3))
REACH = ((0.5, 0.4), (1.2, 0.6))
# Of repeats. On one H200 host they differed by 8 %; another drifted by 20 to 30 % within minutes.
NOISE = ((0.02, 0.25), (0.06, 0.4), (0.12, 0.25), (0.25, 0.1))
OFFSET = 0.4  # of the host: one of two H200 hosts launched 1.7 times slower than the other
ADDITIVE = 0.8  # share of the error's variance that settings have each alone
SHARES = 4  # so many settings at a time are expected to matter
LEAST_WEIGHT = 0.02


@dataclass(frozen=True, slots=True)
class Reading:
    """One measured figure: the row of its configuration, log value, its own standard error.

    seen: False for one that only stands for what is known of it, as that it lies beyond a limit.
    """

    row: int
    log_value: float
    error: float = 0.0
    seen: bool = True


@dataclass(frozen=True, slots=True)
class _Model:
    weight: float
    belief: float
    variance: float
    reach: float
    noise: float


@dataclass(frozen=True, slots=True)
class _Rows:
    """Readings of one row put together under one noise: their weighted mean and its variance.

    scatter: what their scatter about that mean adds to the logarithm of the likelihood.
    """

    means: Floats
    variances: Floats
    scatter: float


class Residual:
    """The posterior of one figure over all configurations.

    places: (n x features), each feature spanning about 0..1. twin: n log predictions, NaN where
    there is none (then their mean stands in).
    """

    def __init__(self, places: Floats, twin: Floats, readings: Sequence[Reading]) -> None:
        known = twin[np.isfinite(twin)]
        own = np.array([r.log_value for r in readings], dtype=np.float64)
        self._middle = float(known.mean()) if len(known) else float(own.mean()) if len(own) else 0.0
        self._twin: Floats = np.where(np.isfinite(twin), twin, self._middle) - self._middle
        self._range = float(np.std(known)) if len(known) > 1 else 0.5
        self._places = places
        self._values: Floats = own
        rows = np.array([r.row for r in readings], dtype=np.int64)
        self._rows: Ints
        self._rows, self._at = np.unique(rows, return_inverse=True)  # measured rows, each once
        self._errors = np.array([r.error for r in readings], dtype=np.float64)
        self._seen = np.array([r.seen for r in readings], dtype=bool)
        self.models = self._weighed()

    @property
    def belief(self) -> float:
        """The twin's weight, 0 (a plain Gaussian process) to 1."""
        return float(sum(m.weight * m.belief for m in self.models))

    @property
    def noise(self) -> float:
        """Standard deviation of one more reading about the truth, of logarithms: the noise between
        runs as repeats showed it, and the errors that readings had so far.
        """
        own = float(np.median(self._errors[self._seen])) if self._seen.any() else 0.0
        return float(np.hypot(self.between, own))

    @property
    def between(self) -> float:
        """The part of it that no run's own error knows of: of the host, from run to run. With the
        scatter of repeats its prior turns into what this host shows.
        """
        return math.sqrt(sum(m.weight * m.noise**2 for m in self.models))

    def beyond(self, rows: Sequence[int], limit: float) -> list[Reading]:
        """Readings that stand for runs which ended early because their figure was surely larger
        than `limit` (a logarithm): a row is listed once for each.

        A run's figure is the truth and noise; given that it is larger, the truth's distribution has
        a mean and a variance in closed form (Rasmussen and Williams 2006, eq. 3.85 and 3.87, as for
        a probit), and a reading is made that takes the prediction there. Where the limit was
        thought to be missed anyway it says next to nothing: a bound is no value.
        """
        means, spreads = self.predict()
        found = []
        for row in sorted(set(rows)):
            before, variance = float(means[row]), float(spreads[row]) ** 2
            mean, left = before, variance
            for _ in range(rows.count(row)):
                mean, left = _larger(mean, left, limit, self.noise**2)
            told = 1.0 / left - 1.0 / variance
            if told > 1e-6 / variance:
                error = math.sqrt(max(1.0 / told - self.between**2, 1e-4))
                found.append(Reading(row, (mean / left - before / variance) / told, error, False))
        return found

    def predict(self) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the true log value of every configuration."""
        return self._predicted

    @cached_property
    def _predicted(self) -> tuple[Floats, Floats]:
        means, seconds = np.zeros(len(self._twin)), np.zeros(len(self._twin))
        for model in self.models:
            mean, spread = self._posterior(model)
            means += model.weight * mean
            seconds += model.weight * (spread + mean**2)
        return means, np.sqrt(np.maximum(seconds - means**2, 1e-12))

    def draws(self, rows: Sequence[int], count: int, random: np.random.Generator) -> Floats:
        """Joint draws (count x rows) of the true log values of some configurations."""
        at: Ints = np.asarray(rows, dtype=np.int64)
        weights = np.array([m.weight for m in self.models])
        numbers = random.multinomial(count, weights / weights.sum())
        places = self._places[at]
        alike = {r: _alike(places, places, r) for r in {m.reach for m in self.models}}
        found = []
        for model, number in zip(self.models, numbers.tolist(), strict=True):
            if number:
                mean, covariance = self._joint(model, at, alike[model.reach])
                root = _root(covariance)
                found.append(mean + random.standard_normal((number, len(at))) @ root.T)
        drawn = np.concatenate(found)
        return np.asarray(random.permutation(drawn, axis=0), dtype=np.float64)

    def _weighed(self) -> tuple[_Model, ...]:
        grid = list(product(BELIEF, AMPLITUDE, REACH, NOISE))
        models = [
            _Model(w1 * w2 * w3 * w4, b, a**2 + ((1 - b) * self._range) ** 2, reach, noise)
            for (b, w1), (a, w2), (reach, w3), (noise, w4) in grid
        ]
        logs = np.log([m.weight for m in models]) + self._likelihoods(models)
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        kept = [
            _Model(float(w), m.belief, m.variance, m.reach, m.noise)
            for m, w in zip(models, weights, strict=True)
            if w >= min(LEAST_WEIGHT, float(weights.max()))
        ]
        total = sum(m.weight for m in kept)
        return tuple(_Model(m.weight / total, m.belief, m.variance, m.reach, m.noise) for m in kept)

    def _likelihoods(self, models: Sequence[_Model]) -> Floats:
        if not len(self._values):
            return np.zeros(len(models))
        matrices = np.stack([self._measured(m) for m in models])
        off = np.stack([self._off(m) for m in models])
        roots = np.linalg.cholesky(matrices)
        solved = np.linalg.solve(matrices, off[..., None])[..., 0]
        logs = np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1)
        scatter = np.array([self._together(m.noise).scatter for m in models])
        return np.asarray(scatter - 0.5 * (off * solved).sum(axis=1) - logs, dtype=np.float64)

    def _together(self, noise: float) -> _Rows:
        """Repeats of a configuration as one reading: cost goes by configurations, not trials."""
        if noise not in self._grouped:
            weights = 1.0 / (self._errors**2 + noise**2)
            totals = np.bincount(self._at, weights)
            means = np.bincount(self._at, weights * self._values) / totals
            off = self._values - means[self._at]
            scatter = np.log(weights).sum() - np.log(totals).sum() - (weights * off**2).sum()
            self._grouped[noise] = _Rows(means, 1.0 / totals, 0.5 * float(scatter))
        return self._grouped[noise]

    @cached_property
    def _grouped(self) -> dict[float, _Rows]:
        return {}

    def _off(self, model: _Model) -> Floats:
        """What was measured over what the model expected there."""
        return self._together(model.noise).means - self._mean(model, self._rows)

    def _mean(self, model: _Model, rows: Ints | slice) -> Floats:
        return np.asarray(self._middle + model.belief * self._twin[rows], dtype=np.float64)

    def _measured(self, model: _Model) -> Floats:
        """Covariance of what was measured, noise included."""
        own = self._scaled(model, self._alike(model.reach)[self._rows])
        return np.asarray(own + np.diag(self._together(model.noise).variances), dtype=np.float64)

    @staticmethod
    def _scaled(model: _Model, alike: Floats) -> Floats:
        """Covariances of configurations that are so much alike; the host's offset is common."""
        return np.asarray(model.variance * alike + OFFSET**2, dtype=np.float64)

    def _alike(self, reach: float) -> Floats:
        """How much (n x measured rows) all are alike those that were measured; by reach, kept."""
        if reach not in self._likeness:
            self._likeness[reach] = _alike(self._places, self._places[self._rows], reach)
        return self._likeness[reach]

    @cached_property
    def _likeness(self) -> dict[float, Floats]:
        return {}

    def _own_variance(self, model: _Model) -> float:
        features = self._places.shape[1]
        single = features / min(features, SHARES) if features else 1.0
        return float(model.variance * (ADDITIVE * single + 1 - ADDITIVE) + OFFSET**2)

    def _posterior(self, model: _Model) -> tuple[Floats, Floats]:
        mean, prior = self._mean(model, slice(None)), self._own_variance(model)
        if not len(self._values):
            return mean, np.full(len(mean), prior)
        across = self._scaled(model, self._alike(model.reach))
        solved = np.linalg.solve(self._measured(model), across.T)
        off = self._off(model)
        spread = np.maximum(prior - (across * solved.T).sum(axis=1), 1e-8)
        return np.asarray(mean + solved.T @ off, dtype=np.float64), spread

    def _joint(self, model: _Model, rows: Ints, alike: Floats) -> tuple[Floats, Floats]:
        """Mean and covariance of some rows, which are so much alike each other."""
        covariance, mean = self._scaled(model, alike), self._mean(model, rows)
        if not len(self._values):
            return mean, covariance
        across = self._scaled(model, self._alike(model.reach)[rows])
        solved = np.linalg.solve(self._measured(model), across.T)
        off = self._off(model)
        return mean + solved.T @ off, np.asarray(covariance - across @ solved, dtype=np.float64)


def _larger(mean: float, variance: float, limit: float, noise: float) -> tuple[float, float]:
    """Mean and variance of a truth of which one reading with such noise (a variance) was larger."""
    from scipy.special import log_ndtr  # noqa: PLC0415  half a second to import

    width = math.sqrt(variance + noise)
    z = (mean - limit) / width
    ratio = math.exp(-0.5 * z * z - 0.5 * math.log(2 * math.pi) - float(log_ndtr(z)))
    return (
        mean + variance * ratio / width,
        variance - variance**2 * ratio * (z + ratio) / width**2,
    )


def _alike(some: Floats, others: Floats, reach: float) -> Floats:
    """Correlations (some x others) of the error, in units of one model's variance."""
    gaps = np.abs(some.T[:, :, None] - others.T[:, None, :])
    steps = math.sqrt(3.0) * gaps / reach
    single = ((1.0 + steps) * np.exp(-steps)).sum(axis=0)
    single = single / min(len(gaps), SHARES) if len(gaps) else np.ones(gaps.shape[1:])
    joint = np.exp(-np.sqrt((gaps**2).sum(axis=0)) / reach)
    return np.asarray(ADDITIVE * single + (1 - ADDITIVE) * joint, dtype=np.float64)


def _root(covariance: Floats) -> Floats:
    """A square root of a covariance that rounding may have made slightly indefinite."""
    jitter = 1e-7 * float(np.trace(covariance)) / len(covariance) + 1e-9
    root = np.linalg.cholesky(covariance + jitter * np.eye(len(covariance)))
    return np.asarray(root, dtype=np.float64)
