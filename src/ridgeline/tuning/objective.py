"""What a search makes larger, how a run is judged against its limits, and the front of two goals.

An objective is above 0 and larger is better, so that gains are ratios and their logarithms add up.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from ridgeline.domain.slo import SHARE_KEYS, Limit, parse_slo
from ridgeline.domain.summary import Interval, SloResult, Summary
from ridgeline.tuning.trial import Candidate, Miss, State

Goal = Literal["cost", "throughput_per_gpu", "goodput", "pareto"]  # as in a study file
# The standard deviation of log ratios between runs of one configuration that their own intervals
# do not see. Repeats on the H200 hosts of results/h200: 4 to 11 % (benchmarks/tuning/README.md).
BETWEEN_RUNS = 0.05
_Z = 1.959964
UNITS: Mapping[Goal, str] = {
    "cost": "output tokens per USD",
    "throughput_per_gpu": "output tokens/s per GPU",
    "goodput": "requests/s within the limits, per GPU",
    "pareto": "output tokens/s per GPU",
}


def value_of(summary: Summary, goal: Goal, gpus: int = 1) -> float | None:
    """The objective in UNITS; None when the run does not have the figure (no price, no limits)."""
    if goal in ("throughput_per_gpu", "pareto"):
        return summary.throughput.per_gpu_output_tokens_per_s or None
    if goal == "goodput":
        rate = summary.goodput.requests_per_s
        return None if not rate else rate / gpus
    usd = summary.cost.usd_per_million_output_tokens
    return None if not usd else 1e6 / usd


def interval_of(
    summary: Summary, goal: Goal, gpus: int = 1, between_runs: float = BETWEEN_RUNS
) -> tuple[float | None, float | None]:
    """The objective's 95 % interval: the run's own, widened by what differs between runs.

    Goodput has the relative width of the throughput, whose time blocks it shares. None, None where
    the run has no interval.
    """
    value = value_of(summary, goal, gpus)
    path = "throughput.output_tokens_per_s"
    seen, middle = summary.intervals.get(path), summary.throughput.output_tokens_per_s
    if value is None or not middle or seen is None or not seen.low or seen.high is None:
        return None, None
    extra = 0.0 if summary.source == "twin" else between_runs
    return (
        value * math.exp(-math.hypot(math.log(middle / seen.low), _Z * extra)),
        value * math.exp(math.hypot(math.log(max(seen.high / middle, 1.0)), _Z * extra)),
    )


def judge(summary: Summary, between_runs: float = BETWEEN_RUNS) -> tuple[State, tuple[Miss, ...]]:
    """The state of a run that came to its end, and each of its limits.

    A limit is met when its whole interval is on the right side, missed when it is on the wrong
    side, else not known. Where a run has no interval only a value half as large again (or as
    small) tells. An error rate is taken as met without any error, whatever the number of requests:
    the counts of all runs of a winner are pooled before it is named.
    """
    limits = tuple(_judged(summary, result, between_runs) for result in summary.slo)
    if not summary.verdict.valid:
        return "void", limits
    if any(miss.met is False for miss in limits):
        return "infeasible", limits
    return ("feasible" if all(miss.met for miss in limits) else "unsure"), limits


def _judged(summary: Summary, result: SloResult, between_runs: float) -> Miss:
    (limit,) = parse_slo(result.limit).limits
    scale = 1.0 if limit.key in SHARE_KEYS else 1e3
    value = result.value
    if value is None:
        return Miss(limit.key, limit.value, None, None, None, None)
    if math.isinf(value):
        return Miss(limit.key, limit.value, value, None, None, False)
    extra = 0.0 if summary.source == "twin" or limit.key in SHARE_KEYS else between_runs
    own = None if result.traffic_class else _interval(summary, limit)
    if own is None or own.low is None or own.high is None:
        exact = summary.source == "twin" and result.traffic_class is None
        low, high = (value, value) if exact else (value / 1.5, value * 1.5)
    else:
        widen = math.exp(_Z * extra)
        low, high = min(own.low * scale, value) / widen, max(own.high * scale, value) * widen
    return Miss(limit.key, limit.value, value, low, high, _met(limit, value, low, high))


def _met(limit: Limit, value: float, low: float, high: float) -> bool | None:
    if limit.key == "error_rate" and value == 0:
        return True
    if limit.key == "attainment":
        return True if low >= limit.value else False if high < limit.value else None
    return True if high <= limit.value else False if low > limit.value else None


def _interval(summary: Summary, limit: Limit) -> Interval | None:
    if limit.key == "error_rate":
        return summary.intervals.get("requests.error_rate")
    if limit.key == "attainment":
        return summary.intervals.get("goodput.attainment")
    return summary.intervals.get(f"{limit.metric}_s.{limit.statistic}")


def nearest_miss(runs: Sequence[tuple[Candidate, Sequence[Miss]]]) -> Candidate | None:
    """Of runs of which none is feasible, the one whose worst limit is missed by the least factor.

    Limits without a value count as missed by the most.
    """
    found = [(max((over_limit(m) for m in misses), default=math.inf), c) for c, misses in runs]
    return min(found, key=lambda pair: pair[0])[1] if found else None


def over_limit(miss: Miss) -> float:
    """Logarithm of how far a limit is missed; below 0 when it is met, infinite without a value."""
    if miss.value is None or math.isinf(miss.value):
        return math.inf
    if not miss.value or not miss.limit:
        return -math.inf if miss.value <= miss.limit else math.inf
    ratio = math.log(miss.value / miss.limit)
    return -ratio if miss.key == "attainment" else ratio


def pareto(points: Sequence[tuple[float, float]]) -> tuple[int, ...]:
    """Which (gain, latency) points no other beats in both, by falling gain.

    Of equal points the first stays.
    """
    order = sorted(range(len(points)), key=lambda i: (-points[i][0], points[i][1], i))
    found: list[int] = []
    for i in order:
        if not found or points[i][1] < points[found[-1]][1]:
            found.append(i)
    return tuple(found)
