"""Fits a few of the twin's constants to measurements, with their uncertainty.

Least squares on whatever residuals the caller forms, a soft loss against what the model does not
describe, and a pull towards the start, so that a constant about which the measurements say
nothing stays where it is and says so by its error.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ridgeline.domain.hostconstants import BANDWIDTH_MOST, FLOPS_MOST
from ridgeline.domain.records import Floats
from ridgeline.twin.constants import Constants

PULL = 0.4  # width of the start's own belief in each constant, as a logarithm
STEP = 0.05  # of the logarithms, for differences: a simulation is not smooth
# Shares of a peak that no kernel passes, and of guesses that no drafter gets right.
MOST = {
    "gemm_bandwidth_share": BANDWIDTH_MOST, "gemm_flops_share": FLOPS_MOST, "fp8_rows_share": 1.0,
    "decode_attention_share": 0.90, "prefill_attention_share": 0.90, "all_reduce_share": 0.95,
    "draft_acceptance": 0.95,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fitted:
    """Constants after a fit. `errors` are standard errors as shares of the values.

    `covariance`: of the logarithms of `names`, in that order.
    """

    constants: Constants
    names: tuple[str, ...]
    errors: dict[str, float]
    covariance: tuple[tuple[float, ...], ...] = ()

    @property
    def values(self) -> dict[str, float]:
        """The fitted values, to four digits: more would pretend."""
        return {n: float(f"{getattr(self.constants, n):.4g}") for n in self.names}


def fit(
    base: Constants,
    names: Sequence[str],
    residuals: Callable[[Constants], Floats],
    *,
    pull: float = PULL,
    step: float = STEP,
    evaluations: int = 8,
) -> Fitted:
    """Fit `names`, starting at `base`. `residuals` are in units of the error that is expected.

    step: of the logarithms, for differences.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415  heavy

    high = np.array([np.log(MOST.get(n, np.inf) / getattr(base, n)) for n in names])
    high = np.where(high < 0.05, 0.05, high)  # a start beyond the bound may stay

    def of(logs: Floats) -> Constants:
        values: dict[str, Any] = {
            n: min(getattr(base, n) * v, MOST.get(n, np.inf))
            for n, v in zip(names, np.exp(logs).tolist(), strict=True)
        }
        return replace(base, **values)

    def all_residuals(shifted: Floats) -> Floats:
        logs = shifted - 1.0  # scipy's steps are shares of the variable, which must not be 0
        return np.concatenate([residuals(of(logs)), logs / pull])

    found = least_squares(
        all_residuals,
        np.minimum(1.0, 1.0 + high - 0.04),
        bounds=(-2.0, 1.0 + high),
        diff_step=step,
        x_scale=0.3,
        loss="soft_l1",
        f_scale=2.0,
        ftol=0.01,
        max_nfev=evaluations,
    )
    covariance = np.linalg.inv(found.jac.T @ found.jac)
    spread = max(1.0, float(np.mean(np.square(found.fun))))
    covariance = covariance * spread
    errors = np.sqrt(np.diag(covariance))
    return Fitted(
        of(found.x - 1.0),
        tuple(names),
        {n: round(float(e), 3) for n, e in zip(names, errors, strict=True)},
        tuple(tuple(float(f"{v:.3g}") for v in row) for row in covariance.tolist()),
    )
