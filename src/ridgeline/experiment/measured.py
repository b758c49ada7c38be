"""The account of a measured run: where each second of a request went, and what binds.

Two clocks are held against each other: the client's stamps and the server's own counters. A server
that exports vLLM's histograms tells queue, prefill and decode of the requests that it finished;
what its front end adds is its own end-to-end time minus those; what the client saw beyond that
passed between them (network, HTTP, a proxy). Without histograms, but with gauges, the engine is one
part, and all outside it another.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ridgeline.domain.knobs import Configuration
from ridgeline.domain.means import known_mean
from ridgeline.domain.occupancy import Occupancy, mean_stay_s, occupancy
from ridgeline.domain.records import RunRecords
from ridgeline.domain.run import RunFacts

# The parts of a request's seconds, in the order in which they pass. client: from when it was due
# until it was sent. outside_engine: network, HTTP and API server, where they cannot be told apart.
# gpu_idle: while the request was in the engine and no kernel ran.
PARTS = (
    "client", "network_http", "api_server", "outside_engine", "queue", "prefill", "decode",
    "engine", "gpu_idle",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MeasuredAccount:
    """`seconds`: a mean request's by PARTS, adding up to its mean E2E (and client before it).

    `steps`: see `measured_steps`, with `closure_error` of Little's law, `decode_error` (requests
    that stream at the client against the engine's tokens a step, as a share of those in flight)
    and `client_share` (of a request's time from when it was due).
    """

    seconds: dict[str, float] = field(default_factory=dict)
    steps: dict[str, float] = field(default_factory=dict)


def account_measured(
    records: RunRecords, facts: RunFacts, configuration: Configuration, e2e_s: float | None
) -> MeasuredAccount:
    """The account of a run without a step table. `e2e_s`: the mean E2E that it closes to."""
    steps = measured_steps(facts, configuration)
    held = occupancy(records, facts.window)
    if held is None or not e2e_s:
        return MeasuredAccount({}, steps)
    steps["closure_error"] = held.closure_error
    replicas = configuration.knobs.data_parallel_size or 1
    if "tokens_per_step" in steps:
        decoding = steps["tokens_per_step"] * replicas
        steps["decode_error"] = (held.streaming - decoding) / held.in_flight
    late = _lateness_s(records, facts)
    if late is not None:
        steps["client_share"] = late / (late + e2e_s)
    shares = _shares(records, _engine(facts), held)
    if not shares:
        return MeasuredAccount({}, steps)
    shares = _split_idle(shares, steps.get("gpu_busy"))
    seconds = {name: share * e2e_s for name, share in shares.items()}
    if late is not None:
        seconds["client"] = late
    return MeasuredAccount({name: seconds[name] for name in PARTS if name in seconds}, steps)


def measured_steps(facts: RunFacts, configuration: Configuration) -> dict[str, float]:
    """Means of the window by the names of a twin's accounting, of one replica or one GPU.

    mean_step_s from the engine's step counter (which leaves out steps that only carry unfinished
    prompt chunks, so it is an upper estimate; with several API servers it counts each step more
    than once and is not used); GPU activity from the hardware's counters, gpu_busy the share of
    time in which some kernel ran; cores of the engine core and the API server. What was not sampled
    is left out.
    """
    told = _telemetry(facts)
    replicas = configuration.knobs.data_parallel_size or 1
    engine = _engine(facts)
    gpus = [g for g in told.get("gpus") or () if isinstance(g, Mapping)]
    rate = engine.get("steps_per_s") if (configuration.knobs.api_server_count or 1) == 1 else None
    found: dict[str, float | None] = {
        "mean_step_s": replicas / rate if rate else None,
        "mean_running": _share_of(engine.get("running_mean"), replicas),
        "mean_waiting": _share_of(engine.get("waiting_mean"), replicas),
        "kv_use_mean": engine.get("kv_use_mean"),
        "kv_use_max": engine.get("kv_use_max"),
        "tokens_per_step": _ratio(engine.get("generation_tokens_per_s"), rate),
        "prompt_tokens_per_step": _ratio(engine.get("prompt_tokens_per_s"), rate),
        "preemptions_per_s": engine.get("preemptions_per_s"),
        **{
            f"gpu_{name}": known_mean(g.get(name) for g in gpus)
            for name in ("sm_active", "tensor_active")
        },
        "gpu_dram_active": known_mean(g.get("dram_active") for g in gpus),
        "gpu_busy": known_mean(g.get("utilisation") for g in gpus),
        "engine_core_cores": _cores(told, "engine core"),
        "api_server_cores": _cores(told, "api server"),
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def _lateness_s(records: RunRecords, facts: RunFacts) -> float | None:
    """Mean seconds from when the window's requests were due until they were sent."""
    sent = records.sent_ns
    rows = records.ok & (sent >= facts.window.start_ns) & (sent < facts.window.end_ns)
    if not rows.any():
        return None
    return max(0.0, float(np.mean((sent - records.intended_ns)[rows]))) / 1e9


def _shares(records: RunRecords, engine: Mapping[str, Any], held: Occupancy) -> dict[str, float]:
    """Shares of a request's time from sent to last chunk; they add up to 1. Empty without any."""
    stages = {name: engine.get(f"{name}_mean_s") for name in ("e2e", "queue", "prefill", "decode")}
    span = [engine.get("first_reading_s"), engine.get("last_reading_s")]
    if all(value is not None for value in (*stages.values(), *span)):
        stay = mean_stay_s(records, *span)  # type: ignore[arg-type]
        inside = sum(stages[name] for name in ("queue", "prefill", "decode"))  # type: ignore[misc]
        if stay:
            seconds = {
                "network_http": max(0.0, stay - stages["e2e"]),  # type: ignore[operator]
                "api_server": max(0.0, stages["e2e"] - inside),  # type: ignore[operator]
                **{name: float(stages[name]) for name in ("queue", "prefill", "decode")},  # type: ignore[arg-type]
            }
            whole = sum(seconds.values())
            return {name: value / whole for name, value in seconds.items()} if whole else {}
    running, waiting = engine.get("running_mean"), engine.get("waiting_mean")
    if running is None or waiting is None:
        return {}
    whole = max(held.in_flight, running + waiting)
    return {
        "outside_engine": (whole - running - waiting) / whole,
        "queue": waiting / whole,
        "engine": running / whole,
    }


def _split_idle(shares: dict[str, float], busy: float | None) -> dict[str, float]:
    """Take the time in which the GPU ran nothing out of the engine's parts."""
    if busy is None:
        return shares
    inside = [name for name in ("prefill", "decode", "engine") if name in shares]
    idle = (1 - busy) * sum(shares[name] for name in inside)
    return {**shares, **{name: busy * shares[name] for name in inside}, "gpu_idle": idle}


def _telemetry(facts: RunFacts) -> Mapping[str, Any]:
    told = facts.server.get("telemetry")
    return told if isinstance(told, Mapping) else {}


def _engine(facts: RunFacts) -> Mapping[str, Any]:
    engine = _telemetry(facts).get("engine")
    return engine if isinstance(engine, Mapping) else {}


def _cores(told: Mapping[str, Any], role: str) -> float | None:
    """Cores that the processes of a role take, of one replica."""
    host = told.get("host")
    if not isinstance(host, Mapping):
        return None
    found = [v for unit, v in host.items() if unit.endswith(role) and isinstance(v, Mapping)]
    return known_mean(g.get("cpu_cores_mean") for g in found)


def _share_of(value: float | None, replicas: int) -> float | None:
    return None if value is None else value / replicas


def _ratio(value: float | None, rate: float | None) -> float | None:
    return value / rate if value is not None and rate else None
