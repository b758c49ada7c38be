"""Percentiles that the client's own late reads could have made: they are not told as numbers.

The client bounds how far each chunk's time may be too late (`run.ClientCheck`, stamp_error). A
percentile that such an error can change by more than ERROR_SHARE of itself (and by more than
ERROR_FLOOR_S) becomes None, and `intervals` has the reason. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from ridgeline.domain.attainment import attained
from ridgeline.domain.metrics import output_tokens, take_sample
from ridgeline.domain.records import RunRecords
from ridgeline.domain.run import ClientCheck, Window
from ridgeline.domain.slo import Limit, Slo, parse_slo
from ridgeline.domain.summary import (
    Goodput,
    Interval,
    LoadStepFigures,
    PartFigures,
    Percentiles,
    SloResult,
    Summary,
)

ERROR_FLOOR_S = 0.001  # a smaller error matters for no figure
ERROR_SHARE = 0.05  # of the figure
ATTAINMENT_SHARE = 0.01  # of the requests: a share that is less sure is not told
PERCENTS = (50, 90, 95, 99)
NAMES = ("ttft_s", "ttft_intent_s", "itl_s", "tpot_s", "e2e_s", "worst_stall_s")

Figures = TypeVar("Figures", Summary, PartFigures)


@dataclass(frozen=True, slots=True)
class ReadErrors:
    """What late reads can have done to a run (s, None = not measured).

    p95 to most: of the bound of a chunk's time; first_*: of each reply's first one, None where it
    is not told apart. chunks: of the median request with any.
    suspect_stalls: share of the requests whose largest gap ends at chunks that came in one read, so
    that the gap may be the client's; 1 where times are those of reads.
    """

    p95_s: float | None
    p99_s: float | None
    p999_s: float | None
    most_s: float | None
    chunks: float = 1.0
    suspect_stalls: float = 1.0
    first_p95_s: float | None = None
    first_p99_s: float | None = None
    first_most_s: float | None = None

    def of(self, name: str, percent: int) -> float | None:
        """By how much (s) the percentile of the named latency may be too large.

        A rank hides what is rarer than its tail. TTFT is made of first chunks only, which may be
        late more often than others, as when a server sends the first two close together. TPOT
        spreads the first chunk's error over the reply. A worst stall is the largest of a reply's
        gaps, so that the tail that matters is that many times thinner; no stall is in doubt whose
        chunks came one by one.
        """
        tail = 100.0 - percent
        if name in ("ttft_s", "ttft_intent_s") and self.first_most_s is not None:
            firsts = ((5, self.first_p95_s), (1, self.first_p99_s), (0, self.first_most_s))
            return _next_known(firsts, tail)
        if name == "worst_stall_s":
            if 100 * self.suspect_stalls <= tail:
                return 0.0
            tail /= max(1.0, self.chunks)
        found = self._beyond(tail)
        if found is not None and name == "tpot_s":
            found /= max(1.0, self.chunks - 1)
        return found

    def _beyond(self, tail: float) -> float | None:
        """The error that at most `tail` percent of the chunks exceed: the next one known."""
        known = ((5, self.p95_s), (1, self.p99_s), (0.1, self.p999_s), (0, self.most_s))
        return _next_known(known, tail)


def _next_known(known: Iterable[tuple[float, float | None]], tail: float) -> float | None:
    """The error beyond the largest share that is known and no larger than the tail (percent)."""
    return next((e for share, e in known if e is not None and share <= tail), None)


def read_errors(client: ClientCheck, records: RunRecords, window: Window) -> ReadErrors | None:
    """What a run's late reads can have done; None when it is too little for any figure."""
    worst = (client.stamp_error_max_s, client.stamp_error_p99_s, client.stamp_error_p95_s,
             client.first_error_max_s)  # fmt: skip
    if max((e for e in worst if e is not None), default=0.0) <= ERROR_FLOOR_S:
        return None
    inside = (records.sent_ns >= window.start_ns) & (records.sent_ns < window.end_ns)
    counts = np.diff(records.chunk_start)
    rows = np.flatnonzero(inside & records.ok & (counts > 0))
    suspect = 1.0
    if client.receive_clock == "kernel" and len(rows):
        suspect = float(_suspect(records)[rows].mean())
    firsts = first_errors(client, records, window)
    return ReadErrors(
        client.stamp_error_p95_s,
        client.stamp_error_p99_s,
        client.stamp_error_p999_s,
        client.stamp_error_max_s,
        float(np.median(counts[rows])) if len(rows) else 1.0,
        suspect,
        *firsts,
    )


def first_errors(
    client: ClientCheck, records: RunRecords, window: Window
) -> tuple[float | None, float | None, float | None]:
    """How far first chunks may be too late (s) at p95, p99 and most: those of these requests.

    Of one class among many, or of one step of the load, the lateness is not that of all. Where a
    run does not tell it for each request, it is the run's.
    """
    inside = (records.sent_ns >= window.start_ns) & (records.sent_ns < window.end_ns)
    errors = records.first_error_ns[inside & records.ok & ~np.isnan(records.first_ns)] / 1e9
    if not len(errors) or np.isnan(errors).any():
        return client.first_error_p95_s, client.first_error_p99_s, client.first_error_max_s
    p95, p99 = np.percentile(errors, (95, 99), method="inverted_cdf")
    return float(p95), float(p99), float(errors.max())


def attainment_range(
    records: RunRecords, window: Window, slo: Slo, *, open_loop: bool
) -> tuple[float, float] | None:
    """The least and the largest attainment that late reads leave possible; None: not known.

    A first chunk may have come earlier than its stamp, so a TTFT may be smaller; a gap or a time
    per token may be smaller or larger, by what its request's chunks may be late.
    """
    if not any(limit.statistic for limit in slo.limits):
        return None
    sample = take_sample(records, window)
    rows = sample.rows
    first, worst = (getattr(records, f"{n}_error_ns") for n in ("first", "chunk"))
    timed = sample.ok & ~np.isnan(records.first_ns[rows])
    if not len(rows) or np.isnan(first[rows][timed]).any():
        return None
    first, worst = np.nan_to_num(first), np.nan_to_num(worst)
    each = np.maximum(output_tokens(records)[0][rows] - 1, 1)
    shares = []
    for sign in (-1, 1):  # at the worst, at the best
        values = dict(sample.values)
        values["tpot_s"] = values["tpot_s"] - sign * worst[rows] / 1e9 / each
        if sign > 0:
            for name in ("ttft_s", "ttft_intent_s"):
                values[name] = values[name] - first[rows] / 1e9
            values["e2e_s"] = values["e2e_s"] - worst[rows] / 1e9
        meets = attained(
            records, rows, values, sample.ok, slo, open_loop=open_loop, slack_ns=sign * worst
        )
        if meets is None:
            return None
        shares.append(float(meets.mean()))
    return shares[0], shares[1]


def _suspect(records: RunRecords) -> np.ndarray:
    """Per request: does its largest gap end at the first of several chunks of one read?"""
    at, start = records.chunk_ns, records.chunk_start
    counts = np.diff(start)
    found = np.zeros(len(counts), dtype=np.bool_)
    filled = np.flatnonzero(counts > 0)
    if not len(filled):
        return found
    gaps = np.diff(at, prepend=at[:1])
    gaps[start[filled]] = 0
    largest = np.maximum.reduceat(gaps, start[filled])
    head = np.append(records.chunk_shared[1:], False)  # the next one came with it
    head[start[filled][1:] - 1] = False
    longest = gaps == np.repeat(largest, counts[filled])
    found[filled] = np.logical_or.reduceat(longest & head, start[filled])
    return found


def withhold(
    summary: Summary,
    errors: ReadErrors | None,
    *,
    open_loop: bool,
    of_classes: Mapping[str, ReadErrors] = MappingProxyType({}),
    of_steps: Sequence[ReadErrors] = (),
) -> Summary:
    """The summary without the percentiles that late reads may have made.

    Those of its classes and load steps too, by their own errors where these are given; a limit on
    one that is withheld is not judged.
    """
    if errors is None:
        return summary
    gone = dict(_doubtful(summary, errors))
    intervals = dict(summary.intervals)
    for path, error in gone.items():
        n = getattr(summary, path.partition(".")[0]).n
        intervals[path] = Interval(None, None, n, _reason(error))
    classes = {
        k: _without(part, of_classes.get(k, errors), open_loop)
        for k, part in summary.classes.items()
    }
    own = of_steps or [errors] * len(summary.load_steps)
    steps: list[LoadStepFigures] = [
        replace(step, figures=_without(step.figures, error, open_loop))
        for step, error in zip(summary.load_steps, own, strict=True)
    ]
    of_limit: dict[tuple[str, str | None], SloResult] = {
        (r.limit, name): r for name, part in classes.items() for r in part.slo
    }
    summary = _without(summary, errors, open_loop)
    slo = tuple(
        r if (found := of_limit.get((r.limit, r.traffic_class))) is None
        else replace(r, value=found.value, met=found.met)
        for r in summary.slo
    )  # fmt: skip
    return replace(summary, intervals=intervals, classes=classes, load_steps=tuple(steps), slo=slo)


def withhold_attainment(
    summary: Summary, ranges: Mapping[str | None, tuple[float, float] | None]
) -> Summary:
    """The summary without shares of good requests that late reads leave open.

    ranges: `attainment_range` of all requests (None) and of each class. A limit that lies between
    the two ends is neither met nor missed.
    """
    slo = tuple(_unattained(result, ranges.get(result.traffic_class)) for result in summary.slo)
    classes = {
        name: replace(
            part,
            goodput=Goodput() if _wide(ranges.get(name)) else part.goodput,
            slo=tuple(_unattained(result, ranges.get(name)) for result in part.slo),
        )
        for name, part in summary.classes.items()
    }
    summary = replace(summary, slo=slo, classes=classes)
    wide = next((found for found in ranges.values() if found is not None and _wide(found)), None)
    if wide is None or summary.goodput.attainment is None:
        return summary
    reason = (
        f"not resolvable: between {wide[0]:.2%} and {wide[1]:.2%}, because the client read late"
    )
    unknown = Interval(None, None, summary.requests.sent, reason)
    intervals = {**summary.intervals, "goodput.attainment": unknown}
    return replace(summary, goodput=Goodput(), intervals=intervals)


def _wide(found: tuple[float, float] | None) -> bool:
    return found is not None and found[1] - found[0] > ATTAINMENT_SHARE


def in_doubt(limit: Limit, found: tuple[float, float] | None) -> bool:
    """Whether a limit on the attainment is met at the best and not at the worst."""
    return found is not None and found[0] < limit.value <= found[1]


def _unattained(result: SloResult, found: tuple[float, float] | None) -> SloResult:
    (limit,) = parse_slo(result.limit).limits
    if limit.metric != "attainment" or not in_doubt(limit, found):
        return result
    return replace(result, value=None, met=None)


def _reason(error_s: float) -> str:
    return f"not resolvable: the client read late (chunk times up to {error_s * 1e3:.3g} ms off)"


def _doubtful(figures: Summary | PartFigures, errors: ReadErrors) -> Iterator[tuple[str, float]]:
    """Path of each percentile that is not resolvable, and the error that it may have (s)."""
    for name in NAMES:
        found = getattr(figures, name)
        for percent in PERCENTS:
            value, error = getattr(found, f"p{percent}"), errors.of(name, percent)
            if value is None or error is None:
                continue
            if error > max(ERROR_FLOOR_S, ERROR_SHARE * value):
                yield f"{name}.p{percent}", error


def _without(figures: Figures, errors: ReadErrors, open_loop: bool) -> Figures:
    """The figures with None for what is not resolvable, in both views, and its limits unjudged."""
    gone = {path for path, _ in _doubtful(figures, errors)}
    if not gone:
        return figures
    kept: dict[str, Any] = {name: _cut(getattr(figures, name), name, gone) for name in NAMES}
    worst = {k: _cut(view, k, gone) for k, view in figures.failures_as_infinite.items()}
    slo = tuple(_unjudged(result, gone, open_loop) for result in figures.slo)
    return replace(figures, **kept, failures_as_infinite=worst, slo=slo)


def _cut(view: Percentiles, name: str, gone: set[str]) -> Percentiles:
    cut: dict[str, Any] = {f"p{p}": None for p in PERCENTS if f"{name}.p{p}" in gone}
    return replace(view, **cut)


def _unjudged(result: SloResult, gone: set[str], open_loop: bool) -> SloResult:
    """A limit on a percentile that is gone: neither met nor missed. Those of classes stay."""
    if result.traffic_class is not None:
        return result
    (limit,) = parse_slo(result.limit).limits
    metric = "ttft_intent" if open_loop and limit.metric == "ttft" else limit.metric
    if f"{metric}_s.{limit.statistic}" not in gone:
        return result
    return replace(result, value=None, met=None)
