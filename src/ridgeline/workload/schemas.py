"""JSON Schemas of what Ridgeline reads and writes, made from the values themselves.

They cannot drift from the code: the study file's comes from the models that read it, the results'
from the dataclasses that are written.
"""

import inspect
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ridgeline.domain.knee import KNEE_SCHEMA, KneeResult
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.summary import SUMMARY_SCHEMA, Summary

DIALECT = "https://json-schema.org/draft/2020-12/schema"
KINDS = ("study", "summary", "study-result", "knee", "diagnosis")
_TEXT = {"type": "string"}
_NUMBER = {"type": "number"}


def schema_of(kind: str) -> dict[str, Any]:
    """The JSON Schema of one of KINDS."""
    if kind == "study":
        from ridgeline.workload.studymodel import StudyPart  # noqa: PLC0415  pydantic is heavy

        return {"$schema": DIALECT, **StudyPart.model_json_schema()}
    if kind == "summary":
        return {"$schema": DIALECT, "title": "Ridgeline summary", **_summary()}
    if kind == "knee":
        return {"$schema": DIALECT, "title": "Ridgeline knee", **_knee()}
    if kind == "diagnosis":
        return {"$schema": DIALECT, "title": "Ridgeline diagnosis", **_diagnosis()}
    assert kind == "study-result"
    return {"$schema": DIALECT, "title": "Ridgeline study result", **_study_result()}


def result_schema(kind: type, title: str) -> dict[str, Any]:
    """The JSON Schema of a result that is a dataclass of an upper floor, as it is written."""
    return {"$schema": DIALECT, "title": title, **_object(kind)}


def _summary() -> dict[str, Any]:
    body = _object(Summary)
    return {
        **body,
        "properties": {"schema": {"const": SUMMARY_SCHEMA}, **body["properties"]},
        "required": ["schema", *body["required"]],
    }


def _knee() -> dict[str, Any]:
    body = _object(KneeResult)
    return {
        **body,
        "properties": {"schema": {"const": KNEE_SCHEMA}, **body["properties"]},
        "required": ["schema", *body["required"]],
    }


def _diagnosis() -> dict[str, Any]:
    """What `ridgeline doctor --json` writes (its own floor is above this one)."""
    gain = _closed(
        {
            "metric": _TEXT, "ratio": _NUMBER, "low": _NUMBER, "high": _NUMBER,
            "better": {"type": "boolean"}, "source": {"const": "twin"},
        }
    )  # fmt: skip
    gains = {"anyOf": [{"type": "array", "items": gain}, {"type": "null"}]}
    change = _closed({"knob": _TEXT, "value": _TEXT, "expected_gain": gains})
    change["properties"] |= {"expect": _TEXT, "no_gain": _TEXT}
    fact = _closed({"name": _TEXT, "words": _TEXT})
    fact["properties"] |= {
        "value": {"type": ["number", "string"]}, "unit": _TEXT, "low": _NUMBER, "high": _NUMBER,
    }  # fmt: skip
    finding = _closed(
        {
            "id": _TEXT, "title": _TEXT, "kind": {"enum": ["fault", "limit", "fine", "note"]},
            "binds": _TEXT, "share": _NUMBER, "evidence": {"type": "array", "items": fact},
            "confidence": {"enum": ["high", "medium", "low"]},
            "try": {"anyOf": [change, {"type": "null"}]},
            "more_tries": {"type": "array", "items": change},
            "will_not_help": {"type": "array", "items": _closed({"knob": _TEXT, "why": _TEXT})},
            "docs": _TEXT,
        }
    )  # fmt: skip
    maybe = {"type": ["number", "null"]}
    count = {"type": ["integer", "null"]}
    probe = _closed(
        {
            "sent": {"type": "integer"}, "ok": {"type": "integer"}, "ttft_s": maybe,
            "itl_s": maybe, "e2e_s": maybe, "server_e2e_s": maybe, "output_tokens": count,
            "health": count, "trouble": {"type": ["string", "null"]},
            "server": {"type": ["string", "null"]},
        }
    )  # fmt: skip
    body = _closed(
        {
            "schema": {"const": 1}, "source": {"enum": ["measured", "twin"]},
            "server": {"type": ["string", "null"]}, "span_s": _NUMBER,
            "readings": {"type": "integer"}, "findings": {"type": "array", "items": finding},
        }
    )  # fmt: skip
    body["properties"] |= {"probe": probe}  # of --probe alone
    return body


def _study_result() -> dict[str, Any]:
    maybe_number = {"type": ["number", "null"]}
    maybe_text = {"type": ["string", "null"]}
    mark = {"enum": ["reproduced", "not reproduced", "reversed", None]}
    comparison = {"enum": ["clearly better", "clearly worse", "no clear difference"]}
    difference = _closed(
        {
            "delta": maybe_number,
            "low": maybe_number,
            "high": maybe_number,
            "verdict": comparison,
            "pairs": {"type": "integer"},
            "reason": maybe_text,
            "detectable": maybe_number,
        }
    )
    repeat = _closed(
        {
            "run": _TEXT,
            "repeat": {"type": "integer"},
            "seed": {"type": ["integer", "null"]},
            "state": _TEXT,
            "left_out": maybe_text,
            "tries": {"type": "integer"},
        }
    )
    run = _closed(
        {
            "name": _TEXT,
            "change": _TEXT,
            "configuration": {"anyOf": [_object(Configuration), {"type": "null"}]},
            "summary": {"anyOf": [_summary(), {"type": "null"}]},
            "void": {"type": "boolean"},
            "failure": maybe_text,
            "repeats": {"type": "array", "items": repeat},
            "against_baseline": {"type": "object", "additionalProperties": difference},
        }
    )
    with_void = _closed({"ratio": _NUMBER, "low": maybe_number, "high": maybe_number})
    ratio = _closed(
        {
            "ratio": _NUMBER,
            "low": _NUMBER,
            "high": _NUMBER,
            "detectable": maybe_number,
            "with_void": {"anyOf": [with_void, {"type": "null"}]},
        }
    )
    finding = _closed(
        {
            "id": _TEXT,
            "claim": _TEXT,
            "compare": {"type": "array", "items": _TEXT, "minItems": 2, "maxItems": 2},
            "mark": mark,
            "expected": mark,
            "as_expected": {"type": ["boolean", "null"]},
            "pairs": {"type": "integer"},
            "pairs_with_void": {"type": "integer"},
            "ratios": {"type": "object", "additionalProperties": ratio},
            "reason": _TEXT,
            "because": maybe_text,
        }
    )
    return _closed(
        {
            "schema": {"const": 1},
            "baseline": maybe_text,
            "runs": {"type": "array", "items": run},
            "findings": {"type": "array", "items": finding},
            "warnings": {"type": "array", "items": _TEXT},
            "router_cost": {"type": "array", "items": _router_cost(maybe_number)},
        }
    )


def _router_cost(maybe_number: dict[str, Any]) -> dict[str, Any]:
    """An experiment behind a router against the same without one."""
    change = _closed({"delta": maybe_number, "low": maybe_number, "high": maybe_number})
    return _closed(
        {
            "experiment": _TEXT,
            "without": _TEXT,
            "router": _TEXT,
            "pairs": {"type": "integer"},
            "seconds": {"type": "object", "additionalProperties": change},
            "throughput": {"anyOf": [change, {"type": "null"}]},
        }
    )


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    """An object with exactly these keys."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _object(kind: type) -> dict[str, Any]:
    """Schema of a dataclass in the JSON form of `domain.summary.jsonable`."""
    assert is_dataclass(kind)
    hints = get_type_hints(kind)
    made = _closed({f.name: _schema(hints[f.name]) for f in fields(kind)})
    return {"description": inspect.cleandoc(kind.__doc__ or ""), **made}


_PLAIN: dict[Any, dict[str, Any]] = {
    # A percentile that falls among failures is written as a text: JSON has no infinity.
    float: {"anyOf": [{"type": "number"}, {"const": "infinite"}]},
    int: {"type": "integer"},
    str: _TEXT,
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
}


def _schema(kind: Any) -> dict[str, Any]:
    """Schema of a type as it stands in a value's field."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    if is_dataclass(kind) and isinstance(kind, type):
        return _object(kind)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(option) for option in inner]}
    if origin is tuple:
        return {"type": "array", "items": _schema(inner[0])}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(inner[1])}
    raise TypeError(f"no schema for {kind}")
