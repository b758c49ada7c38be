"""What every part of the study file's form is made of: strict parts, amounts with units, ranges.

Part of the file edge: it knows pydantic, so import it where a file is read.
"""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

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


def amount(unit: str, about: str, **limits: Any) -> Any:
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


def widened(part: type[Part], key: str, *, text: bool = False) -> Any:
    """The part, or a plain number (or text) for its `key`; the schema allows both."""
    schema = {"anyOf": [_TEXT_OR if text else _NUMBER_OR, part.model_json_schema()]}
    return Annotated[part, BeforeValidator(_or_plain(key, text=text)), WithJsonSchema(schema)]
