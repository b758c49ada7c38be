"""Every number that the engine would use: the given knobs plus vLLM's defaults for the device.

Two releases are known, 0.21 and 0.33; where they differ the branch says so. What the engine
refuses at start is refused here with its reason, and so is a knob that the twin does not model: a
setting that is silently ignored would look like one that has no effect.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from ridgeline.domain.errors import BadInput, nearest
from ridgeline.domain.hardware import Gpu
from ridgeline.domain.knobs import Knobs
from ridgeline.domain.model import ModelShape

VERSIONS = ("0.21", "0.32", "0.33")
GIB = 1 << 30

# Accepted values and what they mean in bytes per element.
WEIGHT_FORMATS = {"fp8": ("fp8", 1.0), "modelopt": ("fp8", 1.0), "modelopt_fp4": ("fp4", 0.5625)}
# Formats whose checkpoints hold a scale for the activations of each GEMM.
STATIC_SCALES = frozenset({"modelopt", "modelopt_fp4"})
KV_TYPES = {
    "auto": 2.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0,
}  # fmt: skip
# With a scale (4 bytes) for each token and head, of the keys and of the values. Release 0.21 has
# the two of 8 bits only.
KV_PER_TOKEN_HEAD = {
    "fp8_per_token_head": 1.0, "int8_per_token_head": 1.0, "int4_per_token_head": 0.5,
}  # fmt: skip
KV_SCALE_BYTES = 4.0
DTYPES = ("auto", "bfloat16", "float16", "half")

# Knobs that change a real engine's speed but not the twin's: refused by name.
NOT_MODELLED: Mapping[str, str] = {
    "pipeline_parallel_size": "pipeline parallelism",
    "enable_expert_parallel": "expert parallelism",
    "attention_backend": "the choice of an attention backend",
}
NEUTRAL = {"pipeline_parallel_size": 1}  # the same as not given
POLICIES = ("fcfs", "priority")
# Drafting methods that the twin models: without a model of its own, or with one more layer.
DRAFT_METHODS = ("ngram", "eagle", "eagle3", "mtp")
DRAFT_KEYS = ("method", "num_speculative_tokens", "model", "prompt_lookup_min", "prompt_lookup_max")
ONLY_FROM_033 = (
    "max_num_active_seqs", "watermark", "prefill_schedule_interval",
    "max_num_queued_reqs", "max_num_queued_tokens",
)  # fmt: skip

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ResolvedKnobs:
    """What one replica runs with. Tokens, sequences and blocks are counts.

    `capture_sizes` ascend and are empty without CUDA graphs; `full_graphs` and `piecewise_graphs`
    say which kinds were captured. `weights` is the precision of the linear layers ("bf16", "fp8",
    "fp4") with its bytes per parameter (scales included). `static_scales`: activations are
    quantised with scales of the checkpoint instead of their own. `async_depth` steps are in
    flight. `max_num_queued_*` are None where the queue is unbounded.
    """

    version: str
    max_num_seqs: int
    max_num_active_seqs: int
    max_num_batched_tokens: int
    max_num_scheduled_tokens: int
    max_model_len: int
    chunked_prefill: bool
    long_prefill_token_threshold: int
    reserve_full_isl: bool
    async_depth: int
    watermark: float
    prefix_caching: bool
    block_size: int
    kv_cache_dtype: str
    kv_element_bytes: float
    gpu_memory_utilization: float
    kv_cache_memory_bytes: int | None
    num_gpu_blocks_override: int | None
    eager: bool
    capture_sizes: tuple[int, ...]
    full_graphs: bool
    piecewise_graphs: bool
    weights: str
    weight_bytes: float
    data_parallel: int
    tensor_parallel: int
    api_servers: int
    scheduling_policy: str = "fcfs"
    prefill_schedule_interval: int = 1
    stream_interval: int = 1
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    drafts: int = 0
    draft_method: str | None = None
    static_scales: bool = False

    @property
    def lookahead(self) -> int:
        """Slots that a drafter with KV of its own needs beside the tokens of a step."""
        return self.drafts if self.draft_method not in (None, "ngram") else 0

    @property
    def max_capture_size(self) -> int:
        """The largest captured batch; 0 without graphs."""
        return self.capture_sizes[-1] if self.capture_sizes else 0


def resolve(knobs: Knobs, gpu: Gpu, model: ModelShape, version: str = "0.21") -> ResolvedKnobs:
    """Fill in the engine's defaults.

    Raises BadInput for a combination that the engine refuses and for knobs that are not modelled.
    """
    release = _release(version)
    _refuse_unmodelled(knobs, release)
    tensor = _positive("tensor_parallel_size", knobs.tensor_parallel_size, 1)
    data = _positive("data_parallel_size", knobs.data_parallel_size, 1)
    _check_tensor_parallel(model, tensor)
    weights, weight_bytes, static = _weights(knobs, gpu, model)
    kv_type, kv_bytes = _kv_type(knobs, model, release)
    length = _model_length(knobs, model)
    chunked = _given(knobs.enable_chunked_prefill, True)
    seqs, tokens = _batch_limits(knobs, gpu, length, chunked, release)
    full, piecewise = _graph_kinds(knobs)
    method, drafts = _drafts(knobs)
    # Release 0.21 schedules synchronously under drafting on the CPU.
    asynchronous = _given(knobs.async_scheduling, release != "0.21" or method != "ngram")
    return ResolvedKnobs(
        version=release,
        max_num_seqs=seqs,
        max_num_active_seqs=_active(knobs, seqs),
        max_num_batched_tokens=tokens,
        max_num_scheduled_tokens=_scheduled(knobs, tokens),
        max_model_len=length,
        chunked_prefill=chunked,
        long_prefill_token_threshold=_threshold(knobs, length),
        reserve_full_isl=_given(knobs.scheduler_reserve_full_isl, True),
        async_depth=2 if asynchronous else 1,
        watermark=_share("watermark", knobs.watermark, 0.0),
        prefix_caching=_given(knobs.enable_prefix_caching, True),
        block_size=_positive("block_size", knobs.block_size, 16),
        kv_cache_dtype=kv_type,
        kv_element_bytes=kv_bytes,
        gpu_memory_utilization=_share("gpu_memory_utilization", knobs.gpu_memory_utilization, 0.92),
        kv_cache_memory_bytes=knobs.kv_cache_memory_bytes,
        num_gpu_blocks_override=knobs.num_gpu_blocks_override,
        eager=not (full or piecewise),
        capture_sizes=(
            _captures(knobs, gpu, seqs, tokens, release, per_decode=1 + drafts)
            if full or piecewise
            else ()
        ),
        full_graphs=full,
        piecewise_graphs=piecewise,
        weights=weights,
        weight_bytes=weight_bytes,
        data_parallel=data,
        tensor_parallel=tensor,
        api_servers=_positive("api_server_count", knobs.api_server_count, data),
        scheduling_policy=_given(knobs.scheduling_policy, "fcfs"),
        prefill_schedule_interval=_positive(
            "prefill_schedule_interval", knobs.prefill_schedule_interval, 1
        ),
        stream_interval=_positive("stream_interval", knobs.stream_interval, 1),
        max_num_queued_reqs=_limit("max_num_queued_reqs", knobs.max_num_queued_reqs),
        max_num_queued_tokens=_limit("max_num_queued_tokens", knobs.max_num_queued_tokens),
        drafts=drafts,
        draft_method=method,
        static_scales=static,
    )


def default_capture_sizes(largest: int, max_num_seqs: int | None, release: str) -> tuple[int, ...]:
    """Batch sizes with a captured graph: 1, 2, 4, then by 8 below 256, then by 16 to `largest`.

    Release 0.33 also captures max_num_seqs itself.
    """
    sizes = {1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)}
    if release != "0.21" and max_num_seqs is not None:
        sizes.add(max_num_seqs)
    return tuple(sorted(s for s in sizes if s <= largest))


def default_batch_limits(gpu: Gpu, release: str) -> tuple[int, int]:
    """(max_num_seqs, max_num_batched_tokens) that `vllm serve` takes for the device."""
    memory = gpu.total_memory_bytes
    if memory >= 160 * GIB:
        return 1024, 16384 if release != "0.21" else 8192
    small = "A100" in gpu.name or (release != "0.21" and gpu.name == "GB10")
    if memory >= 70 * GIB and not small:
        return 1024, 8192
    return 256, 2048


def _release(version: str) -> str:
    release = ".".join(version.split(".")[:2])
    if release not in VERSIONS:
        raise BadInput(
            f"the twin knows the engine's releases {', '.join(VERSIONS)}, not {version}",
            where="engine_version",
        )
    return release


def _refuse_unmodelled(knobs: Knobs, release: str) -> None:
    given = knobs.given()
    for name in ONLY_FROM_033:
        if name in given and release == "0.21":
            raise BadInput(f"{name} does not exist in release 0.21", where=name)
    for name, what in NOT_MODELLED.items():
        if name in given and given[name] is not False and given[name] != NEUTRAL.get(name):
            raise BadInput(f"the twin does not model {what}", where=name, fix="leave it out")
    policy = given.get("scheduling_policy", "fcfs")
    if policy not in POLICIES:
        raise BadInput(f"unknown policy {policy!r} (fcfs, priority)", where="scheduling_policy")


def _check_tensor_parallel(model: ModelShape, ranks: int) -> None:
    if model.heads % ranks:
        raise BadInput(
            f"the {model.heads} attention heads of {model.name} must be divisible by the tensor"
            f" parallel size {ranks}",
            where="tensor_parallel_size",
        )
    if model.kv_heads % ranks and ranks % model.kv_heads:
        raise BadInput(
            f"{model.kv_heads} KV heads can neither be split nor copied over {ranks} ranks",
            where="tensor_parallel_size",
        )


def _weights(knobs: Knobs, gpu: Gpu, model: ModelShape) -> tuple[str, float, bool]:
    if knobs.dtype is not None and knobs.dtype not in DTYPES:
        raise BadInput(f"the twin models {', '.join(DTYPES)}, not {knobs.dtype!r}", where="dtype")
    method = knobs.quantization
    if model.weight_format is not None:
        if method not in (None, model.weight_format):
            raise BadInput(
                f"quantization method specified in the model config ({model.weight_format}) does"
                f" not match {method}",
                where="quantization",
            )
        method = model.weight_format
    if method is None:
        return "bf16", 2.0, False
    if method not in WEIGHT_FORMATS:
        known = ", ".join(WEIGHT_FORMATS)
        raise BadInput(
            f"the twin does not model {method!r} (it knows {known})", where="quantization"
        )
    name, size = WEIGHT_FORMATS[method]
    if name not in gpu.flops:
        raise BadInput(
            f"{method} weights are not supported on {gpu.name}: it has no {name} tensor cores",
            where="quantization",
        )
    return name, size, method in STATIC_SCALES


def _kv_type(knobs: Knobs, model: ModelShape, release: str) -> tuple[str, float]:
    """(the engine's name, bytes per element with its share of the scales)."""
    name = _given(knobs.kv_cache_dtype, "auto")
    if name == "int4_per_token_head" and release == "0.21":
        raise BadInput("int4_per_token_head does not exist in release 0.21", where="kv_cache_dtype")
    if name in KV_PER_TOKEN_HEAD:
        return name, KV_PER_TOKEN_HEAD[name] + KV_SCALE_BYTES / model.head_dim
    if name not in KV_TYPES:
        known = (*KV_TYPES, *KV_PER_TOKEN_HEAD)
        hint = f" (the engine calls it {name}_per_token_head)" if name in ("int8", "int4") else ""
        raise BadInput(
            f"the twin does not model {name!r}{hint}",
            where="kv_cache_dtype",
            fix=f"use one of {', '.join(known)}",
        )
    return name, KV_TYPES[name]


def _model_length(knobs: Knobs, model: ModelShape) -> int:
    length = _positive("max_model_len", knobs.max_model_len, model.max_positions)
    if length > model.max_positions:
        raise BadInput(
            f"{length} is above the model's own limit of {model.max_positions}",
            where="max_model_len",
        )
    return length


def _batch_limits(
    knobs: Knobs, gpu: Gpu, length: int, chunked: bool, release: str
) -> tuple[int, int]:
    default_seqs, default_tokens = default_batch_limits(gpu, release)
    if knobs.performance_mode == "throughput":
        default_seqs, default_tokens = default_seqs * 2, default_tokens * 2
    elif knobs.performance_mode not in (None, "balanced", "interactivity"):
        raise BadInput(f"unknown mode {knobs.performance_mode!r}", where="performance_mode")
    seqs = _positive("max_num_seqs", knobs.max_num_seqs, default_seqs)
    if knobs.max_num_batched_tokens is None:
        # Without chunking a whole prompt must fit into one step, so the engine raises its default.
        tokens = default_tokens if chunked else max(default_tokens, length)
        tokens = min(tokens, seqs * length)
    else:
        tokens = _positive("max_num_batched_tokens", knobs.max_num_batched_tokens, 1)
    if knobs.max_num_seqs is None:
        seqs = min(seqs, tokens)
    if tokens < seqs:
        raise BadInput(
            f"max_num_batched_tokens ({tokens}) must be greater than or equal to max_num_seqs"
            f" ({seqs})",
            where="max_num_batched_tokens",
        )
    if not chunked and tokens < length:
        raise BadInput(
            f"max_num_batched_tokens ({tokens}) is smaller than max_model_len ({length}), which"
            " the engine refuses when chunked prefill is off",
            where="max_num_batched_tokens",
            fix="raise it, lower max_model_len, or leave it out",
        )
    return seqs, tokens


def _scheduled(knobs: Knobs, tokens: int) -> int:
    value = _positive("max_num_scheduled_tokens", knobs.max_num_scheduled_tokens, tokens)
    if value > tokens:
        raise BadInput(f"{value} is above max_num_batched_tokens ({tokens})",
                       where="max_num_scheduled_tokens")  # fmt: skip
    return value


def _active(knobs: Knobs, seqs: int) -> int:
    value = _positive("max_num_active_seqs", knobs.max_num_active_seqs, seqs)
    if value > seqs:
        raise BadInput(f"{value} is above max_num_seqs ({seqs})", where="max_num_active_seqs")
    return value


def _threshold(knobs: Knobs, length: int) -> int:
    value = _given(knobs.long_prefill_token_threshold, 0)
    if not 0 <= value <= length:
        raise BadInput(f"{value} is not between 0 and max_model_len ({length})",
                       where="long_prefill_token_threshold")  # fmt: skip
    return value


def _graph_kinds(knobs: Knobs) -> tuple[bool, bool]:
    """(full graphs for pure decode, piecewise graphs for mixed steps)."""
    level = _given(knobs.optimization_level, 2)
    if level not in (0, 1, 2, 3):
        raise BadInput(f"must be 0 to 3, not {level}", where="optimization_level")
    if _given(knobs.enforce_eager, False) or level == 0:
        return False, False
    return level >= 2, True


def _drafts(knobs: Knobs) -> tuple[str | None, int]:
    """(method, tokens guessed a step) of speculative decoding; (None, 0) without it."""
    given = knobs.speculative_config
    if given is None:
        return None, 0
    where = "speculative_config"
    for key in given:
        if key not in DRAFT_KEYS:
            raise BadInput(
                f"the twin does not model {key!r}{nearest(key, DRAFT_KEYS)}", where=where
            )
    method = given.get("method")
    if method not in DRAFT_METHODS:
        known = ", ".join(DRAFT_METHODS)
        raise BadInput(f"the twin does not model {method!r} (it knows {known})", where=where)
    count = given.get("num_speculative_tokens")
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 64:
        what = f"num_speculative_tokens must be a whole number from 1 to 64, not {count!r}"
        raise BadInput(what, where=where)
    return str(method), count


def _captures(
    knobs: Knobs, gpu: Gpu, seqs: int, tokens: int, release: str, *, per_decode: int
) -> tuple[int, ...]:
    if knobs.cudagraph_capture_sizes is not None:
        sizes = sorted(set(knobs.cudagraph_capture_sizes))
        if not sizes or sizes[0] < 1:
            raise BadInput("needs whole numbers above 0", where="cudagraph_capture_sizes")
        kept = tuple(s for s in sizes if s <= tokens)
        asked_max, largest_kept = knobs.max_cudagraph_capture_size, kept[-1] if kept else 0
        if asked_max is not None and asked_max != largest_kept:
            raise BadInput(
                f"{asked_max} is not the largest of cudagraph_capture_sizes: of those up to"
                f" max_num_batched_tokens it is {largest_kept}, and the engine refuses the pair",
                where="max_cudagraph_capture_size",
                fix="leave one of the two out",
            )
        return kept
    large = release != "0.21" and gpu.compute_capability.startswith("10.")
    default = min(2 * seqs * per_decode, 1024 if large else 512)
    asked = _positive("max_cudagraph_capture_size", knobs.max_cudagraph_capture_size, default)
    largest = min(asked, tokens)
    sizes_set = set(default_capture_sizes(largest, seqs, release))
    if tokens <= largest:
        sizes_set.add(tokens)
    if per_decode > 1:  # a step of decodes only has a multiple of 1 + drafts tokens
        last = min(largest, seqs * per_decode)
        sizes_set.update(range(per_decode, last + 1, per_decode))
    if knobs.performance_mode == "interactivity":
        sizes_set.update(range(1, min(32, largest) + 1))
    return tuple(sorted(sizes_set))


def _given(value: T | None, default: T) -> T:
    return default if value is None else value


def _positive(name: str, value: int | None, default: int) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or value < 1:
        raise BadInput(f"must be a whole number above 0, not {value!r}", where=name)
    return value


def _limit(name: str, value: int | None) -> int | None:
    return None if value is None else _positive(name, value, 1)


def _share(name: str, value: float | None, default: float) -> float:
    if value is None:
        return default
    if not 0 <= value <= 1:
        raise BadInput(f"must be between 0 and 1, not {value:g}", where=name)
    return value
