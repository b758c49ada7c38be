"""The corpus's settings: a model on some hardware under a load, its limits, and what may be varied.

Values of the dimensions are given, not taken from the tuner's rules, so that a stored landscape
stays what it is when a rule changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.slo import Slo, slo_from_mapping
from ridgeline.domain.workload import (
    Arrivals,
    Lengths,
    Outputs,
    Prompts,
    SharedPrefix,
    Workload,
)
from ridgeline.tuning.objective import Goal
from ridgeline.tuning.ranges import space_of
from ridgeline.tuning.space import Space


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. limits: of the search; slo: what requests are judged by (goodput).

    crash: an engine with every one of these settings, or larger ones, dies at its start. places:
    engines that fit side by side on the GPU. number: seeds its hidden constants. launch: what the
    host's launch costs are of the priors, all other constants being those that ship; None: all are
    drawn. like: the setting whose landscape it has. drifts: its host does (`drift`).
    """

    name: str
    number: int
    configuration: Configuration
    workload: Workload
    limits: Mapping[str, float]
    space: Mapping[str, tuple[Any, ...]]
    crash: Mapping[str, Any]
    places: int = 1
    goal: Goal = "throughput_per_gpu"
    requests: Mapping[str, float] = field(default_factory=dict)
    launch: float | None = None
    like: str | None = None
    drifts: bool = False

    @property
    def slo(self) -> Slo:
        """What the twin's runs are summarised under."""
        return slo_from_mapping({**self.limits, **self.requests})

    def tuned(self) -> Space:
        """The space that every policy searches."""
        return space_of(
            self.configuration, self.workload, self.slo, gpus=self.configuration.gpus,
            wanted=self.space, only=True,
        )  # fmt: skip

    def crashes(self, change: Mapping[str, Any]) -> bool:
        """Whether an engine with this change dies at its start."""
        return bool(self.crash) and all(_beyond(change.get(n), v) for n, v in self.crash.items())


def _beyond(value: Any, least: Any) -> bool:
    if isinstance(least, int | float) and isinstance(value, int | float):
        return value >= least
    return bool(value == least)


def _load(
    users: int, prompt: tuple[float, float], output: float, seconds: float, **more: Any
) -> Workload:
    """`seconds`: long enough for a p95 of slow configurations, and for seeds to differ little."""
    return Workload(
        Arrivals(users=users), Prompts(Lengths(*prompt), **more), Outputs(Lengths(output, 0.5)),
        duration_s=seconds, warmup_s=seconds / 3,
    )  # fmt: skip


def _on(
    gpu: str, model: str, gpus: int = 1, version: str = "0.21.0", **knobs: Any
) -> Configuration:
    return Configuration(model, Knobs(**knobs), engine_version=version, gpu=gpu, gpus=gpus)


TOKENS = (1024, 2048, 4096, 8192, 16384)
SETTINGS = (
    Setting(
        "chat-4b-h200", 1, _on("H200-SXM", "Qwen/Qwen3-4B"), _load(100, (256, 0.5), 96, 9),
        {"ttft_p95_ms": 2000, "itl_p95_ms": 20},
        {
            "max_num_seqs": (16, 32, 48, 64, 96, 128), "max_num_batched_tokens": TOKENS,
            "max_cudagraph_capture_size": (None, 256, 512, 1024, 2048),
            "quantization": (None, "fp8"),
        },
        {"max_cudagraph_capture_size": 2048, "max_num_batched_tokens": 16384}, places=4,
    ),
    Setting(
        "long-8b-h100", 2, _on("H100-SXM", "meta-llama/Llama-3.1-8B"),
        _load(32, (3000, 0.8), 150, 40),
        {"ttft_p95_ms": 4000, "itl_p95_ms": 80},
        {
            "max_num_seqs": (8, 16, 24, 32), "max_num_batched_tokens": (512, *TOKENS),
            "long_prefill_token_threshold": (0, 512, 1024, 2048),
            "max_cudagraph_capture_size": (None, 1024), "quantization": (None, "fp8"),
        },
        {"max_num_batched_tokens": 16384, "quantization": "fp8"}, places=2,
    ),
    Setting(
        "open-8b-a100", 3, _on("A100-SXM-80GB", "meta-llama/Llama-3.1-8B"),
        replace(_load(1, (512, 0.8), 160, 40), arrivals=Arrivals(rate_per_s=16.0)), {},
        {
            "max_num_seqs": (32, 64, 128, 256, 512), "max_num_batched_tokens": (512, *TOKENS),
            "max_cudagraph_capture_size": (None, 256, 1024, 2048),
            "async_scheduling": (True, False), "api_server_count": (1, 2),
        },
        {"max_num_seqs": 512, "max_num_batched_tokens": 8192}, places=2, goal="goodput",
        requests={"ttft_p95_ms": 1000, "tpot_p95_ms": 40},
    ),
    Setting(
        "kv-8b-l40s", 4, _on("L40S", "Qwen/Qwen3-8B"), _load(128, (1500, 0.5), 300, 90),
        {"ttft_p95_ms": 20000, "itl_p95_ms": 200},
        {
            "max_num_seqs": (16, 32, 64, 96, 128), "max_num_batched_tokens": TOKENS,
            "kv_cache_dtype": ("auto", "fp8"), "gpu_memory_utilization": (0.92, 0.95),
            "quantization": (None, "fp8"), "max_cudagraph_capture_size": (None, 512),
        },
        {"gpu_memory_utilization": 0.95, "max_num_batched_tokens": 8192},
    ),
    Setting(
        "layout-70b-4xh100", 5,
        _on("H100-SXM", "meta-llama/Llama-3.1-70B", 4, tensor_parallel_size=4),
        _load(96, (512, 0.5), 200, 60), {"ttft_p95_ms": 3000, "itl_p95_ms": 75},
        {
            "max_num_seqs": (16, 32, 64, 96), "max_num_batched_tokens": TOKENS,
            "quantization": (None, "fp8"), "max_cudagraph_capture_size": (None, 512, 1024),
            "tensor_parallel_size": (2, 4), "data_parallel_size": (1, 2),
        },
        {"tensor_parallel_size": 2, "max_cudagraph_capture_size": 1024},
    ),
    Setting(
        "shared-8b-b200", 6,
        _on("B200-SXM", "Qwen/Qwen3-8B", version="0.33.0", enable_prefix_caching=False),
        _load(200, (200, 0.5), 120, 8, shared_prefix=SharedPrefix(1500, 8)),
        {"ttft_p95_ms": 1000, "itl_p95_ms": 40},
        {
            "max_num_seqs": (32, 64, 128, 256), "max_num_batched_tokens": TOKENS[1:],
            "enable_prefix_caching": (True, False),
            "max_cudagraph_capture_size": (None, 512, 2048), "api_server_count": (1, 2),
            "quantization": (None, "fp8"),
        },
        {"max_cudagraph_capture_size": 2048, "quantization": "fp8"}, places=3,
    ),
    Setting(
        "interactive-32b-h100", 7, _on("H100-SXM", "Qwen/Qwen3-32B", max_model_len=8192),
        _load(24, (1000, 0.6), 250, 80), {"ttft_p95_ms": 2500, "itl_p95_ms": 60},
        {
            "max_num_seqs": (8, 12, 16, 24), "max_num_batched_tokens": (512, *TOKENS),
            "long_prefill_token_threshold": (0, 512),
            "quantization": (None, "fp8"), "max_cudagraph_capture_size": (None, 512),
            "kv_cache_dtype": ("auto", "fp8"),
        },
        {"kv_cache_dtype": "fp8", "max_num_batched_tokens": 16384},
    ),
)  # fmt: skip

# A host that is not what the twin and the noise of earlier visits say, made from the figures of one
# visit; scored apart, no bar holds them.
HARD = (
    replace(SETTINGS[0], name="slow-4b-h200", number=8, launch=1.33),
    replace(SETTINGS[0], name="slow-drifting-4b-h200", number=9, like="slow-4b-h200", drifts=True),
    replace(SETTINGS[1], name="drifting-8b-h100", number=10, like="long-8b-h100", drifts=True),
)
