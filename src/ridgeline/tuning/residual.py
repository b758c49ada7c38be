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
NOISE = ((0.02, 0.3), (0.06, 0.4), (0.12, 0.3))
OFFSET = 0.4  # of the host: one of two H200 hosts launched 1.7 times slower than the other
ADDITIVE = 0.7  # share of the error's variance that settings have each alone
SHARES = 4  # so many settings at a time are expected to matter
LEAST_WEIGHT = 0.02


@dataclass(frozen=True, slots=True)
class Reading:
    """One measured figure: the row of its configuration, log value, its own standard error."""

    row: int
    log_value: float
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class _Model:
    weight: float
    belief: float
    variance: float
    reach: float
    noise: float


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
        self._rows: Ints = np.array([r.row for r in readings], dtype=np.int64)
        self._errors = np.array([r.error for r in readings], dtype=np.float64)
        self.models = self._weighed()

    @property
    def belief(self) -> float:
        """The twin's weight, 0 (a plain Gaussian process) to 1."""
        return float(sum(m.weight * m.belief for m in self.models))

    @property
    def noise(self) -> float:
        """Standard deviation of one more reading about the truth, of logarithms: the models' noise
        and the errors that readings had so far.
        """
        own = float(np.median(self._errors)) if len(self._errors) else 0.0
        return float(np.hypot(sum(m.weight * m.noise for m in self.models), own))

    def predict(self) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the true log value of every configuration."""
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
        found = []
        for model, number in zip(self.models, numbers.tolist(), strict=True):
            if number:
                mean, covariance = self._joint(model, at)
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
        n = len(self._values)
        if not n:
            return np.zeros(len(models))
        matrices = np.stack([self._measured(m) for m in models])
        off = np.stack([self._values - self._mean(m, self._rows) for m in models])
        roots = np.linalg.cholesky(matrices)
        solved = np.linalg.solve(matrices, off[..., None])[..., 0]
        logs = np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1)
        return np.asarray(-0.5 * (off * solved).sum(axis=1) - logs, dtype=np.float64)

    def _mean(self, model: _Model, rows: Ints | slice) -> Floats:
        return np.asarray(self._middle + model.belief * self._twin[rows], dtype=np.float64)

    def _measured(self, model: _Model) -> Floats:
        """Covariance of the readings, noise included."""
        own = self._kernel(model, self._between[:, self._rows])
        return np.asarray(own + np.diag(self._errors**2 + model.noise**2), dtype=np.float64)

    def _kernel(self, model: _Model, distances: Floats) -> Floats:
        """distances: (features x a x b), squared."""
        near = np.exp(-distances / (2 * model.reach**2))
        single = near.sum(axis=0) / min(len(near), SHARES) if len(near) else 1.0
        joint = np.exp(-distances.sum(axis=0) / (4 * model.reach**2))
        mixed = ADDITIVE * single + (1 - ADDITIVE) * joint
        return np.asarray(model.variance * mixed + OFFSET**2, dtype=np.float64)

    @cached_property
    def _between(self) -> Floats:
        """Squared distances (features x n x readings) to the measured configurations."""
        there = self._places[self._rows]
        gaps = self._places.T[:, :, None] - there.T[:, None, :]
        return np.asarray(gaps**2, dtype=np.float64)

    def _own_variance(self, model: _Model) -> float:
        features = self._places.shape[1]
        single = features / min(features, SHARES) if features else 1.0
        return float(model.variance * (ADDITIVE * single + 1 - ADDITIVE) + OFFSET**2)

    def _posterior(self, model: _Model) -> tuple[Floats, Floats]:
        mean, prior = self._mean(model, slice(None)), self._own_variance(model)
        if not len(self._values):
            return mean, np.full(len(mean), prior)
        across = self._kernel(model, self._between)
        solved = np.linalg.solve(self._measured(model), across.T)
        off = self._values - self._mean(model, self._rows)
        spread = np.maximum(prior - (across * solved.T).sum(axis=1), 1e-8)
        return np.asarray(mean + solved.T @ off, dtype=np.float64), spread

    def _joint(self, model: _Model, rows: Ints) -> tuple[Floats, Floats]:
        places = self._places[rows]
        gaps = (places.T[:, :, None] - places.T[:, None, :]) ** 2
        covariance, mean = self._kernel(model, gaps), self._mean(model, rows)
        if not len(self._values):
            return mean, covariance
        across = self._kernel(model, self._between[:, rows])
        solved = np.linalg.solve(self._measured(model), across.T)
        off = self._values - self._mean(model, self._rows)
        return mean + solved.T @ off, np.asarray(covariance - across @ solved, dtype=np.float64)


def _root(covariance: Floats) -> Floats:
    """A square root of a covariance that rounding may have made slightly indefinite."""
    jitter = 1e-7 * float(np.trace(covariance)) / len(covariance) + 1e-9
    root = np.linalg.cholesky(covariance + jitter * np.eye(len(covariance)))
    return np.asarray(root, dtype=np.float64)
