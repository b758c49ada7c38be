"""The form of a study file's hardware, engine options and launch."""

from dataclasses import fields
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BeforeValidator, Field, WithJsonSchema, create_model

from ridgeline.domain.knobs import Knobs
from ridgeline.workload.studypart import (
    DAY_S,
    MOST_BLOCKS,
    MOST_GPUS,
    MOST_REQUESTS,
    MOST_TOKENS,
    MOST_USD,
    Part,
    amount,
)


class HardwarePart(Part):
    """The GPUs, and what they cost."""

    gpu: str | None = Field(
        default=None,
        description="a name of the GPU catalogue, for example H100-SXM; or a file of your own"
        " (./gpu.yaml, from the study file's folder) with a GPU's figures",
    )
    count: int | None = amount("GPUs", "how many there are; experiments may use fewer",
                                default=None, ge=1, le=MOST_GPUS)  # fmt: skip
    price_per_gpu_hour: float | None = amount("USD per GPU and hour", "price",
                                               default=None, ge=0, le=MOST_USD)  # fmt: skip


def _knob_fields() -> dict[str, Any]:
    """Every knob as an optional field, typed as in `Knobs` and with the ranges of `_RANGES`."""
    hints = get_type_hints(Knobs)
    made: dict[str, Any] = {}
    for knob in fields(Knobs):
        (kind,) = (a for a in get_args(hints[knob.name]) if a is not type(None))
        if get_origin(kind) is tuple:
            kind = list[Annotated[int, Field(ge=1, le=MOST_TOKENS)]]
        elif get_origin(kind) is not None:
            kind = dict[str, Any]
        unit, low, high = _RANGES.get(knob.name, (None, None, None))
        options: dict[str, Any] = {"ge": low} if low is not None else {}
        options |= {"le": high} if high is not None else {}
        options |= {"json_schema_extra": {"unit": unit}} if unit else {}
        made[knob.name] = (Union[kind, None], Field(default=None, **options))  # noqa: UP007
    return made


_COUNTS = {
    "max_num_seqs": "requests",
    "max_num_batched_tokens": "tokens",
    "max_num_scheduled_tokens": "tokens",
    "max_num_active_seqs": "requests",
    "max_model_len": "tokens",
    "prefill_schedule_interval": "steps",
    "stream_interval": "tokens",
    "max_num_queued_reqs": "requests",
    "max_num_queued_tokens": "tokens",
    "block_size": "tokens",
    "kv_cache_memory_bytes": "bytes",
    "num_gpu_blocks_override": "blocks",
    "max_cudagraph_capture_size": "tokens",
    "data_parallel_size": "replicas",
    "tensor_parallel_size": "GPUs",
    "pipeline_parallel_size": "GPUs",
    "api_server_count": "processes",
}
_MOST = {
    "requests": MOST_REQUESTS,
    "tokens": MOST_TOKENS,
    "steps": MOST_REQUESTS,
    "bytes": 1e15,
    "blocks": MOST_BLOCKS,
    "replicas": MOST_GPUS,
    "GPUs": MOST_GPUS,
    "processes": MOST_GPUS,
}
_RANGES: dict[str, tuple[str | None, float | None, float | None]] = {
    **{name: (unit, 1, _MOST[unit]) for name, unit in _COUNTS.items()},
    "long_prefill_token_threshold": ("tokens", 0, MOST_TOKENS),
    "watermark": ("share of the blocks", 0, 1),
    "gpu_memory_utilization": ("share of the memory", 0.01, 1),
    "optimization_level": ("level", 0, 3),
}

KnobsPart = create_model(
    "KnobsPart", __base__=Part, __doc__="Engine options, by the engine's own names.",
    **_knob_fields(),
)  # fmt: skip


class PoolPart(Part):
    """Servers for some classes of requests alone."""

    classes: list[str] | None = Field(
        default=None, min_length=1,
        description="names of workload.classes that it serves; the class of its own name unless"
        " given",
    )  # fmt: skip
    set: KnobsPart | None = Field(  # type: ignore[valid-type]
        default=None,
        description="engine options that differ in this pool; data_parallel_size are its servers",
    )
    url: str | list[str] | None = Field(
        default=None, description="servers that run already, for engine: endpoint"
    )


class RouterPart(Part):
    """A balancer before the replicas, in place of the client's own balancing."""

    policy: str | None = Field(
        "round_robin", description="the router's own name of a rule; empty: its own default"
    )
    command: list[str] = Field(
        default_factory=lambda: ["vllm-router"], min_length=1,
        description="the router's program and its first arguments; it takes vllm-router's options",
    )  # fmt: skip
    arguments: list[str] = Field(default_factory=list, description="more arguments of the router")


def _named(value: object) -> object:
    """A router by its name alone is the program of that name."""
    return {"command": [value]} if isinstance(value, str) else value


_ROUTER_SCHEMA = WithJsonSchema({"anyOf": [{"type": "string"}, RouterPart.model_json_schema()]})


class LaunchPart(Part):
    """How the engine is started, where Ridgeline starts it."""

    command: list[str] | None = Field(
        default=None,
        min_length=1,
        description="the program and its first arguments, one a place; {model} stands for the"
        " model. vLLM: [vllm, serve, '{model}'] unless given",
    )
    arguments: list[str] = Field(
        default_factory=list, description="more arguments, after those of the knobs"
    )
    environment: dict[str, str | None] = Field(
        default_factory=dict,
        description="variables for the engine, beside Ridgeline's own; an empty text removes one,"
        " null takes it from the environment of what starts the engine (secrets; never kept)",
    )
    ready_s: float = amount("seconds", "how long a start may take", default=900.0, gt=0,
                             le=DAY_S)  # fmt: skip
    stalled_s: float | None = amount(
        "seconds", "without a step, under load, after which the engine stands still and is"
        " started anew; 30 unless given, without a GPU 300", default=None, gt=0, le=DAY_S,
    )  # fmt: skip
    resident: int | None = amount(
        "engines", "kept up side by side, only one of them loaded at a time; needs explicit"
        " kv_cache_memory_bytes, on GPUs also gpu_memory_utilization", default=None, ge=1, le=1000,
    )  # fmt: skip
    start_together: bool = Field(
        True, description="start resident engines side by side, not one after another"
    )
    cold_s: float | None = amount(
        "seconds", "first run of a fresh engine, kept apart and never merged; 0: none; as long as"
        " a measured run unless given", default=None, ge=0, le=DAY_S,
    )  # fmt: skip
    image: str | None = Field(
        default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$",
        description="run the engine in a container of this image (docker run); the command's first"
        " word is its entry point",
    )  # fmt: skip
    container: list[str] = Field(
        default_factory=list, description="more words of docker run, before the image"
    )
    host: str | None = Field(
        default=None, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@-]*$",
        description="run the engine on that machine, over SSH: a name that ssh knows, or user@name",
    )  # fmt: skip
    tunnel: bool = Field(
        True, description="reach it through SSH; false: at the host's own address, without"
        " encryption, which leaves SSH out of the figures",
    )  # fmt: skip
    router: Annotated[RouterPart, BeforeValidator(_named), _ROUTER_SCHEMA] | None = Field(
        default=None, description="a balancer before the replicas: vllm-router, or its parts"
    )


class TwinPart(Part):
    """How the digital twin is set up: for engine: twin, and for the plan of a vLLM study."""

    calibration: str = Field(
        min_length=1,
        description="a file that `ridgeline calibrate` wrote, from the study file's folder; it"
        " holds for runs on the GPU that it was made on",
    )
