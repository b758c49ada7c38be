"""Percentiles by the inverted CDF, and when a sample is large enough to have one.

The p-th percentile of n values is the smallest value that at least p percent of them do not exceed:
the value of rank ceil(p n / 100), always one that was seen, never a blend of two. Failures count as
infinitely slow values at the upper end when they are passed as `infinite`.
"""

from collections.abc import Sequence

import numpy as np

from ridgeline.domain.records import Floats
from ridgeline.domain.summary import Percentiles

PERCENTS = (50, 90, 95, 99)
TAIL_VALUES = 5  # a percentile needs this many values above it to be more than a few outliers


def needed(percent: int) -> int:
    """Smallest sample that supports the percentile: n (1 - p) >= TAIL_VALUES."""
    return -(-TAIL_VALUES * 100 // (100 - percent))


def too_small(percent: int, n: int) -> str | None:
    """The reason why n values do not support the percentile, None when they do."""
    if n >= needed(percent):
        return None
    return f"n too small: {n} of the {needed(percent)} values that a p{percent} needs"


def inverted_cdf(values: Floats, percents: Sequence[int], infinite: int = 0) -> list[float | None]:
    """Percentiles of finite `values` and `infinite` infinite ones; None for an empty sample."""
    n = len(values) + infinite
    if n == 0:
        return [None for _ in percents]
    ranks = [max(1, -(-p * n // 100)) - 1 for p in percents]
    inside = sorted({r for r in ranks if r < len(values)})
    ordered = np.partition(values, inside) if inside else values
    return [float(ordered[r]) if r < len(values) else float("inf") for r in ranks]


def percentiles(values: Floats, infinite: int = 0) -> Percentiles:
    """Mean and supported percentiles; a percentile that n does not support is None."""
    n = len(values) + infinite
    if n == 0:
        return Percentiles()
    found = inverted_cdf(values, PERCENTS, infinite)
    named = {
        f"p{p}": value if too_small(p, n) is None else None
        for p, value in zip(PERCENTS, found, strict=True)
    }
    return Percentiles(mean=float("inf") if infinite else float(values.mean()), n=n, **named)
