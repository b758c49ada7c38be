"""The form of a study file's workload and targets: what may stand there, units and ranges."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema, WrapValidator, create_model

from ridgeline.domain.slo import LATENCY_KEYS, SHARE_KEYS
from ridgeline.workload.arrivals import LEAST_BURSTINESS
from ridgeline.workload.promptfiles import FORMATS as PROMPT_FORMATS
from ridgeline.workload.sessionfiles import HISTORIES
from ridgeline.workload.studypart import (
    DAY_S,
    LEAST_RATE,
    MOST_MS,
    MOST_REQUESTS,
    MOST_TOKENS,
    NAME,
    Part,
    amount,
    widened,
)
from ridgeline.workload.traces import FORMATS as TRACE_FORMATS

_LAW = "constant: always that long; exponential: that long on average"


class LoadStepPart(Part):
    """One step of a stepped load: users or rate_per_s, and for how long."""

    users: int | None = amount("users", "closed loop", default=None, ge=1, le=100_000)
    rate_per_s: float | None = amount("requests per second", "open loop",
                                       default=None, ge=LEAST_RATE, le=MOST_REQUESTS)  # fmt: skip
    for_s: float = amount("seconds", "length of the step", gt=0, le=DAY_S)


class TracePart(Part):
    """Recorded traffic to be replayed as it was."""

    file: str = Field(min_length=1, description="from the study file's folder; a run's folder too")
    format: Literal[TRACE_FORMATS] | None = Field(  # type: ignore[valid-type]
        default=None, description="told by the file's first line unless given"
    )
    speed: float = amount("times as fast", "2 replays in half the time",
                           default=1.0, gt=0, le=1e6)  # fmt: skip
    from_s: float = amount("seconds of the trace", "where the replay begins",
                            default=0.0, ge=0, le=1e9)  # fmt: skip
    to_s: float | None = amount("seconds of the trace", "where it ends",
                                 default=None, gt=0, le=1e9)  # fmt: skip


class ArrivalsPart(Part):
    """When requests start: a number of users, a rate, steps of either, or a trace."""

    users: int | None = amount("users", "closed loop: each sends one request after another",
                                default=None, ge=1, le=100_000)  # fmt: skip
    think_time_s: float | None = amount("seconds", "a user's pause before the next request",
                                         default=None, ge=0, le=DAY_S)  # fmt: skip
    think_time: Literal["constant", "exponential"] | None = Field(default=None, description=_LAW)
    ramp_s: float | None = amount("seconds", "over how long the users begin; 5, at most half of"
                                   " the warm-up, unless given",
                                   default=None, ge=0, le=DAY_S)  # fmt: skip
    rate_per_s: float | None = amount("requests per second", "open loop",
                                       default=None, ge=LEAST_RATE, le=MOST_REQUESTS)  # fmt: skip
    process: Literal["poisson", "constant", "gamma"] | None = Field(
        default=None, description="law of the gaps between arrivals; poisson unless given"
    )
    burstiness: float | None = amount("gamma shape", "1 is Poisson, smaller is burstier",
                                       default=None, ge=LEAST_BURSTINESS, le=1000)  # fmt: skip
    max_concurrency: int | None = amount(
        "requests", "an open loop has at most so many on their way; the others wait, and the wait"
        " counts in every figure from intent", default=None, ge=1, le=MOST_REQUESTS,
    )  # fmt: skip
    steps: list[LoadStepPart] | None = Field(
        default=None, min_length=1, max_length=1000,
        description="loads one after another, all users or all rates; each has its own figures",
    )  # fmt: skip
    trace: widened(TracePart, "file", text=True) | None = None  # type: ignore[valid-type]


class LengthsPart(Part):
    """A length in tokens: mean with spread, or min and max; a plain number is always that long."""

    mean: float | None = amount("tokens", "mean length", default=None, ge=1, le=MOST_TOKENS)
    spread: float | None = amount("share of the mean", "lengths from mean x (1 - spread) to mean"
                                   " x (1 + spread), all equally likely",
                                   default=None, ge=0, lt=1)  # fmt: skip
    min: int | None = amount("tokens", "shortest length", default=None, ge=1, le=MOST_TOKENS)
    max: int | None = amount("tokens", "longest length", default=None, ge=1, le=MOST_TOKENS)


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

    tokens: int = amount("tokens", "length of the shared beginning", ge=1, le=MOST_TOKENS)
    groups: int = amount("groups", "how many different beginnings",
                          default=1, ge=1, le=MOST_REQUESTS)  # fmt: skip


class ImagesPart(Part):
    """Synthetic images in every prompt, each another one; chat only."""

    count: int = amount("images", "in each prompt", default=1, ge=1, le=64)
    width: int = amount("pixels", "width", default=512, ge=1, le=8192)
    height: int = amount("pixels", "height", default=512, ge=1, le=8192)
    format: Literal["png", "jpeg"] = Field("png", description="jpeg needs Pillow")
    tokens: int | None = amount(
        "tokens", "of one image, for a twin; by the model's rule unless given",
        default=None, ge=1, le=1_000_000,
    )  # fmt: skip


class PromptFilePart(Part):
    """A file of prompts; a row is one request, whole as it stands, or a turn of a session."""

    file: str = Field(min_length=1, description="from the study file's folder")
    format: Literal[PROMPT_FORMATS] | None = Field(  # type: ignore[valid-type]
        default=None, description="told by the file's beginning unless given"
    )
    salted: bool = Field(
        True, description="each prompt begins with words of its own; false sends the texts as they"
        " are, and what they share is shared",
    )  # fmt: skip
    history: Literal[HISTORIES] | None = Field(  # type: ignore[valid-type]
        default=None, description="rows of sessions carry the talk so far (cumulative) or only what"
        " is new (incremental); seen in the rows unless given",
    )  # fmt: skip


class PromptsPart(Part):
    """Prompts: their own part, and what they share."""

    file: widened(PromptFilePart, "file", text=True) | None = None  # type: ignore[valid-type]
    images: ImagesPart | None = None

    as_: Literal["text", "token_ids"] | None = Field(
        default=None, alias="as",
        description="token_ids: completions are asked for token ids, exactly as many as planned",
    )  # fmt: skip

    dataset: Literal["synthetic"] = Field("synthetic", description="where the texts come from")
    tokens: widened(LengthsPart, "mean") | None = None  # type: ignore[valid-type]
    shared_prefix: SharedPrefixPart | None = None


def _slo_fields() -> dict[str, Any]:
    latency = amount("ms", "upper limit", default=None, ge=0, le=MOST_MS)
    share = amount("share", "limit", default=None, ge=0, le=1)
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

    share: float | None = amount("share of the requests", "the shares of all classes make 1",
                                  default=None, gt=0, le=1)  # fmt: skip
    rate_per_s: float | None = amount(
        "requests per second", "arrivals of its own, in place of a share, and then for every class;"
        " workload.arrivals gives no load beside them",
        default=None, ge=LEAST_RATE, le=MOST_REQUESTS,
    )  # fmt: skip
    prompts: PromptsPart | None = None
    output_tokens: widened(OutputPart, "max") | None = None  # type: ignore[valid-type]
    slo: SloPart | None = Field(default=None, description="limits for this class alone")  # type: ignore[valid-type]
    priority: int | None = amount("smaller is earlier", "sent with each request; engines look at"
                                   " it with scheduling_policy: priority",
                                   default=None, ge=-1_000_000, le=1_000_000)  # fmt: skip


class SessionsPart(Part):
    """Conversations: each turn carries the talk so far, the server's replies included."""

    turns: widened(LengthsPart, "mean") | None = None  # type: ignore[valid-type]
    think_time_s: float = amount("seconds", "pause between a reply and the next turn",
                                  default=0.0, ge=0, le=DAY_S)  # fmt: skip
    think_time: Literal["constant", "exponential"] = Field("constant", description=_LAW)


class TimeoutsPart(Part):
    """How long a real request may take; 0 means no limit."""

    connect_s: float = amount("seconds", "to connect", default=10.0, gt=0, le=DAY_S)
    first_token_s: float = amount("seconds", "to the first chunk with content",
                                   default=120.0, ge=0, le=DAY_S)  # fmt: skip
    chunk_s: float = amount("seconds", "between two chunks", default=60.0, ge=0, le=DAY_S)
    total_s: float = amount("seconds", "of a whole request", default=600.0, ge=0, le=DAY_S)
    grace_s: float = amount("seconds", "how long requests are followed after the window",
                             default=60.0, ge=0, le=DAY_S)  # fmt: skip


class ClientPart(Part):
    """How the load client works."""

    workers: Annotated[int, Field(ge=1, le=256)] | Literal["auto"] = Field(
        default=1, description="client processes with one event loop each; auto: one core left free"
    )
    timeouts: TimeoutsPart | None = None


class WorkloadPart(Part):
    """The traffic that is offered."""

    arrivals: ArrivalsPart | None = Field(
        default=None, description="may be left out where every class has a rate_per_s of its own"
    )
    prompts: PromptsPart | None = None
    output_tokens: widened(OutputPart, "max") | None = None  # type: ignore[valid-type]
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
    duration_s: float | None = amount("seconds", "length of the window; 90 unless given; that of"
                                       " all steps together for a stepped load",
                                       default=None, gt=0, le=DAY_S)  # fmt: skip
    warmup_s: Annotated[float | None, _SECONDS_OR_AUTO, _SECONDS_OR_AUTO_SCHEMA] = amount(
        "seconds", "same traffic before the window, not counted; auto: until the run is steady",
        default=10.0, ge=0, le=DAY_S,
    )  # fmt: skip
    warmup_limit_s: float | None = amount(
        "seconds", "the most that warmup_s: auto may take; 60 unless given", default=None, gt=0,
        le=DAY_S,
    )  # fmt: skip
    requests: int | None = amount("requests", "ends the window once so many were sent inside",
                                   default=None, ge=1, le=100 * MOST_REQUESTS)  # fmt: skip
    seed: int = amount("whole number", "of all random draws", default=0, ge=0, lt=1 << 63)
    client: ClientPart | None = None
