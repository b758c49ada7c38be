"""Fits the twin to the first measured configurations of a tuning: a posterior, no free fit.

Two configurations tell too little of ten constants. So what may move is what is not known, as the
priors say it (`twin.uncertainty`): all launches of the host together, its scheduling, its API
server, the step's gap, two shares of the GPU's peaks. In units of their prior deviations z the
posterior's mode makes

    sum over figures (log(twin(z) / measured) / error)^2 + |z|^2

smallest; Gauss-Newton with halved steps, as a simulation is only nearly smooth. The covariance is
that of Laplace's approximation, (J'J + 1)^-1 (Bishop 2006, section 4.4). A direction about which
the runs say nothing stays at its prior with its prior's width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ridgeline.domain.records import Floats
from ridgeline.engines.twin import FREE, known_constants
from ridgeline.experiment.calibrating import Calibration, Observation, simulate
from ridgeline.twin.calibration import MOST
from ridgeline.twin.constants import Constants
from ridgeline.twin.uncertainty import Direction, prior_doubt

# What a figure of one short run is off by although the constants are right (logarithms): the
# model's own error and the noise between runs on H200 hosts together.
ERRORS: Mapping[str, float] = {
    "output_tokens_per_s": 0.06, "tokens_per_chunk": 0.08,
    "itl_mean_s": 0.08, "itl_p50_s": 0.12, "itl_p95_s": 0.20,
    "ttft_mean_s": 0.15, "ttft_p50_s": 0.15, "ttft_p95_s": 0.20,
}  # fmt: skip
ABSENT = 3.0  # what a figure that the twin does not have counts, in such errors
STEPS = 3  # of Gauss-Newton: a fourth changed nothing on the H200 records
WIDTH = 0.5  # of a difference, in prior deviations
LONGEST = 1.5  # of a step, likewise
SETTLED = 0.02  # share of what is made small below which a step is the last


def refit(observations: Sequence[Observation]) -> Calibration:
    """Constants by the posterior of the observations, which are of one GPU; see the module.

    Raises BadInput where the shape of a model is not known here.
    """
    first = observations[0].configuration
    base, directions = known_constants(first), _directions(str(first.gpu))
    found = _Posterior(base, directions, observations)
    z, jacobian = found.mode()
    moved = found.constants(z)
    covariance = np.linalg.inv(jacobian.T @ jacobian + np.eye(len(z)))
    names = [n for n in FREE if any(n in d for d in directions)]
    spread = np.array([[d.get(n, 0.0) for d in directions] for n in names])
    logs = spread @ covariance @ spread.T
    return Calibration(
        gpu=str(first.gpu),
        model=first.model,
        constants={n: float(f"{getattr(moved, n):.4g}") for n in names},
        errors={n: round(float(e), 3) for n, e in zip(names, np.sqrt(np.diag(logs)), strict=True)},
        observations=tuple(observations),
        before=tuple(found.figures(np.zeros(len(z)))),
        after=tuple(found.figures(z)),
        covariance=tuple(tuple(float(f"{v:.4g}") for v in row) for row in logs.tolist()),
    )


def _directions(gpu: str) -> tuple[Direction, ...]:
    """The prior's directions, as far as a calibration may hold them."""
    kept = [{n: s for n, s in d.items() if n in FREE} for d in prior_doubt(gpu).directions]
    return tuple(d for d in kept if d)


class _Posterior:
    """Looks of the twin at the observations, by z; each is simulated once."""

    def __init__(
        self, base: Constants, directions: Sequence[Direction], seen: Sequence[Observation]
    ) -> None:
        self._base, self._directions, self._seen = base, directions, seen
        self._known: dict[bytes, list[dict[str, float]]] = {}

    def constants(self, z: Floats) -> Constants:
        """The base, so many prior deviations away in each direction."""
        shift: dict[str, float] = {}
        for size, direction in zip(z.tolist(), self._directions, strict=True):
            for name, deviation in direction.items():
                shift[name] = shift.get(name, 0.0) + size * deviation
        values: dict[str, Any] = {
            n: min(getattr(self._base, n) * float(np.exp(s)), MOST.get(n, np.inf))
            for n, s in shift.items()
        }
        return replace(self._base, **values)

    def figures(self, z: Floats) -> list[dict[str, float]]:
        """What the twin gives for each observation."""
        key = z.tobytes()
        if key not in self._known:
            constants = self.constants(z)
            self._known[key] = [simulate(o, constants) for o in self._seen]
        return self._known[key]

    def mode(self) -> tuple[Floats, Floats]:
        """z of the mode, and the derivatives (figures x directions) of the residuals near it."""
        z: Floats = np.zeros(len(self._directions))
        off = self._off(z)
        jacobian = self._slopes(z, off)
        for _ in range(STEPS):
            step = -np.linalg.solve(jacobian.T @ jacobian + np.eye(len(z)), jacobian.T @ off + z)
            step *= min(1.0, LONGEST / max(float(np.linalg.norm(step)), 1e-9))
            before = float(off @ off + z @ z)
            moved = next((m for m in (z + step, z + step / 2, z + step / 4)
                          if self._cost(m) < before), None)  # fmt: skip
            if moved is None:
                break
            z, off = moved, self._off(moved)
            if self._cost(z) > (1 - SETTLED) * before:
                break
            jacobian = self._slopes(z, off)
        return z, jacobian

    def _cost(self, z: Floats) -> float:
        off = self._off(z)
        return float(off @ off + z @ z)

    def _off(self, z: Floats) -> Floats:
        return np.array([
            float(np.log(twin[name] / value)) / ERRORS[name] if name in twin else ABSENT
            for seen, twin in zip(self._seen, self.figures(z), strict=True)
            for name, value in seen.figures.items()
        ])  # fmt: skip

    def _slopes(self, z: Floats, off: Floats) -> Floats:
        moves = WIDTH * np.eye(len(z))
        return np.stack([(self._off(z + move) - off) / WIDTH for move in moves], axis=1)
