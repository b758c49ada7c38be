"""Errors of predictions against measurements, per group, as plain values and as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ridgeline.domain.records import Floats

FIGURES = ("ttft", "tpot")


@dataclass(frozen=True, slots=True)
class Error:
    """Relative errors of n predictions: mean and median absolute, and the mean with its sign."""

    n: int
    mape: float
    median: float
    bias: float

    def to_json(self) -> dict[str, float]:
        """As plain values, shares of 1."""
        return {"n": self.n, "mape": self.mape, "median": self.median, "bias": self.bias}


def error(predicted: Sequence[float] | Floats, measured: Sequence[float] | Floats) -> Error:
    """Errors of predictions, as shares of what was measured."""
    off = np.asarray(predicted, dtype=np.float64) / np.asarray(measured, dtype=np.float64) - 1
    size = np.abs(off)
    return Error(len(off), float(size.mean()), float(np.median(size)), float(off.mean()))


def group_line(name: str, errors: Mapping[str, Error]) -> str:
    """One line of the table: name, n, and three figures for each of TTFT and TPOT."""
    n = next(iter(errors.values())).n
    cells = "".join(
        f"{e.mape:10.1%}{e.median:9.1%}{e.bias:+9.1%}" for e in (errors[f] for f in FIGURES)
    )
    return f"{name:36}{n:5}{cells}"


HEADER = (
    f"{'':36}{'':5}{'TTFT':>10}{'':18}{'TPOT':>10}\n"
    f"{'group':36}{'n':>5}{'MAPE':>10}{'median':>9}{'bias':>9}{'MAPE':>10}{'median':>9}{'bias':>9}"
)


def to_json(groups: Mapping[str, Mapping[str, Error]]) -> dict[str, Any]:
    """Errors by group and figure as plain values."""
    return {g: {f: e.to_json() for f, e in errors.items()} for g, errors in groups.items()}
