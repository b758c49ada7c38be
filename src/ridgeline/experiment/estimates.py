"""What a measured run's readings imply and no counter tells: estimates, and called so.

The share of steps above the captured graphs follows from how many prompts arrive a step; FLOPs and
bytes from the model's shape and what was computed (see domain/roofline.py for the formulas).
"""

import math
from collections.abc import Mapping

from ridgeline.domain.accounting import Bounds
from ridgeline.domain.defaults import ResolvedKnobs, resolve
from ridgeline.domain.errors import RidgelineError
from ridgeline.domain.hardware import gpu
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.model import ModelShape, shape
from ridgeline.domain.roofline import (
    attended,
    attention_flops_per_pair,
    head_flops,
    kv_bytes_per_token,
    linear_flops_per_token,
    weights_read_bytes,
)
from ridgeline.domain.summary import Roofline, Summary


def above_graphs_share(
    steps: Mapping[str, float], configuration: Configuration, prompt_tokens: float | None
) -> float | None:
    """Estimated share of the steps that are larger than the largest captured CUDA graph.

    Prompts are taken to arrive as a Poisson process over the steps, each whole and of the mean
    length. None where the readings, the GPU or the model are not known.
    """
    known = _resolved(configuration)
    decoding, prompts = steps.get("tokens_per_step"), steps.get("prompt_tokens_per_step")
    if known is None or decoding is None or prompts is None or not prompt_tokens:
        return None
    largest = known[1].max_capture_size
    if decoding > largest:
        return 1.0
    rate = prompts / prompt_tokens
    fewest = math.floor((largest - decoding) / prompt_tokens) + 1  # prompts that make it too large
    within = sum(rate**k / math.factorial(k) for k in range(fewest)) * math.exp(-rate)
    return max(0.0, 1 - within)


def measured_roofline(
    steps: Mapping[str, float], configuration: Configuration, bounds: Bounds | None, s: Summary
) -> Roofline:
    """MFU and MBU of a measured run, estimated from its tokens and steps; empty where not known.

    Every computed prompt token passes the linear maps and attends to half its prompt, every output
    token to the whole prompt and half the output; each step reads the weights once.
    """
    known, step = _resolved(configuration), steps.get("mean_step_s")
    out, prompt = steps.get("tokens_per_step"), steps.get("prompt_tokens_per_step")
    rates = s.throughput
    if known is None or bounds is None or not step or out is None or prompt is None:
        return s.roofline
    if not rates.requests_per_s or not rates.output_tokens_per_s or not rates.input_tokens_per_s:
        return s.roofline
    model, knobs = known
    length = rates.input_tokens_per_s / rates.requests_per_s
    context = length + rates.output_tokens_per_s / rates.requests_per_s / 2
    flops = _step_flops(model, out, prompt, length, context)
    weights = weights_read_bytes(model, out, knobs.weight_bytes)
    cached = kv_bytes_per_token(model, knobs.kv_element_bytes) * attended(model, context)
    tensor = configuration.knobs.tensor_parallel_size or 1
    return Roofline(
        mfu=flops / step / bounds.flops_per_s / tensor,
        mbu=(weights + out * cached) / step / bounds.bytes_per_s / tensor,
    )


def _step_flops(
    model: ModelShape, out: float, prompt: float, length: float, context: float
) -> float:
    linear, pair = linear_flops_per_token(model), attention_flops_per_pair(model)
    decode = out * (linear + head_flops(model) + pair * attended(model, context))
    return decode + prompt * (linear + pair * attended(model, length / 2))


def _resolved(configuration: Configuration) -> tuple[ModelShape, ResolvedKnobs] | None:
    """Shape and resolved knobs; None for hardware, models or knobs that are not modelled."""
    if configuration.gpu is None:
        return None
    try:
        model = shape(configuration.model)
        version = configuration.engine_version or "0.21"
        return model, resolve(configuration.knobs, gpu(configuration.gpu), model, version)
    except (RidgelineError, OSError):
        return None
