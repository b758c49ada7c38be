"""What memory a soak has left, each figure with its source: the engine's own log first.

vLLM fills what `gpu_memory_utilization` (or kv_cache_memory_bytes) allows at its start, so what its
log calls KV cache is the room that requests have, and how much of it they took is the margin that
decides about preemption. What is left of the GPU decides about the neighbour and the next start.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.domain.numerals import counted, significant
from ridgeline.store.run_directory import StoredRun

GIB = 2**30


def memory_lines(run: StoredRun) -> tuple[str, ...]:
    """In words: the KV cache and its use, the GPU against what the engine may take."""
    if run.facts is None:
        return ()
    server = run.facts.server
    told = server.get("telemetry")
    readings: Mapping[str, Any] = told if isinstance(told, dict) else {}
    found = (_kv(server, readings), _gpu(run, readings))
    return tuple(line for line in found if line)


def _kv(server: Mapping[str, Any], readings: Mapping[str, Any]) -> str | None:
    """Of several replicas the one with the smallest pool, as full as the fullest."""
    replicas: Any = server.get("replicas") or ()
    sizes = [r["kv_tokens"] for r in replicas if isinstance(r, dict) and r.get("kv_tokens")]
    if not sizes:
        return None
    tokens = min(sizes)
    line = f"KV cache of {counted(tokens)} tokens (the engine's log)"
    use = (readings.get("engine") or {}).get("kv_use_max")
    if use is None:
        return f"{line}; how much was used is not known"
    left = tokens * max(1.0 - float(use), 0.0)
    return f"{line}, at most {float(use):.0%} of it used (its gauge): {counted(left)} tokens left"


def _gpu(run: StoredRun, readings: Mapping[str, Any]) -> str | None:
    """The peak by the driver, against what the engine was allowed to take."""
    configuration = run.meta.configuration
    device = configuration.device() if configuration.gpu else None
    if device is None:
        return None
    whole = device.total_memory_bytes
    gpus: Sequence[Any] = readings.get("gpus") or ()
    used = [g["memory_used_max_bytes"] for g in gpus if g.get("memory_used_max_bytes")]
    share = configuration.knobs.gpu_memory_utilization
    allowed = "" if share is None else _allowed(share, whole, configuration.knobs)
    if used:
        line = f"peak {_gib(max(used))} of {_gib(whole)} GiB in use (the driver, all processes)"
        return f"{line}{allowed}"
    kept = _told_by_log(run)
    return None if kept is None else f"{kept}{allowed}"


def _allowed(share: float, whole: float, knobs: Any) -> str:
    if knobs.kv_cache_memory_bytes is not None:
        # vLLM then takes the KV cache as given and does not hold the sum to the share.
        return f"; KV cache of {_gib(knobs.kv_cache_memory_bytes)} GiB as it was set"
    return f"; gpu_memory_utilization {share:g} allows the engine {_gib(share * whole)} GiB"


def _told_by_log(run: StoredRun) -> str | None:
    """Weights and KV cache by the engine's log, where no driver was read."""
    assert run.facts is not None
    replicas: Any = run.facts.server.get("replicas") or ()
    first = next((r for r in replicas if isinstance(r, dict) and r.get("model_bytes")), None)
    if first is None:
        return None
    kv = first.get("kv_bytes")
    pool = "" if kv is None else f", KV cache {_gib(kv)} GiB"
    return f"weights {_gib(first['model_bytes'])} GiB{pool} (the engine's log)"


def _gib(size: float) -> str:
    return significant(size / GIB)
