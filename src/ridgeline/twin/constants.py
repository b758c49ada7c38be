"""The free constants of the step-time model: one frozen value, so that a calibration replaces it.

Each constant says where its prior comes from: "table" = efficiencies and overheads of
AIConfigurator 0.12's public operator tables; "H200" = seen on one H200 host with vLLM 0.21 and a
4-billion-parameter model (see docs); "guess" = an engineer's estimate that nothing has checked.
Times are in nanoseconds, efficiencies are shares of the dense peak.

A few of them differ by GPU and were fitted to public measurements of it (`FITTED`, stored in
data/efficiencies.json, which says on what); `priors_for` gives the set of a GPU.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

# What may be fitted per GPU. Never per model.
FITTED = (
    "gemm_bandwidth_share", "gemm_flops_share", "fp8_rows_share", "decode_attention_share",
    "small_kernels_ns_per_layer", "all_reduce_ns", "collective_launch_ns", "quantise_fp4_ns",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Constants:
    """Priors. `name` goes into results: "prior" until something was calibrated."""

    name: str = "prior"

    # GEMMs: per operation max(bytes / (share * bandwidth), FLOPs / (share * peak)) + overhead
    gemm_bandwidth_share: float = 0.80  # table
    gemm_flops_share: float = 0.72  # table: prefill GEMMs 0.69 .. 0.74
    operation_ns: float = 3_000.0  # table
    # FP8 GEMMs of more rows than `fp8_rows` stream weights at this share of the speed of fewer
    # rows: vLLM's CUTLASS kernels change their tile there (compute capability 9.0).
    fp8_rows: int = 16
    fp8_rows_share: float = 1.0
    # Activations are quantised as they come: read to convert, and where the checkpoint holds no
    # scale for them read once more, for their largest value.
    quantise_bytes: float = 2.0  # of a value, read once
    quantise_ns: float = 1_500.0  # guess: activations to fp8 before each quantised GEMM
    quantise_fp4_ns: float = 1_500.0  # guess: to fp4, with a scale for every 16 values

    # attention
    decode_attention_share: float = 0.56  # table, batch 64
    prefill_attention_share: float = 0.45  # guess: short chunks stay well below the GEMM's share
    kv_write_ns_per_layer: float = 2_000.0  # guess: rotary embedding and cache write

    # small kernels of a layer (norms, activation) inside a captured graph; what a step costs the
    # GPU besides: input preparation, sampling, copies
    small_kernels_ns_per_layer: float = 7_000.0  # guess
    step_gap_ns: float = 300_000.0  # H200: one user's step is 3.5 ms, 0.9 ms above GEMMs and head
    sampler_ns: float = 150_000.0  # guess
    sampler_passes: float = 4.0  # guess: times the logits (fp32) are read or written

    # CPU time to launch a step: what the GPU waits for when it is shorter than that
    full_graph_launch_ns: float = 700_000.0  # H200: "about 1 ms" with the gap above
    piecewise_launch_ns: float = 1_000_000.0  # H200: "several ms" in all
    piecewise_launch_ns_per_layer: float = 110_000.0  # H200
    eager_launch_ns: float = 1_200_000.0  # H200: 15 to 20 ms in all for 36 layers
    eager_launch_ns_per_layer: float = 460_000.0  # H200: median gap 18.3 ms in eager mode
    launch_tail_ns: float = 100_000.0  # guess: last kernel launched to end of the step

    # engine core, per step and per request in it
    schedule_ns: float = 150_000.0  # 70 .. 260 us a step seen with vLLM on a CPU
    schedule_ns_per_request: float = 1_500.0  # guess
    # A step that carries prompts: batch state and attention metadata are built anew. H200: chosen
    # so that throughput of the mixed rows is met; the eager row's slow steps and one user's TTFT
    # ask for 4 to 10 ms.
    prompt_step_ns: float = 4_000_000.0
    update_ns: float = 100_000.0  # guess
    update_ns_per_request: float = 4_000.0  # guess

    # API server: one event loop each
    receive_batch: int = 32  # requests that vLLM tokenises at a time
    receive_hops: float = 8.0  # H200: 1 and 32 users ask for 9, known to a factor of 1.5
    receive_ns: float = 1_000_000.0  # guess: HTTP, template, validation
    receive_ns_per_token: float = 4_000.0  # guess: tokenising; one user's TTFT asks for more
    send_step_ns: float = 50_000.0  # guess
    detokenise_ns_per_chunk: float = 15_000.0  # guess
    send_ns_per_chunk: float = 40_000.0  # guess
    network_ns: float = 50_000.0  # guess: one way, same host or rack

    # speculative decoding: a guessed token is right, when all before it were
    draft_acceptance: float = 0.7  # guess: depends on the text and the drafter; measure it

    # tensor parallel
    all_reduce_share: float = 0.80  # guess, of the link's one-way rate
    all_reduce_ns: float = 10_000.0  # guess, each
    collective_launch_ns: float = 100_000.0  # guess, each, where no graph holds the launch

    # memory
    other_memory_bytes: float = 0.5e9  # guess: CUDA context and libraries
    graph_memory_bytes: float = 0.1e9  # guess
    graph_memory_bytes_per_size: float = 8e6  # guess
    activation_copies: float = 1.0  # guess: times the widest layer's activations are alive


PRIORS = Constants()


def priors_for(gpu_name: str) -> Constants:
    """The constants of a GPU of the catalogue before any calibration on the user's own host."""
    return replace(PRIORS, **_fitted().get(gpu_name, {}))


def is_fitted(gpu_name: str) -> bool:
    """Whether the GPU has constants of its own, fitted to public measurements."""
    return gpu_name in _fitted()


@cache
def _fitted() -> Mapping[str, Mapping[str, Any]]:
    text = files("ridgeline.twin").joinpath("data/efficiencies.json").read_text("utf-8")
    table: Mapping[str, Mapping[str, Any]] = json.loads(text)["gpus"]
    for name, values in table.items():
        unknown = set(values) - set(FITTED)
        assert not unknown, f"{name}: {unknown}"
    return table
