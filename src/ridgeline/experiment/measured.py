"""The account of a measured run: where each second of a request went, and what binds.

Two clocks are held against each other: the client's stamps and the server's own counters. A server
that exports vLLM's histograms tells queue, prefill and decode of the requests that it finished;
what its front end adds is its own end-to-end time minus those; what the client saw beyond that
passed between them (network, HTTP, a proxy). Without histograms, but with gauges, the engine is one
part, and all outside it another.

The parts that are shown add up to the mean time of the requests that the server finished meanwhile,
for what is left over goes to the front end and the network. What speaks for them is told apart from
that (`closing.ERRORS`), before any value is cut off at zero.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ridgeline.domain.knobs import Configuration
from ridgeline.domain.means import known_mean
from ridgeline.domain.occupancy import Occupancy, occupancy
from ridgeline.domain.records import RunRecords
from ridgeline.domain.run import RunFacts
from ridgeline.experiment.closing import Stages, closing_errors, stages_of

# The parts of a request's seconds, in the order in which they pass. client: from when it was due
# until it was sent. outside_engine: network, HTTP and API server, where they cannot be told apart.
# gpu_idle: while the request was in the engine and no kernel ran.
PARTS = (
    "client", "network_http", "api_server", "outside_engine", "queue", "prefill", "decode",
    "engine", "gpu_idle",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MeasuredAccount:
    """`seconds`: a mean request's by PARTS, adding up to `account_e2e_s` (and client before it).

    `steps`: see `measured_steps`, with `account_e2e_s` (mean E2E of the requests that the account
    is of: those that the server finished between its readings where it tells their stages, else
    those of the window), `closure_error` of Little's law on the client's own stamps,
    `decode_error` (requests that stream at the client against the engine's tokens a step, as a
    share of those in flight), `client_share` (of a request's time from when it was due) and, where
    the server tells its stages, those of `closing.ERRORS`.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    steps: dict[str, float] = field(default_factory=dict)


def account_measured(
    records: RunRecords, facts: RunFacts, configuration: Configuration, e2e_s: float | None
) -> MeasuredAccount:
    """The account of a run without a step table. `e2e_s`: mean E2E of the window's requests."""
    steps = measured_steps(facts, configuration)
    held = occupancy(records, facts.window)
    if held is None or not e2e_s:
        return MeasuredAccount({}, steps)
    steps["closure_error"] = held.closure_error
    replicas = configuration.replicas
    if "tokens_per_step" in steps:
        decoding = steps["tokens_per_step"] * replicas
        steps["decode_error"] = (held.streaming - decoding) / held.in_flight
    late = _lateness_s(records, facts)
    if late is not None:
        steps["client_share"] = late / (late + e2e_s)
    if _share_told(facts) < 1:  # the sums leave out replicas that the client's figures hold
        return MeasuredAccount({}, steps)
    engine = _engine(facts)
    told = stages_of(records, engine)
    if told is not None:
        steps |= closing_errors(records, engine, told)
        seconds = _left_over(told)
    else:
        seconds = {name: share * e2e_s for name, share in _shares(engine, held).items()}
    if not seconds:
        return MeasuredAccount({}, steps)
    steps["account_e2e_s"] = sum(seconds.values())
    seconds = _split_idle(seconds, steps.get("gpu_busy"))
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
    # Sums over the pages that told the window are of that many of the replicas.
    replicas = configuration.replicas * _share_told(facts)
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


def _left_over(told: Stages) -> dict[str, float]:
    """The stages, and to the front end and the network what is left of the times around them."""
    return {
        "network_http": max(0.0, told.stay - told.e2e),
        "api_server": max(0.0, min(told.e2e, told.stay) - told.inside),
        "queue": told.queue, "prefill": told.prefill, "decode": told.decode,
    }  # fmt: skip


def _shares(engine: Mapping[str, Any], held: Occupancy) -> dict[str, float]:
    """Shares of a request's time from sent to last chunk by gauges alone; they add up to 1."""
    running, waiting = engine.get("running_mean"), engine.get("waiting_mean")
    if running is None or waiting is None:
        return {}
    whole = max(held.in_flight, running + waiting)
    return {
        "outside_engine": (whole - running - waiting) / whole,
        "queue": waiting / whole,
        "engine": running / whole,
    }


def _split_idle(seconds: dict[str, float], busy: float | None) -> dict[str, float]:
    """Take the time in which the GPU ran nothing out of the engine's parts."""
    if busy is None:
        return seconds
    inside = [name for name in ("prefill", "decode", "engine") if name in seconds]
    idle = (1 - busy) * sum(seconds[name] for name in inside)
    return {**seconds, **{name: busy * seconds[name] for name in inside}, "gpu_idle": idle}


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


def _pages(facts: RunFacts) -> tuple[int, int] | None:
    """Replicas whose /metrics page told the window, and all asked; None when not recorded."""
    told = _engine(facts).get("replicas_told")
    asked = 0
    for name in ("replicas", "urls"):  # behind a router the one URL is no replica's
        listed = facts.server.get(name)
        if not asked and isinstance(listed, Sequence) and not isinstance(listed, str):
            asked = len(listed)
    return None if told is None or not asked else (int(told), asked)


def _share_told(facts: RunFacts) -> float:
    pages = _pages(facts)
    return 1.0 if pages is None else min(1.0, pages[0] / pages[1])


def replicas_missing(facts: RunFacts) -> str | None:
    """A warning when not every replica's /metrics page told the whole window, else None."""
    pages = _pages(facts)
    if pages is None or pages[0] >= pages[1]:
        return None
    told, asked = pages
    rest = "what stands for one replica is of the others, and " if told else ""
    return (
        f"the /metrics page of {asked - told} of {asked} replicas told nothing in the window, or"
        f" not from its beginning to its end: {rest}there is no account of seconds"
    )


def _share_of(value: float | None, replicas: float) -> float | None:
    return None if value is None else value / replicas


def _ratio(value: float | None, rate: float | None) -> float | None:
    return value / rate if value is not None and rate else None
