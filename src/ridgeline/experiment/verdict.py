"""Is a run fit to be believed? Each rule looks at one piece of evidence; none guesses.

A rule whose evidence is missing says nothing. Reasons void a run, warnings do not.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ridgeline.domain.metrics import per_second
from ridgeline.domain.percentile import needed
from ridgeline.domain.records import Floats, RunRecords
from ridgeline.domain.run import RunFacts, Verdict, Window
from ridgeline.domain.slo import Slo
from ridgeline.domain.summary import Summary
from ridgeline.domain.workload import Arrivals, Workload

FLOOR_S = 0.001  # below this the client's own delay is too small to matter for any figure
LATE_SHARE = 0.05  # of the latency that a delay of the client would falsify
CPU_VOID, CPU_WARN = 0.95, 0.8  # of one core
TREND_SHARE = 0.10  # change over the window, of its mean
TREND_T = 4.0  # t value of the slope: p < 0.005 with 8 points, < 0.001 with 20
FEWEST_POINTS, MOST_POINTS = 8, 20
CACHE_SHARE = 0.05  # prefix-cache hits above those that the workload declares
KS_LIMIT = 2.2  # Kolmogorov-Smirnov: sqrt(n) D exceeds it once in 8 000 true samples
FEWEST_GAPS = 50
THROTTLED_SHARE = 0.05  # of the window's samples


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that a rule may look at."""

    records: RunRecords
    facts: RunFacts
    summary: Summary
    workload: Workload
    slo: Slo

    @property
    def window(self) -> Window:
        """The measured part."""
        return self.facts.window


@dataclass(frozen=True, slots=True)
class Doubt:
    """What a rule found. void: the run cannot be used; otherwise it is a warning."""

    text: str
    void: bool = True


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
    elif counts.ok == 0:
        classes = ", ".join(f"{name} {n}" for name, n in counts.failures.items())
        yield Doubt(f"every one of the {counts.sent} requests failed ({classes})")


def stopped_early(e: Evidence) -> Iterator[Doubt]:
    """The user ended it: the figures stand for a shorter window than asked."""
    if e.facts.interrupted:
        yield Doubt(f"stopped after {e.window.seconds:.3g} s of the window", void=False)


def too_few_requests(e: Evidence) -> Iterator[Doubt]:
    """A percentile that the targets ask for and the sample cannot support."""
    if e.summary.requests.ok == 0:
        return
    for limit in e.slo.limits:
        if limit.statistic is None or not limit.statistic.startswith("p"):
            continue
        percent = int(limit.statistic[1:])
        open_ttft = limit.metric == "ttft" and not e.workload.arrivals.closed_loop
        column = "ttft_intent_s" if open_ttft else f"{limit.metric}_s"
        n = e.summary.failures_as_infinite[column].n
        if n < needed(percent):
            yield Doubt(f"{limit.key} needs {needed(percent)} values, the window has {n}")


def client_limit(e: Evidence) -> Iterator[Doubt]:
    """The client, not the server, decided the figures.

    A late send falsifies an open loop when it is late against the TTFT, a closed loop only when it
    is late against the whole stay of a request (it lowers the load by that share). A slow loop
    falsifies receive times only when they are taken at the read.
    """
    client, summary = e.facts.client, e.summary
    closed = e.workload.arrivals.closed_loop
    measure = summary.e2e_s.p50 if closed else summary.ttft_s.p50
    limit = max(FLOOR_S, LATE_SHARE * (measure or 0.0))
    late = client.send_lateness_p99_s
    if late is not None and late > limit:
        against = "stay" if closed else "TTFT"
        yield Doubt(
            f"client limit: requests left {_ms(late)} late at p99, above {_ms(limit)}"
            f" ({LATE_SHARE:.0%} of the median {against})"
        )
    lag = client.loop_lag_p99_s
    if lag is not None and client.receive_clock == "read":
        gap = summary.itl_s.p50 or summary.ttft_s.p50 or 0.0
        limit = max(FLOOR_S, LATE_SHARE * gap)
        if lag > limit:
            yield Doubt(
                f"client limit: the loop lagged {_ms(lag)} at p99, above {_ms(limit)},"
                " and chunks are timed when they are read"
            )
    cpu = client.cpu_share
    if cpu is not None and cpu >= CPU_WARN:
        text = f"client limit: {cpu:.0%} of its core used" if cpu >= CPU_VOID else None
        yield Doubt(text or f"the client used {cpu:.0%} of its core", void=text is not None)


def not_steady(e: Evidence) -> Iterator[Doubt]:
    """Throughput (closed loop) or waiting time (open loop) that drifts through the window."""
    if e.summary.requests.ok == 0:
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
    drift = trend(_averages(rates))
    if drift is not None:
        yield Doubt(f"not steady: throughput changed by {drift:+.0%} over the window")
    if not e.workload.arrivals.closed_loop:
        drift = trend(_mean_by_time(e))
        if drift is not None and drift > 0:
            yield Doubt(
                f"not steady: the queue grew, TTFT from intent rose by {drift:.0%} of its mean over"
                " the window"
            )


def trend(values: Floats) -> float | None:
    """Change from start to end of a series as a share of its mean; None when there is none.

    A straight line is fitted. It counts when it changes by more than TREND_SHARE and its slope has
    a t value above TREND_T.
    """
    n, mean = len(values), float(np.mean(values)) if len(values) else 0.0
    if n < FEWEST_POINTS or mean <= 0:
        return None
    x = np.arange(n) - (n - 1) / 2
    slope = float(x @ values) / float(x @ x)
    rest = values - mean - slope * x
    error = math.sqrt(float(rest @ rest) / (n - 2) / float(x @ x))
    change = slope * (n - 1) / mean
    return change if abs(change) > TREND_SHARE and abs(slope) > TREND_T * error else None


def _averages(rates: Floats) -> Floats:
    """At most MOST_POINTS means of equally many seconds; a rest at the start is left out."""
    each = -(-len(rates) // MOST_POINTS)
    points = len(rates) // each
    averages: Floats = rates[len(rates) - points * each :].reshape(points, each).mean(axis=1)
    return averages


def _mean_by_time(e: Evidence) -> Floats:
    """Mean TTFT from intent of the requests meant to start in each of MOST_POINTS parts."""
    records, window = e.records, e.window
    intended = records.intended_ns
    known = records.ok & (intended >= window.start_ns) & (intended < window.end_ns)
    values = (records.first_ns - intended)[known] / 1e9
    place = (intended[known] - window.start_ns) / (window.end_ns - window.start_ns) * MOST_POINTS
    part = place.astype(np.int64)
    counts = np.bincount(part, minlength=MOST_POINTS)
    sums = np.bincount(part, values, minlength=MOST_POINTS)
    means: Floats = sums[counts > 0] / counts[counts > 0]
    return means


def wrong_arrivals(e: Evidence) -> Iterator[Doubt]:
    """An open loop whose requests did not leave by the law that was asked for."""
    arrivals = e.workload.arrivals
    if arrivals.rate_per_s is None:
        return
    window, intended = e.window, e.records.intended_ns
    due = int(np.count_nonzero((intended >= window.start_ns) & (intended < window.end_ns)))
    sent = e.records.sent_ns
    inside = np.sort(sent[(sent >= window.start_ns) & (sent < window.end_ns)])
    if abs(len(inside) - due) > 1 + 0.01 * due:
        yield Doubt(f"arrivals: {len(inside)} requests left inside the window, {due} were due")
    gaps_s = np.diff(inside) / 1e9
    if len(gaps_s) >= FEWEST_GAPS:
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
            return f"gaps are off the constant {_ms(1 / rate)} by {_ms(off)} at p95"
        return None
    shape = 1.0 if arrivals.process == "poisson" else arrivals.burstiness
    ordered = np.sort(gaps_s)
    expected = _gamma_cdf(ordered * shape * rate, shape)
    n = len(ordered)
    steps = np.arange(n + 1) / n
    distance = float(max((steps[1:] - expected).max(), (expected - steps[:-1]).max()))
    if distance * math.sqrt(n) > KS_LIMIT:
        law = "Poisson" if arrivals.process == "poisson" else f"gamma (shape {shape:g})"
        return f"gaps do not follow the {law} law (largest distance {distance:.2f} with n = {n})"
    return None


def _gamma_cdf(x: Floats, shape: float) -> Floats:
    if shape == 1.0:
        return -np.expm1(-x)
    from scipy.special import gammainc  # noqa: PLC0415  half a second to import, seldom needed

    found: Floats = gammainc(shape, x)
    return found


def unexpected_cache_hits(e: Evidence) -> Iterator[Doubt]:
    """Prompts that the server knew although the workload declares fresh ones."""
    prompts = e.workload.prompts
    declared = 0.0
    if prompts.shared_prefix is not None:
        shared = prompts.shared_prefix.tokens
        declared = shared / (shared + prompts.tokens.mean)
    rate = _hit_rate(e)
    if rate is not None and rate > declared + CACHE_SHARE:
        yield Doubt(
            f"prefix cache: {rate:.0%} of the prompt tokens were hits, the workload declares"
            f" {declared:.0%} shared"
        )


def _hit_rate(e: Evidence) -> float | None:
    """Hits per prompt token by the server's counters, else by its usage; None without both."""
    counters = e.facts.counters
    if counters is not None and counters.prefix_cache_queries:
        return (counters.prefix_cache_hits or 0.0) / counters.prefix_cache_queries
    cached, prompt = e.records.cached_tokens, e.records.prompt_tokens
    known = ~np.isnan(cached) & ~np.isnan(prompt)
    if not known.any() or prompt[known].sum() <= 0:
        return None
    return float(cached[known].sum() / prompt[known].sum())


def counts_disagree(e: Evidence) -> Iterator[Doubt]:
    """The server served other traffic than this run's, or the client lost some.

    Only told when every request succeeded: of a failed one the server may have counted a part.
    """
    counters, records = e.facts.counters, e.records
    if counters is None or e.facts.interrupted or not records.ok.all() or not len(records):
        return
    pairs = (
        ("requests", counters.requests_ok, float(len(records)) + e.facts.extra_requests),
        (
            "prompt tokens",
            counters.prompt_tokens,
            float(records.prompt_tokens.sum()) + e.facts.extra_prompt_tokens,
        ),
        (
            "output tokens",
            counters.generation_tokens,
            float(records.output_tokens.sum()) + e.facts.extra_output_tokens,
        ),
    )
    for what, server, client in pairs:
        if server is not None and not math.isnan(client) and server != client:
            yield Doubt(
                f"counts disagree: the server counted {server:.0f} {what}, this run {client:.0f};"
                " something else used the server or replies were lost"
            )


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
    stopped_early,
    too_few_requests,
    client_limit,
    not_steady,
    wrong_arrivals,
    unexpected_cache_hits,
    counts_disagree,
    gpu_disturbed,
)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
