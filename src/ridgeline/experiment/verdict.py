"""Is a run fit to be believed? Each rule looks at one piece of evidence; none guesses.

A rule whose evidence is missing says nothing. Reasons void a run, warnings do not.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from ridgeline.domain.arrivalcheck import (
    ARRIVALS_A_BIN,
    FEWEST_BINS,
    LAGS,
    MOST_BINS,
    autocorrelation,
    dispersion,
)
from ridgeline.domain.parts import load_text
from ridgeline.domain.percentile import needed
from ridgeline.domain.records import Floats
from ridgeline.domain.run import Verdict, Window
from ridgeline.domain.slo import Slo
from ridgeline.domain.summary import RequestCounts
from ridgeline.domain.workload import Arrivals
from ridgeline.experiment.counts import (
    counts_disagree,
    impossible_usage,
    not_checked,
    other_lengths,
    other_prompts,
    server_faults,
    unexpected_cache_hits,
)
from ridgeline.experiment.evidence import Doubt, Evidence, ms
from ridgeline.experiment.loadsteps import of_steps, steps_not_reached, unsteady
from ridgeline.experiment.steady import silent, trend, warmed_up, window_too_short

__all__ = ["Doubt", "Evidence", "judge", "trend"]

FLOOR_S = 0.001  # below this the client's own delay is too small to matter for any figure
LATE_SHARE = 0.05  # of the latency that a delay of the client would falsify
LOAD_SHARE = 0.02  # of the load that a closed loop may lose by the client's delays
CPU_VOID, CPU_WARN = 0.95, 0.8  # of one core
GROSS_GAPS = 10  # as many usual gaps late is no jitter but an event of its own
STARVED_S = 0.01  # late by that and by a usual gap: a client without its core, not one with jitter
FEWEST_REQUESTS = 10  # for any target at all; a median needs as many
UNFINISHED_SHARE = 0.01
KS_LIMIT = 2.2  # Kolmogorov-Smirnov: sqrt(n) D exceeds it once in 8 000 true samples
FEWEST_GAPS = 50
DISPERSION_SIGMAS, CORRELATION_SIGMAS = 5.0, 5.0  # one true run in a million is beyond
LEAST_CORRELATION = 0.03  # a smaller one changes no queue that anybody could measure
THROTTLED_SHARE = 0.05  # of the window's samples


def judge(evidence: Evidence) -> Verdict:
    """Apply every rule."""
    doubts = [doubt for rule in RULES for doubt in rule(evidence)]
    return Verdict(
        valid=not any(d.void for d in doubts),
        reasons=tuple(d.text for d in doubts if d.void),
        warnings=tuple(d.text for d in doubts if not d.void),
    )


def nothing_to_measure(e: Evidence) -> Iterator[Doubt]:
    """No request, or not one that succeeded."""
    counts = e.summary.requests
    if counts.sent == 0:
        yield Doubt("no request was sent inside the window")
    elif counts.ok == 0 and counts.failed:
        classes = ", ".join(f"{name} {n}" for name, n in counts.failures.items())
        said = _commonest_detail(e)
        yield Doubt(
            f"every one of the {counts.failed} requests failed ({classes})"
            + (f": {said}" if said else "")
            + "; look into the server's log"
        )
    elif counts.ok == 0 and not e.facts.interrupted:
        yield Doubt(f"not one of the {counts.sent} requests was finished when the client gave up:"
                    " give them a longer --grace")  # fmt: skip


def _commonest_detail(e: Evidence) -> str | None:
    details = e.records.text["failure_detail"]
    found = Counter(d for i in np.flatnonzero(e.inside) if (d := details[i]))
    return found.most_common(1)[0][0] if found else None


def stopped_early(e: Evidence) -> Iterator[Doubt]:
    """The user ended it, or it was cut off: what was on its way then is missing or half told."""
    if e.facts.interrupted:
        yield Doubt(
            f"stopped after {e.window.seconds:.3g} s of the window: long requests were still on"
            " their way, so the figures lean to the short ones"
        )


def requests_failed(e: Evidence) -> Iterator[Doubt]:
    """Failures are a result of the server, not a fault of the run; but nobody may miss them."""
    counts = e.summary.requests
    if counts.failed and counts.ok:
        said = _commonest_detail(e)
        yield Doubt(
            f"{counts.failed} of {counts.failed + counts.ok} requests failed"
            f" ({', '.join(f'{name} {n}' for name, n in counts.failures.items())})"
            + (f", most often: {said}" if said else "")
            + "; latencies are those of the others",
            void=False,
        )


def unfinished(e: Evidence) -> Iterator[Doubt]:
    """Requests that the client itself gave up at the end of its grace time.

    They are no failures, but they are the longest ones, and without them the rest looks better.
    """
    counts = e.summary.requests
    if not counts.unfinished or not counts.ok or e.facts.interrupted:
        return
    share = counts.unfinished / counts.sent
    yield Doubt(
        f"{counts.unfinished} of {counts.sent} requests ({share:.1%}) were not finished when the"
        " client gave up: their end is not known; give a longer --grace",
        void=share > UNFINISHED_SHARE,
    )


def too_few_requests(e: Evidence) -> Iterator[Doubt]:
    """A statistic that the targets ask for and the sample cannot support.

    What counts is requests, for gaps too: those of one reply go together.
    """
    yield from _too_few(e, e.slo, e.summary.requests, "the window")
    for kind in e.workload.classes:
        part = e.summary.classes.get(kind.name)
        if part is not None:
            yield from _too_few(e, kind.slo, part.requests, f"class {kind.name}")


def _too_few(e: Evidence, slo: Slo, counts: RequestCounts, where: str) -> Iterator[Doubt]:
    n = counts.sent - counts.unfinished if e.facts.interrupted else counts.sent
    if counts.ok == 0:
        return
    for limit in slo.limits:
        least = FEWEST_REQUESTS
        if limit.statistic is not None and limit.statistic.startswith("p"):
            least = needed(int(limit.statistic[1:]))
        if limit.metric == "attainment" and limit.value < 1:
            least = max(least, needed(min(99, math.floor(100 * limit.value))))
        if n < least:
            yield Doubt(f"{limit.key} needs {least} requests, {where} has {n}")
        elif limit.metric == "error_rate" and not counts.failed and 0 < limit.value < 3 / n:
            # the "rule of three": the 95 % upper bound after n successes is 3 / n
            yield Doubt(
                f"no failure in {n} requests shows an error rate below {3 / n:.2g} only, not"
                f" {limit}",
                void=False,
            )


def client_limit(e: Evidence) -> Iterator[Doubt]:
    """The client, not the server, decided the figures."""
    yield from (Doubt(f"client limit: {fault}") for fault in e.facts.client.faults)
    if e.records.ok.any():
        yield from _late_sends(e)
        yield from _late_reads(e)
    cpu = e.facts.client.cpu_share
    if cpu is not None and cpu >= CPU_WARN:
        text = f"client limit: {cpu:.0%} of its core used" if cpu >= CPU_VOID else None
        yield Doubt(text or f"the client used {cpu:.0%} of its core", void=text is not None)


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

    With the kernel's stamps a late reader does no harm to a chunk that is alone in its read. Chunks
    that came together while it was away share the last one's time: the first of them looks late,
    as if the server had stalled.

    An error in fewer than 5 % of the chunks leaves percentiles up to p95 nearly where they are, so
    it voids when p99 is asked for, or when it is of the size of a usual gap: such a client is
    starved or was frozen. A smaller one withholds the figures that it could change
    (`domain.resolvable`), and the warning says so.
    """
    client = e.facts.client
    gap = _usual_gap_s(e) or e.median_s("first_ns") or 0.0
    limit = max(FLOOR_S, LATE_SHARE * gap)
    error, rare = client.stamp_error_p95_s, client.stamp_error_p99_s
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


def wrong_arrivals(e: Evidence) -> Iterator[Doubt]:
    """An open loop whose requests did not leave by the law that was asked for."""
    arrivals = e.workload.arrivals
    if arrivals.steps and not arrivals.closed_loop:
        for step, evidence in of_steps(e):
            for doubt in wrong_arrivals(evidence):
                yield replace(doubt, text=f"load step {load_text(step)}: {doubt.text}")
    if arrivals.rate_per_s is None and arrivals.trace is None:
        return
    # what a cap held back left its place in the law free; a session's later turns follow no law
    first = ~(e.records.turn > 0)
    window, intended = e.window, e.records.intended_ns[first]
    due = int(np.count_nonzero((intended >= window.start_ns) & (intended < window.end_ns)))
    sent = (e.records.sent_ns - np.nan_to_num(e.records.cap_wait_ns))[first]
    inside = np.sort(sent[(sent >= window.start_ns) & (sent < window.end_ns)])
    if abs(len(inside) - due) > 1 + 0.01 * due:
        yield Doubt(f"arrivals: {len(inside)} requests left inside the window, {due} were due")
    if arrivals.process == "poisson" and arrivals.trace is None:
        yield from _wrong_dispersion(inside, window)
    gaps_s = np.diff(inside) / 1e9
    if len(gaps_s) >= FEWEST_GAPS and arrivals.trace is None:
        wrong = _wrong_law(gaps_s, arrivals)
        if wrong is not None:
            yield Doubt(f"arrivals: {wrong}")


def _wrong_law(gaps_s: Floats, arrivals: Arrivals) -> str | None:
    """What is wrong with the gaps between sends, None when they follow the law."""
    rate = arrivals.rate_per_s or 0.0
    if arrivals.process == "constant":
        off = float(np.quantile(np.abs(gaps_s - 1 / rate), 0.95))
        limit = max(FLOOR_S, 0.1 / rate)
        if off > limit:
            return f"gaps are off the constant {ms(1 / rate)} by {ms(off)} at p95"
        return None
    shape = 1.0 if arrivals.process == "poisson" else arrivals.burstiness
    ordered = np.sort(gaps_s)
    expected = _gamma_cdf(ordered * shape * rate, shape)
    n = len(ordered)
    steps = np.arange(n + 1) / n
    distance = float(max((steps[1:] - expected).max(), (expected - steps[:-1]).max()))
    law = "Poisson" if arrivals.process == "poisson" else f"gamma (shape {shape:g})"
    if distance * math.sqrt(n) > KS_LIMIT:
        return f"gaps do not follow the {law} law (largest distance {distance:.2f} with n = {n})"
    for lag in range(1, LAGS + 1):
        found = autocorrelation(gaps_s, lag)
        if abs(found) > max(LEAST_CORRELATION, CORRELATION_SIGMAS / math.sqrt(n)):
            return f"gaps of the {law} law depend on those {lag} before (correlation {found:.2f})"
    return None


def _wrong_dispersion(sent_ns: Floats, window: Window) -> Iterator[Doubt]:
    """Counts that vary more or less than those of a Poisson process, whose gaps may look right."""
    if len(sent_ns) <= FEWEST_GAPS:
        return
    bins = max(FEWEST_BINS, min(MOST_BINS, len(sent_ns) // ARRIVALS_A_BIN))
    found = dispersion(sent_ns, window, bins)
    if abs(found - 1) > DISPERSION_SIGMAS * math.sqrt(2 / (bins - 1)):
        yield Doubt(
            f"arrivals: counts do not vary as the Poisson law's do (variance over mean {found:.2f},"
            f" not 1, over {bins} bins)"
        )


def _gamma_cdf(x: Floats, shape: float) -> Floats:
    if shape == 1.0:
        return -np.expm1(-x)
    from scipy.special import gammainc  # noqa: PLC0415  half a second to import, seldom needed

    found: Floats = gammainc(shape, x)
    return found


def gpu_disturbed(e: Evidence) -> Iterator[Doubt]:
    """Clocks that were held down, or another process on a GPU of ours.

    The board's own power limit is no disturbance: it is how fast this GPU is under such a load.
    """
    telemetry = e.facts.server.get("telemetry")
    gpus = telemetry.get("gpus", ()) if isinstance(telemetry, Mapping) else ()
    for gpu in gpus:
        name = f"GPU {gpu['index']}"
        for reason, share in gpu["throttled"].items():
            if share > THROTTLED_SHARE:
                yield Doubt(
                    f"{name}: clocks held down by {reason} in {share:.0%} of the window",
                    void=reason != "power cap",
                )
        if gpu["strangers"]:
            yield Doubt(
                f"{name}: another process used it ({', '.join(map(str, gpu['strangers']))})"
            )


RULES = (
    nothing_to_measure,
    server_faults,
    stopped_early,
    requests_failed,
    unfinished,
    too_few_requests,
    window_too_short,
    client_limit,
    unsteady,
    steps_not_reached,
    warmed_up,
    silent,
    wrong_arrivals,
    unexpected_cache_hits,
    counts_disagree,
    impossible_usage,
    other_prompts,
    other_lengths,
    gpu_disturbed,
    not_checked,
)
