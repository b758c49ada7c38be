"""Estimates over independent units with their 95 % intervals."""

import math
from dataclasses import dataclass

import numpy as np

from ridgeline.domain.records import Floats

FEWEST_UNITS = 5  # for an interval
LEAST_DEGREES = 1.0  # of freedom; with fewer the units say nothing of their spread


@dataclass(frozen=True, slots=True)
class Figure:
    """An estimate and its 95 % interval, None where there are too few prompts for one."""

    value: float
    low: float | None = None
    high: float | None = None


def wilson(hits: float, n: float) -> Figure:
    """A share with Wilson's interval (1927, Journal of the American Statistical Association 22)."""
    z = 1.959963984540054
    share = hits / n
    if hits >= n:
        return Figure(1.0, n / (n + z * z), 1.0)
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return Figure(share, max(0.0, centre - half), min(1.0, centre + half))


def ratio(above: Floats, below: Floats, *, weights: Floats | None = None) -> Figure:
    """sum(above) / sum(below) over independent units, by linearisation (Cochran 1977, ch. 6).

    weights: of the units' own deviations, in proportion to their size; None: `below`. A few units
    that hold most of it are nearly alone: their residuals are too small, because the estimate
    follows them, and the degrees of freedom are far fewer than the units (Satterthwaite 1946,
    Biometrics Bulletin 2). Both are corrected for deviations of the ratio that are as large in
    every unit, the less favourable case; with equal weights it is n / (n - 1) and n - 1.
    """
    value = float(above.sum() / below.sum())
    if len(below) < FEWEST_UNITS:
        return Figure(value)
    widening, degrees = _dominated(below if weights is None else weights)
    if degrees < LEAST_DEGREES:
        return Figure(value)
    rest = above - value * below
    error = float(np.sqrt(widening * (rest @ rest)) / below.sum())
    half = _student_t(degrees) * error
    return Figure(value, value - half, value + half)


def _dominated(weights: Floats) -> tuple[float, float]:
    """By what the residuals' squares are widened, and the degrees of freedom.

    The residuals are M e with M = D - w w' / W, D of the weights w, W their sum, and e alike and
    independent: E = tr(M^2) and the degrees are tr(M^2)^2 / tr(M^4), written out in power sums.
    """
    w = weights / weights.sum()
    s2, s3, s4, s5 = (float((w**k).sum()) for k in (2, 3, 4, 5))
    first = s2 - 2 * s3 + s2**2
    second = s4 - 4 * s5 + 4 * s2 * s4 + 2 * s3**2 - 4 * s2**2 * s3 + s2**4
    return (s2 / first, first**2 / second) if min(first, second) > 0 else (math.inf, 0.0)


def _student_t(degrees: float) -> float:
    """The 97.5 % point."""
    from scipy.special import stdtrit  # noqa: PLC0415  half a second to import

    return float(stdtrit(degrees, 0.975))


def share(hits: Floats, n: Floats) -> Figure:
    """A ratio that is a share: where all are hits the spread shows nothing, and the exact bound of
    independent places is given, the tightest that can be claimed.
    """
    total = float(n.sum())
    if float(hits.sum()) == total:
        return Figure(1.0, 0.025 ** (1 / total), 1.0)
    found = ratio(hits, n)
    if found.low is None or found.high is None:
        return found
    return Figure(found.value, max(0.0, found.low), min(1.0, found.high))


def exp_of_minus(loss: Figure) -> Figure:
    """exp(-loss): what is kept of a loss in nats."""
    if loss.low is None or loss.high is None:
        return Figure(math.exp(-loss.value))
    return Figure(math.exp(-loss.value), math.exp(-loss.high), math.exp(-loss.low))
