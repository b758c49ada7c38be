"""What a configuration has room for, and what no setting can beat: arithmetic, no simulation."""

from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.domain import roofline
from ridgeline.domain.errors import BadInput
from ridgeline.domain.workload import Workload
from ridgeline.engines.twin import Twin
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
    """What no knob can beat: the shortest step at the batch ceiling, and tokens/s per GPU."""

    batch: int
    step_s: float
    tokens_per_s_per_gpu: float


def memory_of(twin: Twin, workload: Workload, *, from_log: bool = False) -> Memory:
    """Where one rank's memory goes, and what limits how many requests run."""
    plan, knobs = twin.memory, twin.knobs
    prompt, output = workload.mean_prompt_tokens, workload.mean_output_tokens
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
            f" {knobs.max_num_seqs * (prompt + output / 2):,.0f}, the pool holds"
            f" {plan.kv_tokens:,}; start with max_num_seqs {max(1, int(running))}"
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
    """Per request: its prompt at the dense peak, its answer in steps at the roofline."""
    shape, gpu, knobs = twin.shape, twin.gpu, twin.knobs
    ranks = knobs.tensor_parallel
    prompt, output = workload.mean_prompt_tokens, workload.mean_output_tokens
    batch = knobs.max_num_seqs
    users = workload.arrivals.peak_users
    if users is not None:
        batch = min(batch, max(1, -(-users // knobs.data_parallel)))
    context = prompt + output / 2
    moved = roofline.decode_bytes(
        shape, batch, context, weight_bytes=knobs.weight_bytes,
        kv_element_bytes=knobs.kv_element_bytes,
    )  # fmt: skip
    flops = roofline.decode_flops(shape, batch, context)
    step = roofline.floor_s(gpu, flops / ranks, moved / ranks, knobs.weights)
    # A whole request on the compute side, its answer's share of the steps on the memory side.
    work = roofline.prefill_flops(shape, round(prompt)) + output * flops / batch
    seconds = max(output * step / batch, work / ranks / gpu.peak_flops(knobs.weights))
    return Bound(batch, step, output / seconds / ranks)
