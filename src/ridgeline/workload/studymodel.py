"""The study file's form: what may stand in it, in which units and ranges.

This is the file edge, and the only place that knows pydantic: heavy, so import it where a file is
read. The editor's JSON Schema comes from the same models. Ranges stand in the fields; the words of
an error are made in `studyfile.py`.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    WrapValidator,
    create_model,
)

from ridgeline.domain.knobs import Knobs
from ridgeline.domain.routing import ROUTINGS
from ridgeline.domain.slo import LATENCY_KEYS, SHARE_KEYS
from ridgeline.workload.arrivals import LEAST_BURSTINESS
from ridgeline.workload.promptfiles import FORMATS as PROMPT_FORMATS
from ridgeline.workload.study import ENGINES, EQUAL_WITHIN, METRICS
from ridgeline.workload.traces import FORMATS as TRACE_FORMATS

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

# Upper ends: far beyond what is served, far below where 32-bit lengths, schedules and block tables
# break. A number above them is a slip of the hand.
DAY_S = 86_400
MOST_TOKENS = 10_000_000
MOST_REQUESTS = 1_000_000
MOST_GPUS = 4096
MOST_BLOCKS = 10_000_000
MOST_USD = 1_000_000
MOST_MS = 1e9
LEAST_RATE = 0.001  # at least 86 arrivals a day, the longest window


class Part(BaseModel):
    """Base of all parts: unknown keys are errors, and a text is not taken for a number."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _amount(unit: str, about: str, **limits: Any) -> Any:
    """A field with its unit, which error messages and the schema name."""
    return Field(description=f"{about} ({unit})", json_schema_extra={"unit": unit}, **limits)


def _or_plain(key: str, *, text: bool) -> Callable[[object], object]:
    def widen(value: object) -> object:
        if text:
            return {key: value} if isinstance(value, str) else value
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return {key: value} if is_number else value

    return widen


_NUMBER_OR: dict[str, Any] = {"type": "number", "exclusiveMinimum": 0}
_TEXT_OR: dict[str, Any] = {"type": "string", "minLength": 1}


def _widened(part: type[Part], key: str, *, text: bool = False) -> Any:
    """The part, or a plain number (or text) for its `key`; the schema allows both."""
    schema = {"anyOf": [_TEXT_OR if text else _NUMBER_OR, part.model_json_schema()]}
    return Annotated[part, BeforeValidator(_or_plain(key, text=text)), WithJsonSchema(schema)]


_LAW = "constant: always that long; exponential: that long on average"


class LoadStepPart(Part):
    """One step of a stepped load: users or rate_per_s, and for how long."""

    users: int | None = _amount("users", "closed loop", default=None, ge=1, le=100_000)
    rate_per_s: float | None = _amount("requests per second", "open loop",
                                       default=None, ge=LEAST_RATE, le=MOST_REQUESTS)  # fmt: skip
    for_s: float = _amount("seconds", "length of the step", gt=0, le=DAY_S)


class TracePart(Part):
    """Recorded traffic to be replayed as it was."""

    file: str = Field(min_length=1, description="from the study file's folder; a run's folder too")
    format: Literal[TRACE_FORMATS] | None = Field(  # type: ignore[valid-type]
        default=None, description="told by the file's first line unless given"
    )
    speed: float = _amount("times as fast", "2 replays in half the time",
                           default=1.0, gt=0, le=1e6)  # fmt: skip
    from_s: float = _amount("seconds of the trace", "where the replay begins",
                            default=0.0, ge=0, le=1e9)  # fmt: skip
    to_s: float | None = _amount("seconds of the trace", "where it ends",
                                 default=None, gt=0, le=1e9)  # fmt: skip


class ArrivalsPart(Part):
    """When requests start: a number of users, a rate, steps of either, or a trace."""

    users: int | None = _amount("users", "closed loop: each sends one request after another",
                                default=None, ge=1, le=100_000)  # fmt: skip
    think_time_s: float | None = _amount("seconds", "a user's pause before the next request",
                                         default=None, ge=0, le=DAY_S)  # fmt: skip
    think_time: Literal["constant", "exponential"] | None = Field(default=None, description=_LAW)
    ramp_s: float | None = _amount("seconds", "over how long the users begin; 5, at most half of"
                                   " the warm-up, unless given",
                                   default=None, ge=0, le=DAY_S)  # fmt: skip
    rate_per_s: float | None = _amount("requests per second", "open loop",
                                       default=None, ge=LEAST_RATE, le=MOST_REQUESTS)  # fmt: skip
    process: Literal["poisson", "constant", "gamma"] | None = Field(
        default=None, description="law of the gaps between arrivals; poisson unless given"
    )
    burstiness: float | None = _amount("gamma shape", "1 is Poisson, smaller is burstier",
                                       default=None, ge=LEAST_BURSTINESS, le=1000)  # fmt: skip
    max_concurrency: int | None = _amount(
        "requests", "an open loop has at most so many on their way; the others wait, and the wait"
        " counts in every figure from intent", default=None, ge=1, le=MOST_REQUESTS,
    )  # fmt: skip
    steps: list[LoadStepPart] | None = Field(
        default=None, min_length=1, max_length=1000,
        description="loads one after another, all users or all rates; each has its own figures",
    )  # fmt: skip
    trace: _widened(TracePart, "file", text=True) | None = None  # type: ignore[valid-type]


class LengthsPart(Part):
    """A length in tokens: mean with spread, or min and max; a plain number is always that long."""

    mean: float | None = _amount("tokens", "mean length", default=None, ge=1, le=MOST_TOKENS)
    spread: float | None = _amount("share of the mean", "lengths from mean x (1 - spread) to mean"
                                   " x (1 + spread), all equally likely",
                                   default=None, ge=0, lt=1)  # fmt: skip
    min: int | None = _amount("tokens", "shortest length", default=None, ge=1, le=MOST_TOKENS)
    max: int | None = _amount("tokens", "longest length", default=None, ge=1, le=MOST_TOKENS)


class OutputPart(LengthsPart):
    """Output lengths: as for prompts; max alone means that every reply is that long."""

    ignore_eos: bool = Field(
        False, description="make a real engine produce exactly the length drawn"
    )


def _seconds_or_auto(value: object, check: Callable[[object], float]) -> float | None:
    """A number of seconds, None for the word auto; nothing else, an empty value included."""
    return None if value == "auto" else check("nothing" if value is None else value)


_SECONDS_OR_AUTO = WrapValidator(_seconds_or_auto)
_SECONDS_OR_AUTO_SCHEMA = WithJsonSchema(
    {"anyOf": [{"type": "number", "minimum": 0, "maximum": DAY_S}, {"const": "auto"}]}
)


class SharedPrefixPart(Part):
    """Prompts of one group begin with the same tokens."""

    tokens: int = _amount("tokens", "length of the shared beginning", ge=1, le=MOST_TOKENS)
    groups: int = _amount("groups", "how many different beginnings",
                          default=1, ge=1, le=MOST_REQUESTS)  # fmt: skip


class ImagesPart(Part):
    """Synthetic images in every prompt, each another one; chat only."""

    count: int = _amount("images", "in each prompt", default=1, ge=1, le=64)
    width: int = _amount("pixels", "width", default=512, ge=1, le=8192)
    height: int = _amount("pixels", "height", default=512, ge=1, le=8192)
    format: Literal["png", "jpeg"] = Field("png", description="jpeg needs Pillow")


class PromptFilePart(Part):
    """A file of prompts; a row is one request, whole as it stands."""

    file: str = Field(min_length=1, description="from the study file's folder")
    format: Literal[PROMPT_FORMATS] | None = Field(  # type: ignore[valid-type]
        default=None, description="told by the file's beginning unless given"
    )
    salted: bool = Field(
        True, description="each prompt begins with words of its own; false sends the texts as they"
        " are, and what they share is shared",
    )  # fmt: skip


class PromptsPart(Part):
    """Prompts: their own part, and what they share."""

    file: _widened(PromptFilePart, "file", text=True) | None = None  # type: ignore[valid-type]
    images: ImagesPart | None = None

    as_: Literal["text", "token_ids"] | None = Field(
        default=None, alias="as",
        description="token_ids: completions are asked for token ids, exactly as many as planned",
    )  # fmt: skip

    dataset: Literal["synthetic"] = Field("synthetic", description="where the texts come from")
    tokens: _widened(LengthsPart, "mean") | None = None  # type: ignore[valid-type]
    shared_prefix: SharedPrefixPart | None = None


def _slo_fields() -> dict[str, Any]:
    latency = _amount("ms", "upper limit", default=None, ge=0, le=MOST_MS)
    share = _amount("share", "limit", default=None, ge=0, le=1)
    return {
        **dict.fromkeys(LATENCY_KEYS, (float | None, latency)),
        **dict.fromkeys(SHARE_KEYS, (float | None, share)),
    }


SloPart = create_model(
    "SloPart", __base__=Part, __doc__="Limits: latencies in ms, shares between 0 and 1.",
    **_slo_fields(),
)  # fmt: skip


class ClassPart(Part):
    """One kind of requests among others; what it does not say is the workload's."""

    share: float = _amount("share of the requests", "the shares of all classes make 1", gt=0, le=1)
    prompts: PromptsPart | None = None
    output_tokens: _widened(OutputPart, "max") | None = None  # type: ignore[valid-type]
    slo: SloPart | None = Field(default=None, description="limits for this class alone")  # type: ignore[valid-type]
    priority: int | None = _amount("smaller is earlier", "sent with each request; engines look at"
                                   " it with scheduling_policy: priority",
                                   default=None, ge=-1_000_000, le=1_000_000)  # fmt: skip


class SessionsPart(Part):
    """Conversations: each turn carries the talk so far, the server's replies included."""

    turns: _widened(LengthsPart, "mean")  # type: ignore[valid-type]
    think_time_s: float = _amount("seconds", "pause between a reply and the next turn",
                                  default=0.0, ge=0, le=DAY_S)  # fmt: skip
    think_time: Literal["constant", "exponential"] = Field("constant", description=_LAW)


class TimeoutsPart(Part):
    """How long a real request may take; 0 means no limit."""

    connect_s: float = _amount("seconds", "to connect", default=10.0, gt=0, le=DAY_S)
    first_token_s: float = _amount("seconds", "to the first chunk with content",
                                   default=120.0, ge=0, le=DAY_S)  # fmt: skip
    chunk_s: float = _amount("seconds", "between two chunks", default=60.0, ge=0, le=DAY_S)
    total_s: float = _amount("seconds", "of a whole request", default=600.0, ge=0, le=DAY_S)
    grace_s: float = _amount("seconds", "how long requests are followed after the window",
                             default=60.0, ge=0, le=DAY_S)  # fmt: skip


class ClientPart(Part):
    """How the load client works."""

    workers: Annotated[int, Field(ge=1, le=256)] | Literal["auto"] = Field(
        default=1, description="client processes with one event loop each; auto: one core left free"
    )
    timeouts: TimeoutsPart | None = None


class WorkloadPart(Part):
    """The traffic that is offered."""

    arrivals: ArrivalsPart
    prompts: PromptsPart | None = None
    output_tokens: _widened(OutputPart, "max") | None = None  # type: ignore[valid-type]
    classes: dict[Annotated[str, Field(pattern=NAME)], ClassPart] | None = Field(
        default=None, min_length=1, max_length=100,
        description="kinds of requests by name, each with its own figures and limits",
    )  # fmt: skip
    sessions: SessionsPart | None = None
    sampling: dict[str, Any] | None = Field(
        default=None, description="temperature, top_p, top_k, min_p, seed, stop, penalties"
    )
    extra_body: dict[str, Any] | None = Field(
        default=None, description="more fields of every request's body"
    )
    headers: dict[str, str] | None = Field(
        default=None, description="more headers of every request; none may hold a secret"
    )
    salt: str | None = Field(
        default=None, min_length=1, max_length=200,
        description="the same prompts in every run; unless given, each run's are fresh",
    )  # fmt: skip
    duration_s: float | None = _amount("seconds", "length of the window; 90 unless given; that of"
                                       " all steps together for a stepped load",
                                       default=None, gt=0, le=DAY_S)  # fmt: skip
    warmup_s: Annotated[float | None, _SECONDS_OR_AUTO, _SECONDS_OR_AUTO_SCHEMA] = _amount(
        "seconds", "same traffic before the window, not counted; auto: until the run is steady",
        default=10.0, ge=0, le=DAY_S,
    )  # fmt: skip
    warmup_limit_s: float | None = _amount(
        "seconds", "the most that warmup_s: auto may take; 60 unless given", default=None, gt=0,
        le=DAY_S,
    )  # fmt: skip
    requests: int | None = _amount("requests", "ends the window once so many were sent inside",
                                   default=None, ge=1, le=100 * MOST_REQUESTS)  # fmt: skip
    seed: int = _amount("whole number", "of all random draws", default=0, ge=0, lt=1 << 63)
    client: ClientPart | None = None


class HardwarePart(Part):
    """The GPUs, and what they cost."""

    gpu: str | None = Field(
        default=None,
        description="a name of the GPU catalogue, for example H100-SXM; or a file of your own"
        " (./gpu.yaml, from the study file's folder) with a GPU's figures",
    )
    count: int | None = _amount("GPUs", "how many there are; experiments may use fewer",
                                default=None, ge=1, le=MOST_GPUS)  # fmt: skip
    price_per_gpu_hour: float | None = _amount("USD per GPU and hour", "price",
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
    environment: dict[str, str] = Field(
        default_factory=dict,
        description="variables for the engine, beside Ridgeline's own; an empty text removes one",
    )
    ready_s: float = _amount("seconds", "how long a start may take", default=900.0, gt=0,
                             le=DAY_S)  # fmt: skip
    resident: int | None = _amount(
        "engines", "kept up side by side, only one of them loaded at a time; needs explicit"
        " kv_cache_memory_bytes, on GPUs also gpu_memory_utilization", default=None, ge=1, le=1000,
    )  # fmt: skip
    start_together: bool = Field(
        True, description="start resident engines side by side, not one after another"
    )
    cold_s: float | None = _amount(
        "seconds", "first run of a fresh engine, kept apart and never merged; 0: none; as long as"
        " a measured run unless given", default=None, ge=0, le=DAY_S,
    )  # fmt: skip


class TwinPart(Part):
    """How the digital twin is set up, for engine: twin."""

    calibration: str = Field(
        min_length=1,
        description="a file that `ridgeline calibrate` wrote, from the study file's folder; it"
        " holds for runs on the GPU that it was made on",
    )


ROUTING_HELP = (
    "how requests are spread over data-parallel replicas: in turn, to the one with the fewest"
    " requests, or to the one that knows the prompt's shared prefix"
)


class ExperimentPart(Part):
    """One experiment: what differs from the baseline."""

    name: str = Field(pattern=NAME)
    set: KnobsPart | None = Field(default=None, description="engine options that differ")  # type: ignore[valid-type]
    workload: dict[str, Any] | None = Field(
        default=None,
        description="parts of the workload that differ, in its own form; arrivals, tokens and"
        " output_tokens are replaced as a whole",
    )
    hardware: HardwarePart | None = Field(default=None, description="GPUs or price that differ")
    routing: Literal[ROUTINGS] | None = Field(default=None, description=ROUTING_HELP)  # type: ignore[valid-type]
    url: str | None = Field(default=None, description="another endpoint")
    engine: Literal[ENGINES] | None = Field(  # type: ignore[valid-type]
        default=None,
        description="another engine, with no engine options but those of `set`: the baseline's are"
        " of its own engine",
    )
    engine_version: str | None = Field(
        default=None, description="another installation of the engine, started by its own launch"
    )
    model: str | None = Field(
        default=None, min_length=1, description="the same model in the form that this engine reads"
    )
    launch: LaunchPart | None = Field(
        default=None, description="how this one is started, where that differs from the study's"
    )
    repeats: int | None = _amount(
        "runs of this experiment", "fewer repeats, where a difference is large or a run is long",
        default=None, ge=1, le=100,
    )  # fmt: skip


class RatioPart(Part):
    """The claimed ratio of a metric, the first compared experiment over the second."""

    metric: Literal[METRICS]  # type: ignore[valid-type]
    at_least: float | None = _amount("ratio", "claimed to be this or more",
                                     default=None, gt=0, le=1e6)  # fmt: skip
    at_most: float | None = _amount("ratio", "claimed to be this or less",
                                    default=None, gt=0, le=1e6)  # fmt: skip
    is_: Literal["higher", "lower"] | None = Field(default=None, alias="is")


class FindingPart(Part):
    """A published finding, and what the twin is expected to say of it."""

    id: str = Field(pattern=NAME)
    claim: str = Field(min_length=1)
    compare: list[str] = Field(
        min_length=2, max_length=2, description="ratios are the first over the second"
    )
    ratio: list[RatioPart] = Field(min_length=1, description="all must hold")
    twin: Literal["reproduced", "not reproduced", "reversed"] | None = None
    because: str | None = None
    published: str | None = Field(default=None, description="the published figures in words")


class PublishedRunPart(Part):
    """Published figures of one run."""

    ttft_p95_ms: float | None = _amount("ms", "p95 TTFT", default=None, ge=0, le=MOST_MS)
    itl_p95_ms: float | None = _amount("ms", "p95 ITL", default=None, ge=0, le=MOST_MS)
    chunks_per_s: float | None = _amount(
        "chunks per second", "all GPUs", default=None, ge=0, le=1e12
    )
    error_rate: float | None = _amount("share", "failed requests", default=None, ge=0, le=1)


class PublishedPart(Part):
    """Reference figures from elsewhere, shown beside ours."""

    source: str = Field(min_length=1)
    runs: dict[str, PublishedRunPart]


class StudyPart(Part):
    """A whole study file."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, title="Ridgeline study"
    )

    name: str = Field(pattern=NAME)
    model: str = Field(min_length=1, description="a model's name, or a folder with config.json")
    engine: Literal[ENGINES] = "twin"  # type: ignore[valid-type]
    engine_version: str | None = Field(default=None, description='as text, for example "0.21.0"')
    url: str | None = Field(default=None, description="the server, for engine: endpoint")
    hardware: HardwarePart | None = None
    launch: LaunchPart | None = None
    routing: Literal[ROUTINGS] | None = Field(default=None, description=ROUTING_HELP)  # type: ignore[valid-type]
    twin: TwinPart | None = None
    workload: WorkloadPart
    slo: SloPart | None = None  # type: ignore[valid-type]
    api: Literal["chat", "completions"] = Field("chat", description="part of the API that is asked")
    baseline: KnobsPart | None = Field(default=None, description="engine options of the baseline")  # type: ignore[valid-type]
    baseline_name: str = Field("baseline", pattern=NAME)
    experiments: list[ExperimentPart] = Field(default_factory=list)
    repeats: int = _amount("runs of each experiment", "repeats", default=5, ge=1, le=100)
    equal_within: float = _amount(
        "share", "a difference that lies wholly inside it counts as none",
        default=EQUAL_WITHIN, ge=0, le=0.5,
    )  # fmt: skip
    published: PublishedPart | None = None
    findings: list[FindingPart] = Field(default_factory=list)


def part_at(root: type[BaseModel], path: tuple[str | int, ...]) -> type[BaseModel] | None:
    """The model that describes the mapping at `path`, None where the file is free in form."""
    part: type[BaseModel] | None = root
    for key in path:
        if part is None or isinstance(key, int):
            continue
        found = {f.alias or name: f for name, f in part.model_fields.items()}.get(key)
        if found is None:
            # A free key of a mapping (the name of a published run): its values are the part.
            continue
        part = _model_in(found.annotation)
    return part


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The first model inside an annotation such as list[X], dict[str, X] or X | None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        model = _model_in(inner)
        if model is not None:
            return model
    return None
