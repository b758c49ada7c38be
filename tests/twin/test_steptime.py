"""Step times against the laws of physics and against each other."""

import pytest
from helpers import request

from ridgeline.domain import roofline
from ridgeline.domain.defaults import resolve
from ridgeline.domain.hardware import gpu
from ridgeline.domain.knobs import Knobs
from ridgeline.domain.model import shape, shape_from_config
from ridgeline.domain.records import FULL_GRAPH, NO_GRAPH, PIECEWISE_GRAPH
from ridgeline.twin.constants import PRIORS
from ridgeline.twin.scheduler import Decision
from ridgeline.twin.steptime import StepCost

MODEL = shape("Qwen3-4B")
STEPS = [  # decodes, their context, whole prompts
    (1, 10, ()), (64, 608, ()), (256, 4000, ()), (0, 0, (8192,)), (0, 0, (512,) * 16),
    (64, 600, (448,)),
]  # fmt: skip


def cost(on="H200", model=MODEL, **given):
    resolved = resolve(Knobs(**{"max_model_len": 8192, **given}), gpu(on), model)
    return StepCost(model, gpu(on), resolved, PRIORS)


def decision(decodes=0, context=0, prompts=()):
    """A step of so many decodes at that context each, and whole prompts of the given lengths."""
    step = Decision(0)
    step.decodes, step.context = decodes, decodes * context
    for number, tokens in enumerate(prompts):
        r = request(number, tokens, 1)
        step.prefills.append((r, 0, tokens))
        step.firsts.append(r)
        step.prefill_tokens += tokens
        step.pairs += tokens * tokens / 2
    return step


def gpu_ms(c, step):
    tokens = step.decodes + step.prefill_tokens
    _, padded = c.graph(tokens, not step.prefills)
    return c.gpu_ns(step, padded) / 1e6


def test_a_mixed_step_lies_between_its_parts_and_their_sum():
    c = cost()
    decode = gpu_ms(c, decision(64, 600))
    prefill = gpu_ms(c, decision(prompts=[448]))
    mixed = gpu_ms(c, decision(64, 600, prompts=[448]))
    assert max(decode, prefill) <= mixed <= decode + prefill
    assert mixed >= 2.85


def test_one_sequence_is_above_its_floor_and_near_the_measured_step():
    h200 = gpu_ms(cost(), decision(1, 560))
    assert h200 >= 1.68
    # Measured on an H200 host: 3.5 ms between tokens; AIConfigurator's tables: 3.36.
    assert h200 == pytest.approx(3.5, rel=0.1)
    assert gpu_ms(cost("H100"), decision(1, 560)) >= 2.40


def test_a_full_prefill_step_takes_what_was_measured():
    """Sixteen prompts of 512 on an H200: 61 ms at the dense peak; gaps of 107 ms were measured."""
    assert gpu_ms(cost(), decision(prompts=[512] * 16)) == pytest.approx(107, rel=0.12)


@pytest.mark.parametrize("on", ["H100", "H200", "B200", "L40S", "A100"])
@pytest.mark.parametrize("name", ["Qwen3-4B", "Qwen/Qwen3-30B-A3B", "meta-llama/Llama-3.1-8B"])
def test_no_step_beats_the_roofline(on, name):
    model = shape(name)
    c = cost(on, model)
    for decodes, context, prompts in STEPS:
        step = decision(decodes, context, prompts)
        flops = roofline.decode_flops(model, decodes, context) + sum(
            roofline.prefill_flops(model, p) for p in prompts
        )
        read = roofline.weights_read_bytes(model, max(1, step.tokens))
        read += step.context * roofline.kv_bytes_per_token(model)
        assert gpu_ms(c, step) / 1e3 >= roofline.floor_s(gpu(on), flops, read)


def test_fp8_halves_what_is_read_and_not_more():
    plain, fp8 = (gpu_ms(cost(quantization=q), decision(1, 300)) for q in (None, "fp8"))
    assert plain / 2 < fp8 < plain
    # Measured: 3.50 -> 2.79 ms, -20 %.
    assert fp8 / plain == pytest.approx(0.80, abs=0.04)


def test_tensor_parallel_is_faster_per_step_and_pays_for_it():
    one, four = (cost("H100", tensor_parallel_size=t) for t in (1, 4))
    step = decision(64, 600)
    assert gpu_ms(one, step) / 4 < gpu_ms(four, step) < gpu_ms(one, step)


@pytest.mark.parametrize(
    ("ranks", "quantization", "moved"),
    [
        # Qwen3-4B, by hand. Residual stream 2560 (8 reads and writes); heads 32 x 128, keys and
        # values 8 x 128 each; MLP 9728. bf16: 2 bytes. 2 * (20480 + 3*4096 + 4*1024 + 3*9728).
        (1, None, 132_096),
        (4, None, 40_960 + 91_136 // 4),
        # Sixteen ranks of eight KV heads: each has one head of keys and of values whole.
        (16, None, 40_960 + (24_576 + 58_368) // 16 + 8 * 128),
        # FP8 adds 5 bytes (read twice in bf16, written once) of 2*2560 + 4096 + 9728 values.
        (1, "fp8", 132_096 + 5 * 18_944),
        # ... and 3 where the checkpoint has the scales, which then need not be looked for.
        (1, "modelopt", 132_096 + 3 * 18_944),
        (4, "fp8", 40_960 + 91_136 // 4 + 5 * (5_120 + 13_824 // 4)),
    ],
)
def test_every_rank_has_the_whole_residual_stream(ranks, quantization, moved):
    """While a GEMM is bound by its weights a row more costs what the kernels between them move."""
    c = cost("H200", tensor_parallel_size=ranks, quantization=quantization)
    a_row = (c.linear_ns(34)[0] - c.linear_ns(33)[0]) / 36
    assert a_row == pytest.approx(moved / (0.80 * 4.8e12) * 1e9, rel=1e-6)


def test_a_sliding_window_cuts_the_attention_part():
    config = {
        "model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32, "head_dim": 128,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
        "vocab_size": 32000, "max_position_embeddings": 32768, "sliding_window": 1024,
    }  # fmt: skip
    sliding, full = (
        cost("H100", shape_from_config("x", {**config, "sliding_window": w})) for w in (1024, None)
    )
    assert gpu_ms(sliding, decision(32, 512)) == gpu_ms(full, decision(32, 512))
    assert gpu_ms(sliding, decision(32, 8000)) == pytest.approx(
        gpu_ms(full, decision(32, 1024)), rel=1e-9
    )


def test_graph_modes_and_padding():
    c = cost(max_num_seqs=64)  # captures to 128
    assert c.graph(100, uniform=True) == (FULL_GRAPH, 104)
    assert c.graph(100, uniform=False) == (PIECEWISE_GRAPH, 104)
    assert c.graph(1, uniform=True) == (FULL_GRAPH, 1)
    assert c.graph(3, uniform=True) == (FULL_GRAPH, 4)
    assert c.graph(128, uniform=False) == (PIECEWISE_GRAPH, 128)
    assert c.graph(129, uniform=False) == (NO_GRAPH, 129)
    wide = cost()
    assert wide.graph(512, uniform=True) == (FULL_GRAPH, 512)
    assert wide.graph(513, uniform=True) == (NO_GRAPH, 513)
    eager = cost(enforce_eager=True)
    assert eager.graph(1, uniform=True) == (NO_GRAPH, 1)
    level1 = cost(optimization_level=1)
    assert level1.graph(1, uniform=True) == (PIECEWISE_GRAPH, 1)


def test_launch_costs_as_seen_on_the_measured_host():
    c = cost()
    assert c.launch_ns(FULL_GRAPH) <= 1e6  # about 1 ms
    assert 3e6 <= c.launch_ns(PIECEWISE_GRAPH) <= 8e6  # several ms
    assert 15e6 <= c.launch_ns(NO_GRAPH) <= 20e6


def test_the_staircase_of_padded_rows():
    """Padding costs GEMM rows: 257 and 272 decodes run as 272 rows, 273 as 288."""
    c = cost()
    times = [gpu_ms(c, decision(n, 0)) for n in (257, 272, 273)]
    heads = [c.sampled_ns(n) for n in (257, 272, 273)]
    bare = [t - sum(h) / 1e6 for t, h in zip(times, heads, strict=True)]
    assert bare[0] == pytest.approx(bare[1], abs=1e-9)
    assert bare[2] > bare[1]
