"""Where a twin's requests and steps spent their time, and what bound the run.

Everything here comes from the step table, so a measured run (which has none) gets nothing.
"""

from dataclasses import dataclass, field

import numpy as np

from ridgeline.domain.knobs import Configuration
from ridgeline.domain.records import (
    FULL_GRAPH,
    NO_GRAPH,
    PIECEWISE_GRAPH,
    STEP_PARTS,
    Bools,
    Floats,
    Ints,
    RunRecords,
    StepTable,
)
from ridgeline.domain.run import Window
from ridgeline.domain.summary import Roofline

IDLE_IS_LOAD = 0.3  # above this share of idle time the traffic, not the engine, is the limit
FULL = 0.9  # of its ceiling: full for the purpose of naming what binds


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one GPU can do at most: dense FLOP/s of the type computed in, and bytes/s of memory."""

    flops_per_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Accounting:
    """`seconds`: mean seconds of a request by where they went, adding up to the mean E2E.

    `steps`: figures of the steps that ended inside the window (see `step_figures`).
    """

    seconds: dict[str, float] = field(default_factory=dict)
    steps: dict[str, float] = field(default_factory=dict)
    binding_limit: str | None = None
    roofline: Roofline = field(default_factory=Roofline)


def account(
    records: RunRecords,
    window: Window,
    bounds: Bounds | None,
    configuration: Configuration,
    api_busy: float | None = None,
) -> Accounting:
    """Account for a run; empty without steps.

    `api_busy`: share of the time in which the busiest API server worked, where it is known.
    """
    table = records.steps
    if table is None or not len(table):
        return Accounting()
    inside = np.flatnonzero((table.end_ns >= window.start_ns) & (table.end_ns < window.end_ns))
    if not len(inside):
        return Accounting(seconds=request_seconds(records, window))
    figures = step_figures(table, inside, window)
    return Accounting(
        seconds=request_seconds(records, window),
        steps=figures,
        binding_limit=binding_limit(
            figures, configuration, _memory_bound(table, inside, bounds), api_busy
        ),
        roofline=roofline_points(table, inside, window, bounds, configuration.gpus),
    )


def request_seconds(records: RunRecords, window: Window) -> dict[str, float]:
    """Mean seconds of the window's successful requests, by where they went.

    front_end_in: sent to taken in by the engine. queue: until first scheduled. prefill: until the
    end of the step that gave the first token. decode: until the end of the last token's step.
    front_end_out: until the client has it. They add up to the mean E2E. Requests that lack one of
    the stamps are left out.
    """
    table = records.steps
    sent = records.sent_ns
    known = records.ok & (sent >= window.start_ns) & (sent < window.end_ns)
    for stamp in ("arrived_ns", "scheduled_ns", "first_ns", "last_ns"):
        known &= ~np.isnan(getattr(records, stamp))
    rows = np.flatnonzero(known)
    if table is None or not len(rows):
        return {}
    first_end = _step_end(records, table, records.first_ns[rows], rows)
    last_end = _step_end(records, table, records.last_ns[rows], rows)
    edges = (
        sent[rows],
        records.arrived_ns[rows],
        records.scheduled_ns[rows],
        first_end,
        last_end,
        records.last_ns[rows],
    )
    names = ("front_end_in", "queue", "prefill", "decode", "front_end_out")
    return {
        name: float((after - before).mean()) / 1e9
        for name, before, after in zip(names, edges, edges[1:], strict=False)
    }


def _step_end(records: RunRecords, table: StepTable, delivered: Floats, rows: Ints) -> Floats:
    """End of the step whose tokens were delivered at these times (the times when unknown)."""
    ends = delivered.copy()
    replicas = records.target[rows]
    for replica in np.unique(table.replica):
        mine = np.flatnonzero(replicas == replica)
        steps = np.flatnonzero(table.replica == replica)
        place = np.searchsorted(table.delivered_ns[steps], delivered[mine])
        place = np.minimum(place, len(steps) - 1)
        exact = table.delivered_ns[steps][place] == delivered[mine]
        ends[mine[exact]] = table.end_ns[steps][place[exact]]
    return ends


def step_figures(table: StepTable, inside: Ints, window: Window) -> dict[str, float]:
    """Figures of the given steps (rows of the table).

    replicas; steps_per_s of one replica; mean_step_s; mean_decode_batch, mean_running and
    mean_waiting (requests, by step); running_while_waiting (mean_running by how many waited);
    prefill_step_share (steps that carry prompt tokens);
    prefill_tokens_per_step (of those); full_graph_share, piecewise_graph_share and no_graph_share
    of the steps; no_graph_time_share of their time; idle_share of the window's time; kv_use_mean
    and kv_use_max (share of the blocks); part.NAME: share of the step time by STEP_PARTS.
    """
    replicas = len(np.unique(table.replica))
    busy = _busy_ns(table)[inside].astype(np.float64)
    length = (table.end_ns - table.start_ns)[inside].astype(np.float64)
    prefill = table.prefill_tokens[inside]
    mode = table.mode[inside]
    figures = {
        "replicas": float(replicas),
        "steps_per_s": len(inside) / window.seconds / replicas,
        "mean_step_s": float(length.mean()) / 1e9,
        "mean_decode_batch": float(table.decode_tokens[inside].mean()),
        "mean_running": float(table.running[inside].mean()),
        "mean_waiting": float(table.waiting[inside].mean()),
        **_while_waiting(table, inside),
        "prefill_step_share": float((prefill > 0).mean()),
        "full_graph_share": float((mode == FULL_GRAPH).mean()),
        "piecewise_graph_share": float((mode == PIECEWISE_GRAPH).mean()),
        "no_graph_share": float((mode == NO_GRAPH).mean()),
        "no_graph_time_share": float(busy[mode == NO_GRAPH].sum() / max(busy.sum(), 1.0)),
        "idle_share": max(0.0, 1 - float(busy.sum()) / 1e9 / (window.seconds * replicas)),
    }
    if (prefill > 0).any():
        figures["prefill_tokens_per_step"] = float(prefill[prefill > 0].mean())
    if table.kv_total_blocks:
        used = table.kv_used_blocks[inside] / table.kv_total_blocks
        figures |= {"kv_use_mean": float(used.mean()), "kv_use_max": float(used.max())}
    parts = {p: float(table.parts[p][inside].sum()) for p in STEP_PARTS if p in table.parts}
    whole = sum(parts.values())
    if whole > 0:
        figures |= {f"part.{name}": value / whole for name, value in parts.items()}
    return figures


def _while_waiting(table: StepTable, inside: Ints) -> dict[str, float]:
    """What ran while something waited, each step by how many did: why they had to, means over busy
    and quiet times do not tell. Nothing where none waited.
    """
    running, waiting = table.running[inside], table.waiting[inside]
    if not waiting.any():
        return {}
    return {"running_while_waiting": float(np.average(running, weights=waiting))}


def _busy_ns(table: StepTable) -> Ints:
    """Time that each step adds to the busy time of its replica (steps may overlap)."""
    before = np.empty_like(table.end_ns)
    before[0] = table.start_ns[0]
    before[1:] = table.end_ns[:-1]
    new_replica = np.flatnonzero(np.diff(table.replica)) + 1
    before[new_replica] = table.start_ns[new_replica]
    return np.maximum(table.end_ns - np.maximum(table.start_ns, before), 0)


def roofline_points(
    table: StepTable, inside: Ints, window: Window, bounds: Bounds | None, gpus: int
) -> Roofline:
    """Intensity (FLOP/byte) of steps without and with prompt tokens, and shares of the bounds.

    mfu and mbu: FLOPs and bytes of all steps over what the GPUs could do in the window.
    share_of_bound: time the steps would take at the roofline (the longer of both times, step by
    step) over the time that passed.
    """
    flops, moved = table.flops[inside], table.bytes_read[inside]
    prefill = table.prefill_tokens[inside] > 0
    points = Roofline(
        decode_intensity=_ratio(flops, moved, ~prefill),
        prefill_intensity=_ratio(flops, moved, prefill),
    )
    if bounds is None:
        return points
    gpu_seconds = window.seconds * gpus
    ideal_s = np.maximum(flops / bounds.flops_per_s, moved / bounds.bytes_per_s)
    return Roofline(
        points.decode_intensity,
        points.prefill_intensity,
        mfu=float(flops.sum()) / bounds.flops_per_s / gpu_seconds,
        mbu=float(moved.sum()) / bounds.bytes_per_s / gpu_seconds,
        share_of_bound=float(ideal_s.sum()) / gpu_seconds,
    )


def _ratio(flops: Floats, moved: Floats, which: Bools) -> float | None:
    """FLOPs per byte over the chosen steps, None without any."""
    total = float(moved[which].sum())
    return float(flops[which].sum()) / total if total > 0 else None


def _memory_bound(table: StepTable, inside: Ints, bounds: Bounds | None) -> bool | None:
    """Would most of the ideal step time go to moving bytes? None without bounds."""
    if bounds is None:
        return None
    compute_s = table.flops[inside] / bounds.flops_per_s
    memory_s = table.bytes_read[inside] / bounds.bytes_per_s
    ideal_s = np.maximum(compute_s, memory_s)
    return bool(ideal_s[memory_s >= compute_s].sum() >= 0.5 * ideal_s.sum())


# What a part of the step time means in words.
_PART_WORDS = {
    "launch": "kernel launches",
    "cpu": "the engine's CPU",
    "communication": "communication between GPUs",
    "sampler": "sampling",
}


def binding_limit(
    figures: dict[str, float],
    configuration: Configuration,
    memory_bound: bool | None,
    api_busy: float | None = None,
) -> str:
    """What holds the run back, in words: why requests wait, then where the step time goes.

    A front end that has no time left comes first: behind it nothing else can be full.
    """
    running, waiting = figures["mean_running"], figures["mean_waiting"]
    ceiling = configuration.knobs.max_num_seqs
    idle = figures["idle_share"]
    step = _step_limit(figures, memory_bound)
    if api_busy is not None and api_busy >= FULL:
        return (
            f"API server: busy {100 * api_busy:.0f} % of the time reading and writing; more"
            f" api_server_count (step time bound by {step})"
        )
    if configuration.pools:  # means over pools say of none of them what is full in it
        return f"step time of all pools together, bound by {step}"
    if waiting < 0.5 and idle > IDLE_IS_LOAD:
        return f"load: the engine idles {100 * idle:.0f} % of the time and nothing waits"
    if waiting < 0.5:
        return f"step time, bound by {step}; nothing waits"
    running = figures.get("running_while_waiting", running)
    if ceiling is not None and running >= FULL * ceiling:
        why = f"batch ceiling: max_num_seqs {ceiling} is full"
    elif figures.get("kv_use_max", 0.0) >= FULL:
        why = f"KV memory: {100 * figures['kv_use_max']:.0f} % of the blocks in use"
    else:
        why = "prompts: admission waits for room in the step"
    return f"{why} with {waiting:.0f} waiting per replica; step time bound by {step}"


def _step_limit(figures: dict[str, float], memory_bound: bool | None) -> str:
    """The largest cause of step time with its share."""
    causes: dict[str, float] = {}
    for name in STEP_PARTS:
        share = figures.get(f"part.{name}", 0.0)
        words = _PART_WORDS.get(name)
        if words is None:
            words = "memory bandwidth" if memory_bound is not False else "compute"
            if name == "attention_prefill":
                words = "compute"
        causes[words] = causes.get(words, 0.0) + share
    word, share = max(causes.items(), key=lambda item: item[1])
    return f"{word} ({100 * share:.0f} %)" if share > 0 else "nothing that was recorded"
