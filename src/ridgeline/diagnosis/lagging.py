"""Running and waiting requests by Little's law, where the gauges lag.

A gauge is what the front end knew when it had time for a page. On a host without spare cores that
is when a batch has just ended, so that all readings may say that nothing runs and nothing waits.
The histograms do not depend on when somebody looks: what the requests that ended in the span spent
in the queue, over the span, is the mean number that waited; in prefill and decode: that ran. Only
what they spent inside the span counts: one that ended a second after its beginning ran in it for a
second at most. And an engine that stopped answering is idle, whatever ended before.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ridgeline.diagnosis.evidence import EngineLevels, Evidence, Lagged, Level

QUEUE = "vllm:request_queue_time_seconds"
STAGES = ("vllm:request_prefill_time_seconds", "vllm:request_decode_time_seconds")
LEAST_ENDED = 20.0  # requests: fewer say little of a mean
# Of the span that a mean request may take: those that were in it at the beginning count whole, and
# those at its end not at all, so that longer ones make it uncertain by more than a third.
LONGEST = 1 / 3
CLEARLY = 1.5  # times what the gauges say, and LEAST more
LEAST = 0.5

PARTS, MOST_PARTS = 4, 3  # of so many parts of the span, requests must have ended in so many


@dataclass(frozen=True, slots=True)
class Interval:
    """Between two readings: when it ended (s from the first one), how much a counter grew in it."""

    end_s: float
    grown: Callable[[str], float | None]


def without_lag(e: Evidence, intervals: Sequence[Sequence[Interval]]) -> Evidence:
    """The evidence with the queue by Little's law for those engines whose gauges lag.

    intervals: those of each engine in turn, oldest first.
    """
    if not e.rates_known or e.restarts:
        return e
    engines = tuple(_one(e, g, of) for g, of in zip(e.engines, intervals, strict=True))
    if engines == e.engines:
        return e
    return replace(
        e, engines=engines, running=_sum(e.running, [g.running for g in engines]),
        waiting=_sum(e.waiting, [g.waiting for g in engines]),
    )  # fmt: skip


def _one(e: Evidence, g: EngineLevels, of: Sequence[Interval]) -> EngineLevels:
    found = _by_histograms(e.span_s, of)
    if found is None or g.running is None or g.waiting is None or g.preemptions:
        return g  # what a preempted request waits for its return counts as decode
    running, waiting = found
    low = running > CLEARLY * g.running.mean + LEAST or waiting > CLEARLY * g.waiting.mean + LEAST
    if not low:
        return g
    told = Lagged(g.running.mean, g.waiting.mean)
    return replace(
        g, running=replace(g.running, mean=running, high=max(running, g.running.high)),
        waiting=replace(g.waiting, mean=waiting, high=max(waiting, g.waiting.high)), lagged=told,
    )  # fmt: skip


def _by_histograms(span_s: float, intervals: Sequence[Interval]) -> tuple[float, float] | None:
    """(running, waiting) as means over the span; None where the histograms cannot tell."""
    rows: list[tuple[float, float, float, float]] = []  # end, requests, their waiting, their work
    for interval in intervals:
        ended, queued = interval.grown(f"{QUEUE}_count"), interval.grown(f"{QUEUE}_sum")
        stages = [interval.grown(f"{name}_sum") for name in STAGES]
        if ended is None or queued is None or None in stages:
            return None
        rows.append((interval.end_s, ended, queued, sum(s for s in stages if s is not None)))
    requests = sum(ended for _, ended, _, _ in rows)
    stay = sum(queued + served for _, _, queued, served in rows)
    if (
        requests < LEAST_ENDED
        or stay / requests > LONGEST * span_s
        or not _throughout(span_s, rows)
    ):
        return None
    running = waiting = 0.0
    for end, ended, queued, served in rows:
        if ended > 0:  # what they spent before the span is not of it
            worked = min(served / ended, end)
            running += ended * worked
            waiting += ended * min(queued / ended, end - worked)
    return running / span_s, waiting / span_s


def _throughout(span_s: float, rows: Sequence[tuple[float, float, float, float]]) -> bool:
    """Whether requests ended in most parts of the span: else it idled for much of it."""
    parts: set[int] = set()
    begun = 0.0
    for end, ended, _, _ in rows:
        if ended > 0:
            first, last = (int(PARTS * at / span_s) for at in (begun, end - 1e-6 * span_s))
            parts.update(range(first, last + 1))
        begun = end
    return len(parts) >= MOST_PARTS


def _sum(gauge: Level | None, levels: Sequence[Level | None]) -> Level | None:
    """The gauge over all engines, with the mean of their present levels."""
    told = [level for level in levels if level is not None]
    if gauge is None or not told:
        return gauge
    mean = sum(level.mean for level in told)
    return replace(gauge, mean=mean, high=max(mean, gauge.high))
