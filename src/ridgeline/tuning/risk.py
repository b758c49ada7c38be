"""What a change of knobs may do to the answers: nothing, other rounding, or real loss.

The catalogue is closed: a knob or a value that it does not know has the worst class, so that a new
release's setting is judged before it may win.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class Risk(IntEnum):
    """Worse ones are larger.

    EXACT: only when and where tokens are computed. NEUTRAL: the same mathematics summed in another
    order, thus equal up to rounding. NUMERICS: fewer bits, little loss expected. LOSSY: a loss is
    to be expected.
    """

    EXACT = 0
    NEUTRAL = 1
    NUMERICS = 2
    LOSSY = 3

    @property
    def needs_gate(self) -> bool:
        """A configuration of this class may win only after `judge_quality` passed it."""
        return self >= Risk.NUMERICS

    @property
    def word(self) -> str:
        """As reports say it."""
        return ("exact", "exact up to rounding", "numerics-changing", "lossy")[self]


@dataclass(frozen=True, slots=True)
class RiskOfChanges:
    """The worst class among some changes, and each change with its own and the reason."""

    risk: Risk
    reasons: Mapping[str, tuple[Risk, str]]

    @property
    def kv_quantised(self) -> bool:
        """The KV cache's type is among the changes that are not exact."""
        found = self.reasons.get("kv_cache_dtype")
        return found is not None and found[0].needs_gate

    def sentence(self) -> str:
        """One line that names the changes of the worst class."""
        worst = [f"{n} ({why})" for n, (r, why) in self.reasons.items() if r == self.risk]
        return f"{self.risk.word}: {', '.join(worst)}" if worst else self.risk.word


_SCHEDULING = frozenset((
    "max_num_seqs", "max_num_batched_tokens", "max_num_scheduled_tokens", "max_num_active_seqs",
    "enable_chunked_prefill", "long_prefill_token_threshold", "prefill_schedule_interval",
    "scheduling_policy", "scheduler_reserve_full_isl", "async_scheduling", "stream_interval",
    "watermark", "max_num_queued_reqs", "max_num_queued_tokens", "enable_prefix_caching",
    "block_size", "gpu_memory_utilization", "kv_cache_memory_bytes", "num_gpu_blocks_override",
    "data_parallel_size", "api_server_count", "enable_prompt_tokens_details", "max_model_len",
))  # fmt: skip
_OTHER_ORDER = {
    "enforce_eager": "other kernels of the same operations",
    "max_cudagraph_capture_size": "batches are padded to other sizes",
    "cudagraph_capture_sizes": "batches are padded to other sizes",
    "optimization_level": "fused kernels of the same operations",
    "performance_mode": "other kernels of the same operations",
    "attention_backend": "another kernel of the same attention",
    "tensor_parallel_size": "sums are split over GPUs",
    "pipeline_parallel_size": "layers are split over GPUs",
    "enable_expert_parallel": "sums are split over GPUs",
}
_KV = {
    "fp8": Risk.NUMERICS, "fp8_e4m3": Risk.NUMERICS, "fp8_e5m2": Risk.LOSSY,
    "fp8_inc": Risk.NUMERICS, "fp8_per_token_head": Risk.NUMERICS,
    "int8_per_token_head": Risk.NUMERICS, "int4_per_token_head": Risk.LOSSY,
}  # fmt: skip
_EIGHT_BITS = {
    "fp8", "fp8_per_channel", "fp8_per_tensor", "fp8_per_block", "ptpc_fp8", "fbgemm_fp8",
    "modelopt", "modelopt_mxfp8", "experts_int8", "int8_per_channel_weight_only",
}  # fmt: skip
# Methods that draw from the target model's own distribution, so that only rounding differs.
_SPECULATION = {
    "ngram", "ngram_gpu", "suffix", "eagle", "eagle3", "mtp", "medusa", "mlp_speculator",
    "draft_model", "dflash", "dspark",
}  # fmt: skip


def risk_of(changes: Mapping[str, Any], model_dtype: str = "bfloat16") -> RiskOfChanges:
    """The class of `changes` (knob -> new value; None: back to the default) from a baseline.

    model_dtype: of the baseline's weights and KV cache; a KV cache of that type is exact.
    """
    reasons = {name: _one(name, value, model_dtype) for name, value in changes.items()}
    worst = max((risk for risk, _ in reasons.values()), default=Risk.EXACT)
    return RiskOfChanges(worst, reasons)


def _one(name: str, value: Any, model_dtype: str) -> tuple[Risk, str]:
    if name in _SCHEDULING:
        return Risk.EXACT, "when tokens are computed, not how"
    if name in _OTHER_ORDER:
        return Risk.NEUTRAL, _OTHER_ORDER[name]
    if name in _BY_VALUE:
        return _BY_VALUE[name](value, model_dtype)
    if name == "load_format" and value in (None, "auto", "safetensors", "pt", "dummy"):
        return Risk.EXACT, "how weights are read"
    return Risk.LOSSY, "not known here"


def _speculation(value: Any, _: str) -> tuple[Risk, str]:
    if value is None:
        return Risk.NEUTRAL, "no speculation"
    config = value if isinstance(value, Mapping) else {}
    method = config.get("method")
    loose = [k for k in config if any(w in k for w in ("acceptance", "threshold", "synthetic"))]
    if config.get("rejection_sample_method", "standard") not in ("standard", "block"):
        loose.append("rejection_sample_method")
    if method not in _SPECULATION:
        return Risk.LOSSY, f"speculation by {method!r} is not known here"
    if loose:
        return Risk.LOSSY, f"speculation with {loose[0]} may accept what the model would not say"
    return Risk.NEUTRAL, "drafts are accepted only as the model would say them"


def _kv(value: Any, model_dtype: str) -> tuple[Risk, str]:
    if value in (None, "auto", model_dtype):
        return Risk.EXACT, "the model's own type"
    if value in ("bfloat16", "float16"):
        return Risk.NUMERICS, f"KV in {value}"
    risk = _KV.get(value) if isinstance(value, str) else None
    return (Risk.LOSSY, f"KV in {value}, not known here") if risk is None else (risk, f"KV {value}")


def _quantization(value: Any, _: str) -> tuple[Risk, str]:
    if value is None:
        return Risk.NEUTRAL, "weights as they are stored"
    if value in _EIGHT_BITS:
        return Risk.NUMERICS, f"weights in {value}"
    return Risk.LOSSY, f"weights in {value}, of 4 bits or of a kind not known here"


def _dtype(value: Any, model_dtype: str) -> tuple[Risk, str]:
    if value in (None, "auto", model_dtype):
        return Risk.EXACT, "the model's own type"
    if value in ("float32", "float"):
        return Risk.NEUTRAL, "more bits than the model's own type"
    if value in ("bfloat16", "float16", "half"):
        return Risk.NUMERICS, f"computes in {value}"
    return Risk.LOSSY, f"computes in {value}, not known here"


_BY_VALUE: Mapping[str, Callable[[Any, str], tuple[Risk, str]]] = {
    "speculative_config": _speculation,
    "kv_cache_dtype": _kv,
    "quantization": _quantization,
    "dtype": _dtype,
}
