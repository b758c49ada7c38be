"""How far the twin's constants may be off, and what that means for a prediction.

Constants that are wrong together (all of one host's launches, all of its API server) are moved
together: each such direction is one standard deviation long. A two-level orthogonal design
(Plackett and Burman 1946; here the columns of a Hadamard matrix) moves all directions in every
run and tells them apart over the runs: for a figure that is linear in them, the variance over the
design's runs is exactly the propagated one, from 8 runs for up to 7 directions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ridgeline.domain.bands import TOKENS
from ridgeline.domain.records import Floats
from ridgeline.twin.calibration import MOST
from ridgeline.twin.constants import Constants, is_fitted

Direction = Mapping[str, float]  # constant -> shift of its logarithm, one standard deviation

# Standard deviations of the priors. The first of a pair is of a GPU whose constants were fitted
# to public measurements, the second of another. Those of hosts: one H200 host launched 30 % slower
# than the priors, which come from another.
_GPU_SPREADS: tuple[dict[str, tuple[float, float]], ...] = (
    {"gemm_bandwidth_share": (0.05, 0.15)},
    {"gemm_flops_share": (0.08, 0.20), "prefill_attention_share": (0.25, 0.35)},
    {"decode_attention_share": (0.08, 0.25)},
    {
        "small_kernels_ns_per_layer": (0.10, 0.40), "step_gap_ns": (0.30, 0.40),
        "sampler_ns": (0.40, 0.40), "sampler_passes": (0.40, 0.40), "all_reduce_ns": (0.15, 0.40),
        "all_reduce_share": (-0.15, -0.30), "collective_launch_ns": (0.30, 0.40),
        # The guess of 1.5 us came out as 1.6 for FP8 on one host, as 3.6 for FP4 in public rows.
        "quantise_ns": (0.40, 0.40), "quantise_fp4_ns": (0.30, 0.60),
    },
)  # fmt: skip
_HOST_SPREADS: tuple[dict[str, float], ...] = (
    dict.fromkeys(
        ("full_graph_launch_ns", "piecewise_launch_ns", "piecewise_launch_ns_per_layer",
         "eager_launch_ns", "eager_launch_ns_per_layer"), 0.30,
    ),
    dict.fromkeys(
        ("schedule_ns", "schedule_ns_per_request", "prompt_step_ns", "update_ns",
         "update_ns_per_request"), 0.50,
    ),
    dict.fromkeys(
        ("receive_ns", "receive_ns_per_token", "send_step_ns", "send_ns_per_chunk",
         "detokenise_ns_per_chunk"), 0.50,
    ) | {"receive_hops": 0.40},
)  # fmt: skip
# Where tokens are drafted: from 0.55 to 0.9 of the guesses, by text and drafter.
_DRAFTING: Direction = {"draft_acceptance": 0.25}

# Constants that no band moves, and why.
FIXED: Mapping[str, str] = {
    "operation_ns": "fitted around: small_kernels_ns_per_layer takes up what it is off by",
    "kv_write_ns_per_layer": "fitted around: small_kernels_ns_per_layer takes up what it is off by",
    "fp8_rows": "where a kernel changes its tile: known, not estimated",
    "fp8_rows_share": "fitted together with gemm_bandwidth_share, whose spread holds both",
    "quantise_bytes": "arithmetic: a bf16 value; how fast it is read goes with"
    " gemm_bandwidth_share",
    "launch_tail_ns": "a seventh of what the launch of a full graph is moved by, and part of it",
    "receive_batch": "what vLLM takes at a time, from its source",
    "network_ns": "of the user's network, not of the engine: measured from the same host or rack",
    "other_memory_bytes": "of the memory plan: `plan --log` takes the engine's own KV size",
    "graph_memory_bytes": "of the memory plan: `plan --log` takes the engine's own KV size",
    "graph_memory_bytes_per_size": "of the memory plan: `plan --log` takes the engine's own KV"
    " size",
    "activation_copies": "of the memory plan: `plan --log` takes the engine's own KV size",
}

# What no constant explains, by figure. The means were held against the held-out public rows
# (`python -m validation --bands` prints how many of them the bands hold), the percentiles against
# one H200 host.
MODEL: Mapping[str, float] = {
    TOKENS: 0.04,
    "ttft_s.mean": 0.12, "ttft_s.p50": 0.15, "ttft_s.p90": 0.18, "ttft_s.p95": 0.18,
    "ttft_s.p99": 0.25,
    "itl_s.mean": 0.05, "itl_s.p50": 0.12, "itl_s.p90": 0.15, "itl_s.p95": 0.15, "itl_s.p99": 0.25,
    "tpot_s.mean": 0.05, "tpot_s.p50": 0.06, "tpot_s.p90": 0.08, "tpot_s.p95": 0.10,
    "tpot_s.p99": 0.15,
    "e2e_s.mean": 0.05, "e2e_s.p50": 0.06, "e2e_s.p90": 0.08, "e2e_s.p95": 0.08, "e2e_s.p99": 0.12,
}  # fmt: skip


# What a calibration's two shares of a GPU are further off for another model or other weights than
# for those that they were fitted to: `python -m validation --transfer`, by figure's first name.
ELSEWHERE: Mapping[str, float] = {
    "ttft_s": 0.13, "itl_s": 0.06, "tpot_s": 0.06, "e2e_s": 0.06, "throughput": 0.06,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Doubt:
    """What is not known: directions of the constants, and an error by figure beside them."""

    directions: tuple[Direction, ...]
    model: Mapping[str, float]


def prior_doubt(gpu_name: str, *, drafts: bool = False) -> Doubt:
    """Of the constants that ship with Ridgeline. drafts: of a configuration that drafts tokens."""
    which = 0 if is_fitted(gpu_name) else 1
    gpu = tuple({n: pair[which] for n, pair in group.items()} for group in _GPU_SPREADS)
    return Doubt((*gpu, *_HOST_SPREADS, *([_DRAFTING] if drafts else [])), MODEL)


def calibrated_doubt(
    gpu_name: str,
    names: Sequence[str],
    covariance: Sequence[Sequence[float]],
    residuals: Mapping[str, float],
    *,
    drafts: bool = False,
) -> Doubt:
    """Of fitted constants: the fit's covariance (of logarithms), and the priors of the others.

    `residuals`: what the fit left over, by figure, as a standard deviation of logarithms; figures
    that it does not name keep the prior's.
    """
    values, vectors = np.linalg.eigh(np.array(covariance, dtype=np.float64))
    fitted = [
        dict(zip(names, (vectors[:, i] * np.sqrt(max(v, 0.0))).tolist(), strict=True))
        for i, v in enumerate(values.tolist())
    ]
    left = [
        {n: s for n, s in direction.items() if n not in names}
        for direction in prior_doubt(gpu_name, drafts=drafts).directions
    ]
    return Doubt((*fitted, *(d for d in left if d)), {**MODEL, **residuals})


def elsewhere(doubt: Doubt) -> Doubt:
    """Of constants that were fitted to another model or other weights on the same GPU."""
    wider = {
        path: float(np.hypot(size, ELSEWHERE[path.split(".")[0]]))
        for path, size in doubt.model.items()
    }
    return Doubt(doubt.directions, wider)


def design(constants: Constants, directions: Sequence[Direction]) -> list[Constants]:
    """Sets of constants whose figures' variance is the propagated one; see the module."""
    signs = np.array([[1.0]])
    while len(signs) <= len(directions):
        signs = np.block([[signs, signs], [signs, -signs]])
    return [_moved(constants, directions, row[1 : len(directions) + 1].tolist()) for row in signs]


def _moved(
    constants: Constants, directions: Sequence[Direction], signs: Sequence[float]
) -> Constants:
    shift: dict[str, float] = {}
    for sign, direction in zip(signs, directions, strict=True):
        for name, size in direction.items():
            shift[name] = shift.get(name, 0.0) + sign * size
    values: dict[str, Any] = {
        n: min(getattr(constants, n) * float(np.exp(s)), MOST.get(n, np.inf))
        for n, s in shift.items()
    }
    return replace(constants, **values)


def spread(figures: Sequence[Mapping[str, float]], doubt: Doubt) -> dict[str, float]:
    """Standard errors (logarithms) by figure, from the figures of the design's runs."""
    errors = {}
    for name, beside in doubt.model.items():
        seen: Floats = np.array([f[name] for f in figures if f.get(name, 0.0) > 0])
        if len(seen) == len(figures):
            errors[name] = float(np.hypot(np.std(np.log(seen)), beside))
    return errors
