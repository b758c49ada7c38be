"""Which changes of knobs must pass the quality gate."""

import pytest

from ridgeline.domain.knobs import KNOB_NAMES
from ridgeline.tuning.risk import Risk, risk_of


@pytest.mark.parametrize(
    ("changes", "risk"),
    [
        ({}, Risk.EXACT),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 8192}, Risk.EXACT),
        ({"enable_prefix_caching": False}, Risk.EXACT),
        ({"kv_cache_dtype": "auto"}, Risk.EXACT),
        ({"kv_cache_dtype": "bfloat16"}, Risk.EXACT),
        ({"attention_backend": "FLASHINFER"}, Risk.NEUTRAL),
        ({"max_cudagraph_capture_size": 1024}, Risk.NEUTRAL),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}, Risk.NEUTRAL),
        (
            {"speculative_config": {"method": "eagle3", "rejection_sample_method": "block"}},
            Risk.NEUTRAL,
        ),
        ({"quantization": "fp8"}, Risk.NUMERICS),
        ({"quantization": "modelopt"}, Risk.NUMERICS),
        ({"kv_cache_dtype": "fp8"}, Risk.NUMERICS),
        ({"kv_cache_dtype": "int8_per_token_head"}, Risk.NUMERICS),
        ({"kv_cache_dtype": "fp8_e5m2"}, Risk.LOSSY),
        ({"kv_cache_dtype": "int4_per_token_head"}, Risk.LOSSY),
        ({"kv_cache_dtype": "turboquant_3bit"}, Risk.LOSSY),
        ({"quantization": "modelopt_fp4"}, Risk.LOSSY),
        ({"quantization": "awq"}, Risk.LOSSY),
        ({"quantization": "of-next-year"}, Risk.LOSSY),
        ({"dtype": "float16"}, Risk.NUMERICS),
        ({"dtype": "float32"}, Risk.NEUTRAL),
        ({"dtype": 7}, Risk.LOSSY),
        ({"kv_cache_dtype": ["fp8"]}, Risk.LOSSY),
        ({"a_knob_of_next_year": 1}, Risk.LOSSY),
        ({"load_format": "bitsandbytes"}, Risk.LOSSY),
    ],
)
def test_class_of_a_change(changes: dict[str, object], risk: Risk) -> None:
    found = risk_of(changes)
    assert found.risk == risk
    assert found.risk.needs_gate == (risk in (Risk.NUMERICS, Risk.LOSSY))


def test_the_worst_change_counts_and_is_named() -> None:
    found = risk_of({"max_num_seqs": 64, "kv_cache_dtype": "fp8", "quantization": "awq"})
    assert found.risk == Risk.LOSSY
    assert found.kv_quantised
    assert found.sentence().startswith("lossy: quantization (")
    assert not risk_of({"max_num_seqs": 64, "kv_cache_dtype": "auto"}).kv_quantised


def test_a_kv_type_is_judged_against_the_models_own() -> None:
    assert risk_of({"kv_cache_dtype": "float16"}, "float16").risk == Risk.EXACT
    assert risk_of({"kv_cache_dtype": "float16"}, "bfloat16").risk == Risk.NUMERICS


@pytest.mark.parametrize(
    "config",
    [
        {"method": "ngram", "typical_acceptance_threshold": 0.1},
        {"method": "ngram", "rejection_sample_method": "synthetic"},
        {"method": "a-new-one"},
        {"model": "draft"},
        "ngram",
    ],
)
def test_speculation_that_may_change_answers_is_lossy(config: object) -> None:
    assert risk_of({"speculative_config": config}).risk == Risk.LOSSY


def test_every_knob_of_a_study_has_a_class_of_its_own() -> None:
    """A new knob must be put into a class; until then it is taken for lossy."""
    unknown = [n for n in KNOB_NAMES if "not known" in risk_of({n: None}).reasons[n][1]]
    assert unknown == []
