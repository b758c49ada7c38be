"""The batch ceiling: all slots taken, requests wait for one, and there is KV memory for more."""

from collections.abc import Iterable

from ridgeline.diagnosis.account import Account
from ridgeline.diagnosis.evidence import Evidence
from ridgeline.diagnosis.finding import Fact, Finding, Try, Wont
from ridgeline.diagnosis.wording import kv_facts, level_fact, queue_facts

ROOM = 0.9  # of the pool that a proposed ceiling fills


def batch_ceiling(e: Evidence) -> Iterable[Finding]:
    """Requests wait although memory is free, and as many run as there are slots."""
    account = Account(e)
    share = account.queue_share_of("slots")
    if not share or account.imbalance is not None:
        return
    slots = e.known.max_num_seqs
    shown = slots if slots is not None else round(_seen(e))
    told = e.known.sources.get("max_num_seqs", "given")
    how = (
        Fact("max_num_seqs", float(shown), f"max_num_seqs {shown} ({told})") if slots is not None
        else Fact("max_num_seqs", float(shown), f"running stays at {shown}, so max_num_seqs is"
                  f" taken to be {shown}: check it")
    )  # fmt: skip
    reasons = []
    if e.waiting_capacity is not None and e.waiting_capacity.mean > 0:
        reasons = [Fact("waiting_capacity", e.waiting_capacity.mean,
                        f"{e.waiting_capacity.mean:.4g} of them for capacity")]  # fmt: skip
    value, room = _proposed(e, account, shown)
    yield Finding(
        "batch-ceiling",
        f"the slots are full: {shown} requests run per engine and {share:.0%} of all wait",
        "limit",
        share,
        f"slots (running = max_num_seqs {shown})",
        (how, *queue_facts(e), *reasons, *kv_facts(e), *room),
        "high" if slots is not None else "medium" if e.running and e.running.steady else "low",
        tuple(_tries(value, shown)),
        tuple(_wont(e)),
    )


def slots_or_budget(e: Evidence) -> Iterable[Finding]:
    """Requests wait with memory free, and neither the slots nor the budget are known."""
    account = Account(e)
    share = account.queue_share_of("either")
    if not share or account.imbalance is not None:
        return
    why = "which of the two is full is not known: give --study or --log"
    yield Finding(
        "slots-or-budget", f"{share:.0%} of the requests wait with KV memory free: for a slot or"
        " for room in the step", "limit", share, "slots or prefill budget",
        (*queue_facts(e), *kv_facts(e)), "low",
        (Try("max_num_seqs", "more, if as many run as it says", None, why_no_gain=why),
         Try("max_num_batched_tokens", "more, if fewer run", None, why_no_gain=why)),
        tuple(_wont(e)),
    )  # fmt: skip


def lora_slots(e: Evidence) -> Iterable[Finding]:
    """Requests wait for an adapter's slot: those that run take all that a step can hold."""
    share = Account(e).queue_share_of("lora")
    if not share or e.lora is None:
        return
    yield Finding(
        "lora-slots", f"{share:.0%} of the requests wait, and all {e.lora.most} slots for"
        f" adapters are taken: {len(e.lora.waiting)} adapters wait",
        "limit", share, "LoRA slots (max_loras)",
        (Fact("max_loras", float(e.lora.most), f"max_loras {e.lora.most}, running"
              f" {', '.join(e.lora.running)}, waiting {', '.join(e.lora.waiting)}"),
         *queue_facts(e), *kv_facts(e)), "medium",
        (Try("max_loras", str(len(e.lora.running) + len(e.lora.waiting)), None,
             why_no_gain="adapters are not in the twin"),),
        (Wont("max_num_seqs, max_num_batched_tokens", "what is missing is the adapter's slot"),),
    )  # fmt: skip


def deferred(e: Evidence) -> Iterable[Finding]:
    """Requests wait for something that no room would bring."""
    share = Account(e).queue_share_of("deferred")
    if not share:
        return
    yield Finding(
        "deferred", f"{share:.0%} of the requests wait, but not for room: KV from another instance,"
        " a grammar, an adapter", "limit", share, "what deferred requests wait for",
        (*level_fact("waiting_deferred", "deferred", e.waiting_deferred), *queue_facts(e)),
        "medium",
        (Try("where it comes from", "the prefill instance and the KV transfer, first", None,
             why_no_gain="the page does not tell what they wait for"),),
        (Wont("max_num_seqs, max_num_batched_tokens", "the scheduler sets them aside"),),
    )  # fmt: skip


def _seen(e: Evidence) -> float:
    """Requests that run on the fullest engine while others wait."""
    seen = []
    for g in e.engines:
        level = g.running_queued or g.running
        if level is not None:  # of gauges that lag the highest reading is the nearest
            seen.append(level.mean if g.lagged is None else level.high)
    return max(seen)


def _proposed(e: Evidence, account: Account, slots: int) -> tuple[int, list[Fact]]:
    """A ceiling that takes in what waits, as far as the KV memory goes."""
    wanted = max(_load for _load in (
        (0.0 if g.running is None else g.running.mean) + (0.0 if g.waiting is None
                                                          else g.waiting.mean)
        for g in e.engines))  # fmt: skip
    value = slots
    while value < wanted and value < 1024:
        value *= 2
    value = max(value, 2 * slots)
    if e.kv_use is None or not e.kv_use.high or e.running is None:
        return value, []
    each = e.kv_use.high / max(1.0, e.running.high / e.replicas)
    fits = int(ROOM / each) if each > 0 else value
    fact = Fact("fit_in_kv", float(fits), f"at this length about {fits} requests fit into the KV"
                " cache of an engine")  # fmt: skip
    return max(slots, min(value, fits)), [fact]


def _tries(value: int, slots: int) -> Iterable[Try]:
    if value > slots:
        yield Try("max_num_seqs", str(value), {"max_num_seqs": value})
    yield Try("data_parallel_size", "one more replica", None,
              why_no_gain="another GPU is paid for: ask `ridgeline plan`")  # fmt: skip


def _wont(e: Evidence) -> Iterable[Wont]:
    if e.kv_use is None or e.kv_use.high < 0.7:
        use = "" if e.kv_use is None else f" ({e.kv_use.high:.0%} in use)"
        yield Wont("kv_cache_dtype=fp8", f"KV memory is not what binds{use}")
        yield Wont("gpu_memory_utilization", f"more memory would lie idle{use}")
    if e.preemptions == 0:
        yield Wont("watermark", "nothing is preempted")
