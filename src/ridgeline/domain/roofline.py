"""The arithmetic of a decoder: parameters, bytes and FLOPs, as pure functions of its shape.

For a grouped-query decoder with L layers, width h, MLP width f, vocabulary V, nq query and nk KV
heads of size d (Kaplan et al. 2020, appendix B; Williams et al. 2009 for the ridge point):
attention weights per layer h*nq*d + 2*h*nk*d + nq*d*h, gated MLP 3*h*f; a token costs two FLOPs
per linear weight and 4*nq*d per layer and context token; the LM head is paid for sampled rows.
"""

from ridgeline.domain.hardware import Gpu
from ridgeline.domain.model import ModelShape


def attention_weights(shape: ModelShape) -> int:
    """Parameters of one layer's Q, K, V and output projections."""
    query = shape.heads * shape.head_dim
    return 2 * shape.hidden * query + 2 * shape.hidden * shape.kv_heads * shape.head_dim


def mlp_weights(shape: ModelShape) -> int:
    """Parameters of one plain (gated) MLP: up, gate and down."""
    return 3 * shape.hidden * shape.mlp_width


def expert_weights(shape: ModelShape) -> tuple[int, int]:
    """(parameters every token uses, parameters of one routed expert) of one mixture layer."""
    experts = shape.experts
    if experts is None:
        return 0, 0
    always = shape.hidden * experts.count + 3 * shape.hidden * experts.shared_width
    return always, 3 * shape.hidden * experts.width


def linear_weights(shape: ModelShape) -> int:
    """Parameters of all layers' linear maps (all experts), without embedding and LM head."""
    experts = shape.experts
    mixture = 0 if experts is None else experts.layers
    always, routed = expert_weights(shape)
    count = 0 if experts is None else experts.count
    return (
        shape.layers * attention_weights(shape)
        + (shape.layers - mixture) * mlp_weights(shape)
        + mixture * (always + count * routed)
    )


def active_weights(shape: ModelShape) -> int:
    """Parameters of the linear maps that one token passes through."""
    experts = shape.experts
    if experts is None:
        return linear_weights(shape)
    _, routed = expert_weights(shape)
    return linear_weights(shape) - experts.layers * (experts.count - experts.active) * routed


def embedding_weights(shape: ModelShape) -> int:
    """Parameters of the embedding; the LM head has as many (the same ones when tied)."""
    return shape.vocab * shape.hidden


def parameters(shape: ModelShape) -> int:
    """All parameters; norms and biases (well under 0.1 %) are left out."""
    return linear_weights(shape) + embedding_weights(shape) * (1 if shape.tied else 2)


def experts_hit(count: int, active: int, tokens: float) -> float:
    """Mean number of different experts that `tokens` tokens use under random routing."""
    missed: float = (1.0 - active / count) ** tokens
    return count * (1.0 - missed)


def weights_bytes(shape: ModelShape, weight_bytes: float = 2.0, head_bytes: float = 2.0) -> float:
    """Weights in memory. Embedding and head stay at `head_bytes` when the layers are quantised."""
    tables = embedding_weights(shape) * (1 if shape.tied else 2)
    return linear_weights(shape) * weight_bytes + tables * head_bytes


def linear_bytes_read(shape: ModelShape, tokens: float, weight_bytes: float = 2.0) -> float:
    """Linear weights read by a step of `tokens` rows: all, or the union of the experts hit."""
    experts = shape.experts
    if experts is None:
        return linear_weights(shape) * weight_bytes
    _, routed = expert_weights(shape)
    idle = experts.count - experts_hit(experts.count, experts.active, tokens)
    return (linear_weights(shape) - experts.layers * idle * routed) * weight_bytes


def weights_read_bytes(
    shape: ModelShape, tokens: float = 1, weight_bytes: float = 2.0, head_bytes: float = 2.0
) -> float:
    """Weights read by one step that samples: linear maps and the whole LM head.

    The embedding is only looked up; a tied LM head is read in full all the same.
    """
    linear = linear_bytes_read(shape, tokens, weight_bytes)
    return linear + embedding_weights(shape) * head_bytes


def kv_bytes_per_token(
    shape: ModelShape, element_bytes: float = 2.0, tensor_parallel: int = 1
) -> float:
    """Keys and values of one token on one rank; KV heads are copied when ranks outnumber them."""
    heads = max(1, -(-shape.kv_heads // tensor_parallel))
    return 2 * shape.layers * heads * shape.head_dim * element_bytes


def attended(shape: ModelShape, context: float) -> float:
    """Context tokens attended to, averaged over the layers (a sliding layer sees its window)."""
    return sum(context if w is None else min(context, w) for w in shape.windows) / shape.layers


def linear_flops_per_token(shape: ModelShape) -> float:
    """FLOPs of one token in all linear maps, without the LM head."""
    return 2.0 * active_weights(shape)


def head_flops(shape: ModelShape) -> float:
    """FLOPs of the LM head for one sampled row."""
    return 2.0 * embedding_weights(shape)


def attention_flops_per_pair(shape: ModelShape) -> float:
    """FLOPs of scores and values for one query token and one context token, over all layers."""
    return 4.0 * shape.layers * shape.heads * shape.head_dim


def prefill_pairs(start: int, tokens: int) -> float:
    """Query-context pairs of a chunk from `start`, causal: tokens * (start + tokens / 2)."""
    return tokens * (start + tokens / 2)


def prefill_flops(shape: ModelShape, tokens: int, start: int = 0, sampled: int = 1) -> float:
    """FLOPs of a prompt chunk of `tokens` from context `start` that samples `sampled` rows."""
    return (
        tokens * linear_flops_per_token(shape)
        + attention_flops_per_pair(shape) * prefill_pairs(start, tokens)
        + sampled * head_flops(shape)
    )


def decode_flops(shape: ModelShape, sequences: int, context: float) -> float:
    """FLOPs of one decode step of `sequences` that each attend to `context` tokens."""
    per_token = linear_flops_per_token(shape) + head_flops(shape)
    return sequences * (per_token + attention_flops_per_pair(shape) * attended(shape, context))


def decode_bytes(
    shape: ModelShape,
    sequences: int,
    context: float,
    *,
    weight_bytes: float = 2.0,
    kv_element_bytes: float = 2.0,
) -> float:
    """Bytes read by one decode step: weights once, keys and values of every sequence."""
    cached = sequences * attended(shape, context) * kv_bytes_per_token(shape, kv_element_bytes)
    return weights_read_bytes(shape, sequences, weight_bytes) + cached


def decode_intensity(shape: ModelShape, sequences: int, context: float) -> float:
    """FLOP per byte of a bf16 decode step."""
    return decode_flops(shape, sequences, context) / decode_bytes(shape, sequences, context)


def ridge_point(gpu: Gpu, precision: str = "bf16") -> float:
    """FLOP per byte at which compute and memory take equally long (dense peak over bandwidth)."""
    return gpu.peak_flops(precision) / gpu.bandwidth_bytes_per_s


def floor_s(gpu: Gpu, flops: float, bytes_read: float, precision: str = "bf16") -> float:
    """No step can be shorter than this: the larger of memory time and compute time, in seconds."""
    return max(flops / gpu.peak_flops(precision), bytes_read / gpu.bandwidth_bytes_per_s)
