"""How long the GPU needs for a step: a sum of named parts over the arithmetic of the model.

`StepCost.gpu_ns` is the scalar that the engine loop adds up; `StepCost.parts`, `flops` and
`bytes_read` give the same step's parts for whole columns afterwards. A test holds the one against
the other. All per rank: with tensor parallelism every rank does its share at the same time.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.domain import roofline
from ridgeline.domain.defaults import ResolvedKnobs
from ridgeline.domain.hardware import Gpu
from ridgeline.domain.model import ModelShape
from ridgeline.domain.records import (
    FULL_GRAPH,
    NO_GRAPH,
    PIECEWISE_GRAPH,
    Floats,
)
from ridgeline.twin.constants import Constants
from ridgeline.twin.scheduler import Decision

NS = 1e9


@dataclass(frozen=True, slots=True)
class StepColumns:
    """What steps did, one entry a step: the input of the vectorised formulas.

    `padded` are the GEMM rows; `context` KV tokens read by decodes; `chunk_context` KV tokens of
    earlier chunks read by the `chunks` prompt chunks; `pairs` their query-context pairs; `drafts`
    guessed tokens that decodes verify.
    """

    decodes: Floats
    prefill: Floats
    padded: Floats
    context: Floats
    chunks: Floats
    chunk_context: Floats
    pairs: Floats
    sampled: Floats
    drafts: Floats


class StepCost:
    """Step times of one replica's model on its GPUs, with tables per number of rows."""

    def __init__(
        self, shape: ModelShape, gpu: Gpu, knobs: ResolvedKnobs, constants: Constants
    ) -> None:
        self.shape = shape
        self.gpu = gpu
        self.knobs = knobs
        self.constants = constants
        ranks = knobs.tensor_parallel
        self._bandwidth = gpu.bandwidth_bytes_per_s
        self._peak = gpu.peak_flops(knobs.weights)
        self._peak_bf16 = gpu.peak_flops("bf16")
        c = constants
        hopper_fp8 = knobs.weights == "fp8" and gpu.compute_capability == "9.0"
        self._fp8_rows = c.fp8_rows if hopper_fp8 else None
        kv = roofline.kv_bytes_per_token(shape, knobs.kv_element_bytes, ranks)
        self._kv_token_bytes = kv
        self.decode_ns_per_token = kv / (c.decode_attention_share * self._bandwidth) * NS
        pair_flops = roofline.attention_flops_per_pair(shape) / ranks
        self.prefill_ns_per_pair = pair_flops / (c.prefill_attention_share * self._peak_bf16) * NS
        self._activation_ns_per_row = (
            _activation_bytes(shape, ranks) / (c.gemm_bandwidth_share * self._bandwidth) * NS
        )
        self._quantise_ns_per_row = (
            _quantised_values(shape, ranks)
            * ((1 if knobs.static_scales else 2) * c.quantise_bytes + knobs.weight_bytes)
            / (c.gemm_bandwidth_share * self._bandwidth) * NS
        )  # fmt: skip
        self.attention_ns = shape.layers * (c.operation_ns + c.kv_write_ns_per_layer)
        self.overhead_ns = shape.layers * c.small_kernels_ns_per_layer + c.step_gap_ns
        self._linear: dict[int, tuple[float, float]] = {}
        self._sampled: dict[int, tuple[float, float]] = {}
        self._draft_ns = self._drafting_ns()
        self._windows = tuple(Counter(shape.windows).items())
        self._sliding = shape.full_attention_layers < shape.layers
        per_layer = {
            FULL_GRAPH: 0.0,
            PIECEWISE_GRAPH: c.piecewise_launch_ns_per_layer,
            NO_GRAPH: c.eager_launch_ns_per_layer,
        }
        fixed = {
            FULL_GRAPH: c.full_graph_launch_ns,
            PIECEWISE_GRAPH: c.piecewise_launch_ns,
            NO_GRAPH: c.eager_launch_ns,
        }
        if ranks > 1:  # two all-reduces a layer; a graph has them inside
            per_layer[NO_GRAPH] += 2 * c.collective_launch_ns
        self._launch = {m: int(fixed[m] + shape.layers * per_layer[m]) for m in fixed}
        padded = _padding(knobs.capture_sizes)
        self._captured = len(padded)
        self._mixed = [(PIECEWISE_GRAPH, n) for n in padded]
        self._uniform = [(FULL_GRAPH if knobs.full_graphs else PIECEWISE_GRAPH, n) for n in padded]
        self._context_free: dict[tuple[int, int], float] = {}

    def graph(self, tokens: int, uniform: bool) -> tuple[int, int]:
        """(graph mode, padded rows) of a step; `uniform`: every request computes one token.

        Above the largest captured size nothing is captured and nothing is padded.
        """
        if tokens >= self._captured:
            return NO_GRAPH, tokens
        return self._uniform[tokens] if uniform else self._mixed[tokens]

    def launch_ns(self, mode: int) -> int:
        """CPU time to launch a step of that mode."""
        return self._launch[mode]

    def gpu_ns(self, step: Decision, padded: int) -> float:
        """Time the GPU computes for a step, launches aside."""
        sampled = step.decodes + step.drafts + len(step.firsts)
        time = self._context_free.get((padded, sampled))
        if time is None:
            time = self._context_free[padded, sampled] = self._context_free_ns(padded, sampled)
        pairs = step.pairs
        if not pairs and not step.drafts and not self._sliding:
            return time + step.context * self.decode_ns_per_token
        context: float = step.context
        chunk_context: float = step.chunk_context
        if self._sliding:
            context = self._attended(step.decodes, context)
            pairs = self._attended(step.prefill_tokens, pairs)
            chunk_context = self._attended(len(step.prefills), chunk_context)
        if step.drafts:
            time += self._draft_ns
        if pairs:
            time += max(pairs * self.prefill_ns_per_pair, chunk_context * self.decode_ns_per_token)
        return time + context * self.decode_ns_per_token

    def _context_free_ns(self, padded: int, sampled: int) -> float:
        """What does not depend on how long the contexts are."""
        weights, communication = self._linear.get(padded) or self.linear_ns(padded)
        head, sampler = self._sampled.get(sampled) or self.sampled_ns(sampled)
        return weights + communication + head + sampler + self.overhead_ns + self.attention_ns

    def seen(self, steps: StepColumns) -> StepColumns:
        """The same steps with contexts cut to the sliding windows (averaged over the layers)."""
        if not self._sliding:
            return steps
        return replace(
            steps,
            context=self._attended_columns(steps.decodes, steps.context),
            pairs=self._attended_columns(steps.prefill, steps.pairs),
            chunk_context=self._attended_columns(steps.chunks, steps.chunk_context),
        )

    def linear_ns(self, rows: int) -> tuple[float, float]:
        """(weights part, communication part) of the linear layers at so many rows."""
        self._linear[rows] = value = (self._gemms_ns(rows), self._all_reduces_ns(rows))
        return value

    def sampled_ns(self, rows: int) -> tuple[float, float]:
        """(LM head, sampler) for so many sampled rows; both 0 when nothing is sampled."""
        c, shape = self.constants, self.shape
        head = sampler = 0.0
        if rows:
            table = roofline.embedding_weights(shape) * 2 / self.knobs.tensor_parallel
            flops = rows * roofline.head_flops(shape) / self.knobs.tensor_parallel
            head = self._operation_ns(table, flops, self._peak_bf16)
            logits = rows * shape.vocab * 4 * c.sampler_passes
            sampler = c.sampler_ns + logits / (c.gemm_bandwidth_share * self._bandwidth) * NS
        self._sampled[rows] = head, sampler
        return head, sampler

    def parts(self, steps: StepColumns) -> dict[str, Floats]:
        """The GPU's parts of steps as `seen`, ns; "launch" holds small kernels and copies."""
        weights, communication = self._by_rows(steps.padded, self.linear_ns)
        head, sampler = self._by_rows(steps.sampled, self.sampled_ns)
        decode = steps.context * self.decode_ns_per_token
        prefill = np.where(
            steps.pairs > 0,
            np.maximum(
                steps.pairs * self.prefill_ns_per_pair,
                steps.chunk_context * self.decode_ns_per_token,
            ),
            0.0,
        )
        fixed = np.full(len(decode), self.attention_ns)
        only_prefill = steps.decodes == 0
        return {
            "weights": weights + np.where(steps.drafts > 0, self._draft_ns, 0.0),
            "attention_decode": decode + np.where(only_prefill, 0.0, fixed),
            "attention_prefill": prefill + np.where(only_prefill, fixed, 0.0),
            "head": head,
            "launch": np.full(len(decode), self.overhead_ns),
            "communication": communication,
            "sampler": sampler,
        }

    def flops(self, steps: StepColumns) -> Floats:
        """Model FLOPs of steps as `seen`, over all ranks; padding rows are not work."""
        shape = self.shape
        attention = roofline.attention_flops_per_pair(shape)
        # Every guessed token attends to its request's context; it is read once for all of them.
        verified = steps.context * (1 + steps.drafts / np.maximum(steps.decodes, 1))
        total: Floats = (
            (steps.decodes + steps.drafts + steps.prefill) * roofline.linear_flops_per_token(shape)
            + attention * (verified + steps.pairs)
            + steps.sampled * roofline.head_flops(shape)
        )
        return total

    def bytes_read(self, steps: StepColumns) -> Floats:
        """Bytes read by steps as `seen`, over all ranks: weights, the head if it samples, KV."""
        shape, knobs = self.shape, self.knobs
        rows, inverse = np.unique(steps.decodes + steps.drafts + steps.prefill, return_inverse=True)
        linear = np.array([roofline.linear_bytes_read(shape, r, knobs.weight_bytes) for r in rows])
        head = roofline.embedding_weights(shape) * 2.0
        kv = self._kv_token_bytes * knobs.tensor_parallel
        total: Floats = (
            linear[inverse]
            + head * (steps.sampled > 0)
            + kv * (steps.context + steps.chunk_context)
        )
        return total

    def _attended(self, queries: int, total: float) -> float:
        """Sum of contexts over `queries` under the windows: each is taken at the mean context."""
        cut = (n * (total if w is None else min(total, queries * w)) for w, n in self._windows)
        return sum(cut) / self.shape.layers

    def _attended_columns(self, queries: Floats, total: Floats) -> Floats:
        cut = [
            n * (total if w is None else np.minimum(total, queries * w)) for w, n in self._windows
        ]
        mean: Floats = np.sum(cut, axis=0) / self.shape.layers
        return mean

    def _gemms_ns(self, rows: int) -> float:
        shape, knobs, c = self.shape, self.knobs, self.constants
        query = shape.heads * shape.head_dim
        key_value = 2 * max(shape.kv_heads, knobs.tensor_parallel) * shape.head_dim
        attention = [shape.hidden * (query + key_value), query * shape.hidden]
        plain = [2 * shape.hidden * shape.mlp_width, shape.hidden * shape.mlp_width]
        experts = shape.experts
        mixture = 0 if experts is None else experts.layers
        layer = sum(self._gemm_ns(w, w, rows) for w in attention)
        total = shape.layers * layer
        total += (shape.layers - mixture) * sum(self._gemm_ns(w, w, rows) for w in plain)
        if experts is not None:
            hit = roofline.experts_hit(experts.count, experts.active, rows)
            one = shape.hidden * experts.width
            routed = [(2 * one * hit, 2 * one * experts.active), (one * hit, one * experts.active)]
            always, _ = roofline.expert_weights(shape)
            block = sum(self._gemm_ns(read, used, rows) for read, used in routed)
            total += mixture * (block + self._gemm_ns(always, always, rows))
        if knobs.weights != "bf16":
            each = c.quantise_fp4_ns if knobs.weights == "fp4" else c.quantise_ns
            total += shape.layers * 4 * each
            total += rows * self._quantise_ns_per_row
        return total + rows * self._activation_ns_per_row

    def _gemm_ns(self, read: float, used: float, rows: int) -> float:
        """One GEMM: `read` parameters from memory, `used` parameters per row computed with."""
        ranks = self.knobs.tensor_parallel
        size = read * self.knobs.weight_bytes / ranks
        if self._fp8_rows is not None and rows > self._fp8_rows:
            size /= self.constants.fp8_rows_share
        return self._operation_ns(size, 2.0 * used * rows / ranks, self._peak)

    def _operation_ns(self, size: float, flops: float, peak: float) -> float:
        c = self.constants
        memory = size / (c.gemm_bandwidth_share * self._bandwidth)
        compute = flops / (c.gemm_flops_share * peak)
        return max(memory, compute) * NS + c.operation_ns

    def _drafting_ns(self) -> float:
        """Guessing the next step's tokens: a layer and the head, one pass for each token.

        Look-up in the prompt (ngram) costs the GPU nothing.
        """
        shape, knobs, c = self.shape, self.knobs, self.constants
        if not knobs.lookahead:
            return 0.0
        layer = roofline.linear_weights(shape) / shape.layers + roofline.embedding_weights(shape)
        size = 2.0 * layer / knobs.tensor_parallel
        one = size / (c.gemm_bandwidth_share * self._bandwidth) * NS
        return knobs.drafts * (one + c.small_kernels_ns_per_layer + 6 * c.operation_ns)

    def _all_reduces_ns(self, rows: int) -> float:
        ranks, c = self.knobs.tensor_parallel, self.constants
        if ranks == 1:
            return 0.0
        link = self.gpu.link_bytes_per_s
        assert link is not None, "checked by the memory plan"
        size = rows * self.shape.hidden * 2
        ring = 2 * (ranks - 1) / ranks * size / (c.all_reduce_share * link) * NS
        return 2 * self.shape.layers * (ring + c.all_reduce_ns)

    def _by_rows(
        self, rows: Floats, table: Callable[[int], tuple[float, float]]
    ) -> tuple[Floats, Floats]:
        values, inverse = np.unique(rows, return_inverse=True)
        pairs = np.array([table(int(v)) for v in values], dtype=np.float64).reshape(-1, 2)
        return pairs[inverse, 0], pairs[inverse, 1]


def _padding(sizes: tuple[int, ...]) -> list[int]:
    """padded[n] for n tokens, up to the largest captured size."""
    table = [0]
    for size in sizes:
        table.extend([size] * (size - len(table) + 1))
    return table if sizes else []


def _activation_bytes(shape: ModelShape, ranks: int) -> float:
    """Bytes of one row that the kernels between the GEMMs of all layers move on a rank, in bf16.

    Two norms with residual (each reads and writes two rows), rotary embedding and cache write
    (read and write Q, K, V), the attention's output, the gated activation (reads two, writes one).
    Every rank has the whole residual stream; heads and the MLP's width are divided.
    """
    query = shape.heads * shape.head_dim / ranks
    key_value = max(shape.kv_heads / ranks, 1.0) * shape.head_dim
    inner = 2 * (query + 2 * key_value) + query + 3 * _mlp_width(shape) / ranks
    return 2.0 * (8 * shape.hidden + inner) * shape.layers


def _quantised_values(shape: ModelShape, ranks: int) -> float:
    """Values of one row that go into a rank's four GEMMs of all layers, each quantised before.

    What goes into the first GEMM of attention and of the MLP is the whole residual stream.
    """
    inner = (shape.heads * shape.head_dim + _mlp_width(shape)) / ranks
    return shape.layers * (2 * shape.hidden + inner)


def _mlp_width(shape: ModelShape) -> int:
    """Values between the MLP's two GEMMs of one row: the width, or that of its active experts."""
    experts = shape.experts
    return shape.mlp_width if experts is None else experts.active * experts.width
