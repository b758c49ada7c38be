"""What is measured, defined once, as pure functions of stored time stamps.

first, last: arrival of a request's first and last chunk with content. A request belongs to the
window in which it was sent and is followed to its end; where it could not be sent, or had to wait
for a slot under a cap on the requests in flight, to that in which it was meant to start. A gap
belongs to the window in which it ends; a token to that in which its chunk arrives.

TTFT = first - sent. TTFT from intent = first - intended. E2E = last - sent.
TPOT = (last - first) / (output tokens - 1). ITL = gaps between consecutive chunks of a request,
pooled. Worst stall = a request's largest gap. All in seconds.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from ridgeline.domain.accounting import Bounds, account
from ridgeline.domain.attainment import attained, judge
from ridgeline.domain.errors import StoreError
from ridgeline.domain.intervals import (
    Blocks,
    blocks,
    correlation_s,
    latency_intervals,
    rate_interval,
    share_interval,
)
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.percentile import inverted_cdf, percentiles
from ridgeline.domain.pieces import pieces
from ridgeline.domain.records import UNFINISHED, Bools, Floats, Ints, RunRecords
from ridgeline.domain.replies import early_stops_share, first_answers, server_times_note
from ridgeline.domain.run import ClientCheck, RunFacts, Verdict, Window
from ridgeline.domain.slo import Slo
from ridgeline.domain.summary import (
    ClientFigures,
    Cost,
    Goodput,
    Interval,
    Percentiles,
    RequestCounts,
    Summary,
    Throughput,
    VerdictFigures,
)

STALL_S = 0.5  # a gap that a reader notices as a stop
FASTEST_TPOT_S = 50e-6  # above 20 000 tokens/s the reply came in one piece, not as a stream
SHARED_LIMIT = 0.01  # share of chunks out of one read with the one before that ITL can bear
LATENCIES = ("ttft_s", "ttft_intent_s", "itl_s", "tpot_s", "e2e_s", "worst_stall_s")


@dataclass(frozen=True, slots=True)
class Sample:
    """The window's requests and gaps. Seconds; NaN = did not happen or cannot be told.

    Per request sent inside and not stopped by the user: `start_ns`, `ok`, `unfinished` (cancelled
    by the client), `values` by name (LATENCIES without itl_s).
    Per gap of a successful request that ended inside: `gaps_s`, `gap_end_ns`; `shared_gaps` of
    them lie between chunks of one read. `lost_gaps`: those that the failed requests sent inside
    owe (their planned output tokens - 1, at least one each), infinite in the view of failures.
    Per chunk of a successful (or stopped) request that arrived inside: `chunk_at_ns` and
    `chunk_tokens`, the tokens that it stands for (a usage count is spread evenly over its
    request's chunks).
    `rows` are the places of the requests in the records. `tokens_estimated`: counted from chunks.
    """

    window: Window
    rows: Ints
    start_ns: Floats
    ok: Bools
    unfinished: Bools
    values: dict[str, Floats]
    gaps_s: Floats
    gap_end_ns: Ints
    chunk_at_ns: Ints
    chunk_tokens: Floats
    shared_gaps: int
    lost_gaps: int
    tokens_estimated: bool
    untimed: int  # successes whose reply came too much at once for a time per token

    def successes(self, name: str) -> Floats:
        """Values of the requests that succeeded, or the pooled gaps for "itl_s"."""
        if name == "itl_s":
            return self.gaps_s
        values = self.values[name]
        return values[self.ok & ~np.isnan(values)]

    def infinite(self, name: str) -> int:
        """How many infinitely slow values the failures add."""
        return self.lost_gaps if name == "itl_s" else int(np.count_nonzero(~self.ok))

    def percentiles(self, name: str, *, failures: bool = False) -> Percentiles:
        """Statistics over successes, or with every failure as infinitely slow."""
        return percentiles(self.successes(name), self.infinite(name) if failures else 0)


def take_sample(records: RunRecords, window: Window) -> Sample:
    """Cut the window out of a run. Raises StoreError when a duration is negative."""
    start_ns = np.where(np.isnan(records.sent_ns), records.intended_ns, records.sent_ns)
    start_ns = start_ns - np.nan_to_num(records.cap_wait_ns) * ~np.isnan(records.sent_ns)
    inside = (start_ns >= window.start_ns) & (start_ns < window.end_ns)
    rows = np.flatnonzero(inside & ~records.failed_with("stopped"))
    ok = records.ok[rows]
    tokens, estimated = output_tokens(records)
    gaps_ns, is_gap = _gaps(records)
    stalls = _per_request_max(records, gaps_ns)[rows]
    first, last, sent = (getattr(records, f"{n}_ns")[rows] for n in ("first", "last", "sent"))
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(tokens[rows] > 1, (last - first) / 1e9 / (tokens[rows] - 1), np.nan)
    streamed = tpot >= FASTEST_TPOT_S
    values = {
        "ttft_s": (first - sent) / 1e9,
        "ttft_intent_s": (first - records.intended_ns[rows]) / 1e9,
        "tpot_s": np.where(streamed, tpot, np.nan),
        "e2e_s": (last - sent) / 1e9,
        "worst_stall_s": stalls / 1e9,
    }
    for name, column in values.items():
        _refuse_negative(name, column, records.index[rows])
    arrived = records.chunk_ns
    each = np.repeat(_tokens_per_chunk(records), np.diff(records.chunk_start))
    counted = (arrived >= window.start_ns) & (arrived < window.end_ns) & (each > 0)
    kept = is_gap & counted
    gaps_s = gaps_ns[kept] / 1e9
    del gaps_ns, is_gap  # a run of many chunks holds few columns of them at a time
    owed = np.nan_to_num(records.planned_output_tokens[rows][~ok], nan=2.0) - 1
    return Sample(
        window=window,
        rows=rows,
        start_ns=start_ns[rows],
        ok=ok,
        unfinished=records.failed_with(*UNFINISHED)[rows],
        values=values,
        gaps_s=gaps_s,
        gap_end_ns=arrived[kept],
        chunk_at_ns=arrived[counted],
        chunk_tokens=each[counted],
        shared_gaps=int(np.count_nonzero(records.chunk_shared[kept])),
        lost_gaps=int(np.maximum(owed, 1).sum()),
        tokens_estimated=bool(np.any(estimated[rows] & ok)),
        untimed=int(np.count_nonzero(ok & ~np.isnan(tpot) & ~streamed)),
    )


def output_tokens(records: RunRecords) -> tuple[Floats, Bools]:
    """Output tokens per request: the server's count, else one a chunk (then marked True)."""
    chunks = np.diff(records.chunk_start)
    estimated = np.isnan(records.output_tokens)
    return np.where(estimated, chunks, records.output_tokens), estimated


def _gaps(records: RunRecords) -> tuple[Ints, Bools]:
    """Per chunk the time (ns) since the chunk before, and whether it has one in its request."""
    gaps = np.zeros(len(records.chunk_ns), dtype=np.int64)
    np.subtract(records.chunk_ns[1:], records.chunk_ns[:-1], out=gaps[1:])
    is_gap = np.ones(len(gaps), dtype=np.bool_)
    starts = records.chunk_start[:-1]
    starts = starts[starts < len(gaps)]
    gaps[starts], is_gap[starts] = 0, False
    if len(gaps) and gaps.min() < 0:
        owner = int(np.searchsorted(records.chunk_start, gaps.argmin(), side="right")) - 1
        _damaged(int(records.index[owner]), "gap", float(gaps.min()) / 1e9)
    return gaps, is_gap


def _per_request_max(records: RunRecords, gaps_ns: Ints) -> Floats:
    """Largest gap of each request, NaN for fewer than two chunks."""
    largest = np.full(len(records), np.nan)
    several = np.diff(records.chunk_start) >= 2
    filled = np.flatnonzero(np.diff(records.chunk_start) >= 1)
    if len(filled):
        largest[filled] = np.maximum.reduceat(gaps_ns, records.chunk_start[filled])
    return np.where(several, largest, np.nan)


def _refuse_negative(name: str, values: Floats, index: Ints) -> None:
    negative = np.flatnonzero(values < 0)
    if len(negative):
        _damaged(int(index[negative[0]]), name.removesuffix("_s"), float(values[negative[0]]))


def _damaged(request: int, what: str, seconds: float) -> None:
    raise StoreError(
        f"request {request} has a negative {what} ({seconds:.6g} s)",
        fix="its time stamps are damaged; measure again",
    )


def _tokens_per_chunk(records: RunRecords) -> Floats:
    """Tokens that a chunk of each request stands for; 0 when the request failed.

    What a request had brought when the user stopped the run has been served: it counts.
    """
    counts = np.diff(records.chunk_start)
    # A reply with chunks has at least a token, so that 0 marks failures only.
    tokens = np.maximum(output_tokens(records)[0], 1e-9)
    counted = records.ok | records.failed_with("stopped")
    return np.where(counted, tokens / np.maximum(counts, 1), 0.0)


def per_second(
    records: RunRecords, start_ns: int, end_ns: int, width_ns: int = 1_000_000_000
) -> Floats:
    """Output tokens of successful requests that arrived in each second from start_ns on.

    A usage count is spread evenly over its request's chunks. The last second may be cut short.
    width_ns: counts in parts of that length instead.
    """
    each = np.repeat(_tokens_per_chunk(records), np.diff(records.chunk_start))
    arrived = records.chunk_ns
    kept = (arrived >= start_ns) & (arrived < end_ns)
    return _by_second(arrived[kept], each[kept], start_ns, end_ns, width_ns)


def _by_second(
    at_ns: Ints, tokens: Floats, start_ns: int, end_ns: int, width_ns: int = 1_000_000_000
) -> Floats:
    length = max(0, -(-(end_ns - start_ns) // width_ns))
    # True division by a whole number of ns is exact at whole seconds, and faster than //.
    second = np.empty(len(at_ns), dtype=np.int64)
    for part in pieces(len(at_ns)):
        second[part] = (at_ns[part] - start_ns) / width_ns
    return np.bincount(second, tokens, minlength=length).astype(np.float64)


def throughput(records: RunRecords, sample: Sample, gpus: int) -> Throughput:
    """Rates inside the sample's window, over its whole length. Successful requests only."""
    window = sample.window
    if window.seconds <= 0:
        return Throughput()
    start, end = window.start_ns, window.end_ns
    ok = records.ok
    tokens = _by_second(sample.chunk_at_ns, sample.chunk_tokens, start, end)
    ended = ok & (records.end_ns >= start) & (records.end_ns < end)
    begun = ok & (records.first_ns >= start) & (records.first_ns < end)
    prompts = records.prompt_tokens[begun]
    output = float(tokens.sum()) / window.seconds
    whole = tokens[: int(window.seconds)]
    return Throughput(
        output_tokens_per_s=output,
        input_tokens_per_s=None
        if np.isnan(prompts).any()
        else float(prompts.sum()) / window.seconds,
        chunks_per_s=len(sample.chunk_at_ns) / window.seconds,
        requests_per_s=int(np.count_nonzero(ended)) / window.seconds,
        per_gpu_output_tokens_per_s=output / gpus if gpus else None,
        peak_output_tokens_per_s=float(whole.max()) if len(whole) else None,
    )


def cost(rates: Throughput, configuration: Configuration) -> Cost:
    """USD = GPUs x price per hour / (rate x 3600), per million output tokens and 1000 requests."""
    price = configuration.price_per_gpu_hour
    if price is None:
        return Cost()
    per_second_usd = configuration.gpus * price / 3600
    tokens, requests = rates.output_tokens_per_s, rates.requests_per_s
    return Cost(
        usd_per_million_output_tokens=per_second_usd / tokens * 1e6 if tokens else None,
        usd_per_thousand_requests=per_second_usd / requests * 1e3 if requests else None,
    )


def count_requests(records: RunRecords, sample: Sample) -> RequestCounts:
    """Requests sent inside and what became of them; error_rate is None when none ended."""
    window, classes = sample.window, records.text["failure"]
    failures = Counter(f for i in sample.rows if (f := classes[i]) not in (None, *UNFINISHED))
    sent_ns = records.sent_ns
    stopped = (sent_ns >= window.start_ns) & (sent_ns < window.end_ns)
    stopped &= records.failed_with("stopped")
    followed, ok = len(sample.rows), int(np.count_nonzero(sample.ok))
    failed = failures.total()
    return RequestCounts(
        sent=followed + int(stopped.sum()),
        ok=ok,
        failed=failed,
        error_rate=failed / (ok + failed) if ok + failed else None,
        failures={str(name): n for name, n in failures.most_common()},
        unfinished=followed - ok - failed + int(stopped.sum()),
    )


def inter_token(sample: Sample, found: Percentiles) -> tuple[Percentiles, str | None]:
    """ITL, with what chunks that share a read leave of it.

    Above SHARED_LIMIT a percentile that falls among such gaps is None, and the note says so.
    """
    total = len(sample.gaps_s)
    if total == 0 or sample.shared_gaps <= SHARED_LIMIT * total:
        return found, None
    apart = np.sort(sample.gaps_s)[sample.shared_gaps :]
    share = f"{100 * sample.shared_gaps / total:.3g} % of the chunks came in one read with another"
    if not len(apart):
        return Percentiles(n=total), "not measurable: each reply came within one read"
    interval_s = inverted_cdf(apart, (50,))[0] or 0.0
    lost = sample.shared_gaps / total * 100
    kept = {f"p{p}": getattr(found, f"p{p}") if p > lost else None for p in (50, 90, 95, 99)}
    note = f"not resolvable below the read interval of {interval_s * 1e3:.3g} ms: {share}"
    return Percentiles(mean=found.mean, n=total, **kept), note


def summarise(
    records: RunRecords,
    window: Window,
    *,
    facts: RunFacts,
    configuration: Configuration,
    slo: Slo,
    open_loop: bool = False,
    bounds: Bounds | None = None,
    verdict: Verdict | None = None,
) -> Summary:
    """All figures of one run.

    `open_loop`: the load was a rate, so ttft limits are judged from intent. `bounds`: what one GPU
    can do at most (accounting.Bounds), needed for the roofline figures of a twin. A verdict that
    is not known yet counts as valid.
    """
    sample = take_sample(records, window)
    rates = throughput(records, sample, configuration.gpus)
    counts = count_requests(records, sample)
    views = {name: sample.percentiles(name) for name in LATENCIES}
    itl, itl_note = inter_token(sample, views["itl_s"])
    worst = views
    if not sample.ok.all():
        worst = {name: sample.percentiles(name, failures=True) for name in LATENCIES}
    worst |= {"itl_s": inter_token(sample, worst["itl_s"])[0]}
    views |= {"itl_s": itl}
    meets = attained(records, sample.rows, sample.values, sample.ok, slo, open_loop=open_loop)
    goodput = Goodput()
    if meets is not None and len(meets):
        goodput = Goodput(float(meets.mean()), float(meets.sum()) / window.seconds)
    used = account(records, window, bounds, configuration, _api_busy(facts))
    spent = cost(rates, configuration)
    judged = verdict or Verdict(valid=True)
    stalls = sample.successes("worst_stall_s")
    return Summary(
        source=facts.source,
        window_s=window.seconds,
        requests=counts,
        ttft_s=views["ttft_s"],
        ttft_intent_s=views["ttft_intent_s"],
        itl_s=itl,
        tpot_s=views["tpot_s"],
        e2e_s=views["e2e_s"],
        worst_stall_s=views["worst_stall_s"],
        throughput=rates,
        cost=spent,
        roofline=used.roofline,
        goodput=goodput,
        slo=judge(slo, worst, counts, goodput, open_loop=open_loop),
        intervals=intervals(sample, views, meets, spent.usd_per_million_output_tokens),
        client=_client_figures(facts.client),
        verdict=VerdictFigures(judged.valid, judged.reasons, judged.warnings),
        failures_as_infinite=worst,
        tokens_estimated=sample.tokens_estimated,
        itl_note=itl_note,
        stalled_requests_share=float((stalls > STALL_S).mean()) if len(stalls) else None,
        notes=(*facts.notes, *_notes(records, sample, facts)),
        accounting=used.seconds,
        steps=used.steps,
        binding_limit=used.binding_limit,
        warmup=facts.warmup,
        first_answer_s=first_answers(records, sample.rows, sample.ok),
        early_stops_share=early_stops_share(
            output_tokens(records)[0], records, sample.rows, sample.ok
        ),
    )


def _client_figures(check: ClientCheck) -> ClientFigures:
    return ClientFigures(**{f.name: getattr(check, f.name) for f in fields(ClientFigures)})


def _api_busy(facts: RunFacts) -> float | None:
    """Busy share of the busiest API server, which a twin tells."""
    shares = facts.server.get("api_server_busy")
    return max(shares, default=None) if isinstance(shares, list | tuple) else None


def intervals(
    sample: Sample,
    views: Mapping[str, Percentiles],
    meets: Bools | None,
    usd_per_million: float | None,
) -> dict[str, Interval]:
    """95 % intervals by name ("ttft_s.p95", "throughput.output_tokens_per_s", ...)."""
    residence_s = inverted_cdf(sample.successes("e2e_s"), (95,))[0]
    window = sample.window
    cut = blocks(window, residence_s)
    found: dict[str, Interval] = {}
    for name in LATENCIES:
        values: Floats = sample.gaps_s
        at: Floats | Ints = sample.gap_end_ns
        if name != "itl_s":
            column = sample.values[name]
            known = sample.ok & ~np.isnan(column)
            values, at = column[known], sample.start_ns[known]
        cut = blocks(window, residence_s, correlation_s(window, at, values))
        for key, interval in latency_intervals(values, at, views[name], cut).items():
            found[f"{name}.{key}"] = interval
    ended = ~sample.unfinished
    failed = (~sample.ok[ended]).astype(np.float64)
    cut = blocks(window, residence_s, correlation_s(window, sample.start_ns[ended], failed))
    found["requests.error_rate"] = share_interval(failed, sample.start_ns[ended], cut)
    if meets is not None:
        hits = meets.astype(np.float64)
        cut = blocks(window, residence_s, correlation_s(window, sample.start_ns, hits))
        found["goodput.attainment"] = share_interval(hits, sample.start_ns, cut)
    cut = blocks(window, residence_s, correlation_s(window, sample.chunk_at_ns))
    return found | _rate_intervals(sample, cut, usd_per_million)


def _rate_intervals(
    sample: Sample, cut: Blocks, usd_per_million: float | None
) -> dict[str, Interval]:
    """Intervals of tokens and chunks per second, and of the cost that follows from the first."""
    n = len(sample.chunk_at_ns)
    block = cut.of(sample.chunk_at_ns)
    amounts = np.bincount(block, sample.chunk_tokens, minlength=cut.count)
    tokens = rate_interval(amounts, n, cut)
    found = {
        "throughput.output_tokens_per_s": tokens,
        "throughput.chunks_per_s": rate_interval(np.bincount(block, minlength=cut.count), n, cut),
    }
    if usd_per_million is not None and tokens.low and tokens.high:
        spent = usd_per_million * float(amounts.sum()) / sample.window.seconds
        found["cost.usd_per_million_output_tokens"] = Interval(
            spent / tokens.high, spent / tokens.low, n
        )
    return found


def _notes(records: RunRecords, sample: Sample, facts: RunFacts) -> tuple[str, ...]:
    """What a reader must know to read the figures right."""
    notes = []
    counts = np.diff(records.chunk_start)
    tokens, estimated = output_tokens(records)
    uneven = int(np.count_nonzero(((tokens != counts) & records.ok)[sample.rows]))
    if sample.tokens_estimated:
        n = int(np.count_nonzero(estimated[sample.rows] & sample.ok))
        notes.append(f"{n} replies came without usage: their tokens are counted from chunks")
    if uneven:
        notes.append(f"the token counts of {uneven} replies are spread evenly over their chunks")
    if sample.untimed:
        notes.append(f"{sample.untimed} replies came at once: no time per token for them")
    partial = int(counts[sample.rows][~sample.ok].sum())
    if partial:
        notes.append(f"failed requests had delivered {partial} chunks, which count nowhere")
    sent_again = np.nan_to_num(records.retries[sample.rows])
    if sent_again.any():
        n = int(np.count_nonzero(sent_again))
        notes.append(
            f"{n} requests were sent again, because the server had closed their kept connection"
            " before they reached it; their times count from the first sending"
        )
    read_timed = int(np.nansum(records.read_timed[sample.rows]))
    if facts.client.receive_clock == "kernel" and read_timed:
        notes.append(f"{read_timed} chunks carry the time of their read: the kernel gave none")
    early = early_stops_share(tokens, records, sample.rows, sample.ok)
    if early:
        notes.append(f"{100 * early:.3g} % of the replies ended before their planned length")
    of_server = server_times_note(facts.counters)
    return tuple(notes) if of_server is None else (*notes, of_server)
