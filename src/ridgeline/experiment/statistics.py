"""Comparing experiments over paired repeats, and merging the repeats of one experiment.

A pair is one repeat of the experiment and the same repeat of the baseline: same seed, hence same
arrivals and lengths. For a latency, a rate or a cost the difference is the mean of the log ratios
with Student's t interval, turned back into a relative change. For a share (error rate, attainment),
which may be zero, it is the plain difference; its interval covers both Student's over the pairs and
Newcombe's of the pooled counts, because a few runs with a rare event or none look alike by chance.

Only a twin repeats itself exactly. Measured pairs that all differ by the very same amount say that
the figure is coarse, not that it is certain: they get no interval.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal

import numpy as np

from ridgeline.domain.slo import parse_slo
from ridgeline.domain.summary import (
    ClientFigures,
    Interval,
    LoadStepFigures,
    RequestCounts,
    SloResult,
    Summary,
    VerdictFigures,
)
from ridgeline.workload.study import EQUAL_WITHIN

Comparison = Literal["clearly better", "clearly worse", "no clear difference"]
LEVEL = 0.95
POWER = 0.8
FEWEST_PAIRS = 2
# Two measured pairs that happen to agree give an interval a hundred times too narrow, and nothing
# in them says so: with one degree of freedom the noise is not known.
FEWEST_CLEAR = 3
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
_MORE_IS_BETTER = ("throughput.", "goodput.")
_NUMBERS = re.compile(r"\d[\d.,]*")
_Z = 1.959964  # the normal distribution's two-sided 95 % point
_ONE_PAIR = "one pair of runs has no interval"
FEW_PAIRS = "two pairs do not show how large the noise is: three make a difference clear"
_COARSE = "every pair gave the very same difference: the figure is too coarse for an interval"
SHARES = ("goodput.attainment", "requests.error_rate")
_LATENCY_FIELDS = ("ttft_s", "ttft_intent_s", "itl_s", "tpot_s", "e2e_s", "worst_stall_s")


@dataclass(frozen=True, slots=True)
class Difference:
    """Experiment against baseline. `delta`, `low` and `high` are relative changes (0.1 = 10 %
    more), for a metric of SHARES plain differences. None with a `reason` when not known.

    `reason` "equal within ..." stands beside an interval that is too close to zero to matter.
    `detectable`: the relative change that as many pairs with as much noise would find in four of
    five studies; None for shares and where there is no interval.
    """

    delta: float | None
    low: float | None
    high: float | None
    verdict: Comparison
    pairs: int
    reason: str | None = None
    detectable: float | None = None


def figure(summary: Summary, metric: str) -> float | None:
    """A figure by its path, for example "ttft_s.p95"."""
    value: Any = summary
    for name in metric.split("."):
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return value if isinstance(value, int | float) else None


def compare(
    baseline: Mapping[int, Summary],
    experiment: Mapping[int, Summary],
    equal_within: float = EQUAL_WITHIN,
) -> dict[str, Difference]:
    """Differences by metric between the valid runs (repeat -> summary) of two experiments.

    A metric that neither has is left out.
    """
    found = {}
    for metric in LESS_IS_BETTER:
        difference = difference_of(metric, baseline, experiment, equal_within)
        if difference is not None:
            found[metric] = difference
    return found


def difference_of(
    metric: str,
    baseline: Mapping[int, Summary],
    experiment: Mapping[int, Summary],
    equal_within: float = EQUAL_WITHIN,
) -> Difference | None:
    """The difference in one metric (any path into Summary); None when no run has it."""
    pairs = [(baseline[r], experiment[r]) for r in sorted(set(baseline) & set(experiment))]
    values = [(figure(a, metric), figure(b, metric)) for a, b in pairs]
    if all(a is None and b is None for a, b in values):
        return None
    known = [(a, b) for a, b in values if a is not None and b is not None]
    if len(known) < len(values):
        return _no_difference(len(values), "not measured in every run")
    if not all(math.isfinite(a) and math.isfinite(b) for a, b in known):
        return _no_difference(len(values), "infinite in some run: it falls among failures")
    less_is_better = LESS_IS_BETTER.get(metric, not metric.startswith(_MORE_IS_BETTER))
    if metric in SHARES:
        return _of_shares(known, pairs, less_is_better=less_is_better)
    if not all(a > 0 and b > 0 for a, b in known):
        return _no_difference(len(values), "zero in some run: it has no ratio")
    exact = all(s.source == "twin" for pair in pairs for s in pair)
    steps = [math.log(b / a) for a, b in known]
    return _of_ratios(steps, equal_within, less_is_better=less_is_better, exact=exact)


def _of_ratios(
    steps: Sequence[float], equal_within: float, *, less_is_better: bool, exact: bool
) -> Difference:
    """Relative change from the log ratios of the pairs."""
    n = len(steps)
    low, mean, high = t_interval(steps)
    delta = math.expm1(mean)
    if low is None or high is None:
        return Difference(delta, None, None, "no clear difference", n, _ONE_PAIR)
    if not exact and max(steps) - min(steps) <= ROUNDING:
        return Difference(delta, None, None, "no clear difference", n, _COARSE)
    back = (math.expm1(low), math.expm1(high))
    if max(map(abs, back)) <= max(equal_within, ROUNDING):
        reason = f"equal within {100 * equal_within:g} %"
        return Difference(delta, *back, "no clear difference", n, reason)
    verdict = _verdict(low, high, less_is_better)
    if not exact and n < FEWEST_CLEAR and verdict != "no clear difference":
        return Difference(delta, *back, "no clear difference", n, FEW_PAIRS)
    return Difference(delta, *back, verdict, n, detectable=detectable(steps))


def _of_shares(
    known: Sequence[tuple[float, float]],
    pairs: Sequence[tuple[Summary, Summary]],
    *,
    less_is_better: bool,
) -> Difference:
    """Plain difference of shares; the interval covers that of the pairs and that of the counts."""
    low, mean, high = t_interval([b - a for a, b in known])
    if low is None or high is None:
        return Difference(mean, None, None, "no clear difference", len(known), _ONE_PAIR)
    before = _pooled([(a, _ended(s)) for (a, _), (s, _) in zip(known, pairs, strict=True)])
    after = _pooled([(b, _ended(s)) for (_, b), (_, s) in zip(known, pairs, strict=True)])
    bounds = newcombe(before, after)
    low, high = min(low, bounds[0]), max(high, bounds[1])
    return Difference(mean, low, high, _verdict(low, high, less_is_better), len(known))


def _pooled(shares: Sequence[tuple[float, int]]) -> tuple[int, int]:
    """(events, requests) of several (share, requests)."""
    return sum(round(share * n) for share, n in shares), sum(n for _, n in shares)


def _ended(summary: Summary) -> int:
    """Requests that a share is out of: those that the client did not end itself."""
    return summary.requests.sent - summary.requests.unfinished


def wilson(events: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a share, in [0, 1] (Wilson 1927)."""
    if n == 0:
        return 0.0, 1.0
    z2 = _Z * _Z
    share = events / n
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def newcombe(before: tuple[int, int], after: tuple[int, int]) -> tuple[float, float]:
    """95 % interval of the difference of two shares, each (events, requests), after - before.

    Newcombe 1998, method 10: from the two score intervals; holds at zero events too.
    """
    (low1, high1), (low2, high2) = wilson(*before), wilson(*after)
    share1, share2 = (e / n if n else 0.5 for e, n in (before, after))
    difference = share2 - share1
    return (
        difference - math.hypot(share2 - low2, high1 - share1),
        difference + math.hypot(high2 - share2, share1 - low1),
    )


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


def detectable(steps: Sequence[float]) -> float:
    """Relative change that the t-test on such log ratios finds with POWER: the sum of two quantiles
    of t times the standard error (the usual approximation of the noncentral t).
    """
    n = len(steps)
    error = float(np.std(steps, ddof=1)) / math.sqrt(n)
    return math.expm1((t_quantile(n - 1) + t_quantile(n - 1, POWER)) * error)


def t_quantile(degrees: float, share: float = 0.5 + LEVEL / 2) -> float:
    """Student's t below which the share lies; unless given, the two-sided 95 % point."""
    from scipy.special import stdtrit  # noqa: PLC0415  half a second to import

    return float(stdtrit(degrees, share))


def f_quantile(above: float, below: float, share: float) -> float:
    """Fisher's F below which the share lies; degrees of freedom of the ratio's two variances."""
    from scipy.special import fdtri  # noqa: PLC0415  half a second to import

    return float(fdtri(above, below, share))


def merge(summaries: Sequence[Summary]) -> Summary:
    """The valid repeats of one experiment as one summary.

    Each figure is the mean of the repeats' figures (None when one of them lacks it), counts are
    summed, and the intervals are Student's t over the repeats. A limit is met when every repeat
    meets it, and the value beside it is the worst repeat's. One repeat comes back as it is.
    """
    assert summaries, "nothing to merge"
    first = summaries[0]
    if len(summaries) == 1:
        return first
    changes: dict[str, Any] = {
        f.name: _mean([getattr(s, f.name) for s in summaries])
        for f in fields(Summary)
        if f.name
        not in (
            "source",
            "requests",
            "slo",
            "intervals",
            "client",
            "verdict",
            "load_steps",
            "warmup",
        )
    }
    changes["load_steps"] = tuple(
        map(_mean_step, zip(*(s.load_steps for s in summaries), strict=False))
    )
    changes["requests"] = _sum_counts([s.requests for s in summaries])
    lost = (s.warmup for s in summaries if s.warmup is not None and not s.warmup.found)
    changes["warmup"] = next(lost, first.warmup)
    changes["notes"] = (
        *dict.fromkeys(n for s in summaries for n in s.notes),
        f"each figure is the mean over {len(summaries)} repeats, counts are their sum; a limit is"
        " judged by its worst repeat",
    )
    merged = replace(first, **changes)
    return replace(
        merged,
        slo=_worst_of_each(summaries),
        intervals=_intervals(summaries),
        client=_worst_client([s.client for s in summaries]),
        verdict=_all_verdicts([s.verdict for s in summaries]),
    )


def _mean(values: Sequence[Any]) -> Any:
    """Mean of numbers, field by field in dataclasses and mappings; of texts the commonest kind
    (numbers in them do not tell kinds apart); of keys that end in _error the largest.
    """
    first: Any = values[0]
    if any(v is None for v in values):
        return None
    if isinstance(first, bool):
        return any(values)
    if isinstance(first, int | float):
        return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.inf
    if isinstance(first, str):
        kinds = [_NUMBERS.sub("#", value) for value in values]
        (kind, n), *others = Counter(kinds).most_common()
        text = values[kinds.index(kind)]
        return f"{text} ({n} of {len(values)} repeats, the others differ)" if others else text
    if isinstance(first, Mapping):
        keys = [k for k in first if all(k in v for v in values)]
        return {
            k: max((v[k] for v in values), key=abs)  # a mean would let two errors cancel
            if k.endswith("_error")
            else _mean([v[k] for v in values])
            for k in keys
        }
    if isinstance(first, RequestCounts):
        return _sum_counts(values)
    if is_dataclass(first) and not isinstance(first, type):
        means = {
            f.name: sum(getattr(v, f.name) for v in values)
            if f.name == "n"
            else _mean([getattr(v, f.name) for v in values])
            for f in fields(first)
        }
        return replace(first, **means)
    return first


def _mean_step(steps: Sequence[LoadStepFigures]) -> LoadStepFigures:
    """One step of the load over the repeats; what speaks against any of them is told."""
    notes = tuple(dict.fromkeys(note for step in steps for note in step.notes))
    return replace(steps[0], figures=_mean([s.figures for s in steps]), notes=notes)


def _sum_counts(counts: Sequence[RequestCounts]) -> RequestCounts:
    failures: dict[str, int] = {}
    for count in counts:
        for name, n in count.failures.items():
            failures[name] = failures.get(name, 0) + n
    sent, ok, failed, unfinished = (
        sum(getattr(c, name) for c in counts) for name in ("sent", "ok", "failed", "unfinished")
    )
    rate = failed / (ok + failed) if ok + failed else None
    return RequestCounts(sent, ok, failed, rate, failures, unfinished)


def _worst_of_each(summaries: Sequence[Summary]) -> tuple[SloResult, ...]:
    """Each limit against its worst repeat: a mean would let one bad repeat of three pass.

    A repeat that misses decides, even where another could not be judged.
    """
    results = []
    for same in zip(*(s.slo for s in summaries), strict=True):
        (limit,) = parse_slo(same[0].limit).limits
        lower = limit.key == "attainment"
        values = [r.value for r in same if r.value is not None]
        value: float | None = (min if lower else max)(values) if values else None
        met = None if value is None else value >= limit.value if lower else value <= limit.value
        if met and len(values) < len(same):
            value = met = None
        results.append(SloResult(same[0].limit, value, met, same[0].traffic_class))
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
        if metric in SHARES:
            found[metric] = _share_interval(known, summaries)
            continue
        if summaries[0].source != "twin" and max(known) - min(known) <= ROUNDING * abs(known[0]):
            found[metric] = Interval(None, None, n, "all repeats gave the very same figure")
            continue
        log = all(v > 0 for v in known)
        low, _, high = t_interval([math.log(v) for v in known] if log else known)
        assert low is not None
        assert high is not None
        bounds = (math.exp(low), math.exp(high)) if log else (max(0.0, low), high)
        found[metric] = Interval(*bounds, n, f"over {n} repeats")
    return found


def _share_interval(known: Sequence[float], summaries: Sequence[Summary]) -> Interval:
    """Of a share: covers Student's interval over the repeats and Wilson's of the pooled counts."""
    low, _, high = t_interval(known)
    assert low is not None
    assert high is not None
    ended = [_ended(s) for s in summaries]
    bounds = wilson(*_pooled(list(zip(known, ended, strict=True))))
    low, high = max(0.0, min(low, bounds[0])), min(1.0, max(high, bounds[1]))
    return Interval(low, high, len(known), f"over {len(known)} repeats")


def _worst_client(clients: Sequence[ClientFigures]) -> ClientFigures:
    def worst(name: str) -> float | None:
        values = [v for c in clients if (v := getattr(c, name)) is not None]
        return max(values, default=None)

    clocks = dict.fromkeys(c.receive_clock for c in clients if c.receive_clock)
    names = [f.name for f in fields(ClientFigures) if f.name != "receive_clock"]
    found = {name: worst(name) for name in names}
    return ClientFigures(receive_clock=" and ".join(clocks) or None, **found)  # type: ignore[arg-type]


def _all_verdicts(verdicts: Sequence[VerdictFigures]) -> VerdictFigures:
    return VerdictFigures(
        all(v.valid for v in verdicts),
        tuple(dict.fromkeys(r for v in verdicts for r in v.reasons)),
        tuple(dict.fromkeys(w for v in verdicts for w in v.warnings)),
    )
