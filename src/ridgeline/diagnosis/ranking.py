"""All rules over one Evidence, and which of their findings comes first."""

from collections.abc import Callable, Iterable

from ridgeline.diagnosis.agreeing import in_agreement
from ridgeline.diagnosis.enginewords import in_words_of
from ridgeline.diagnosis.evidence import Evidence
from ridgeline.diagnosis.finding import Finding
from ridgeline.diagnosis.rules import (
    alive,
    balance,
    caching,
    gpu,
    host,
    memory,
    probed,
    prompts,
    slots,
    speculation,
    traffic,
)

Rule = Callable[[Evidence], Iterable[Finding]]
RULES: tuple[Rule, ...] = (
    alive.unhealthy, alive.unreachable, alive.several_servers, alive.hung, probed.unanswered,
    probed.refused,
    alive.nothing_listens, alive.page_absent, memory.kv_below_context, caching.transfer,
    balance.router_blind,
    balance.imbalance, slots.batch_ceiling, slots.slots_or_budget, slots.lora_slots,
    slots.deferred, memory.kv_memory,
    prompts.token_budget, prompts.prefill_stalls, host.eager, host.above_graphs, host.engine_core,
    host.api_server, speculation.speculation, gpu.near_bound, traffic.mixed_classes,
    traffic.requests_fail, traffic.priority, traffic.between, gpu.low_load, traffic.clients_leave,
    caching.prefix_cache, alive.restarted, alive.no_rates, alive.pages_lost, alive.gpu_telemetry,
    alive.stats_off, alive.older_names,
)  # fmt: skip
# What stands still makes a queue that none of the limits explains.
_STILL = frozenset({"hung", "unhealthy", "kv-below-context"})
_ORDER = {"fault": 0, "limit": 1, "fine": 2, "note": 3}


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """Findings, the one that binds first in front.

    Faults come before limits (behind something broken no limit is the true one); limits by the
    share of a request's time that they explain. Without either, what is fine is said first.
    """
    found = [finding for rule in RULES for finding in rule(evidence)]
    still = any(
        (f.id in _STILL and f.kind == "fault")
        or (f.id == "stale-gauges" and evidence.replicas == 1)  # of several the others are true
        for f in found
    )  # fmt: skip
    if still:
        found = [f for f in found if f.kind not in ("limit", "fine")]
    elif not any(f.kind in ("fault", "limit") for f in found):
        if not any(f.kind == "fine" for f in found):
            found += gpu.nothing_wrong(evidence)
    else:
        found = [f for f in found if f.kind != "fine"]
    ranked = sorted(found, key=lambda f: (_ORDER[f.kind], -f.share))
    told = in_agreement(ranked)
    said = tuple(in_words_of(evidence.server, f) for f in told)
    return told if said == told else in_agreement(said)  # two knobs may be one flag elsewhere
