"""Do the client's and the server's accounts of a run agree, and does it hold what was asked for?"""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from ridgeline.domain.metrics import output_tokens
from ridgeline.domain.records import UNFINISHED, Bools, Floats
from ridgeline.experiment.evidence import Doubt, Evidence

CACHE_SHARE = 0.05  # prefix-cache hits above those that the workload declares
FIT_TOKENS = 16  # what texts of equally many words may differ by, and the calibration with them
PROMPT_SHARE, PROMPT_TOKENS = 0.10, 8  # prompts further from their plan than both are others
FIT_MISSES, PROMPT_MOST = 3.0, 0.25  # where the fit missed its own samples: as many of its misses
CHANCE_SIGMAS = 4.0  # standard errors of a part's mean that texts of different words may make
PROMPT_PARTS, PROMPT_LEAST = 10, 5  # how finely lengths are told apart, and requests in a part
AGAIN_SHARE = 0.001  # of the requests sent again: more than what an idle time-out does by chance
PLAN_SLACK = 1.25, 64  # what a prompt that was not counted may cost at most: times, and more tokens


def sent_again(e: Evidence) -> Iterator[Doubt]:
    """Requests that another client would have lost: their connection was closed under them.

    The server never had them, so they are no failures of its work. But a client that sends nothing
    twice sees failures, so a target on the error rate must hold with them too.
    """
    records, inside = e.records, e.inside
    again = inside & (np.nan_to_num(records.retries) > 0)
    sent = int(np.count_nonzero(inside))
    if not again.any():
        return
    n = int(np.count_nonzero(again))
    text = (
        f"{n} requests ({n / sent:.2%}) found that the server had closed their kept connection, and"
        " were sent again; a client that sends nothing twice would have lost them"
    )
    failed = inside & ~records.ok & ~records.failed_with(*UNFINISHED)
    lost = int(np.count_nonzero(again | failed)) / sent
    targets = [limit for limit in e.limits if limit.metric == "error_rate"]
    in_doubt = [t for t in targets if np.count_nonzero(failed) / sent <= t.value < lost]
    if in_doubt:
        yield Doubt(
            f"{text}: with them {lost:.2%} failed, and {in_doubt[0]} is not shown to be met"
        )
    elif n / sent > AGAIN_SHARE:
        yield Doubt(text, void=False)


def counts_disagree(e: Evidence) -> Iterator[Doubt]:
    """The server served other traffic than this run's, or the client lost some.

    What succeeded must have been counted, and no more than was sent can have been. Of a request
    that failed the server may have counted all, a part or nothing; without failures the two bounds
    are equal.
    """
    counters, records = e.facts.counters, e.records
    if counters is None or e.facts.interrupted or not len(records):
        return
    ok, facts = records.ok, e.facts
    again = np.nan_to_num(records.retries)
    most = records.planned_prompt_tokens * PLAN_SLACK[0] + PLAN_SLACK[1]
    generated, chunks = records.output_tokens, np.diff(records.chunk_start)
    known = ~np.isnan(generated)
    pairs = (
        ("requests", counters.requests_ok, _bounds(ok, np.ones(len(ok)), again + 1, again),
         facts.extra_requests),
        ("prompt tokens", counters.prompt_tokens,
         _bounds(ok, records.prompt_tokens, most, again * most), facts.extra_prompt_tokens),
        ("output tokens", counters.generation_tokens,
         _bounds(ok, np.where(known, generated, np.nan), records.planned_output_tokens,
                 again * records.planned_output_tokens, np.where(ok & ~known, chunks, 0)),
         facts.extra_output_tokens),
    )  # fmt: skip
    for what, server, (low, high), extra in pairs:
        if server is None or low + extra <= server <= math.ceil(high + extra):
            continue
        ours = f"{low + extra:.0f}"
        if high > low:
            ours += f" to {high + extra:.0f}"
        yield Doubt(
            f"counts disagree: the server counted {server:.0f} {what}, this run {ours};"
            " something else used the server or replies were lost"
        )


def _bounds(
    ok: Bools,
    counted: Floats,
    most: Floats,
    again: Floats,
    least: Floats | None = None,
) -> tuple[float, float]:
    """Least and most that a server can have counted for these requests.

    A success counts what its usage says; without usage, from `least` to `most`. Another request
    counts from nothing to `most`; one that was sent again may have been counted once more.
    """
    exact = ok & ~np.isnan(counted)
    sure = float(counted[exact].sum())
    low = sure + (0.0 if least is None else float(least[~exact].sum()))
    return low, sure + float(most[~exact].sum()) + float(again[exact].sum())


def not_checked(e: Evidence) -> Iterator[Doubt]:
    """Say which checks a run of a real server did not get."""
    if e.facts.source != "measured" or e.facts.interrupted or e.facts.server_faults:
        return
    counters = e.facts.counters
    missing = ["requests", "prompt tokens", "output tokens"]
    if counters is not None:
        values = (counters.requests_ok, counters.prompt_tokens, counters.generation_tokens)
        missing = [name for name, v in zip(missing, values, strict=True) if v is None]
    if missing:
        yield Doubt(
            f"not checked against the server's counters (its /metrics has none): "
            f"{', '.join(missing)}",
            void=False,
        )
    if _hit_rate(e) is None:
        yield Doubt(
            "not checked whether prompts came out of a prefix cache: the server tells neither in"
            " /metrics nor in usage",
            void=False,
        )


def unexpected_cache_hits(e: Evidence) -> Iterator[Doubt]:
    """Prompts that the server knew although the workload declares fresh ones.

    What the server's own chat template adds to every prompt is shared by all of them, and counts as
    declared.
    """
    files = [kind.prompts.file for kind in e.workload.kinds]
    if any(file is not None and not file.salted for file in files):
        return  # sent as they are, and what they share is shared
    if any(file is not None for file in files):
        return  # system texts that all rows share stand before the salt
    if e.workload.sessions is not None or e.workload.arrivals.trace is not None:
        return  # how much of it is found again depends on the server's memory: all is declared
    whole = e.workload.mean_prompt_tokens
    shared = e.workload.shared_share * whole
    fit = e.facts.server.get("prompt_fit")
    overhead = fit.get("overhead_tokens", 0.0) if isinstance(fit, Mapping) else 0.0
    declared = min(1.0, (shared + max(0.0, float(overhead))) / whole)
    rate = _hit_rate(e)
    if rate is not None and rate > declared + CACHE_SHARE:
        fixed = e.workload.salt is not None
        why = "; its salt is fixed, so an earlier run may have sent the same prompts"
        yield Doubt(
            f"prefix cache: {rate:.0%} of the prompt tokens were hits, the workload declares"
            f" {declared:.0%} shared{why if fixed else ''}",
            void=not fixed,
        )


def _hit_rate(e: Evidence) -> float | None:
    """Hits per prompt token, by the server's counters or its usage, whichever admits more.

    Either may leave out a cache that the other knows (one outside the engine, one of a router).
    """
    counters = e.facts.counters
    rates = []
    if counters is not None and counters.prefix_cache_queries:
        rates.append((counters.prefix_cache_hits or 0.0) / counters.prefix_cache_queries)
    cached, prompt = e.records.cached_tokens, e.records.prompt_tokens
    known = ~np.isnan(cached) & ~np.isnan(prompt)
    if known.any() and prompt[known].sum() > 0:
        rates.append(float(cached[known].sum() / prompt[known].sum()))
    return max(rates, default=None)


def impossible_usage(e: Evidence) -> Iterator[Doubt]:
    """Token counts that cannot be: above the max_tokens that was sent, or far below the chunks."""
    ok = e.records.ok & e.inside
    counted, asked = e.records.output_tokens, e.records.planned_output_tokens
    over = ok & (counted > asked)
    if over.any():
        worst = int(np.flatnonzero(over)[np.argmax((counted - asked)[over])])
        yield Doubt(
            f"usage: {int(over.sum())} replies claim more output tokens than they were allowed"
            f" ({counted[worst]:.0f} of at most {asked[worst]:.0f}): tokens cannot be counted here"
        )
    chunks = np.diff(e.records.chunk_start)
    under = ok & (2 * counted < chunks)
    if under.any():
        yield Doubt(
            f"usage: {int(under.sum())} replies claim fewer than half as many output tokens as"
            " they had chunks: tokens cannot be counted here"
        )


def other_prompts(e: Evidence) -> Iterator[Doubt]:
    """Prompts that reached the model shorter or longer than asked for: cut off, or miscounted."""
    if e.facts.source != "measured" or not e.workload.planned_exactly:
        return
    fit = e.facts.server.get("prompt_fit")
    if not isinstance(fit, Mapping):
        if "prompt_fit" in e.facts.server or e.facts.server.get("urls"):
            yield Doubt("prompt lengths are words: the server's usage does not tell tokens",
                        void=False)  # fmt: skip
        return
    known = e.records.ok & e.inside & ~np.isnan(e.records.prompt_tokens)
    if not known.any():
        return
    planned, counted = e.records.planned_prompt_tokens[known], e.records.prompt_tokens[known]
    order = np.argsort(planned, kind="stable")
    mild: str | None = None
    # by length, because only the longest may be cut; no smaller parts, because texts differ
    for part in np.array_split(order, _parts(len(order))):
        mean, asked = float(counted[part].mean()), float(planned[part].mean())
        noise = min(FIT_MISSES * float(fit.get("drift_tokens", 0.0)), PROMPT_MOST * asked)
        chance = CHANCE_SIGMAS * float((counted - planned)[part].std()) / math.sqrt(len(part))
        off = abs(mean - asked) - chance
        if off <= max(PROMPT_SHARE * asked, PROMPT_TOKENS, noise):
            continue
        told = f"prompts planned to be {asked:.0f} tokens were counted as {mean:.0f} on average"
        if off > FIT_TOKENS:
            yield Doubt(f"{told}: the server cuts prompts, or its usage is wrong")
            return
        mild = mild or f"{told}: so far a few calibration prompts can mislead"
    if mild is not None:
        yield Doubt(mild, void=False)


def _parts(requests: int) -> int:
    return max(1, min(PROMPT_PARTS, requests // PROMPT_LEAST))


def other_lengths(e: Evidence) -> Iterator[Doubt]:
    """Replies that ended before their planned length: void where exactly that was asked for."""
    ok = e.records.ok & e.inside
    if not ok.any():
        return
    tokens, estimated = output_tokens(e.records)
    ok &= ~estimated  # chunks may hold several tokens
    early = tokens[ok] < e.records.planned_output_tokens[ok]
    if not early.any():
        return
    mean, asked = tokens[ok].mean(), e.records.planned_output_tokens[ok].mean()
    text = (
        f"{early.mean():.1%} of the replies ended before their planned length"
        f" (on average {mean:.0f} of {asked:.0f} tokens)"
    )
    if any(kind.outputs.ignore_eos for kind in e.workload.kinds):
        yield Doubt(f"{text}, although ignore_eos was asked for")
    else:
        yield Doubt(f"{text}: a run with other prompts may not compare", void=False)


def server_faults(e: Evidence) -> Iterator[Doubt]:
    """The server was restarted, or went away."""
    yield from (Doubt(text) for text in e.facts.server_faults)
    if not e.facts.server_faults:
        yield from _gone_at_the_end(e)


def _gone_at_the_end(e: Evidence) -> Iterator[Doubt]:
    """From some moment of the window on, requests only failed to connect."""
    records = e.records
    refused = records.failed_with("connect") & e.inside
    if np.count_nonzero(refused) < 3:
        return
    since = float(records.end_ns[refused].min())
    if not (records.ok & (records.sent_ns > since)).any():
        left = max(0.0, (e.window.end_ns - since) / 1e9)
        yield Doubt(f"the server is gone: no connection in the last {left:.3g} s of the window")
