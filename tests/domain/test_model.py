"""Shapes from config.json: what is read, what is derived, what is refused."""

import json

import pytest

from ridgeline.domain.errors import BadInput
from ridgeline.domain.model import model_names, shape, shape_from_config
from ridgeline.domain.roofline import active_weights, kv_bytes_per_token, parameters

# A public 4-billion-parameter shape whose head_dim is not hidden / heads.
CONFIG = {
    "model_type": "qwen3", "hidden_size": 2560, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 9728, "vocab_size": 151936, "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}  # fmt: skip


def config(**changes):
    return {k: v for k, v in {**CONFIG, **changes}.items() if v is not ...}


def test_head_dim_comes_from_the_config_not_the_quotient():
    assert kv_bytes_per_token(shape_from_config("x", CONFIG)) == 147_456
    assert kv_bytes_per_token(shape_from_config("x", config(head_dim=...))) == 92_160


@pytest.mark.parametrize(
    ("name", "total", "active_billions"),
    [
        ("Qwen/Qwen3-0.6B", 0.596, 0.44),
        ("Qwen3-4B", 4.022, 3.633),
        ("Qwen/Qwen3-8B", 8.19, 6.95),
        ("Qwen3-32B", 32.76, 31.2),
        ("Qwen/Qwen3-30B-A3B", 30.5, 2.73),
        ("meta-llama/Llama-3.2-1B", 1.236, 0.973),
        ("meta-llama/Llama-3.1-8B-Instruct", 8.03, 6.98),
        ("meta-llama/Llama-3.1-70B", 70.55, 68.45),
        ("mistralai/Mistral-7B-v0.3", 7.25, 6.98),
        ("mistralai/Mixtral-8x7B-v0.1", 46.7, 12.6),
        ("Qwen/Qwen2.5-7B-Instruct", 7.62, 6.53),
    ],
)
def test_shipped_shapes_have_the_published_parameter_counts(name, total, active_billions):
    found = shape(name)
    assert parameters(found) / 1e9 == pytest.approx(total, rel=0.003)
    assert active_weights(found) / 1e9 == pytest.approx(active_billions, rel=0.005)


def test_every_shipped_shape_reads():
    assert len(model_names()) >= 10
    for name in model_names():
        assert shape(name).name == name


def test_a_vision_models_text_part_is_read():
    vl = shape("Qwen/Qwen3-VL-4B-Instruct")
    plain = shape("Qwen3-4B")
    assert (vl.layers, vl.hidden, vl.head_dim, vl.tied) == (36, 2560, 128, True)
    assert parameters(vl) == parameters(plain)
    assert vl.max_positions == 262_144


def test_a_folder_and_a_file_are_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert shape(str(tmp_path)).layers == 36
    assert shape(str(tmp_path / "config.json")).layers == 36


def test_sliding_windows_by_family():
    gemma2 = config(model_type="gemma2", sliding_window=4096, num_hidden_layers=4)
    assert shape_from_config("x", gemma2).windows == (4096, None, 4096, None)
    gemma3 = config(
        model_type="gemma3_text", sliding_window=512, sliding_window_pattern=3, num_hidden_layers=6
    )
    assert shape_from_config("x", gemma3).windows == (512, 512, None, 512, 512, None)
    listed = config(
        model_type="gemma3_text", sliding_window=512, num_hidden_layers=2,
        layer_types=["full_attention", "sliding_attention"],
    )  # fmt: skip
    assert shape_from_config("x", listed).windows == (None, 512)
    mistral = config(model_type="mistral", sliding_window=4096, num_hidden_layers=2)
    assert shape_from_config("x", mistral).windows == (4096, 4096)
    assert shape_from_config("x", config(sliding_window=4096)).full_attention_layers == 36


def test_mixture_layers_are_counted():
    found = shape_from_config(
        "x",
        config(model_type="qwen3_moe", num_experts=16, num_experts_per_tok=2,
               moe_intermediate_size=512, decoder_sparse_step=2, mlp_only_layers=[1]),
    )  # fmt: skip
    assert found.experts is not None
    # Layers 1, 3, 5 .. 35 by the step, less layer 1.
    assert (found.experts.layers, found.experts.count, found.experts.width) == (17, 16, 512)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "deepseek_v3"}, "'deepseek_v3' is not supported: multi-head latent"),
        ({"model_type": "mamba2"}, "'mamba2' is not supported: state-space"),
        ({"model_type": "qwen3_next"}, "linear-attention"),
        ({"kv_lora_rank": 512}, "multi-head latent attention"),
        ({"layer_types": ["linear_attention"] * 36}, "layers of type linear_attention"),
        ({"model_type": "qwen33"}, "'qwen33' is not supported .did you mean 'qwen3'"),
        ({"model_type": ...}, "architecture 'None'"),
        ({"num_hidden_layers": ...}, "lacks 'num_hidden_layers'"),
        ({"vocab_size": "many"}, "vocab_size must be a whole number"),
        ({"num_key_value_heads": 5}, "32 heads are no multiple of 5"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised by 'awq'"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(changes, message):
    with pytest.raises(BadInput, match=message):
        shape_from_config("x", config(**changes))


def test_unknown_names_and_broken_files_are_told(tmp_path):
    with pytest.raises(BadInput, match=r"did you mean 'Qwen/Qwen3-4B'"):
        shape("Qwen/Qwen3-4b-x")
    with pytest.raises(BadInput, match=r"no config\.json"):
        shape(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BadInput, match="cannot be read as JSON"):
        shape(str(tmp_path))
