"""KV memory: requests that wait for blocks or lose theirs, and prompts that can never have any."""

from collections.abc import Iterable

from ridgeline.diagnosis.account import KV_FULL, Account
from ridgeline.diagnosis.evidence import Evidence
from ridgeline.diagnosis.finding import Fact, Finding, Try, Wont
from ridgeline.diagnosis.wording import ANSWERS, kv_facts, queue_facts
from ridgeline.domain.numerals import counted

MOST_MEMORY = 0.95  # of the GPU's; more leaves no room for what is not counted


def kv_memory(e: Evidence) -> Iterable[Finding]:
    """Blocks are what is short: preemption in this span, or a queue before a full pool."""
    account = Account(e)
    waiting = account.queue_share_of("kv")
    again = account.recomputed_share
    per_request = e.preemptions / e.requests if e.preemptions and e.requests else 0.0
    if (not waiting and per_request < 0.02) or account.imbalance is not None:
        return
    share = min(1.0, waiting + (1 - waiting) * max(again, min(1.0, per_request)))
    facts = [*kv_facts(e), *queue_facts(e)]
    if e.preemptions:
        facts.append(Fact("recomputed_share", again,
                          f"about {again:.0%} of the prompt work is done again after preemption",
                          high=again))  # fmt: skip
    fits = _fits(e)
    if fits is not None:
        facts.append(Fact("fit_in_kv", float(fits),
                          f"about {fits} requests of this length fit per engine"))  # fmt: skip
    thrash = bool(e.preemptions) and per_request >= 0.02
    above = "" if fits is None else f" above {fits}"
    full = f"the KV cache is full and {waiting:.0%} of the requests wait for blocks"
    again_words = f"KV thrash: preemption and recompute{above} running requests per engine"
    title = again_words if thrash else full
    yield Finding(
        "kv-memory", title, "limit", share, "KV memory", tuple(facts),
        "high" if e.kv_use is not None and e.kv_use.high >= KV_FULL else "medium",
        tuple(_tries(e, fits, thrash=thrash)),
        (Wont("max_num_seqs up", "more requests would only fight for the same blocks"),
         Wont("max_num_batched_tokens up", "a larger budget makes the KV pool smaller")),
    )  # fmt: skip


def _fits(e: Evidence) -> int | None:
    """Requests of the present length that fill the pool of an engine."""
    if e.running is None or e.kv_use is None or not e.kv_use.mean or not e.running.mean:
        return None
    return max(1, int(e.running.mean / e.replicas / e.kv_use.mean))


def _tries(e: Evidence, fits: int | None, *, thrash: bool) -> Iterable[Try]:
    if e.known.kv_dtype in (None, "auto", "bfloat16", "float16"):
        yield Try("kv_cache_dtype", f"fp8 {ANSWERS}", {"kv_cache_dtype": "fp8"})
    if thrash and fits is not None:
        cap = fits
        yield Try("max_num_seqs", f"{cap} (cap the batch where it fits)", {"max_num_seqs": cap})
        yield Try("watermark", "0.02 (vLLM 0.33)", None,
                  why_no_gain="not predicted: its effect depends on the arrivals")  # fmt: skip
    given = e.known.configuration
    now = None if given is None else given.knobs.gpu_memory_utilization
    if now is None or now < MOST_MEMORY:
        yield Try("gpu_memory_utilization", f"{MOST_MEMORY:g}, if nothing else is on the GPU",
                  {"gpu_memory_utilization": MOST_MEMORY})  # fmt: skip


def stuck(e: Evidence) -> bool:
    """Whether requests wait before an empty pool that is smaller than what they may need."""
    tokens, longest = e.known.kv_tokens, e.known.max_model_len
    return (
        tokens is not None and longest is not None and tokens < longest
        and e.waiting is not None and e.waiting.low >= 1 and e.running is not None
        and e.running.high == 0 and (e.kv_use is None or e.kv_use.high < 0.05)
    )  # fmt: skip


def kv_below_context(e: Evidence) -> Iterable[Finding]:
    """The pool is smaller than the longest request that the server accepts."""
    tokens, longest = e.known.kv_tokens, e.known.max_model_len
    if tokens is None or longest is None or tokens >= longest:
        return
    blocked = stuck(e)
    facts = [
        Fact("kv_tokens", float(tokens), f"the KV cache holds {counted(tokens)} tokens"),
        Fact("max_model_len", float(longest), f"max_model_len {counted(longest)}"),
        Fact("max_concurrency", tokens / longest, f"concurrency {tokens / longest:.2f}x"),
        *queue_facts(e),
    ]
    title = (
        f"the request at the head of the queue is longer than the KV cache ({counted(tokens)}"
        " tokens) and blocks all behind it" if blocked
        else f"prompts over {counted(tokens)} tokens can never run, though up to {counted(longest)}"
        " are accepted"
    )  # fmt: skip
    yield Finding(
        "kv-below-context", title, "fault" if blocked else "note", 1.0 if blocked else 0.0,
        "KV capacity below max_model_len" if blocked else "", tuple(facts), "high",
        (Try("max_model_len", str(tokens), None, why_no_gain="it makes them refused, not faster"),
         Try("kv_cache_dtype", f"fp8 (twice the tokens) {ANSWERS}", {"kv_cache_dtype": "fp8"})),
        (Wont("restart", "/health says 200 and the same request would wait for ever again"),)
        if blocked else (),
    )  # fmt: skip
