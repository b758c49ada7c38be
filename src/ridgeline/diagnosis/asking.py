"""Which changes the twin is asked about, and what of its answer is a gain here.

Where users wait for their answers, a faster server makes more tokens. Where arrivals come at a rate
it does not: there a change shows in latency at that rate, or in the rate that can be carried.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import sqrt

from ridgeline.diagnosis.evidence import Evidence
from ridgeline.diagnosis.finding import Finding, Try
from ridgeline.diagnosis.gain import (
    MOST_S,
    MOST_USERS,
    PATHS,
    TTFT_AGREES,
    as_it_is,
    together,
    with_gain,
    workload_of,
)
from ridgeline.domain.errors import RidgelineError
from ridgeline.domain.workload import Arrivals, Workload
from ridgeline.engines.twin import Twin, twin_of
from ridgeline.engines.twin_bands import figures, one_replica

FINDINGS, TRIES = 2, 4  # of so many findings, so many changes are asked about
MADE, TTFT, CARRIED = "output_tokens_per_s", "ttft_p95_s", "rate_carried"
FULL = 1.5  # users for each slot that make sure that all are full
WARMUP_S = 5.0
SURELY, GROWS = 3.0, 0.1  # standard errors, and share of the requests, that a queue has to grow by


def with_gains(e: Evidence, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings with gains in the changes of the first ones, or why there are none."""
    ask = with_gain if offered(e) is None else _at_the_rate
    asked = 0
    done = []
    for finding in findings:
        found = finding
        if finding.kind in ("limit", "fault") and asked < FINDINGS:
            asked += 1
            tries = [ask(e, finding, change) for change in finding.tries[:TRIES]]
            found = replace(finding, tries=(*tries, *finding.tries[TRIES:]))
        done.append(found)
    return tuple(done)


def offered(e: Evidence) -> float | None:
    """Requests/s, where arrivals are planned at a rate, whatever waits; None where users ask."""
    planned = e.known.workload
    if planned is None or planned.arrivals.closed_loop:
        return None
    return e.per_s(e.requests) or None


def grown(e: Evidence) -> float:
    """Requests/s by which those in flight grew over the span; 0 where that may be chance."""
    levels = [level for level in (e.running, e.waiting) if level is not None]
    more = sum(level.last - level.first for level in levels)
    ended = max(e.requests or 0.0, 1.0)
    sure = more > max(SURELY * sqrt(ended), GROWS * ended)
    return (e.per_s(more) or 0.0) if sure else 0.0


def _at_the_rate(e: Evidence, finding: Finding, change: Try) -> Try:
    """One change where requests arrive at a rate and wait: what it does to latency at that rate,
    and to the rate that can be carried.
    """
    rate, seen = offered(e), workload_of(e)
    if rate is None or seen is None or not seen.arrivals.closed_loop or change.change is None:
        return with_gain(e, finding, change)
    about = TTFT if change.metric == MADE else change.metric
    arriving = rate + grown(e)
    steady = _steady(e, finding, seen, rate) if arriving == rate else None
    at_rate = change
    if steady is not None:
        at_rate = with_gain(e, finding, replace(change, metric=about), load=steady)
    full = replace(seen, arrivals=Arrivals(users=_enough(e, change, seen.arrivals.users or 1)))
    most = with_gain(e, finding, replace(change, metric=MADE), load=full)
    carried = tuple(replace(g, metric=CARRIED) for g in most.gain if g.metric == MADE)
    told = [change.expect, f"arrivals come at a rate, {rate:.3g} requests/s: at it no more tokens"
            " come out"]  # fmt: skip
    if arriving > rate:
        most_more = f"x {arriving / rate:.2f} as many tokens come out as more are carried"
        told = [
            change.expect,
            f"{arriving:.3g} requests/s arrive and {rate:.3g} end: up to {most_more}",
        ]
    elif carried and not at_rate.gain:
        told.append("what it does to latency is not said: next to the highest rate the twin's"
                    " queue is not the server's")  # fmt: skip
    return replace(
        change, metric=about, gain=(*at_rate.gain, *carried), expect="; ".join(filter(None, told)),
        why_no_gain=None if at_rate.gain or carried else most.why_no_gain,
    )  # fmt: skip


def _steady(e: Evidence, finding: Finding, seen: Workload, rate: float) -> Workload | None:
    """The traffic at its rate, or at one that its count leaves as likely, where the twin waits as
    long as the server; None where it does not.
    """
    told, base = e.histograms.ttft, e.known.configuration
    median = None if told is None else told.estimate(0.5)
    if not median or base is None:
        return None
    error = 1 / sqrt(max(e.requests or 1.0, 1.0))
    try:
        twin = twin_of(as_it_is(e, base, finding))
        for shift in (0.0, -1.0, -2.0):
            arrivals = Arrivals(rate_per_s=rate * (1 + shift * error))
            load = replace(seen, arrivals=arrivals, duration_s=MOST_S, warmup_s=WARMUP_S)
            waits = figures(*_simulated(twin, load)).get(PATHS["ttft_p50_s"], 0.0)
            if 1 / TTFT_AGREES < waits / median < TTFT_AGREES:
                return load
    except RidgelineError:
        return None  # with_gain says why
    return None


def _simulated(twin: Twin, load: Workload) -> tuple[Twin, Workload]:
    return (twin, load) if together(twin.knobs.data_parallel, load) else one_replica(twin, load)


def _enough(e: Evidence, change: Try, users: int) -> int:
    """Users that fill the slots before and after a change: who asks for the highest rate."""
    slots = [e.known.max_num_seqs or 0, (change.change or {}).get("max_num_seqs") or 0]
    return min(MOST_USERS, max(users, round(FULL * e.replicas * max(slots))))
