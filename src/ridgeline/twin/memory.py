"""Does a configuration fit on its GPUs, and how many KV blocks are left?

By the engine's rule: utilisation * total memory, less weights, the activations of a profiling
step of max_num_batched_tokens tokens and max_num_seqs sampler rows, CUDA graphs and the rest.
Layers with a sliding window are counted with their whole context: an upper bound.
"""

from dataclasses import dataclass

from ridgeline.domain import roofline
from ridgeline.domain.defaults import ResolvedKnobs
from ridgeline.domain.errors import BadInput, RunFailed
from ridgeline.domain.hardware import Gpu
from ridgeline.domain.model import ModelShape
from ridgeline.twin.constants import Constants


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Memory of one rank in bytes, and the KV pool that remains (blocks usable by requests).

    `problem` is None when it fits, else what gives way first in words.
    """

    total_bytes: float
    budget_bytes: float
    weights_bytes: float
    activation_bytes: float
    graph_bytes: float
    other_bytes: float
    kv_bytes: float
    block_bytes: float
    usable_blocks: int
    block_size: int
    max_model_len: int
    problem: str | None

    @property
    def kv_tokens(self) -> int:
        """Tokens that the pool holds."""
        return self.usable_blocks * self.block_size

    @property
    def max_concurrency(self) -> float:
        """Requests of full length that fit at once."""
        return self.kv_tokens / self.max_model_len

    def require_fit(self) -> None:
        """Raise RunFailed with the reason when the engine would not start."""
        if self.problem is not None:
            raise RunFailed(self.problem, where="memory")


def plan_memory(
    shape: ModelShape, gpu: Gpu, knobs: ResolvedKnobs, constants: Constants
) -> MemoryPlan:
    """Plan one rank's memory. Raises BadInput when ranks have no known link between them."""
    ranks = knobs.tensor_parallel
    if ranks > 1 and gpu.link_bytes_per_s is None:
        raise BadInput(
            f"the catalogue has no link speed for {gpu.name}", where="tensor_parallel_size"
        )
    total = float(gpu.total_memory_bytes)
    budget = knobs.gpu_memory_utilization * total
    weights = roofline.weights_bytes(shape, knobs.weight_bytes) / ranks
    activations = _activation_bytes(shape, knobs, constants)
    graphs = 0.0
    if knobs.capture_sizes:
        graphs = constants.graph_memory_bytes + constants.graph_memory_bytes_per_size * len(
            knobs.capture_sizes
        )
    other = constants.other_memory_bytes
    kv = float(knobs.kv_cache_memory_bytes or budget - weights - activations - graphs - other)
    per_token = roofline.kv_bytes_per_token(shape, knobs.kv_element_bytes, ranks)
    block = per_token * knobs.block_size
    # One block is the engine's null block, which no request gets.
    blocks = knobs.num_gpu_blocks_override or max(0, int(kv // block))
    usable = blocks - 1
    return MemoryPlan(
        total_bytes=total,
        budget_bytes=budget,
        weights_bytes=weights,
        activation_bytes=activations,
        graph_bytes=graphs,
        other_bytes=other,
        kv_bytes=kv,
        block_bytes=block,
        usable_blocks=usable,
        block_size=knobs.block_size,
        max_model_len=knobs.max_model_len,
        problem=_problem(gpu, knobs, weights=weights, kv=kv, blocks=blocks, token=per_token),
    )


def _activation_bytes(shape: ModelShape, knobs: ResolvedKnobs, constants: Constants) -> float:
    """Activations of the widest layer for a full budget, and the sampler's logits."""
    experts = shape.experts
    width = shape.mlp_width if experts is None else experts.width * experts.active
    query = shape.heads * shape.head_dim
    row = 2 * (3 * max(width, query) / knobs.tensor_parallel + 4 * shape.hidden)
    step = knobs.max_num_batched_tokens * row * constants.activation_copies
    logits = knobs.max_num_seqs * shape.vocab * 4 * 2
    return step + logits


def _problem(
    gpu: Gpu, knobs: ResolvedKnobs, *, weights: float, kv: float, blocks: int, token: float
) -> str | None:
    total = gpu.total_memory_bytes
    if weights > total:
        return (
            f"not enough GPU memory to load the model: {weights / 1e9:.1f} GB of weights on a"
            f" {gpu.name} with {total / 1e9:.1f} GB; more tensor parallelism or quantised weights"
        )
    if kv <= 0 or blocks < 2:
        return (
            "no available memory for the cache blocks: weights, activations and graphs use up"
            f" {knobs.gpu_memory_utilization:g} of {total / 1e9:.1f} GB; raise"
            " gpu_memory_utilization, or lower max_num_batched_tokens or max_num_seqs"
        )
    # As the engine checks it: its null block counts here, though no request ever gets it.
    tokens = blocks * knobs.block_size
    if tokens < knobs.max_model_len and knobs.num_gpu_blocks_override:
        needed = -(-knobs.max_model_len // knobs.block_size)
        return (
            f"to serve at least one request of {knobs.max_model_len} tokens {needed} KV blocks are"
            f" needed, num_gpu_blocks_override {blocks} holds {tokens} tokens ({blocks} of"
            f" {knobs.block_size}); raise it to {needed + 1} (the engine keeps one), or lower"
            f" max_model_len to {max(tokens - knobs.block_size, 1)}"
        )
    if tokens < knobs.max_model_len:
        return (
            f"to serve at least one request of {knobs.max_model_len} tokens"
            f" {knobs.max_model_len * token / 1e9:.2f} GB of KV cache is needed, there is"
            f" {kv / 1e9:.2f} GB; the estimated maximum model length is {tokens}"
        )
    return None
