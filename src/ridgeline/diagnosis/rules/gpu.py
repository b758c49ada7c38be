"""The GPU itself: near its bound, or hardly used; and that nothing is wrong."""

from collections.abc import Iterable
from math import isfinite

from ridgeline.diagnosis.account import WAITS, Account
from ridgeline.diagnosis.evidence import Evidence
from ridgeline.diagnosis.finding import Confidence, Fact, Finding, Try, Wont
from ridgeline.diagnosis.wording import ANSWERS, kv_facts, ms, queue_facts

# Of the roofline, and of the time that the memory or the tensor cores are active: good kernels
# reach 0.6 to 0.8 of the bandwidth, and less of the FLOPs, because attention reaches half of it.
NEAR = {"bandwidth": 0.55, "compute": 0.45}
ACTIVE = {"bandwidth": 0.65, "compute": 0.50}
IDLE = 0.3  # of the time: so much unused is paid for in vain
LOADED = 0.9  # of the time at work: from here on a step's time is felt


def side(e: Evidence, account: Account) -> tuple[str, float, str] | None:
    """("bandwidth" or "compute", how near its bound, how that is known); None when not near."""
    dram, tensor = e.gpu_mean("dram_active"), e.gpu_mean("tensor_active")
    if dram is not None and tensor is not None and not account.gpu_page_broken:
        for name, active in (("compute", tensor), ("bandwidth", dram)):
            if active >= ACTIVE[name]:
                return name, active, "the hardware's own counter"
    share, floor = account.share_of_bound, account.floor
    if share is None or floor is None:
        return None
    name = "bandwidth" if floor.memory_s >= floor.compute_s else "compute"
    working = e.gpu_mean("sm_active") is not None and (account.gpu_waits or (1.0,))[0] < 0.1
    if working and floor.compute_s >= 2 * floor.memory_s:
        return name, share, "the GPU never waits, and its step is FLOPs"
    return (name, share, "the mean step against its roofline") if share >= NEAR[name] else None


def near_bound(e: Evidence) -> Iterable[Finding]:
    """Steps take hardly longer than the chip needs: settings have little left to give."""
    account = Account(e)
    near_side = side(e, account)
    if near_side is None or (account.busy or 0.0) < LOADED:
        return
    name, near, how = near_side
    waits = account.queue_share
    share = (1 - waits) * near
    if name == "compute":  # what waits for room in a step waits for this
        share = max(share, account.queue_share_of("budget"))
    facts = [Fact("share_of_bound", near, f"at {near:.0%} of the GPU's {name} ({how})"),
             *queue_facts(e)]  # fmt: skip
    if e.step_s is not None and account.floor is not None:
        facts.append(Fact("step_s", e.step_s, f"a step takes {ms(e.step_s)}, on the roofline"
                          f" {ms(account.floor.seconds)}", "s"))  # fmt: skip
    tries = []
    given = e.known.configuration
    quantised = given is not None and given.knobs.quantization is not None
    if not quantised and (account.knobs is None or account.knobs.weights == "bf16"):
        tries.append(Try("quantization", f"fp8 {ANSWERS}", {"quantization": "fp8"},
                         metric="itl_mean_s"))  # fmt: skip
    if (
        name == "bandwidth"
        and account.floor is not None
        and account.floor.kv_share > 0.3
        and (e.known.kv_dtype in (None, "auto", "bfloat16", "float16"))
    ):
        tries.insert(0, Try("kv_cache_dtype", f"fp8 {ANSWERS}", {"kv_cache_dtype": "fp8"},
                            metric="itl_mean_s"))  # fmt: skip
    tries.append(Try("data_parallel_size", "one more replica", None,
                     why_no_gain="another GPU is paid for: ask `ridgeline plan`"))  # fmt: skip
    yield Finding(
        f"gpu-{name}",
        f"you are at {near:.0%} of the bound: GPU {name}" + (
            "" if waits else "; nothing waits and nothing is wrong"),
        "limit" if waits else "fine", share, f"GPU {name}", tuple(facts),
        "high" if how.startswith("the hardware") else "medium", tuple(tries),
        (Wont("scheduler flags", "the steps are as short as the chip allows"),),
    )  # fmt: skip


def low_load(e: Evidence) -> Iterable[Finding]:
    """The engines idle: GPUs are paid for and nobody asks."""
    account = Account(e)
    busy = account.busy
    if busy is None or busy > 1 - IDLE or (e.waiting is not None and e.waiting.mean >= WAITS):
        return
    rate = e.per_s(e.requests)
    facts = [Fact("idle_share", 1 - busy, f"the engines idle {1 - busy:.0%} of the time"),
             *queue_facts(e)]  # fmt: skip
    if rate is not None:
        facts.append(Fact("requests_per_s", rate, f"{rate:.3g} requests/s end"))
    used = e.gpu_mean("utilisation")
    if used is not None:
        facts.append(Fact("gpu_utilisation", used, f"some kernel runs {used:.0%} of the time"))
    yield Finding(
        "low-load", f"little load: the engines idle {1 - busy:.0%} of the time, nothing waits",
        "fine", 1 - busy, "the load", tuple(facts), "high",
        (Try("fewer or smaller GPUs", "see `ridgeline plan`", None,
             why_no_gain="it saves money, not time"),),
        (Wont("max_num_seqs, max_num_batched_tokens", "nothing waits for them"),
         Wont("more replicas", "those that there are idle")),
    )  # fmt: skip


def nothing_wrong(e: Evidence) -> Iterable[Finding]:
    """No queue, and no figure out of order: said with the share of the bound."""
    account = Account(e)
    if e.running is None or not e.rates_known or account.queue_share:
        return
    facts = [*queue_facts(e), *kv_facts(e)]
    slots = e.known.max_num_seqs
    if slots is not None:
        used = e.running.mean / e.replicas / slots
        facts.append(Fact("slots_used", used, f"{used:.0%} of the slots used"))
    share = account.share_of_bound
    if share is not None:
        facts.append(Fact("share_of_bound", share, f"at {share:.0%} of the roofline's bound"))
    for name, words in (("ttft", "TTFT"), ("itl", "time between tokens")):
        values = getattr(e.histograms, name)
        ends = None if values is None else values.quantile(0.95)
        if ends is not None:
            low, high = ends
            where = f"between {ms(low)} and {ms(high)}" if isfinite(high) else f"above {ms(low)}"
            facts.append(Fact(f"{name}_p95_s", high, f"p95 {words} {where}", "s", low, high))
    if _fronts_unknown(e):
        facts.append(Fact("api_servers", "not told", "several API servers share this page: how many"
                          " there are, the CPU of each and how long the engines idle is not told"
                          " (their number: --log or --study)"))  # fmt: skip
    at = "" if share is None else f": you are at {share:.0%} of the bound"
    yield Finding("nothing-wrong", f"nothing wrong{at}", "fine", share or 0.0, "", tuple(facts),
                  _sure(e, share))  # fmt: skip


def _fronts_unknown(e: Evidence) -> bool:
    return e.several_fronts and e.known.api_servers is None


def _sure(e: Evidence, share_of_bound: float | None) -> Confidence:
    if _fronts_unknown(e):
        return "low"
    return "medium" if share_of_bound is None else "high"
