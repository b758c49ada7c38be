"""Bands around predictions: where the measured figure is expected to lie, nine times of ten.

A prediction's error is taken as log-normal: figures are above 0, and what is wrong with a model
(a share of a peak, a time per kernel) acts by factors.
"""

from collections.abc import Mapping
from math import exp, isfinite
from typing import Any

from ridgeline.domain.summary import Band, Summary

LEVEL = 0.90
Z = 1.6449  # of a normal distribution, two-sided at LEVEL

_LATENCIES = ("ttft_s", "itl_s", "tpot_s", "e2e_s")
_STATISTICS = ("mean", "p50", "p90", "p95", "p99")
LATENCIES = tuple(f"{name}.{statistic}" for name in _LATENCIES for statistic in _STATISTICS)
TOKENS = "throughput.output_tokens_per_s"
# Figures that are as uncertain as the output tokens per second, because they follow from them.
_LIKE_TOKENS = (
    TOKENS, "throughput.per_gpu_output_tokens_per_s", "throughput.requests_per_s",
    "throughput.input_tokens_per_s", "throughput.chunks_per_s",
    "cost.usd_per_million_output_tokens", "cost.usd_per_thousand_requests",
)  # fmt: skip


def bands_of(summary: Summary, errors: Mapping[str, float]) -> dict[str, Band]:
    """Bands by the figure's path ("ttft_s.p95").

    `errors` are standard errors as logarithms, by path of LATENCIES and TOKENS; figures without
    one, without a value, or with one that no factor changes (0), have no band. Those of a class of
    requests have theirs at `of_class`.
    """
    found = {}
    for path in (*LATENCIES, *_LIKE_TOKENS):
        error = errors.get(TOKENS if path in _LIKE_TOKENS else path)
        value = value_at(summary, path)
        if error is not None and value is not None and isfinite(value) and value > 0:
            found[path] = Band(value * exp(-Z * error), value * exp(Z * error))
    for name, part in summary.classes.items():
        for path in (*LATENCIES, TOKENS):
            error, value = errors.get(of_class(name, path)), _value(part, path)
            if error is not None and value is not None and isfinite(value) and value > 0:
                band = Band(value * exp(-Z * error), value * exp(Z * error))
                found[of_class(name, path)] = band
    return found


def of_class(name: str, path: str) -> str:
    """The path of a figure of one class of requests."""
    return f"classes.{name}.{path}"


def value_at(summary: Summary, path: str) -> float | None:
    """The figure at a dotted path."""
    return _value(summary, path)


def _value(figures: Any, path: str) -> float | None:
    value = figures
    for name in path.split("."):
        value = getattr(value, name)
    return None if value is None else float(value)
