"""The form of a study file's `tune:` section; what it is made into is in `tunebuild`."""

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from ridgeline.domain.knobs import KNOB_NAMES
from ridgeline.workload.study import OBJECTIVES, RISKS
from ridgeline.workload.studypart import DAY_S, Part, amount

ROUTING = "routing"
FIXED = "fixed"

_VALUES = {"type": "array", "minItems": 1}
_SPAN = {
    "type": "object",
    "properties": {"min": {"type": "number"}, "max": {"type": "number"}},
    "required": ["min", "max"],
    "additionalProperties": False,
}
_SPACE_SCHEMA = WithJsonSchema(
    {
        "type": "object",
        "properties": {
            name: {"anyOf": [_VALUES, _SPAN, {"const": FIXED}]} for name in (*KNOB_NAMES, ROUTING)
        },
        "additionalProperties": False,
    }
)


class QualityPart(Part):
    """What a candidate that is not exact is held against before it may win."""

    prompts: str | None = Field(
        default=None, min_length=1,
        description="a file of prompts, one a line, from the study file's folder; a bundled set"
        " unless given",
    )  # fmt: skip
    threshold: float = amount(
        "share", "of the baseline's quality that must be recovered", default=0.99, gt=0, le=1
    )


class TunePart(Part):
    """What `ridgeline tune` looks for, and where."""

    objective: Literal[OBJECTIVES] = Field(  # type: ignore[valid-type]
        "cost",
        description="what is best inside the targets: USD per million output tokens, output tokens"
        " per second and GPU, requests inside the targets per second and GPU, or the front of"
        " tokens per second and GPU against latency",
    )
    risk: Literal[RISKS] = Field(  # type: ignore[valid-type]
        "exact",
        description="what a winner may change: nothing of the numbers, their rounding (8 bits), or"
        " what the model knows (4 bits)",
    )
    space: Annotated[dict[str, Any], _SPACE_SCHEMA] = Field(
        default_factory=dict,
        description="by engine option: the values to choose from, {min, max}, or fixed",
    )
    only: bool = Field(False, description="change no option that `space` does not name")
    finalists: int = amount(
        "candidates", "that meet the baseline in the duel at the end", default=3, ge=1, le=10
    )
    window_s: float | None = amount(
        "seconds", "the shortest window of a trial; as the workload's duration_s unless given",
        default=None, gt=0, le=DAY_S,
    )  # fmt: skip
    side_by_side: int | None = amount(
        "trials", "at a time, each on GPUs of its own; as many as hardware.count and the host's"
        " cores hold unless given, 1 = one after another",
        default=None, ge=1,
    )  # fmt: skip
    quality: QualityPart = Field(default_factory=QualityPart)
