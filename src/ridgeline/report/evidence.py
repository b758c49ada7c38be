"""From one run's records to what the charts draw: quantile points, roofline points, time series.

Pure functions of records and steps; the definitions are those of `domain.metrics`.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np

from ridgeline.domain.metrics import Sample, per_second
from ridgeline.domain.records import Bools, Floats, Ints, RunEvent, RunRecords, StepTable
from ridgeline.domain.run import Window
from ridgeline.report.model import Distribution, ErrorLine, RooflinePoint, Series

NS = 1e9
BODY_POINTS, TAIL_POINTS = 240, 60
WORST_SHOWN = 24
FLAGS_SHOWN = 8
ENOUGH_FOR_P95 = 100  # n * (1 - 0.95) >= 5, the support rule of the metrics
MESSAGE_LENGTH = 300


def distribution(values: Floats, stalls: Floats | None = None) -> Distribution | None:
    """About 300 points of an empirical distribution (inverted CDF), denser in the tail.

    `values` and `stalls` in seconds; None for an empty sample.
    """
    if not len(values):
        return None
    ordered = np.sort(values)
    n = len(ordered)
    shares = np.concatenate((
        np.linspace(1 / n, 0.98, BODY_POINTS, endpoint=False) if n > 1 else [],
        np.linspace(0.98, 1.0, TAIL_POINTS),
    ))  # fmt: skip
    # Fewer observations than points: each observation once.
    if n <= len(shares):
        shares = np.arange(1, n + 1) / n
    places = np.clip(np.ceil(shares * n - 1e-9).astype(np.int64) - 1, 0, n - 1)
    worst: Floats = np.sort(stalls)[::-1][:WORST_SHOWN] if stalls is not None else np.empty(0)
    return Distribution(
        tuple(np.round(shares, 6).tolist()),
        tuple(ordered[places].tolist()),
        n,
        tuple(worst.tolist()),
    )


def roofline_points(table: StepTable, window: Window, gpus: int) -> tuple[RooflinePoint, ...]:
    """Decode-only steps and steps with prompt tokens: FLOP/byte, and FLOP/s per GPU meanwhile.

    The time of a step is what it adds to its replica's busy time: steps may overlap.
    """
    inside = (table.end_ns >= window.start_ns) & (table.end_ns < window.end_ns)
    replicas = max(1, len(np.unique(table.replica)))
    gpus_each = max(1.0, gpus / replicas)
    busy_s = _busy_ns(table) / NS
    prefill: Bools = table.prefill_tokens > 0
    phases: tuple[tuple[Literal["decode", "prefill"], Bools], ...] = (
        ("decode", inside & ~prefill),
        ("prefill", inside & prefill),
    )
    points = []
    for phase, chosen in phases:
        flops, moved = float(table.flops[chosen].sum()), float(table.bytes_read[chosen].sum())
        seconds = float(busy_s[chosen].sum())
        if flops > 0 and moved > 0 and seconds > 0:
            points.append(RooflinePoint(phase, flops / moved, flops / seconds / gpus_each))
    return tuple(points)


def _busy_ns(table: StepTable) -> Floats:
    before = np.concatenate((table.start_ns[:1], table.end_ns[:-1]))
    first = np.concatenate(([True], np.diff(table.replica) != 0))
    before = np.where(first, table.start_ns, before)
    busy: Floats = np.maximum(table.end_ns - np.maximum(table.start_ns, before), 0).astype(float)
    return busy


def series(
    run_id: str, records: RunRecords, window: Window, events: Sequence[RunEvent] = ()
) -> Series | None:
    """Figures for each second from the run's start to the window's end; None for an empty run.

    A last second that the window's end cuts short has no throughput: as a whole one it would look
    as if the server collapsed. What is counted at a second's end is counted at the window's there.
    """
    seconds = math.ceil(window.end_ns / NS)
    if seconds < 2 or not len(records):
        return None
    whole = int(window.end_ns // 10**9)
    rates = per_second(records, 0, whole * 10**9).tolist()
    values: dict[str, tuple[float | None, ...]] = {
        "output_tokens_per_s": (*rates, *(None,) * (seconds - whole)),
        "ttft_p95_s": _ttft_p95(records, seconds),
    }
    table = records.steps
    edges = np.minimum(np.arange(1, seconds + 1, dtype=np.int64) * 10**9, round(window.end_ns))
    if table is not None and len(table):
        values |= _from_steps(table, edges)
    else:
        values["in_flight"] = _in_flight(records, edges)
    return Series(
        run_id,
        tuple(float(s) for s in range(seconds)),
        values,
        (window.start_ns / NS, window.end_ns / NS),
        _flags(events),
    )


def _ttft_p95(records: RunRecords, seconds: int) -> tuple[float | None, ...]:
    """p95 TTFT of the requests sent in equal spans, each wide enough to support a p95."""
    known = records.ok & ~np.isnan(records.first_ns) & ~np.isnan(records.sent_ns)
    sent_s = records.sent_ns[known] / NS
    ttft_s = (records.first_ns[known] - records.sent_ns[known]) / NS
    rate = len(sent_s) / seconds
    if rate <= 0:
        return (None,) * seconds
    width = max(1, math.ceil(1.25 * ENOUGH_FOR_P95 / rate))
    found: list[float | None] = []
    for start in range(0, seconds, width):
        chosen = ttft_s[(sent_s >= start) & (sent_s < start + width)]
        value = None
        if len(chosen) >= ENOUGH_FOR_P95:
            value = float(np.quantile(chosen, 0.95, method="inverted_cdf"))
        found += [value] * min(width, seconds - start)
    return tuple(found)


def _from_steps(table: StepTable, edges: Ints) -> dict[str, tuple[float | None, ...]]:
    """Running and waiting requests over all replicas, and the KV share, at the seconds' ends."""
    running, waiting, used = (np.zeros(len(edges)) for _ in range(3))
    replicas = np.unique(table.replica)
    for replica in replicas:
        rows = np.flatnonzero(table.replica == replica)
        place = np.searchsorted(table.start_ns[rows], edges, side="right") - 1
        begun = place >= 0
        at = rows[np.maximum(place, 0)]
        running += np.where(begun, table.running[at], 0)
        waiting += np.where(begun, table.waiting[at], 0)
        used += np.where(begun, table.kv_used_blocks[at], 0)
    found: dict[str, tuple[float | None, ...]] = {
        "running": tuple(running.tolist()),
        "waiting": tuple(waiting.tolist()),
    }
    if table.kv_total_blocks:
        found["kv_used_share"] = tuple((used / len(replicas) / table.kv_total_blocks).tolist())
    return found


def _in_flight(records: RunRecords, edges: Ints) -> tuple[float | None, ...]:
    sent = np.sort(records.sent_ns[~np.isnan(records.sent_ns)])
    ended = np.sort(records.end_ns[~np.isnan(records.end_ns)])
    open_now = np.searchsorted(sent, edges) - np.searchsorted(ended, edges)
    return tuple(open_now.astype(float).tolist())


def _flags(events: Sequence[RunEvent]) -> tuple[tuple[float, str], ...]:
    """The first event of each kind with the number of its kind, at most FLAGS_SHOWN."""
    counts = Counter(event.kind for event in events)
    flags: dict[str, tuple[float, str]] = {}
    for event in sorted(events, key=lambda one: one.at_ns):
        more = f" (×{counts[event.kind]})" if counts[event.kind] > 1 else ""
        flags.setdefault(event.kind, (event.at_ns / NS, event.kind.replace("_", " ") + more))
    return tuple(sorted(flags.values())[:FLAGS_SHOWN])


def error_lines(records: RunRecords, sample: Sample) -> tuple[ErrorLine, ...]:
    """Failures of the window by class with the most frequent message of each, cut to one line."""
    classes: dict[str, Counter[str]] = {}
    counts: Counter[str] = Counter()
    for row in sample.rows:
        kind = records.text["failure"][row]
        if kind is None:
            continue
        counts[kind] += 1
        detail = records.text["failure_detail"][row]
        if detail:
            classes.setdefault(kind, Counter())[" ".join(detail.split())[:MESSAGE_LENGTH]] += 1
    return tuple(
        ErrorLine(kind, count, classes[kind].most_common(1)[0][0] if kind in classes else None)
        for kind, count in counts.most_common()
    )
