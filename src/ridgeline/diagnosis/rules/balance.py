"""Load that is not shared evenly: ranks, replicas, and routers that do not see it."""

from collections.abc import Iterable

from ridgeline.diagnosis.account import Account
from ridgeline.diagnosis.evidence import EngineLevels, Evidence, Level
from ridgeline.diagnosis.finding import Fact, Finding, Try, Wont


def imbalance(e: Evidence) -> Iterable[Finding]:
    """Some engines queue or run far more than others that have room."""
    account = Account(e)
    uneven = account.imbalance
    if uneven is None:
        return
    index, hot = uneven
    rows = {g.name: g for g in e.engines}
    names = ", ".join(hot)
    facts = [
        Fact("imbalance_index", index, f"the fullest engine has {index:.1f} times the mean load"),
        Fact("hot", names, f"loaded: {names}"),
        Fact("running_by_engine", _row(e, "running"), f"running: {_row(e, 'running')}"),
        Fact("waiting_by_engine", _row(e, "waiting"), f"waiting: {_row(e, 'waiting')}"),
    ]
    if any(g.kv_use is not None for g in e.engines):
        facts.append(Fact("kv_by_engine", _row(e, "kv_use"), f"KV use: {_row(e, 'kv_use')}"))
    policy = e.known.routing
    cause = "the routing policy, not the capacity"
    if policy is not None:
        cause = f"the routing policy ({policy}), not the capacity"
        facts.append(Fact("routing", policy, f"routing: {policy}"))
    starved = len([n for n in rows if n not in hot])
    yield Finding(
        "imbalance",
        f"the load is uneven: {len(hot)} of {len(rows)} engines carry it, {starved} have room",
        "limit", 1 - 1 / index, cause, tuple(facts), "high" if e.scrapes >= 2 else "medium",
        (Try("routing", "least-loaded (a load term beside prefix affinity)",
             None, why_no_gain="which requests go where is not known here"),),
        (Wont("more replicas", "those that there are have room"),
         Wont("max_num_seqs", "the others' slots are free")),
    )  # fmt: skip


def _row(e: Evidence, name: str) -> str:
    values: list[Level | None] = [getattr(g, name) for g in e.engines]
    return ", ".join("?" if v is None else f"{v.mean:.3g}" for v in values)


def router_blind(e: Evidence) -> Iterable[Finding]:
    """A load-aware router that cannot read loads spreads at random, or herds."""
    if e.router is None or not e.router.failed:
        return
    url, times = max(e.router.failed.items(), key=lambda item: item[1])
    facts = [Fact("failed_load_requests", float(times), f"{url} failed {times} times")]
    if e.router.policy is not None:
        facts.append(Fact("policy", e.router.policy, f"policy {e.router.policy}"))
    facts += _spikes(e.engines)
    uneven = Account(e).imbalance
    yield Finding(
        "router-blind", f"the router has no load signal: {url} fails",
        "fault", 1.0 if uneven is not None else 0.5, "router without a load signal", tuple(facts),
        "high",
        (Try("the load endpoint", f"make {url} answer, or take round robin", None,
             why_no_gain="the router is not in the twin"),),
        (Wont("more replicas", "they would be picked as blindly"),),
    )  # fmt: skip


def _spikes(engines: Iterable[EngineLevels]) -> list[Fact]:
    """Herding: every engine's load swings between nearly none and a lot."""
    swings = [
        f"{g.name}: {g.running.low:g} to {g.running.high:g}" for g in engines
        if g.running is not None and g.running.high >= 8 and g.running.low <= 0.25 * g.running.high
    ]  # fmt: skip
    if len(swings) < 2:
        return []
    text = "; ".join(swings)
    return [Fact("herding", text, f"loads alternate (herding): {text}")]
