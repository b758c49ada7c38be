"""Running and waiting requests by Little's law, where the gauges lag.

A gauge is what the front end knew when it had time for a page. On a host without spare cores that
is when a batch has just ended, so that all readings may say that nothing runs and nothing waits.
The histograms do not depend on when somebody looks: what the requests that ended in the span spent
in the queue, over the span, is the mean number that waited; in prefill and decode: that ran.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from ridgeline.diagnosis.evidence import EngineLevels, Evidence, Lagged, Level

QUEUE = "vllm:request_queue_time_seconds"
STAGES = ("vllm:request_prefill_time_seconds", "vllm:request_decode_time_seconds")
LEAST_ENDED = 20.0  # requests: fewer say little of a mean
# Of the span that a mean request may take: those that were in it at the beginning count whole, and
# those at its end not at all, so that longer ones make it uncertain by more than a third.
LONGEST = 1 / 3
CLEARLY = 1.5  # times what the gauges say, and LEAST more
LEAST = 0.5

Count = Callable[[str], float | None]


def without_lag(e: Evidence, counts: Sequence[Count]) -> Evidence:
    """The evidence with the queue by Little's law for those engines whose gauges lag.

    counts: for each engine in turn, how much a counter of its grew in the span.
    """
    if not e.rates_known or e.restarts:
        return e
    engines = tuple(_one(e, g, of) for g, of in zip(e.engines, counts, strict=True))
    if engines == e.engines:
        return e
    return replace(
        e, engines=engines, running=_sum(e.running, [g.running for g in engines]),
        waiting=_sum(e.waiting, [g.waiting for g in engines]),
    )  # fmt: skip


def _one(e: Evidence, g: EngineLevels, of: Count) -> EngineLevels:
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


def _by_histograms(span_s: float, of: Count) -> tuple[float, float] | None:
    """(running, waiting) as means over the span; None where the histograms cannot tell."""
    ended, queued = of(f"{QUEUE}_count"), of(f"{QUEUE}_sum")
    stages = [of(f"{name}_sum") for name in STAGES]
    if ended is None or ended < LEAST_ENDED or queued is None or None in stages:
        return None
    served = sum(s for s in stages if s is not None)
    if (queued + served) / ended > LONGEST * span_s:
        return None
    return served / span_s, queued / span_s


def _sum(gauge: Level | None, levels: Sequence[Level | None]) -> Level | None:
    """The gauge over all engines, with the mean of their present levels."""
    told = [level for level in levels if level is not None]
    if gauge is None or not told:
        return gauge
    mean = sum(level.mean for level in told)
    return replace(gauge, mean=mean, high=max(mean, gauge.high))
