"""The rules about the load client: could what it did have made the figures wrong?

Each looks at what can be wrong in the numbers. The kernel's stamps make a late read harmless to a
chunk that came by itself, with nothing after it; a late send changes the load; several chunks in
one late read share a time.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ridgeline.domain.calibration import ClientCalibration
from ridgeline.domain.parts import named, select
from ridgeline.domain.records import Floats, Ints
from ridgeline.domain.resolvable import attainment_range, first_errors, in_doubt
from ridgeline.domain.run import ClientCheck, Window
from ridgeline.domain.slo import Slo
from ridgeline.experiment.evidence import Doubt, Evidence, ms

FLOOR_S = 0.001  # below this the client's own delay is too small to matter for any figure
LATE_SHARE = 0.05  # of the latency that a delay of the client would falsify
LOAD_SHARE = 0.02  # of the load that a closed loop may lose by the client's delays
CPU_VOID, CPU_WARN = 0.95, 0.8  # of one core
GROSS_GAPS = 10  # as many usual gaps late is no jitter but an event of its own
STARVED_S = 0.01  # late by that and by a usual gap: a client without its core, not one with jitter


def client_limit(e: Evidence) -> Iterator[Doubt]:
    """The client, not the server, decided the figures; what voids tells the client's state, what
    kept it and what helps.
    """
    yield from (Doubt(f"client limit: {fault}") for fault in e.facts.client.faults)
    doubts = list(_client_doubts(e))
    last = max((i for i, doubt in enumerate(doubts) if doubt.void), default=None)
    for i, doubt in enumerate(doubts):
        if i != last:
            yield doubt
            continue
        told = "; ".join(filter(None, (_state_text(e.facts.client), _advice(e.facts.client))))
        yield replace(doubt, text=f"{doubt.text} ({told})") if told else doubt


def _advice(client: ClientCheck) -> str:
    """What to do: a client that is full needs more cores, one that idled was kept from its own."""
    if client.cpu_share is None:
        return ""
    if client.cpu_share >= CPU_WARN:
        return "it needs more --workers on free cores, or fewer streams"
    load, cores = client.host_load, client.host_cores
    busy = load is not None and cores is not None and load > cores
    known = f" (load average {load:.1f} on {cores} cores)" if busy else ""
    return (
        f"the client had time left, so something else on this machine held its core{known}: free a"
        " core for it, give it real-time priority (chrt -f 50), drive from another host, or use"
        " fewer streams"
    )


def _state_text(client: ClientCheck) -> str:
    """Lag, backlog and CPU in words, as far as they are known."""
    parts = [
        f"{words} {ms(value)} at p99"
        for words, value in (
            ("loop lag", client.loop_lag_p99_s),
            ("receive backlog", client.backlog_p99_s),
        )
        if value is not None
    ]
    if client.cpu_share is not None:
        parts.append(f"CPU {client.cpu_share:.0%} of its core")
    return ", ".join(parts)


def _client_doubts(e: Evidence) -> Iterator[Doubt]:
    if e.records.ok.any():
        yield from _late_sends(e)
        yield from _late_reads(e)
        yield from _open_attainment(e)
        yield from _beyond_calibration(e)
    cpu = e.facts.client.cpu_share
    if cpu is not None and cpu >= CPU_WARN:
        text = f"client limit: {cpu:.0%} of its core used" if cpu >= CPU_VOID else None
        yield Doubt(text or f"the client used {cpu:.0%} of its core", void=text is not None)


def _beyond_calibration(e: Evidence) -> Iterator[Doubt]:
    """More load than the client was shown to time right, just before, against a server of its own.

    What counts is the busiest second. A limit that is not the client's own (its null server sent no
    more, or the machine was busy with something else) is no evidence against it: a warning.
    """
    able = e.facts.calibration
    if able is None:
        return
    if able.problem is not None or not able.levels:
        yield Doubt(f"the client was not calibrated: {able.problem}", void=False)
        return
    requests, reads = busiest_second(e)
    if able.share_used(requests, reads, bounded=True) > 1:
        yield Doubt(f"client limit: {_load_text(requests, reads)}; {_able_text(able)}")
    elif able.share_used(requests, reads) > 1:
        yield Doubt(
            f"{_load_text(requests, reads)}; {_able_text(able)}, and whether it can do more could"
            " not be found out (the machine was busy, or the null server was the limit)",
            void=False,
        )


def busiest_second(e: Evidence) -> tuple[float, float]:
    """Requests sent, and reads that brought content, per second at the window's busiest."""
    alone = e.records.chunk_ns[~e.records.chunk_shared]
    return _peak_per_s(e.records.sent_ns, e.window), _peak_per_s(alone, e.window)


def _peak_per_s(times: Floats | Ints, window: Window) -> float:
    """The most events in one whole second of the window; its mean rate where it is shorter."""
    inside = times[(times >= window.start_ns) & (times < window.end_ns)]
    seconds = int(window.seconds)
    if seconds < 1:
        return len(inside) / window.seconds if window.seconds > 0 else 0.0
    whole = ((inside - window.start_ns) // 1e9).astype(np.int64)
    counts = np.bincount(whole[whole < seconds], minlength=seconds)
    return float(counts.max())


def _load_text(requests: float, reads: float) -> str:
    return f"{requests:.0f} requests/s and {reads:.0f} chunks/s in the busiest second"


def _able_text(able: ClientCalibration) -> str:
    most = (able.most_per_s("requests") or 0.0, able.most_per_s("chunks") or 0.0)
    return (
        f"before the run this client timed at most {most[0]:.0f} requests/s or {most[1]:.0f}"
        " chunks/s right"
    )


def _late_sends(e: Evidence) -> Iterator[Doubt]:
    """Requests that left later than they were meant to.

    An open loop is judged by TTFT from intent, which contains the delay: it must be small against
    the TTFT. In a closed loop TTFT counts from the sending, and a late one falsifies it not at all;
    what it does is to lower the load, by the mean delay's share of a user's cycle. Only a target on
    TTFT from intent makes the delay itself matter there.
    """
    client = e.facts.client
    late = client.send_lateness_p99_s
    ttft = e.median_s("first_ns")
    if e.workload.arrivals.closed_loop:
        delay, share = _lost_load(e)
        if delay > FLOOR_S and share > LOAD_SHARE:
            yield Doubt(
                f"client limit: requests left {ms(delay)} late on average, {share:.1%} of a user's"
                " cycle: so much less load was offered"
            )
    if late is None or ttft is None:
        return
    limit = max(FLOOR_S, LATE_SHARE * ttft)
    if late <= limit:
        return
    text = (
        f"requests left {ms(late)} late at p99, above {ms(limit)}"
        f" ({LATE_SHARE:.0%} of the median TTFT)"
    )
    from_intent = any(s.metric == "ttft_intent" for s in e.limits)
    if e.workload.arrivals.closed_loop and not from_intent:
        yield Doubt(f"{text}: TTFT from intent contains that delay of the client", void=False)
    else:
        yield Doubt(f"client limit: {text}")


def _lost_load(e: Evidence) -> tuple[float, float]:
    """Mean delay of the window's sends (s), and its share of the mean cycle of a user."""
    records = e.records
    known = e.inside & ~np.isnan(records.sent_ns) & ~np.isnan(records.end_ns)
    if not known.any():
        return 0.0, 0.0
    delay = float((records.sent_ns - records.intended_ns)[known].mean()) / 1e9
    cycle = float((records.end_ns - records.intended_ns)[known].mean()) / 1e9
    cycle += e.workload.arrivals.think_time_s
    return delay, delay / cycle if cycle > 0 else 0.0


def _late_reads(e: Evidence) -> Iterator[Doubt]:
    """Chunks whose time is too late because the client did not look.

    With the kernel's stamps a late reader does no harm to a chunk that is alone in its read and
    ends it. What came together while it was away shares the time of the last byte: a chunk looks
    late, as if the server had stalled.

    An error in fewer than 5 % of the chunks leaves percentiles up to p95 nearly where they are, so
    it voids when p99 is asked for, or when it is of the size of a usual gap: such a client is
    starved or was frozen. A smaller one withholds the figures that it could change
    (`domain.resolvable`), and the warning says so.
    """
    client = e.facts.client
    gap = _usual_gap_s(e) or e.median_s("first_ns") or 0.0
    limit = max(FLOOR_S, LATE_SHARE * gap)
    error, rare = client.stamp_error_p95_s, client.stamp_error_p99_s
    yield from _late_firsts(e)
    asks_p99 = any(
        s.statistic == "p99" and s.metric in ("ttft", "ttft_intent", "itl") for s in e.limits
    )
    lag = client.loop_lag_p99_s
    if error is None and rare is None and client.receive_clock == "kernel":
        # A run of an earlier version does not tell whose doing the shared times are. The lag is the
        # most by which one can be late, so what holds for the error at p99 holds for it.
        rare = lag if e.records.chunk_shared.any() else None
    text = "the times of chunks are up to {} too late at {}, because the client read them late"
    if error is not None and error > limit:
        yield Doubt(f"client limit: {text.format(ms(error), 'p95')}; {ms(limit)} can be borne")
    elif rare is not None and rare > (limit if asks_p99 else max(FLOOR_S, _starved_s(gap))):
        yield Doubt(f"client limit: {text.format(ms(rare), 'p99')}")
    elif rare is not None and rare > limit:
        hidden = f"percentiles that this could change by more than {LATE_SHARE:.0%} are not shown"
        yield Doubt(f"{text.format(ms(rare), 'p99')}: {hidden}", void=False)
    elif lag is not None and lag > limit and client.receive_clock == "read":
        yield Doubt(
            f"client limit: the loop lagged {ms(lag)} at p99, above {ms(limit)},"
            " and chunks are timed when they are read"
        )
    else:
        worst = client.stamp_error_max_s
        if worst is not None and worst > max(FLOOR_S, gap):
            yield Doubt(
                f"the client did not look for up to {ms(worst)}: chunks of that moment share one"
                " time, and worst stalls that this could have made are not shown",
                void=False,
            )


def _late_firsts(e: Evidence) -> Iterator[Doubt]:
    """A target on TTFT that the lateness of first chunks leaves open; others are withheld.

    Each is judged by its own requests: those of a class may be late where all together are not.
    """
    for slo, own, where in _parts_with_limits(e):
        asked = {s.statistic for s in slo.limits if s.metric in ("ttft", "ttft_intent")}
        limit = max(FLOOR_S, LATE_SHARE * (own.median_s("first_ns") or 0.0))
        p95, p99, _ = first_errors(e.facts.client, own.records, e.window)
        for statistic, error in (("p95", p95), ("p99", p99)):
            if statistic in asked and error is not None and error > limit:
                yield Doubt(
                    f"client limit: the times of first chunks{where} are up to {ms(error)} too late"
                    f" at {statistic}, because the client read them late; {ms(limit)} can be borne"
                )
                return


def _parts_with_limits(e: Evidence) -> Iterator[tuple[Slo, Evidence, str]]:
    """The limits of the whole and of each class, with the evidence of their requests."""
    yield e.slo, e, ""
    for kind in e.workload.classes:
        if kind.slo.limits:
            own = select(e.records, named(e.records, kind.name))
            yield kind.slo, replace(e, records=own), f" of class {kind.name}"


def _open_attainment(e: Evidence) -> Iterator[Doubt]:
    """A target on the attainment that is met or missed according to what late reads have done."""
    client = e.facts.client
    if max(client.stamp_error_max_s or 0.0, client.first_error_max_s or 0.0) <= FLOOR_S:
        return
    open_loop = not e.workload.arrivals.closed_loop
    for slo, own, where in _parts_with_limits(e):
        for limit in slo.limits:
            if limit.metric != "attainment":
                continue
            found = attainment_range(own.records, e.window, slo, open_loop=open_loop)
            if found is not None and in_doubt(limit, found):
                yield Doubt(
                    f"client limit: between {found[0]:.2%} and {found[1]:.2%} of the"
                    f" requests{where} kept their limits, because the client read late: {limit} is"
                    " not decided"
                )


def _starved_s(gap_s: float) -> float:
    """The error at p99 that no client with its core to itself has: a usual gap, and STARVED_S.

    Where gaps are shorter than that, ten of them are an event of their own all the same.
    """
    return max(gap_s, min(STARVED_S, GROSS_GAPS * gap_s))


def _usual_gap_s(e: Evidence) -> float | None:
    """Median gap between reads of a stream (chunks of one read left out), None without any."""
    records, window = e.records, e.window
    gaps = np.diff(records.chunk_ns)
    apart = ~records.chunk_shared[1:]
    starts = records.chunk_start[1:-1]
    apart[starts[(starts > 0) & (starts < len(records.chunk_ns))] - 1] = False
    inside = (records.chunk_ns[1:] >= window.start_ns) & (records.chunk_ns[1:] < window.end_ns)
    found = gaps[apart & inside]
    return float(np.median(found)) / 1e9 if len(found) else None
