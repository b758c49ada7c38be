"""What the engine takes when nothing is given, and what it refuses."""

import pytest

from ridgeline.domain.defaults import default_batch_limits, default_capture_sizes, resolve
from ridgeline.domain.errors import BadInput
from ridgeline.domain.hardware import gpu
from ridgeline.domain.knobs import Knobs
from ridgeline.domain.model import shape

MODEL = shape("Qwen3-4B")
H100 = gpu("H100-SXM")


def resolved(version="0.21", on="H100-SXM", **knobs):
    return resolve(Knobs(**knobs), gpu(on), MODEL, version)


@pytest.mark.parametrize(
    ("name", "release", "seqs", "tokens"),
    [
        ("H100", "0.21", 1024, 8192), ("H200", "0.21", 1024, 8192), ("H200", "0.33", 1024, 8192),
        ("B200", "0.21", 1024, 8192), ("B200", "0.33", 1024, 16384),
        ("MI300X", "0.33", 1024, 16384), ("A100", "0.21", 256, 2048), ("L4", "0.33", 256, 2048),
        ("RTX-4090", "0.21", 256, 2048), ("GB10", "0.21", 1024, 8192), ("GB10", "0.33", 256, 2048),
    ],
)  # fmt: skip
def test_server_batch_limits_by_device(name, release, seqs, tokens):
    assert default_batch_limits(gpu(name), release) == (seqs, tokens)


def test_defaults_of_a_plain_serve():
    found = resolved()
    assert found.gpu_memory_utilization == 0.92
    assert found.prefix_caching
    assert found.chunked_prefill
    assert found.async_depth == 2
    assert found.block_size == 16
    assert found.max_model_len == 40_960
    assert found.max_num_scheduled_tokens == found.max_num_batched_tokens == 8192
    assert found.reserve_full_isl
    assert (found.weights, found.weight_bytes, found.kv_element_bytes) == ("bf16", 2.0, 2.0)
    assert found.api_servers == 1
    assert resolved(data_parallel_size=4).api_servers == 4


def test_capture_sizes():
    assert resolved(max_num_seqs=32).capture_sizes == (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)
    assert resolved(max_num_seqs=64).max_capture_size == 128
    assert resolved().max_capture_size == 512
    assert resolved(max_num_seqs=64, max_cudagraph_capture_size=1024).max_capture_size == 1024
    big = resolved("0.33", "B200", max_num_seqs=1024).capture_sizes
    assert big[-1] == 1024
    assert big[big.index(240) : big.index(288) + 1] == (240, 248, 256, 272, 288)
    # 0.33 captures max_num_seqs itself, 0.21 does not.
    assert 50 in resolved("0.33", max_num_seqs=50).capture_sizes
    assert 50 not in resolved("0.21", max_num_seqs=50).capture_sizes
    # Never above the token budget, which is captured itself when it is below.
    assert resolved(max_num_seqs=64, max_num_batched_tokens=100).capture_sizes[-2:] == (96, 100)
    assert resolved(performance_mode="interactivity", max_num_seqs=32).capture_sizes[:32] == tuple(
        range(1, 33)
    )
    assert default_capture_sizes(64, None, "0.21")[-1] == 64


def test_graphs_off_and_by_level():
    assert resolved(enforce_eager=True).capture_sizes == ()
    assert resolved(optimization_level=0).eager
    one = resolved(optimization_level=1)
    assert (one.full_graphs, one.piecewise_graphs) == (False, True)


def test_without_chunking_the_engine_raises_its_own_default():
    assert resolved(enable_chunked_prefill=False).max_num_batched_tokens == 40_960
    assert resolved(enable_chunked_prefill=False, max_model_len=4096).max_num_batched_tokens == 8192
    with pytest.raises(BadInput, match=r"\(2048\) is smaller than max_model_len \(4096\)"):
        resolved(enable_chunked_prefill=False, max_model_len=4096, max_num_batched_tokens=2048)


def test_tokens_never_exceed_what_the_sequences_can_hold():
    assert resolved(max_num_seqs=4, max_model_len=100).max_num_batched_tokens == 400
    assert resolved(max_num_batched_tokens=64).max_num_seqs == 64


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"max_num_seqs": 64, "max_num_batched_tokens": 32}, "greater than or equal to max_num_s"),
        ({"tensor_parallel_size": 3}, "32 attention heads.*divisible by the tensor parallel size"),
        ({"max_model_len": 50_000}, "above the model's own limit of 40960"),
        ({"pipeline_parallel_size": 2}, "does not model pipeline parallelism"),
        ({"speculative_config": {"method": "medusa"}}, "does not model 'medusa'"),
        ({"speculative_config": {"method": "ngram"}}, "from 1 to 64, not None"),
        ({"speculative_config": {"metod": "ngram"}}, "did you mean"),
        ({"enable_expert_parallel": True}, "expert parallelism"),
        ({"attention_backend": "FLASHINFER"}, "attention backend"),
        ({"scheduling_policy": "lifo"}, "unknown policy 'lifo'"),
        ({"stream_interval": 0}, "above 0"),
        ({"max_num_queued_reqs": 8}, "does not exist in release 0.21"),
        ({"prefill_schedule_interval": 2}, "does not exist in release 0.21"),
        ({"watermark": 0.02}, "does not exist in release 0.21"),
        ({"max_num_active_seqs": 8}, "does not exist in release 0.21"),
        ({"max_num_scheduled_tokens": 9000}, "above max_num_batched_tokens"),
        ({"quantization": "awq"}, "does not model 'awq'"),
        ({"kv_cache_dtype": "nvfp4"}, "does not model 'nvfp4'"),
        ({"dtype": "float32"}, "not 'float32'"),
        ({"gpu_memory_utilization": 1.2}, "between 0 and 1"),
        ({"max_num_seqs": 0}, "above 0"),
        ({"optimization_level": 7}, "0 to 3"),
    ],
)
def test_what_the_engine_or_the_twin_refuses(knobs, message):
    with pytest.raises(BadInput, match=message):
        resolved(**knobs)


def test_fp8_needs_a_gpu_that_has_it():
    assert resolved(quantization="fp8").weight_bytes == 1.0
    with pytest.raises(BadInput, match="not supported on A100"):
        resolved(on="A100", quantization="fp8")
    with pytest.raises(BadInput, match="no fp4"):
        resolved(quantization="modelopt_fp4")
    assert resolved(on="B200", quantization="modelopt_fp4").weights == "fp4"


def test_only_known_releases():
    assert resolved("0.21.0").version == "0.21"
    with pytest.raises(BadInput, match=r"releases 0.21, 0.32, 0.33, not 0.9"):
        resolved("0.9.1")
    late = resolved("0.33", max_num_active_seqs=8, max_num_seqs=16, watermark=0.02)
    assert (late.max_num_active_seqs, late.watermark) == (8, 0.02)


def test_two_ways_to_say_the_largest_graph_must_agree():
    both = {"cudagraph_capture_sizes": (1, 2, 4, 32)}
    assert resolved(**both, max_cudagraph_capture_size=32).max_capture_size == 32
    with pytest.raises(BadInput, match=r"max_cudagraph_capture_size: 512 is not the largest"):
        resolved(**both, max_cudagraph_capture_size=512)
