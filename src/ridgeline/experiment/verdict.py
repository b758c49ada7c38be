"""Is a run fit to be believed? Each rule looks at one piece of evidence; none guesses.

A rule whose evidence is missing says nothing. Reasons void a run, warnings do not.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from ridgeline.experiment.clientrules import FLOOR_S, client_limit
from ridgeline.experiment.closing import account_warnings
from ridgeline.experiment.counts import (
    counts_disagree,
    impossible_usage,
    not_checked,
    other_lengths,
    other_prompts,
    sent_again,
    server_faults,
    unexpected_cache_hits,
)
from ridgeline.experiment.evidence import Doubt, Evidence, ms
from ridgeline.experiment.loadsteps import of_steps, steps_not_reached, unsteady
from ridgeline.experiment.measured import replicas_missing
from ridgeline.experiment.steady import class_queue_grew, silent, trend, warmed_up, window_too_short
from ridgeline.telemetry.host import MACHINE

__all__ = ["Doubt", "Evidence", "judge", "trend"]

FEWEST_REQUESTS = 10  # for any target at all; a median needs as many
UNFINISHED_SHARE = 0.01
KS_LIMIT = 2.2  # Kolmogorov-Smirnov: sqrt(n) D exceeds it once in 8 000 true samples
FEWEST_GAPS = 50
DISPERSION_SIGMAS, CORRELATION_SIGMAS = 5.0, 5.0  # one true run in a million is beyond
LEAST_CORRELATION = 0.03  # a smaller one changes no queue that anybody could measure
THROTTLED_SHARE = 0.05  # of the window's samples
STOLEN_SHARE = 0.02  # of the CPU time that the machine wanted: kernel launches wait for it
Rule = Callable[[Evidence], Iterator[Doubt]]


def judge(evidence: Evidence, rules: "Sequence[Rule] | None" = None) -> Verdict:
    """Apply every rule, or those that are given."""
    doubts = [doubt for rule in (RULES if rules is None else rules) for doubt in rule(evidence)]
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
        yield Doubt(f"stopped after {e.window.seconds:.3g} s of the window{_left_out(e)}")


def _left_out(e: Evidence) -> str:
    """What a stop left half told: the long ones more often than the short, where they differ."""
    count = e.summary.requests.unfinished
    if not count:
        return ""
    said = f": {count} request{'' if count == 1 else 's'} still on the way"
    planned = e.records.planned_output_tokens[e.inside]
    uneven = len(planned) > 0 and planned.min() < planned.max()
    return said + (", the long ones first, so the figures lean to the short ones" if uneven else "")


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


def host_disturbed(e: Evidence) -> Iterator[Doubt]:
    """A hypervisor that gave cores to others while the engine wanted them.

    An engine's core launches kernels one after another, so it is slower by about that share, and
    no figure of its own shows why.
    """
    telemetry = e.facts.server.get("telemetry")
    host = telemetry.get("host") if isinstance(telemetry, Mapping) else None
    machine = host.get(MACHINE) if isinstance(host, Mapping) else None
    if not isinstance(machine, Mapping):
        return
    busy, stolen = machine.get("busy_cores_mean", 0.0), machine.get("stolen_cores_mean", 0.0)
    if stolen > STOLEN_SHARE * (busy + stolen):
        yield Doubt(
            f"the host: its hypervisor gave {stolen / (busy + stolen):.0%} of the CPU time that was"
            f" wanted to others ({stolen:.2g} cores of steal, at most"
            f" {machine.get('stolen_cores_max', stolen):.2g}): this run may be slower than the"
            " machine is when it is left alone",
            void=False,
        )


def account_is_off(e: Evidence) -> Iterator[Doubt]:
    """A replica told nothing, or the server's stages agree with nothing else that is known."""
    missing = replicas_missing(e.facts)
    for text in (*([missing] if missing else []), *account_warnings(e.summary.steps)):
        yield Doubt(text, void=False)


RULES = (
    nothing_to_measure,
    server_faults,
    stopped_early,
    requests_failed,
    sent_again,
    unfinished,
    too_few_requests,
    window_too_short,
    client_limit,
    unsteady,
    class_queue_grew,
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
    host_disturbed,
    account_is_off,
    not_checked,
)
