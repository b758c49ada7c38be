"""Comparing experiments over paired repeats, and merging the repeats of one experiment.

A pair is one repeat of the experiment and the same repeat of the baseline: same seed, hence same
arrivals and lengths. For a latency, a rate or a cost the difference is the mean of the log ratios
with Student's t interval, turned back into a relative change; for a share (error rate, attainment),
which may be zero, it is the plain difference.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal

import numpy as np

from ridgeline.domain.slo import parse_slo
from ridgeline.domain.summary import (
    ClientFigures,
    Interval,
    RequestCounts,
    SloResult,
    Summary,
    VerdictFigures,
)

Comparison = Literal["clearly better", "clearly worse", "no clear difference"]
LEVEL = 0.95
FEWEST_PAIRS = 2
ROUNDING = 1e-9  # a twin repeats itself exactly; what floating point adds is no difference

# Metric (path into Summary) -> is less better? Everything that experiments are compared by.
LESS_IS_BETTER: dict[str, bool] = {
    "ttft_s.p50": True,
    "ttft_s.p95": True,
    "ttft_s.p99": True,
    "ttft_intent_s.p95": True,
    "itl_s.p50": True,
    "itl_s.p95": True,
    "itl_s.p99": True,
    "tpot_s.p50": True,
    "tpot_s.p95": True,
    "e2e_s.p50": True,
    "e2e_s.p95": True,
    "worst_stall_s.p95": True,
    "throughput.output_tokens_per_s": False,
    "throughput.per_gpu_output_tokens_per_s": False,
    "throughput.chunks_per_s": False,
    "throughput.requests_per_s": False,
    "cost.usd_per_million_output_tokens": True,
    "cost.usd_per_thousand_requests": True,
    "goodput.requests_per_s": False,
    "goodput.attainment": False,
    "requests.error_rate": True,
}
SHARES = ("goodput.attainment", "requests.error_rate")
_LATENCY_FIELDS = ("ttft_s", "ttft_intent_s", "itl_s", "tpot_s", "e2e_s", "worst_stall_s")


@dataclass(frozen=True, slots=True)
class Difference:
    """Experiment against baseline. `delta`, `low` and `high` are relative changes (0.1 = 10 %
    more), for a metric of SHARES plain differences. None with a `reason` when not known.
    """

    delta: float | None
    low: float | None
    high: float | None
    verdict: Comparison
    pairs: int
    reason: str | None = None


def figure(summary: Summary, metric: str) -> float | None:
    """A figure by its path, for example "ttft_s.p95"."""
    value: Any = summary
    for name in metric.split("."):
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return value if isinstance(value, int | float) else None


def compare(
    baseline: Mapping[int, Summary], experiment: Mapping[int, Summary]
) -> dict[str, Difference]:
    """Differences by metric between the valid runs (repeat -> summary) of two experiments.

    A metric that neither has is left out.
    """
    repeats = sorted(set(baseline) & set(experiment))
    found = {}
    for metric, less in LESS_IS_BETTER.items():
        pairs = [(figure(baseline[r], metric), figure(experiment[r], metric)) for r in repeats]
        if all(a is None and b is None for a, b in pairs):
            continue
        found[metric] = _difference(pairs, less_is_better=less, share=metric in SHARES)
    return found


def _difference(
    pairs: Sequence[tuple[float | None, float | None]], *, less_is_better: bool, share: bool
) -> Difference:
    n = len(pairs)
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    if len(known) < n or not known:
        return _no_difference(n, "not measured in every run")
    if not all(math.isfinite(a) and math.isfinite(b) for a, b in known):
        return _no_difference(n, "infinite in some run: it falls among failures")
    if share:
        steps = [b - a for a, b in known]
    elif all(a > 0 and b > 0 for a, b in known):
        steps = [math.log(b / a) for a, b in known]
    else:
        return _no_difference(n, "zero in some run: it has no ratio")
    low, mean, high = t_interval(steps)
    back = (lambda x: x) if share else math.expm1
    if low is None or high is None:
        reason = "one pair of runs has no interval"
        return Difference(back(mean), None, None, "no clear difference", n, reason)
    return Difference(back(mean), back(low), back(high), _verdict(low, high, less_is_better), n)


def _verdict(low: float, high: float, less_is_better: bool) -> Comparison:
    if low <= ROUNDING and high >= -ROUNDING:
        return "no clear difference"
    return "clearly better" if (high < 0.0) == less_is_better else "clearly worse"


def _no_difference(pairs: int, reason: str) -> Difference:
    return Difference(None, None, None, "no clear difference", pairs, reason)


def t_interval(values: Sequence[float]) -> tuple[float | None, float, float | None]:
    """Low, mean and high of Student's 95 % interval of the mean; no bounds for fewer than two."""
    n = len(values)
    mean = math.fsum(values) / n
    if n < FEWEST_PAIRS:
        return None, mean, None
    spread = float(np.std(values, ddof=1)) / math.sqrt(n)
    half = t_quantile(n - 1) * spread
    return mean - half, mean, mean + half


def t_quantile(degrees: int) -> float:
    """Student's t: the two-sided 95 % point."""
    from scipy.special import stdtrit  # noqa: PLC0415  half a second to import

    return float(stdtrit(degrees, 0.5 + LEVEL / 2))


def merge(summaries: Sequence[Summary]) -> Summary:
    """The valid repeats of one experiment as one summary.

    Each figure is the mean of the repeats' figures (None when one of them lacks it), counts are
    summed, and the intervals are Student's t over the repeats. One repeat comes back as it is.
    """
    assert summaries, "nothing to merge"
    first = summaries[0]
    if len(summaries) == 1:
        return first
    changes: dict[str, Any] = {
        f.name: _mean([getattr(s, f.name) for s in summaries])
        for f in fields(Summary)
        if f.name not in ("source", "requests", "slo", "intervals", "client", "verdict")
    }
    changes["requests"] = _sum_counts([s.requests for s in summaries])
    changes["notes"] = (
        *dict.fromkeys(n for s in summaries for n in s.notes),
        f"each figure is the mean over {len(summaries)} repeats, counts are their sum",
    )
    merged = replace(first, **changes)
    return replace(
        merged,
        slo=_judge_again(summaries),
        intervals=_intervals(summaries),
        client=_worst_client([s.client for s in summaries]),
        verdict=_all_verdicts([s.verdict for s in summaries]),
    )


def _mean(values: Sequence[Any]) -> Any:
    """Mean of numbers, field by field in dataclasses and mappings; differing texts are joined."""
    first: Any = values[0]
    if any(v is None for v in values):
        return None
    if isinstance(first, bool):
        return any(values)
    if isinstance(first, int | float):
        return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.inf
    if isinstance(first, str):
        return "; ".join(dict.fromkeys(values))
    if isinstance(first, Mapping):
        keys = [k for k in first if all(k in v for v in values)]
        return {k: _mean([v[k] for v in values]) for k in keys}
    if is_dataclass(first) and not isinstance(first, type):
        means = {
            f.name: sum(getattr(v, f.name) for v in values)
            if f.name == "n"
            else _mean([getattr(v, f.name) for v in values])
            for f in fields(first)
        }
        return replace(first, **means)
    return first


def _sum_counts(counts: Sequence[RequestCounts]) -> RequestCounts:
    failures: dict[str, int] = {}
    for count in counts:
        for name, n in count.failures.items():
            failures[name] = failures.get(name, 0) + n
    sent, ok = sum(c.sent for c in counts), sum(c.ok for c in counts)
    return RequestCounts(sent, ok, sent - ok, (sent - ok) / sent if sent else None, failures)


def _judge_again(summaries: Sequence[Summary]) -> tuple[SloResult, ...]:
    """Each limit against the mean of the values found."""
    results = []
    for same in zip(*(s.slo for s in summaries), strict=True):
        value = _mean([r.value for r in same])
        (limit,) = parse_slo(same[0].limit).limits
        met = None
        if value is not None:
            met = value >= limit.value if limit.key == "attainment" else value <= limit.value
        results.append(SloResult(same[0].limit, value, met))
    return tuple(results)


def _intervals(summaries: Sequence[Summary]) -> dict[str, Interval]:
    """Interval of the mean over repeats, on the log scale where all values are above zero."""
    n = len(summaries)
    found = {}
    for metric in dict.fromkeys((*LESS_IS_BETTER, *summaries[0].intervals)):
        values = [figure(s, metric) for s in summaries]
        known = [v for v in values if v is not None and math.isfinite(v)]
        if len(known) < n:
            reasons = [i.reason for s in summaries if (i := s.intervals.get(metric)) and i.reason]
            if reasons:
                found[metric] = Interval(None, None, n, reasons[0])
            continue
        log = all(v > 0 for v in known) and metric not in SHARES
        low, _, high = t_interval([math.log(v) for v in known] if log else known)
        assert low is not None
        assert high is not None
        bounds = (math.exp(low), math.exp(high)) if log else (max(0.0, low), high)
        found[metric] = Interval(*bounds, n, f"over {n} repeats")
    return found


def _worst_client(clients: Sequence[ClientFigures]) -> ClientFigures:
    def worst(name: str) -> float | None:
        values = [v for c in clients if (v := getattr(c, name)) is not None]
        return max(values, default=None)

    clocks = dict.fromkeys(c.receive_clock for c in clients if c.receive_clock)
    return ClientFigures(
        worst("loop_lag_p99_s"),
        worst("send_lateness_p99_s"),
        worst("cpu_share"),
        " and ".join(clocks) or None,
    )


def _all_verdicts(verdicts: Sequence[VerdictFigures]) -> VerdictFigures:
    return VerdictFigures(
        all(v.valid for v in verdicts),
        tuple(dict.fromkeys(r for v in verdicts for r in v.reasons)),
        tuple(dict.fromkeys(w for v in verdicts for w in v.warnings)),
    )
