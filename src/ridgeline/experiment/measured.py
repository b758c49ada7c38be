"""Step accounting of a real engine, as far as its own counters and the hardware's tell it."""

from collections.abc import Mapping
from typing import Any

from ridgeline.domain.knobs import Configuration
from ridgeline.domain.run import RunFacts

FULL = 0.95  # running requests over the slots: from here on the slots are what limits
GPU_WAITS = 0.5  # SM activity below which the GPU is mostly waiting for its host


def measured_steps(facts: RunFacts, configuration: Configuration) -> dict[str, float]:
    """Means of the window by the names of a twin's accounting, of one replica or one GPU.

    mean_step_s from the engine's step counter (which leaves out steps that only carry unfinished
    prompt chunks, so it is an upper estimate); GPU activity from the hardware's counters. What was
    not sampled is left out.
    """
    told = facts.server.get("telemetry")
    if not isinstance(told, Mapping):
        return {}
    replicas = configuration.knobs.data_parallel_size or 1
    engine: Mapping[str, Any] = told.get("engine") or {}
    gpus = [g for g in told.get("gpus") or () if isinstance(g, Mapping)]
    rate = engine.get("steps_per_s")
    found: dict[str, float | None] = {
        "mean_step_s": replicas / rate if rate else None,
        "mean_running": _share_of(engine.get("running_mean"), replicas),
        "mean_waiting": _share_of(engine.get("waiting_mean"), replicas),
        "kv_use_mean": engine.get("kv_use_mean"),
        "tokens_per_step": _ratio(engine.get("generation_tokens_per_s"), rate),
        **{f"gpu_{name}": _mean(gpus, name) for name in ("sm_active", "tensor_active")},
        "gpu_dram_active": _mean(gpus, "dram_active"),
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def measured_limit(steps: Mapping[str, float], configuration: Configuration) -> str | None:
    """What binds, in words, from `measured_steps`; None when the readings do not show it."""
    words = []
    slots = configuration.knobs.max_num_seqs
    running, waiting = steps.get("mean_running"), steps.get("mean_waiting", 0.0)
    if slots is not None and running is not None and running >= FULL * slots and waiting >= 1:
        words.append(
            f"batch ceiling: max_num_seqs {slots} is full with {waiting:.0f} waiting per replica"
        )
    active = steps.get("gpu_sm_active")
    if active is not None and running is not None and running >= 1:
        if active < GPU_WAITS:
            words.append(f"the GPU waits for its host: SMs active {active:.0%} of the time")
        else:
            words.append(f"SMs active {active:.0%} of the time")
    return "; ".join(words) or None


def _share_of(value: float | None, replicas: int) -> float | None:
    return None if value is None else value / replicas


def _ratio(value: float | None, rate: float | None) -> float | None:
    return value / rate if value is not None and rate else None


def _mean(gpus: list[Mapping[str, Any]], name: str) -> float | None:
    known = [g[name] for g in gpus if g.get(name) is not None]
    return sum(known) / len(known) if known else None
