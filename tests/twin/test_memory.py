"""The memory plan against what such configurations show, and the engine's refusals."""

import pytest

from ridgeline.domain.defaults import resolve
from ridgeline.domain.errors import BadInput, RunFailed
from ridgeline.domain.hardware import gpu
from ridgeline.domain.knobs import Knobs
from ridgeline.domain.model import shape
from ridgeline.twin.constants import PRIORS
from ridgeline.twin.memory import plan_memory


def plan(on, name="Qwen3-4B", **given):
    model = shape(name)
    return plan_memory(model, gpu(on), resolve(Knobs(**given), gpu(on), model), PRIORS)


@pytest.mark.parametrize(("on", "tokens"), [("H100", 462_000), ("H200", 870_000)])
def test_kv_tokens_of_a_plain_serve(on, tokens):
    """0.92 of the driver's total, less weights and about 2.5 GB for activations and graphs."""
    found = plan(on)
    assert found.kv_tokens == pytest.approx(tokens, rel=0.01)
    taken = found.activation_bytes + found.graph_bytes + found.other_bytes
    assert 2.0e9 < taken < 3.2e9
    assert found.block_bytes == 2.25 * 2**20
    assert found.problem is None


def test_what_shrinks_the_pool():
    base = plan("H100").usable_blocks
    assert plan("H100", max_num_batched_tokens=16384).usable_blocks < base
    assert plan("H100", max_num_seqs=128).usable_blocks > base
    assert plan("H100", gpu_memory_utilization=0.8).usable_blocks < base
    assert plan("H100", quantization="fp8").usable_blocks > base
    assert plan("H100", kv_cache_dtype="fp8").usable_blocks == pytest.approx(2 * base, rel=1e-4)
    assert plan("H100", enforce_eager=True).usable_blocks > base


def test_given_sizes_are_taken_exactly():
    # One block is the engine's own null block.
    assert plan("H100", num_gpu_blocks_override=5000).usable_blocks == 4999
    assert plan("H100", kv_cache_memory_bytes=4096 * 2359296).usable_blocks == 4095


def test_tensor_parallel_splits_weights_and_cache():
    one, two = (plan("H100", "Qwen3-32B", tensor_parallel_size=t) for t in (1, 2))
    assert two.weights_bytes == one.weights_bytes / 2
    assert two.block_bytes == one.block_bytes / 2
    with pytest.raises(BadInput, match="no link speed for GB10"):
        plan("GB10", "Qwen3-32B", tensor_parallel_size=2)


@pytest.mark.parametrize(
    ("on", "name", "given", "reason"),
    [
        ("H100", "meta-llama/Llama-3.1-70B", {}, "not enough GPU memory to load the model: 141"),
        ("RTX-4090", "Qwen/Qwen3-8B", {"gpu_memory_utilization": 0.7}, "no available memory"),
        ("L4", "Qwen3-4B", {"kv_cache_memory_bytes": 10**9}, "maximum model length is 6768"),
        (
            "H100",
            "Qwen3-4B",
            {"num_gpu_blocks_override": 255, "max_model_len": 4096},
            "256 KV blocks are needed, num_gpu_blocks_override 255 holds 4080 tokens (255 of 16)",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(on, name, given, reason):
    found = plan(on, name, **given)
    assert reason in found.problem
    if "num_gpu_blocks_override" in given:
        assert "GB" not in found.problem  # what is free has no say in it
    with pytest.raises(RunFailed, match="memory: "):
        found.require_fit()


def test_the_advice_on_a_given_number_of_blocks_serves_a_full_request():
    found = plan("H100", num_gpu_blocks_override=255, max_model_len=4096)
    assert "raise it to 257 (the engine keeps one), or lower max_model_len to 4064" in found.problem
    for blocks, length in ((257, 4096), (255, 4064)):
        advised = plan("H100", num_gpu_blocks_override=blocks, max_model_len=length)
        assert advised.problem is None
        assert advised.kv_tokens >= length


@pytest.mark.parametrize(
    ("version", "name", "element"),
    [
        # Of a head of 128 elements: its bytes and one scale of four bytes.
        ("0.21", "int8_per_token_head", (128 + 4) / 128),
        ("0.21", "fp8_per_token_head", (128 + 4) / 128),
        ("0.33", "int4_per_token_head", (64 + 4) / 128),
    ],
)
def test_kv_types_with_a_scale_for_each_token_and_head(version, name, element):
    model, card = shape("Qwen3-4B"), gpu("H100")
    found = resolve(Knobs(kv_cache_dtype=name), card, model, version)
    # 2 (keys and values) x 36 layers x 8 heads x 128 elements x 16 tokens
    expected = 2 * 36 * 8 * 128 * 16 * element
    assert plan_memory(model, card, found, PRIORS).block_bytes == expected


def test_kv_types_that_the_engine_does_not_have():
    model, card = shape("Qwen3-4B"), gpu("H100")
    for name, version, words in (
        ("int4_per_token_head", "0.21", "does not exist in release 0.21"),
        ("int8", "0.33", "the engine calls it int8_per_token_head"),
        ("int4", "0.33", "the engine calls it int4_per_token_head"),
        ("nvfp4", "0.33", "does not model 'nvfp4'"),
    ):
        with pytest.raises(BadInput, match=words):
            resolve(Knobs(kv_cache_dtype=name), card, model, version)
