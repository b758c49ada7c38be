"""Was the window steady? Drifts, growing queues, silences and windows too short to tell."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ridgeline.domain.metrics import per_second
from ridgeline.domain.parts import named, select
from ridgeline.domain.records import UNFINISHED, Bools, Floats, Ints
from ridgeline.experiment.evidence import Doubt, Evidence, ms
from ridgeline.experiment.windowing import warmup_ends

TREND_SHARE = 0.10  # change over the window, of its mean
TREND_T = 4.0  # t value of the slope: p < 0.005 with 8 points, < 0.001 with 20
FEWEST_POINTS, MOST_POINTS = 8, 20
SHIFT_SHARE, SHIFT_T, FEWEST_IN_THIRD = 0.15, 5.0, 4  # see level_shift
MOST_RESIDUE = 0.9  # autocorrelation of the residues that is still corrected for
IN_FLIGHT_SIGMAS = 4.0
SILENT_SHARE = 0.10  # of the window, without a chunk while requests waited
SILENT_TTFTS = 5.0  # and as many times what a quarter of the requests wait for the first chunk
SILENCE_BINS = 1000
LEAN_SHARE = 0.02  # of the throughput: what a rest of the warm-up in the window may add or take
FEWEST_BLOCKS = 5
BLOCK_STAYS = 4.0  # a block is as many times longer than a request's cycle
OFF_FACTOR, OFF_SHARE = 2.0, 0.10  # blocks that far from the median, in that share of the window


def window_too_short(e: Evidence) -> Iterator[Doubt]:
    """A window shorter than a request's stay holds no whole request: its rates mean nothing."""
    stay = e.median_s("end_ns")
    if stay is None or e.window.seconds >= stay or e.facts.interrupted:
        return
    fix = "measure longer"
    if e.workload.requests is not None:
        fix = "ask for more --requests (several for each user) or give --duration"
    yield Doubt(
        f"the window of {_seconds(e.window.seconds)} is shorter than the median stay of a request,"
        f" {_seconds(stay)}: {fix}"
    )


def not_steady(e: Evidence) -> Iterator[Doubt]:
    """Throughput (closed loop) or queue (open loop) that drifts through the window."""
    if e.summary.requests.ok == 0 and not e.records.failed_with(*UNFINISHED).any():
        return
    window = e.window
    whole = int(window.seconds)
    if whole < FEWEST_POINTS:
        yield Doubt(
            f"a window of {window.seconds:.3g} s is too short to tell whether it is steady",
            void=False,
        )
        return
    rates = per_second(e.records, window.start_ns, window.start_ns + whole * 1_000_000_000)
    if trend(_averages(rates)) is not None or level_shift(rates) is not None:
        yield Doubt(f"not steady: throughput {_changed(rates)} over the window")
    if e.workload.arrivals.closed_loop:
        yield from _uneven(e, rates)
    else:
        yield from _queue_grew(e)


def warmed_up(e: Evidence) -> Iterator[Doubt]:
    """A window that still holds a part of the warm-up, or whose run never showed its end.

    No reason to void it: what it does to the figures, the rules on drifts find. It says where a
    smaller lean comes from, and what to do.
    """
    warmup, window = e.facts.warmup, e.window
    if warmup is not None:
        if not warmup.found:
            yield Doubt(f"{warmup.reason}: give a longer --warmup-limit (in a study file"
                        " warmup_limit_s)", void=False)  # fmt: skip
        return
    if e.facts.interrupted or window.seconds < FEWEST_POINTS:
        return
    ends = warmup_ends(e.records, window.end_ns, open_loop=not e.workload.arrivals.closed_loop)
    end_s = ends.get("throughput")
    start_s = window.start_ns / 1e9
    if end_s is None or end_s < start_s + 1:
        return
    edge = round(end_s * 1e9)
    before = per_second(e.records, window.start_ns, edge)
    after = per_second(e.records, edge, window.end_ns)
    change = float(before.sum()) / (end_s - start_s) / max(_rate(after, window.end_ns - edge), 1e-9)
    if abs(change - 1) * (end_s - start_s) > LEAN_SHARE * window.seconds:
        yield Doubt(
            f"the warm-up ended only {end_s - start_s:.1f} s into the window (throughput until then"
            f" {change - 1:+.0%}): give a longer --warmup, or --warmup auto",
            void=False,
        )


def _rate(tokens: Floats, length_ns: int) -> float:
    return float(tokens.sum()) / (length_ns / 1e9)


def trend(values: Floats) -> float | None:
    """Change from start to end of a series as a share of its mean; None when there is none.

    A straight line is fitted. It counts when it changes by more than TREND_SHARE and its slope has
    a t value above TREND_T. Where neighbouring values go together the error is wider: n counts as
    n (1 - r) / (1 + r) values, r being the residues' autocorrelation (Santer et al. 2000, Journal
    of Geophysical Research 105, 7337).
    """
    n, mean = len(values), float(np.mean(values)) if len(values) else 0.0
    if n < FEWEST_POINTS or mean <= 0:
        return None
    x = np.arange(n) - (n - 1) / 2
    slope = float(x @ values) / float(x @ x)
    rest = values - mean - slope * x
    left = float(rest @ rest)
    r = min(max(float(rest[1:] @ rest[:-1]) / left, 0.0), MOST_RESIDUE) if left > 0 else 0.0
    error = math.sqrt(left / (n - 2) / float(x @ x) * (1 + r) / (1 - r))
    change = slope * (n - 1) / mean
    return change if abs(change) > TREND_SHARE and abs(slope) > TREND_T * error else None


def level_shift(values: Floats) -> float | None:
    """Change from the first to the last third of a series, of its mean; None when there is none.

    A step is no straight line, and its residues go together, so `trend` misses it. It counts above
    SHIFT_SHARE of the mean and SHIFT_T times its own (Welch) standard error.
    """
    third, mean = len(values) // 3, float(np.mean(values)) if len(values) else 0.0
    if third < FEWEST_IN_THIRD or mean <= 0:
        return None
    first, last = values[:third], values[-third:]
    change = float(last.mean() - first.mean())
    error = math.sqrt((float(first.var(ddof=1)) + float(last.var(ddof=1))) / third)
    return change / mean if abs(change) > max(SHIFT_SHARE * mean, SHIFT_T * error) else None


def _changed(rates: Floats) -> str:
    """From the first to the last third, of the first: what fell cannot fall by more than all."""
    third = len(rates) // 3
    first, last = float(rates[:third].mean()), float(rates[-third:].mean())
    if first <= 0:
        return f"rose from 0 to {last:.3g} tokens/s"
    return f"changed by {last / first - 1:+.0%}"


def _averages(rates: Floats) -> Floats:
    """At most MOST_POINTS means of equally many seconds; a rest at the start is left out."""
    each = -(-len(rates) // MOST_POINTS)
    points = len(rates) // each
    averages: Floats = rates[len(rates) - points * each :].reshape(points, each).mean(axis=1)
    return averages


def _uneven(e: Evidence, rates: Floats) -> Iterator[Doubt]:
    """A closed loop whose throughput fell or rose for a part of the window and came back."""
    stay = e.median_s("end_ns")
    if stay is None:
        return
    cycle = stay + e.workload.arrivals.think_time_s
    each = max(1, math.ceil(max(BLOCK_STAYS * cycle, len(rates) / MOST_POINTS)))
    count = len(rates) // each
    if count < FEWEST_BLOCKS:
        return
    blocks = rates[: count * each].reshape(count, each).mean(axis=1)
    usual = float(np.median(blocks))
    off = int(np.count_nonzero((blocks * OFF_FACTOR < usual) | (blocks > usual * OFF_FACTOR)))
    if off > OFF_SHARE * count:
        yield Doubt(
            f"not steady: in {off} of {count} parts of {each} s the throughput was less than half"
            f" or more than twice the usual {usual:.3g} tokens/s"
        )


QUEUE_GREW = "not steady: the queue grew"


def _queue_grew(e: Evidence) -> Iterator[Doubt]:
    """An open loop above the capacity: requests pile up, whatever becomes of them in the end."""
    grown = _in_flight_grew(e)
    if grown is not None:
        yield Doubt(
            f"{QUEUE_GREW}, requests in flight rose from {grown[0]:.0f} to"
            f" {grown[1]:.0f} over the window"
        )
    for what, column in (("TTFT from intent", "first_ns"), ("E2E", "end_ns")):
        means, due = _mean_by_time(e, column)
        if due >= FEWEST_POINTS and len(means) < FEWEST_POINTS:
            yield Doubt(f"{what}: too few replies, spread over {len(means)} of {due} parts of the"
                        " window, to tell whether it is steady")  # fmt: skip
            return
        drift = trend(means)
        if drift is not None and drift > 0:
            yield Doubt(f"{QUEUE_GREW}, {what} rose by {drift:.0%} of its mean over"
                        " the window")  # fmt: skip


def class_queue_grew(e: Evidence) -> Iterator[Doubt]:
    """A class of an open loop whose own requests pile up, however few they are among the others.

    A pool of its own that is too small, or a priority that never lets it in: over all requests it
    is lost in the mean. Stepped loads are judged step by step elsewhere.
    """
    arrivals = e.workload.arrivals
    if arrivals.closed_loop or arrivals.steps or e.window.seconds < FEWEST_POINTS:
        return
    if len(e.workload.classes) < 2:
        return
    for kind in e.workload.classes:
        records = select(e.records, named(e.records, kind.name))
        own = replace(e, records=records)
        sent = int(np.count_nonzero(own.inside))
        told = [d.text for d in _queue_grew(own) if d.text.startswith(QUEUE_GREW)]
        for text in told[:1]:
            yield Doubt(f"class {kind.name}: {text}", void=arrivals.trace is None)
        if not told and 0 < sent < FEWEST_POINTS:
            yield Doubt(f"class {kind.name}: {sent} requests in the window are too few to tell"
                        " whether its queue grows", void=False)  # fmt: skip


def _mean_by_time(e: Evidence, column: str) -> tuple[Floats, int]:
    """Mean time from the intended start to `column`, over the requests meant to start in each of
    MOST_POINTS parts of the window; and in how many parts any was meant to start.

    A request that was given up counts with the time that it had waited until then: it would have
    been longer. One that was refused has no such time and is left out.
    """
    records, window = e.records, e.window
    intended = records.intended_ns
    due = (intended >= window.start_ns) & (intended < window.end_ns)
    spans = getattr(records, column) - intended
    given_up = records.failed_with(*UNFINISHED, "timeout_first", "timeout_gap", "timeout_total")
    waited = records.end_ns - intended
    spans = np.where(given_up & np.isnan(spans), waited, spans)
    known = due & (records.ok | given_up) & ~np.isnan(spans)
    length = window.end_ns - window.start_ns

    def part(rows: Bools) -> Ints:
        place: Ints = ((intended[rows] - window.start_ns) / length * MOST_POINTS).astype(np.int64)
        return place

    counts = np.bincount(part(known), minlength=MOST_POINTS)
    sums = np.bincount(part(known), spans[known] / 1e9, minlength=MOST_POINTS)
    means: Floats = sums[counts > 0] / counts[counts > 0]
    return means, len(np.unique(part(due)))


def in_flight(e: Evidence, at_ns: Floats) -> Floats:
    """How many requests were on their way at each of the (ascending) times."""
    start, end = np.sort(e.start_ns), np.sort(e.records.end_ns)  # NaN (never ended) sorts last
    begun = np.searchsorted(start, at_ns, side="right")
    ended = np.searchsorted(end, at_ns, side="right")
    found: Floats = (begun - ended).astype(np.float64)
    return found


def _in_flight_grew(e: Evidence) -> tuple[float, float] | None:
    """Mean requests in flight in the first and the last quarter, when the rise is no chance.

    In a stable system two readings far apart differ by sqrt(2 mean) (Poisson arrivals, any stay;
    burstier ones by their squared coefficient of variation more). A rise counts above
    IN_FLIGHT_SIGMAS of that and TREND_SHARE of the mean.
    """
    window, arrivals = e.window, e.workload.arrivals
    at = np.linspace(window.start_ns, window.end_ns, 200, endpoint=False)
    counts = in_flight(e, at)
    first, last = float(counts[:50].mean()), float(counts[-50:].mean())
    mean = float(counts.mean())
    spread = max(1.0, 1 / arrivals.burstiness) if arrivals.process == "gamma" else 1.0
    limit = max(TREND_SHARE * mean, IN_FLIGHT_SIGMAS * math.sqrt(2 * mean * spread))
    return (first, last) if last - first > limit else None


def silent(e: Evidence) -> Iterator[Doubt]:
    """A long time without a chunk while requests waited: an outage inside the window.

    The limit is SILENT_SHARE of the window, and more where first chunks take long anyway.
    """
    window = e.window
    edges = np.linspace(window.start_ns, window.end_ns, SILENCE_BINS + 1)
    counts, _ = np.histogram(
        e.records.chunk_ns, SILENCE_BINS, range=(window.start_ns, window.end_ns)
    )
    waiting = in_flight(e, edges) > 0
    quiet = (counts == 0) & waiting[:-1] & waiting[1:]
    longest = _longest_run(quiet) / SILENCE_BINS * window.seconds
    waits = (e.records.first_ns - e.records.sent_ns)[e.inside & e.records.ok] / 1e9
    waits = waits[~np.isnan(waits)]
    if not len(waits):
        return
    usual = float(np.quantile(waits, 0.25))
    if longest > max(SILENT_SHARE * window.seconds, SILENT_TTFTS * usual):
        yield Doubt(
            f"not steady: no chunk came for {longest:.3g} s of the window while requests waited"
        )


def _longest_run(flags: Bools) -> int:
    """Length of the longest run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    return int((edges[1::2] - edges[::2]).max()) if len(edges) else 0


def _seconds(seconds: float) -> str:
    return ms(seconds) if seconds < 1 else f"{seconds:.3g} s"
