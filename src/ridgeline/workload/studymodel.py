"""The study file's form as a whole; its parts are in `workloadmodel` and `enginemodel`.

This is the file edge, and the only place that knows pydantic: heavy, so import it where a file is
read. The editor's JSON Schema comes from the same models. Ranges stand in the fields; the words of
an error are made in `studyfile.py`.
"""

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from ridgeline.domain.routing import ROUTINGS
from ridgeline.workload.enginemodel import (
    HardwarePart,
    KnobsPart,
    LaunchPart,
    PoolPart,
    TwinPart,
)
from ridgeline.workload.study import ENGINES, EQUAL_WITHIN, METRICS
from ridgeline.workload.studypart import MOST_MS, NAME, Part, amount
from ridgeline.workload.tunemodel import TunePart
from ridgeline.workload.workloadmodel import SloPart, WorkloadPart

ROUTING_HELP = (
    "how requests are spread over data-parallel replicas: in turn, to the one with the fewest"
    " requests, or to the one that knows the prompt's shared prefix"
)

POOLS_HELP = (
    "separate servers by class of requests, each pool by its name; every class is in one of them"
)
Pools = dict[Annotated[str, Field(pattern=NAME)], PoolPart]


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
    pools: Pools | None = Field(
        default=None,
        max_length=100,
        description=f"{POOLS_HELP}; {{}}: none, where the baseline has",
    )
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
    repeats: int | None = amount(
        "runs of this experiment", "fewer repeats, where a difference is large or a run is long",
        default=None, ge=1, le=100,
    )  # fmt: skip


class RatioPart(Part):
    """The claimed ratio of a metric, the first compared experiment over the second."""

    metric: Literal[METRICS]  # type: ignore[valid-type]
    at_least: float | None = amount("ratio", "claimed to be this or more",
                                     default=None, gt=0, le=1e6)  # fmt: skip
    at_most: float | None = amount("ratio", "claimed to be this or less",
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

    ttft_p95_ms: float | None = amount("ms", "p95 TTFT", default=None, ge=0, le=MOST_MS)
    itl_p95_ms: float | None = amount("ms", "p95 ITL", default=None, ge=0, le=MOST_MS)
    chunks_per_s: float | None = amount(
        "chunks per second", "all GPUs", default=None, ge=0, le=1e12
    )
    error_rate: float | None = amount("share", "failed requests", default=None, ge=0, le=1)


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
    pools: Pools | None = Field(default=None, max_length=100, description=POOLS_HELP)
    twin: TwinPart | None = None
    workload: WorkloadPart
    slo: SloPart | None = None  # type: ignore[valid-type]
    api: Literal["chat", "completions"] = Field("chat", description="part of the API that is asked")
    baseline: KnobsPart | None = Field(default=None, description="engine options of the baseline")  # type: ignore[valid-type]
    baseline_name: str = Field("baseline", pattern=NAME)
    experiments: list[ExperimentPart] = Field(default_factory=list)
    repeats: int = amount("runs of each experiment", "repeats", default=5, ge=1, le=100)
    equal_within: float = amount(
        "share", "a difference that lies wholly inside it counts as none",
        default=EQUAL_WITHIN, ge=0, le=0.5,
    )  # fmt: skip
    published: PublishedPart | None = None
    findings: list[FindingPart] = Field(default_factory=list)
    tune: TunePart | None = Field(default=None, description="for `ridgeline tune`")


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
