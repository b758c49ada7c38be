"""The arithmetic against a worked example: a Qwen3-4B shape, numbers by hand."""

import pytest

from ridgeline.domain import roofline as r
from ridgeline.domain.hardware import gpu
from ridgeline.domain.model import shape, shape_from_config

SHAPE = shape("Qwen3-4B")


def test_weights():
    assert r.attention_weights(SHAPE) == 26_214_400
    assert r.mlp_weights(SHAPE) == 74_711_040
    assert r.linear_weights(SHAPE) == pytest.approx(3.633e9, rel=1e-3)
    assert r.embedding_weights(SHAPE) == pytest.approx(0.389e9, rel=1e-3)
    assert r.parameters(SHAPE) == pytest.approx(4.022e9, rel=1e-3)
    assert r.weights_bytes(SHAPE) == pytest.approx(8.045e9, rel=1e-3)
    # Tied: what is in memory is also what a step reads; the head is 9.7 % of it.
    assert r.weights_read_bytes(SHAPE) == pytest.approx(8.045e9, rel=1e-3)
    assert r.embedding_weights(SHAPE) * 2 / r.weights_read_bytes(SHAPE) == pytest.approx(
        0.097, abs=5e-4
    )


def test_an_untied_head_is_in_memory_twice_and_read_once():
    untied = shape("Qwen3-32B")
    assert not untied.tied
    table = 151_936 * 5120 * 2
    assert r.weights_bytes(untied) - r.weights_read_bytes(untied) == table


def test_kv_cache():
    assert r.kv_bytes_per_token(SHAPE) == 147_456
    assert r.kv_bytes_per_token(SHAPE) * 16 == 2.25 * 2**20
    assert r.kv_bytes_per_token(SHAPE, 1.0) == 73_728
    assert r.kv_bytes_per_token(SHAPE, 2.0, 4) == 36_864
    # Eight KV heads on sixteen ranks: copied, so the share of a rank stops falling.
    assert r.kv_bytes_per_token(SHAPE, 2.0, 16) == r.kv_bytes_per_token(SHAPE, 2.0, 8) == 18_432


def test_flops():
    assert r.linear_flops_per_token(SHAPE) == pytest.approx(7.267e9, rel=1e-3)
    assert r.head_flops(SHAPE) == pytest.approx(0.778e9, rel=1e-3)
    assert r.attention_flops_per_pair(SHAPE) == pytest.approx(0.590e6, rel=1e-3)
    assert 16 * r.prefill_flops(SHAPE, 512) == pytest.approx(60.8e12, rel=1e-3)
    # 100 prompts of 512 tokens, as 7 267 MFLOP a token say: 372 TFLOP of linear layers.
    assert 51_200 * r.linear_flops_per_token(SHAPE) == pytest.approx(372e12, rel=1e-3)


def test_a_prompt_in_chunks_costs_as_much_as_in_one_piece():
    whole = r.prefill_flops(SHAPE, 5000)
    pieces = (
        r.prefill_flops(SHAPE, 2038, 0, sampled=0)
        + r.prefill_flops(SHAPE, 2038, 2038, sampled=0)
        + r.prefill_flops(SHAPE, 924, 4076)
    )
    assert pieces == pytest.approx(whole, rel=1e-12)


def test_a_decode_step_of_64():
    size, flops = r.decode_bytes(SHAPE, 64, 608), r.decode_flops(SHAPE, 64, 608)
    assert size == pytest.approx(13.78e9, rel=1e-3)
    assert flops == pytest.approx(537.8e9, rel=1e-3)
    assert r.decode_intensity(SHAPE, 64, 608) == pytest.approx(39.0, abs=0.1)
    h100, h200 = gpu("H100"), gpu("H200")
    assert size / h100.bandwidth_bytes_per_s == pytest.approx(4.11e-3, rel=2e-3)
    assert size / h200.bandwidth_bytes_per_s == pytest.approx(2.87e-3, rel=2e-3)
    assert r.floor_s(h200, flops, size) == pytest.approx(2.87e-3, rel=2e-3)


def test_ridge_points_and_the_floor_of_one_sequence():
    assert r.ridge_point(gpu("H100")) == pytest.approx(295, abs=1)
    assert r.ridge_point(gpu("H200")) == pytest.approx(206, abs=1)
    assert r.ridge_point(gpu("H100"), "fp8") == pytest.approx(591, abs=1)
    read = r.weights_read_bytes(SHAPE)
    assert read / gpu("H100").bandwidth_bytes_per_s == pytest.approx(2.40e-3, rel=2e-3)
    assert read / gpu("H200").bandwidth_bytes_per_s == pytest.approx(1.68e-3, rel=3e-3)


def test_experts_hit_by_a_batch():
    # One of two experts, two tokens: both the same with probability one half.
    assert r.experts_hit(2, 1, 2) == 1.5
    assert r.experts_hit(128, 8, 1) == pytest.approx(8)
    assert r.experts_hit(128, 8, 1000) == pytest.approx(128)
    moe = shape("Qwen/Qwen3-30B-A3B")
    one = r.linear_bytes_read(moe, 1)
    assert one == pytest.approx(2 * r.active_weights(moe), rel=1e-9)
    assert r.linear_bytes_read(moe, 4096) == pytest.approx(2 * r.linear_weights(moe), rel=1e-9)


def test_a_sliding_layer_sees_its_window_only():
    config = {
        "model_type": "gemma2", "hidden_size": 64, "num_hidden_layers": 2, "head_dim": 16,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
        "vocab_size": 100, "max_position_embeddings": 8192, "sliding_window": 100,
    }  # fmt: skip
    half = shape_from_config("x", config)
    assert r.attended(half, 50) == 50
    assert r.attended(half, 300) == 200  # (100 + 300) / 2
