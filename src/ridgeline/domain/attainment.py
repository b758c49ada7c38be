"""Judging a run against its limits: each request by itself, and the run's statistics."""

from collections.abc import Mapping

import numpy as np

from ridgeline.domain.records import Bools, Floats, Ints, RunRecords
from ridgeline.domain.slo import Limit, Slo
from ridgeline.domain.summary import Goodput, Percentiles, RequestCounts, SloResult


def attained(
    records: RunRecords,
    rows: Ints,
    values: Mapping[str, Floats],
    ok: Bools,
    slo: Slo,
    *,
    open_loop: bool,
    slack_ns: Floats | None = None,
) -> Bools | None:
    """Which of the requests in `rows` meet every per-request limit; None without such a limit.

    ttft, tpot and e2e have one value a request: it is held against the largest limit that the SLO
    sets for the metric (a mean or a median limits the crowd, not each one). itl is held against
    every one of its limits by the request's own gaps: itl_p95_ms is met when 95 % of them are
    inside. A failed request meets nothing; one without the value (a reply of one token has no
    gaps) has nothing to miss. `values` are per row, in seconds. In open loop ttft counts from the
    intended start. `slack_ns`, per request of the run, is added to the limits on its own gaps.
    """
    limits = [limit for limit in slo.limits if limit.statistic is not None]
    if not limits:
        return None
    meets = ok.copy()
    for metric in {limit.metric for limit in limits} - {"itl"}:
        largest = max(limit.value for limit in limits if limit.metric == metric) / 1e3
        value = values[column_of(metric, open_loop=open_loop)]
        meets &= np.isnan(value) | (value <= largest)
    for limit in limits:
        if limit.metric == "itl":
            meets &= _own_gaps_inside(records, limit, slack_ns)[rows]
    return meets


def _own_gaps_inside(records: RunRecords, limit: Limit, slack_ns: Floats | None) -> Bools:
    """Per request of the run: do its own gaps keep an itl limit (inverted CDF)?"""
    chunks = np.diff(records.chunk_start)
    gaps = np.maximum(chunks - 1, 0)
    filled = np.flatnonzero(chunks >= 1)
    inside = np.ones(len(records), dtype=np.bool_)
    if not len(filled):
        return inside
    starts = records.chunk_start[filled]
    limit_ns = limit.value * 1e6
    if limit.statistic == "mean":
        ends = records.chunk_start[filled + 1] - 1
        spans = records.chunk_ns[ends] - records.chunk_ns[starts]
        more_ns = 0.0 if slack_ns is None else slack_ns[filled]
        inside[filled] = spans <= limit_ns * gaps[filled] + more_ns
        return inside
    assert limit.statistic is not None
    percent = int(limit.statistic[1:])
    slow = np.empty(len(records.chunk_ns), dtype=np.int64)
    slow[0] = 0
    limits: Floats | float = limit_ns
    if slack_ns is not None:
        limits = np.repeat(limit_ns + slack_ns, chunks)[1:]
    np.greater(np.diff(records.chunk_ns), limits, out=slow[1:], casting="unsafe")
    slow[starts] = 0
    fast = gaps[filled] - np.add.reduceat(slow, starts)
    inside[filled] = fast * 100 >= percent * gaps[filled]
    return inside


def judge(
    slo: Slo,
    worst: Mapping[str, Percentiles],
    counts: RequestCounts,
    goodput: Goodput,
    *,
    open_loop: bool,
) -> tuple[SloResult, ...]:
    """Each limit with the value found. Latencies (ms) in the view where failures are infinite."""
    results = []
    for limit in slo.limits:
        if limit.metric == "error_rate":
            value = counts.error_rate
            met = None if value is None else value <= limit.value
        elif limit.metric == "attainment":
            value = goodput.attainment
            met = None if value is None else value >= limit.value
        else:
            assert limit.statistic is not None
            seconds = getattr(worst[column_of(limit.metric, open_loop=open_loop)], limit.statistic)
            value = None if seconds is None else seconds * 1e3
            met = None if value is None else value <= limit.value
        results.append(SloResult(str(limit), value, met))
    return tuple(results)


def column_of(metric: str, *, open_loop: bool) -> str:
    """Name of the measured column for an SLO metric."""
    if metric == "ttft" and open_loop:
        return "ttft_intent_s"
    return f"{metric}_s"
