"""What a configuration has room for, and what no setting can beat: arithmetic, no simulation."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from ridgeline.domain import roofline
from ridgeline.domain.defaults import ResolvedKnobs, resolve
from ridgeline.domain.errors import BadInput, RidgelineError
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.model import ModelShape
from ridgeline.domain.numerals import counted
from ridgeline.domain.vision import image_tokens
from ridgeline.domain.workload import Workload
from ridgeline.engines.twin import DEFAULT_RELEASE, Twin
from ridgeline.engines.vllm_log import read_start_up


@dataclass(frozen=True, slots=True)
class Memory:
    """One rank's memory in bytes, what its KV pool holds, and what gives way first.

    `requests` of mean length fit when all are at their end; `running` when they are half-way
    through their answers, as they are on average: where to start with max_num_seqs. `from_log`:
    the pool's size is an engine's own.
    """

    parts: Mapping[str, float]
    kv_tokens: int
    requests: float
    running: float
    first_limit: str
    notes: tuple[str, ...] = ()
    from_log: bool = False


@dataclass(frozen=True, slots=True)
class Bound:
    """What settings cannot beat: the shortest step (s) at `batch`, and tokens/s per GPU.

    `change`: the settings it holds for, as they differ from the baseline's.
    """

    batch: int
    step_s: float
    tokens_per_s_per_gpu: float
    change: Mapping[str, Any] = field(default_factory=dict)


def prompt_tokens(shape: ModelShape, workload: Workload) -> float:
    """Mean prompt length, the tokens of its images included."""
    shares = [(k.share, k.prompts.images) for k in workload.kinds]
    pictured = sum(
        share * image_tokens(images, shape.image_grid, shape.name)
        for share, images in shares
        if images is not None
    )
    return workload.mean_prompt_tokens + pictured / sum(share for share, _ in shares)


def memory_of(twin: Twin, workload: Workload, *, from_log: bool = False) -> Memory:
    """Where one rank's memory goes, and what limits how many requests run."""
    plan, knobs = twin.memory, twin.knobs
    prompt, output = prompt_tokens(twin.shape, workload), workload.mean_output_tokens
    length = prompt + output
    requests, running = plan.kv_tokens / length, plan.kv_tokens / (prompt + output / 2)
    users = workload.arrivals.peak_users
    per_replica = None if users is None else users / knobs.data_parallel
    notes = []
    if requests < min(knobs.max_num_seqs, per_replica or knobs.max_num_seqs):
        limit = f"KV memory: {requests:.0f} requests of {length:.0f} tokens fit, then preemption"
    elif per_replica is not None and per_replica <= knobs.max_num_seqs:
        limit = f"load: {per_replica:.0f} users per replica, {knobs.max_num_seqs} may run"
    else:
        limit = f"the batch ceiling: max_num_seqs {knobs.max_num_seqs} of {requests:.0f} that fit"
    if knobs.max_num_seqs > running:
        notes.append(
            f"max_num_seqs {knobs.max_num_seqs} is more than fit: {knobs.max_num_seqs} x"
            f" {prompt + output / 2:.0f} tokens (half of the answer) are"
            f" {counted(knobs.max_num_seqs * (prompt + output / 2))}, the pool holds"
            f" {counted(plan.kv_tokens)}; start with max_num_seqs {max(1, int(running))}"
        )
    names = ("total", "budget", "weights", "activation", "graph", "other", "kv")
    parts = {n: float(getattr(plan, f"{n}_bytes")) for n in names}
    return Memory(parts, plan.kv_tokens, requests, running, limit, tuple(notes), from_log)


def missing_bytes(twin: Twin, log: str, where: str) -> float:
    """Memory that the plan did not know of, by the KV size in an engine's start-up log.

    Negative where the plan took too much. Raises BadInput when the log does not tell the size.
    """
    tokens = read_start_up(log).kv_tokens
    if tokens is None:
        raise BadInput(
            "has no line with the KV cache's size",
            where=where,
            fix="give the log of a start that got as far as 'GPU KV cache size: N tokens'",
        )
    blocks = tokens // twin.knobs.block_size
    return twin.memory.kv_bytes - blocks * twin.memory.block_bytes


def bound_of(twin: Twin, workload: Workload) -> Bound:
    """The bound at the twin's own settings, its batch ceiling among them."""
    knobs = twin.knobs
    ceiling = int(min(knobs.max_num_seqs, _offered(knobs, workload)))
    own = _own_tokens(workload) if knobs.prefix_caching else prompt_tokens(twin.shape, workload)
    return _bound(twin, knobs, workload, ceiling, own)


def highest_bound(
    twin: Twin,
    configuration: Configuration,
    workload: Workload,
    layouts: Iterable[Mapping[str, Any]],
) -> Bound:
    """The highest bound over layouts, weights and KV types, each with any batch ceiling.

    The batch is the largest that the load brings and that fits beside the weights in all of the
    GPU's memory: more requests a step never give fewer tokens per second on the roofline. The
    baseline's own bound is among them, so the result is never below it.
    """
    found = [bound_of(twin, workload)]
    weights = [{}, {"quantization": "fp8"}] if "fp8" in twin.gpu.flops else [{}]
    for layout, weight, kv in product(({}, *layouts), weights, ({}, {"kv_cache_dtype": "fp8"})):
        change = {**layout, **weight, **kv}
        try:
            changed = configuration.knobs.with_changes(change)
            knobs = resolve(
                changed, twin.gpu, twin.shape, configuration.engine_version or DEFAULT_RELEASE
            )
        except RidgelineError:
            continue  # the engine would refuse it
        batch = int(min(_room(twin, knobs, workload), _offered(knobs, workload)))
        if batch >= 1:
            bound = _bound(twin, knobs, workload, batch, _own_tokens(workload))
            found.append(replace(bound, change=change))
    return max(found, key=lambda b: b.tokens_per_s_per_gpu)


def _offered(knobs: ResolvedKnobs, workload: Workload) -> float:
    """Requests of one replica at a time that the load can bring; infinite in an open loop."""
    users = workload.arrivals.peak_users
    return float("inf") if users is None else max(1, -(-users // knobs.data_parallel))


def _own_tokens(workload: Workload) -> float:
    """Mean tokens of a prompt that no prefix cache can spare: no shared prefix, no repeated text.

    A trace's rows may share any part of their prompts.
    """
    if workload.arrivals.trace is not None:
        return 0.0
    return sum(
        kind.share * kind.prompts.mean_tokens
        for kind in workload.kinds
        if kind.prompts.file is None or kind.prompts.file.salted
    )


def _room(twin: Twin, knobs: ResolvedKnobs, workload: Workload) -> float:
    """Requests, half-way through their answers, whose own KV fits when nothing else is kept."""
    shape, ranks = twin.shape, knobs.tensor_parallel
    weights = roofline.weights_bytes(shape, knobs.weight_bytes) / ranks
    token = roofline.kv_bytes_per_token(shape, knobs.kv_element_bytes, ranks)
    own = _own_tokens(workload) + workload.mean_output_tokens / 2
    # A sliding window's layer may keep no more than its window.
    request = token * max(roofline.attended(shape, own), 1.0)
    return max(0.0, (twin.gpu.total_memory_bytes - weights) / request)


def _bound(
    twin: Twin, knobs: ResolvedKnobs, workload: Workload, batch: int, computed: float
) -> Bound:
    """Per request: `computed` prompt tokens at the dense peak, its answer at the roofline."""
    shape, gpu, ranks = twin.shape, twin.gpu, knobs.tensor_parallel
    output = workload.mean_output_tokens
    context = prompt_tokens(twin.shape, workload) + output / 2
    moved = roofline.decode_bytes(
        shape, batch, context, weight_bytes=knobs.weight_bytes,
        kv_element_bytes=knobs.kv_element_bytes,
    )  # fmt: skip
    flops = roofline.decode_flops(shape, batch, context)
    step = roofline.floor_s(gpu, flops / ranks, moved / ranks, knobs.weights)
    # Where guesses are verified, a step may give each sequence more than one token.
    steps = output / (1 + knobs.drafts)
    # A whole request on the compute side, its answer's share of the steps on the memory side.
    work = roofline.prefill_flops(shape, round(computed)) + output * flops / batch
    memory_s = steps * moved / ranks / gpu.bandwidth_bytes_per_s / batch
    compute_s = work / ranks / gpu.peak_flops(knobs.weights)
    return Bound(batch, step, output / max(memory_s, compute_s) / ranks)
