"""Model shapes: what of a config.json decides memory, bytes and FLOPs; nothing else.

An architecture whose arithmetic is not known here is refused by name. A wrong guess would give
figures that look right.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ridgeline.domain.errors import BadInput, nearest
from ridgeline.domain.vision import ImageGrid

# model_type of a decoder with grouped-query attention and a gated MLP. The value says where its
# sliding windows are: no layer, every layer, or the family's own pattern.
DENSE_TYPES = {
    "llama": "none", "qwen3": "none", "qwen3_vl": "none", "qwen3_vl_text": "none",
    "mistral": "all", "phi3": "all", "qwen2": "switch", "qwen2_5_vl": "switch",
    "qwen2_5_vl_text": "switch", "gemma2": "gemma2", "gemma3": "gemma3", "gemma3_text": "gemma3",
}  # fmt: skip
EXPERT_TYPES = {"qwen3_moe": "none", "qwen3_vl_moe_text": "none", "mixtral": "all"}
SUPPORTED = (*DENSE_TYPES, *EXPERT_TYPES, "qwen3_vl_moe")
# model_type of a model that sees: (patch size, merge size, least and most pixels of an image), each
# as its configuration and its image processor have it unless the model's files say otherwise.
IMAGE_RULES = {
    "qwen2_vl": (14, 2, 56 * 56, 28 * 28 * 16384), "qwen2_5_vl": (14, 2, 56 * 56, 28 * 28 * 16384),
    "qwen3_vl": (16, 2, 256 * 256, 4096 * 4096), "qwen3_vl_moe": (16, 2, 256 * 256, 4096 * 4096),
}  # fmt: skip
WRAPPERS = ("text_config", "llm_config", "language_config")
# Why some well-known families are refused.
REFUSED = {
    "deepseek_v2": "multi-head latent attention", "deepseek_v3": "multi-head latent attention",
    "kimi_k2": "multi-head latent attention", "mamba": "state-space layers",
    "mamba2": "state-space layers", "jamba": "state-space layers", "bamba": "state-space layers",
    "nemotron_h": "state-space layers", "falcon_h1": "state-space layers",
    "qwen3_next": "linear-attention layers", "llama4": "chunked attention",
    "gpt_oss": "attention sinks and block-scaled expert weights",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Experts:
    """Routed experts of each mixture layer: `active` of `count` per token, each `width` wide.

    `shared_width` is the width of an expert that every token uses (0 = none), `layers` how many
    of the model's layers are mixture layers (the others have the plain MLP).
    """

    count: int
    active: int
    width: int
    shared_width: int
    layers: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder's shape. `windows` has one entry a layer: None = full attention, else tokens."""

    name: str
    model_type: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    vocab: int
    tied: bool
    max_positions: int
    windows: tuple[int | None, ...]
    experts: Experts | None = None
    weight_format: str | None = None  # quantisation that the published weights already carry
    image_grid: ImageGrid | None = None  # None: takes no images, or its rule is not known

    @property
    def full_attention_layers(self) -> int:
        """Layers that attend to the whole context."""
        return sum(w is None for w in self.windows)


def shape(name_or_path: str) -> ModelShape:
    """The shape of a shipped model name, of a folder with config.json, or of a config.json.

    Raises BadInput for an unknown name, a missing key, or an architecture that is not supported.
    """
    path = Path(name_or_path)
    if path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise BadInput("the folder has no config.json", where=name_or_path)
    if path.is_file():
        return shape_from_config(name_or_path, _read(path))
    entry = _by_name().get(name_or_path.casefold().strip("/"))
    if entry is None:
        names = model_names()
        hint = nearest(name_or_path, _by_name_keys()) or f" (shipped: {', '.join(names)})"
        raise BadInput(
            f"unknown model {name_or_path!r}{hint}",
            where="model",
            fix="give a folder that holds the model's config.json",
        )
    return shape_from_config(entry["name"], entry["config"])


def model_names() -> tuple[str, ...]:
    """Names of the shapes that ship with Ridgeline."""
    return tuple(entry["name"] for entry in _entries())


def shape_from_config(name: str, config: Mapping[str, Any]) -> ModelShape:
    """The shape of a parsed config.json; a nested text configuration is followed."""
    text = _text_config(name, config)
    kind = _supported_type(name, text)
    need = _Reader(name, text)
    hidden, heads = need.count("hidden_size"), need.count("num_attention_heads")
    # head_dim is given where it is not hidden / heads (Qwen3-4B: 128, the quotient would be 80).
    head_dim = need.count("head_dim") if text.get("head_dim") is not None else hidden // heads
    layers = need.count("num_hidden_layers")
    kv_heads = (
        heads if text.get("num_key_value_heads") is None else need.count("num_key_value_heads")
    )
    if heads % kv_heads:
        raise BadInput(f"{heads} heads are no multiple of {kv_heads} KV heads", where=name)
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    return ModelShape(
        name=name,
        model_type=kind,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        mlp_width=need.count("intermediate_size"),
        vocab=need.count("vocab_size"),
        # Gemma ties without saying so; the others default to separate tensors.
        tied=kind.startswith("gemma") if tied is None else bool(tied),
        max_positions=need.count("max_position_embeddings"),
        windows=_windows(need, kind, layers),
        experts=_experts(need, layers) if kind in EXPERT_TYPES else None,
        weight_format=_weight_format(name, {**config, **text}),
        image_grid=_image_grid(config),
    )


def _image_grid(config: Mapping[str, Any]) -> ImageGrid | None:
    rule = IMAGE_RULES.get(str(config.get("model_type")))
    if rule is None:
        return None
    patch, merge, least, most = rule
    vision = config.get("vision_config") or {}
    patch = int(vision.get("patch_size") or patch)
    merge = int(vision.get("spatial_merge_size") or merge)
    return ImageGrid(patch * merge, least, most)


class _Reader:
    """Reads positive whole numbers and says which key of which model is bad."""

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        self.name = name
        self.values = values

    def count(self, *keys: str) -> int:
        key = next((k for k in keys if self.values.get(k) is not None), keys[0])
        value = self.values.get(key)
        if value is None:
            raise BadInput(f"config.json lacks {key!r}", where=self.name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadInput(f"{key} must be a whole number above 0, not {value!r}", where=self.name)
        return value


def _text_config(name: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in WRAPPERS:
        inner = config.get(key)
        if isinstance(inner, Mapping):
            return (
                inner
                if "model_type" in inner
                else {"model_type": config.get("model_type"), **inner}
            )
    if not isinstance(config, Mapping):
        raise BadInput("config.json is not a mapping", where=name)
    return config


def _supported_type(name: str, text: Mapping[str, Any]) -> str:
    kind = str(text.get("model_type"))
    reason = REFUSED.get(kind)
    if reason is None and text.get("kv_lora_rank") is not None:
        reason = "multi-head latent attention"
    other = {str(k) for k in text.get("layer_types") or ()} - {
        "full_attention",
        "sliding_attention",
    }
    if reason is None and other:
        reason = f"layers of type {', '.join(sorted(other))}"
    if reason is not None:
        raise BadInput(f"architecture {kind!r} is not supported: {reason}", where=name)
    if kind not in DENSE_TYPES and kind not in EXPERT_TYPES:
        raise BadInput(
            f"architecture {kind!r} is not supported{nearest(kind, SUPPORTED)}",
            where=name,
            fix=f"supported: {', '.join(SUPPORTED)}",
        )
    return kind


def _windows(need: _Reader, kind: str, layers: int) -> tuple[int | None, ...]:
    text = need.values
    rule = DENSE_TYPES.get(kind) or EXPERT_TYPES[kind]
    if text.get("sliding_window") is None or rule == "none":
        return (None,) * layers
    if rule == "switch" and not text.get("use_sliding_window"):
        return (None,) * layers
    width = need.count("sliding_window")
    types = text.get("layer_types")
    if types is not None:
        if len(types) != layers:
            raise BadInput(f"layer_types has {len(types)} entries, not {layers}", where=need.name)
        return tuple(width if t == "sliding_attention" else None for t in types)
    if rule == "gemma2":  # every second layer, the first one included, slides
        return tuple(width if i % 2 == 0 else None for i in range(layers))
    if rule == "gemma3":  # one full layer after each run of sliding ones
        period = need.count("sliding_window_pattern") if "sliding_window_pattern" in text else 6
        return tuple(None if (i + 1) % period == 0 else width for i in range(layers))
    if rule == "switch":  # the layers from max_window_layers on slide
        start = need.count("max_window_layers")
        return tuple(None if i < start else width for i in range(layers))
    return (width,) * layers


def _experts(need: _Reader, layers: int) -> Experts:
    text = need.values
    sparse_step = int(text.get("decoder_sparse_step") or 1)
    plain = set(text.get("mlp_only_layers") or ())
    mixture = [i for i in range(layers) if i not in plain and (i + 1) % sparse_step == 0]
    return Experts(
        count=need.count("num_experts", "num_local_experts"),
        active=need.count("num_experts_per_tok"),
        width=need.count("moe_intermediate_size", "intermediate_size"),
        shared_width=int(text.get("shared_expert_intermediate_size") or 0),
        layers=len(mixture),
    )


def _weight_format(name: str, config: Mapping[str, Any]) -> str | None:
    quantised = config.get("quantization_config")
    if quantised is None:
        return None
    method = quantised.get("quant_method") if isinstance(quantised, Mapping) else None
    if method != "fp8":
        raise BadInput(f"weights quantised by {method!r} are not supported", where=name)
    return "fp8"


def _read(path: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadInput(f"cannot be read as JSON: {error}", where=str(path)) from None
    if not isinstance(config, dict):
        raise BadInput("is not a JSON object", where=str(path))
    return config


@cache
def _entries() -> list[dict[str, Any]]:
    text = files("ridgeline.domain").joinpath("data/models.json").read_text("utf-8")
    entries: list[dict[str, Any]] = json.loads(text)["models"]
    return entries


@cache
def _by_name() -> dict[str, dict[str, Any]]:
    return {n.casefold(): e for e in _entries() for n in (e["name"], *e["aliases"])}


@cache
def _by_name_keys() -> tuple[str, ...]:
    return tuple(n for e in _entries() for n in (e["name"], *e["aliases"]))
