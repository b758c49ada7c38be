"""The mean of what is known."""

from collections.abc import Iterable


def known_mean(values: Iterable[float | None]) -> float | None:
    """Mean of the values that are not None; None when none is known."""
    known = [float(v) for v in values if v is not None]
    return sum(known) / len(known) if known else None
