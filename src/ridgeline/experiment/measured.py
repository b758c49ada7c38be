"""The account of a measured run: where each second of a request went, and what binds.

Two clocks are held against each other: the client's stamps and the server's own counters. A server
that exports vLLM's histograms tells queue, prefill and decode of the requests that it finished;
what its front end adds is its own end-to-end time minus those; what the client saw beyond that
passed between them (network, HTTP, a proxy). Without histograms, but with gauges, the engine is one
part, and all outside it another.

The parts that are shown add up to a request's mean E2E because they are scaled to it. What speaks
for them is told apart from that, before any value is cut off at zero or scaled (ERRORS).
"""

from collections.abc import Mapping, Sequence
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

# What is wrong with an account, by name: its words. Each compares two things that nothing forces to
# agree; 0 is agreement.
ERRORS = {
    "residual_error": "the server's stages outlast its own total or the client's, by this share of"
    " a request's time",
    "queue_error": "queue times against the gauge of waiting requests, of those in flight",
    "engine_error": "prefill and decode times against the gauge of running requests, of those in"
    " flight",
    "scale_error": "the time that the window's requests took against that of the requests that the"
    " server's stage times are of",
}
ERROR_LIMIT = 0.05


@dataclass(frozen=True, slots=True)
class MeasuredAccount:
    """`seconds`: a mean request's by PARTS, adding up to its mean E2E (and client before it).

    `steps`: see `measured_steps`, with `closure_error` of Little's law on the client's own stamps,
    `decode_error` (requests that stream at the client against the engine's tokens a step, as a
    share of those in flight), `client_share` (of a request's time from when it was due) and, where
    the server tells its stages, those of ERRORS.
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
    if _share_told(facts) < 1:  # the sums leave out replicas that the client's figures hold
        return MeasuredAccount({}, steps)
    steps |= _errors(records, _engine(facts), held, e2e_s)
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
    # Sums over the pages that answered are of that many of the replicas.
    replicas = (configuration.knobs.data_parallel_size or 1) * _share_told(facts)
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


def account_warnings(steps: Mapping[str, float]) -> tuple[str, ...]:
    """What of an account's ERRORS is too large for it to be relied on, in words."""
    return tuple(
        f"the account of seconds is off by {100 * steps[name]:+.1f} % ({words})"
        for name, words in ERRORS.items()
        if abs(steps.get(name, 0.0)) > ERROR_LIMIT
    )


@dataclass(frozen=True, slots=True)
class _Stages:
    """What the server tells of the requests that it finished between two readings, in seconds.

    `stay`: the client's mean time from sent to last chunk of those that ended in the same span;
    `rate`: how many of them ended a second.
    """

    e2e: float
    queue: float
    prefill: float
    decode: float
    stay: float
    rate: float

    @property
    def inside(self) -> float:
        return self.queue + self.prefill + self.decode


def _stages(records: RunRecords, engine: Mapping[str, Any]) -> _Stages | None:
    told = [engine.get(f"{name}_mean_s") for name in ("e2e", "queue", "prefill", "decode")]
    begin, end = engine.get("first_reading_s"), engine.get("last_reading_s")
    if begin is None or end is None:
        return None
    stay = mean_stay_s(records, begin, end)
    if not stay or any(value is None for value in told):
        return None
    ended = records.ok & (records.last_ns >= begin * 1e9) & (records.last_ns < end * 1e9)
    e2e, queue, prefill, decode = (float(value) for value in told if value is not None)
    rate = float(ended.sum()) / (end - begin)
    return _Stages(e2e, queue, prefill, decode, stay, rate)


def _errors(
    records: RunRecords, engine: Mapping[str, Any], held: Occupancy, e2e_s: float
) -> dict[str, float]:
    """ERRORS, of the server's figures as they are; empty where it does not tell its stages.

    The front end's part and the network's are what is left over (of the server's time, of the
    client's). Left over may be nothing, never less: `residual_error` is what lies below zero.
    queue_error and engine_error hold the histograms against the gauges by Little's law, with the
    client's rate.
    """
    told = _stages(records, engine)
    if told is None:
        return {}
    below = min(0.0, told.stay - told.e2e) + min(0.0, told.e2e - told.inside)
    found = {"residual_error": below / told.stay, "scale_error": e2e_s / told.stay - 1}
    running, waiting = engine.get("running_mean"), engine.get("waiting_mean")
    if running is not None and waiting is not None:
        expected = told.rate * told.queue, told.rate * (told.prefill + told.decode)
        found["queue_error"] = (expected[0] - waiting) / held.in_flight
        found["engine_error"] = (expected[1] - running) / held.in_flight
    return found


def _shares(records: RunRecords, engine: Mapping[str, Any], held: Occupancy) -> dict[str, float]:
    """Shares of a request's time from sent to last chunk; they add up to 1. Empty without any."""
    told = _stages(records, engine)
    if told is not None:
        seconds = {
            "network_http": max(0.0, told.stay - told.e2e),
            "api_server": max(0.0, told.e2e - told.inside),
            "queue": told.queue, "prefill": told.prefill, "decode": told.decode,
        }  # fmt: skip
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


def _pages(facts: RunFacts) -> tuple[int, int] | None:
    """Replicas whose /metrics page answered, and all that were asked; None when not recorded."""
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
    """A warning when not every replica's /metrics page answered, None when all did."""
    pages = _pages(facts)
    if pages is None or pages[0] >= pages[1]:
        return None
    told, asked = pages
    return (
        f"the /metrics page of {asked - told} of {asked} replicas told nothing in the window: what"
        " stands for one replica is of the others, and there is no account of seconds"
    )


def _share_of(value: float | None, replicas: float) -> float | None:
    return None if value is None else value / replicas


def _ratio(value: float | None, rate: float | None) -> float | None:
    return value / rate if value is not None and rate else None
