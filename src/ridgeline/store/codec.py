"""Values to bytes and back: frozen dataclasses as JSON, records as a JSON head with raw arrays.

Nothing here is pickled: a stored run may come from somebody else's machine.
"""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np

from ridgeline.domain.errors import StoreError
from ridgeline.domain.records import RequestRecord, RunEvent, StepRuns, StepTable

T = TypeVar("T")

_SCALARS = tuple(
    f.name for f in fields(RequestRecord) if f.name not in ("chunk_ns", "chunk_shared", "steps")
)
_STEP_ARRAYS = tuple(
    f.name for f in fields(StepTable) if f.name not in ("parts", "kv_total_blocks")
)
_HEAD = struct.Struct("<I")


_adapters: dict[Any, Any] = {}


def _adapter(kind: Any) -> Any:
    if kind not in _adapters:
        from pydantic import TypeAdapter  # noqa: PLC0415  heavy: only where something is stored

        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def to_plain(value: Any) -> Any:
    """A frozen dataclass as JSON types."""
    return _adapter(type(value)).dump_python(value, mode="json")


def from_plain(kind: type[T], body: Any, where: str) -> T:
    """Build a `kind` from JSON types. Unknown keys are ignored, so newer files stay readable.

    Raises StoreError, naming `where` and the first key that does not fit.
    """
    from pydantic import ValidationError  # noqa: PLC0415

    try:
        value: T = _adapter(kind).validate_python(body)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise StoreError(
            f"is damaged or of another version: {key}: {first['msg']}", where=where
        ) from None
    return value


def infinities_back(value: Any) -> Any:
    """Undo `domain.summary.jsonable`: the text "infinite" becomes infinity again."""
    if isinstance(value, dict):
        return {k: infinities_back(v) for k, v in value.items()}
    if isinstance(value, list):
        return [infinities_back(v) for v in value]
    return math.inf if value == "infinite" else value


def pack(head: Mapping[str, Any], arrays: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """JSON head, then the arrays' bytes; the head carries their names, types and lengths."""
    described = {
        **head,
        "arrays": [[k, a.dtype.newbyteorder("<").str, len(a)] for k, a in arrays.items()],
    }
    text = json.dumps(described, separators=(",", ":")).encode()
    little = (a.astype(a.dtype.newbyteorder("<"), copy=False).tobytes() for a in arrays.values())
    return b"".join((_HEAD.pack(len(text)), text, *little))


def unpack(body: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """Undo `pack`; raises ValueError or struct.error for bytes that are none of its work."""
    (size,) = _HEAD.unpack_from(body)
    at = _HEAD.size + size
    head = json.loads(body[_HEAD.size : at])
    arrays = {}
    for name, dtype, count in head.pop("arrays"):
        array = np.frombuffer(body, dtype=np.dtype(dtype), count=count, offset=at)
        at += array.nbytes
        arrays[name] = array.astype(array.dtype.newbyteorder("="), copy=True)
    return head, arrays


def request_to_bytes(record: RequestRecord) -> bytes:
    """One request for the journal."""
    head: dict[str, Any] = {
        name: value for name in _SCALARS if (value := getattr(record, name)) is not None
    }
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    if record.chunk_ns is not None:
        arrays["chunk_ns"] = record.chunk_ns
    if record.chunk_shared is not None:
        arrays["chunk_shared"] = record.chunk_shared
    if record.steps is not None:
        head["replica"] = record.steps.replica
        arrays["first"], arrays["count"] = record.steps.first, record.steps.count
    return pack(head, arrays)


def request_from_bytes(body: bytes) -> RequestRecord:
    """Undo `request_to_bytes`."""
    head, arrays = unpack(body)
    replica = head.pop("replica", None)
    steps = None if replica is None else StepRuns(replica, arrays["first"], arrays["count"])
    values: dict[str, Any] = {name: head.get(name) for name in _SCALARS}
    return RequestRecord(
        **values,
        chunk_ns=arrays.get("chunk_ns"),
        chunk_shared=arrays.get("chunk_shared"),
        steps=steps,
    )


def event_to_bytes(event: RunEvent) -> bytes:
    """One event for the journal."""
    return pack({"at_ns": event.at_ns, "kind": event.kind, "text": event.text}, {})


def event_from_bytes(body: bytes) -> RunEvent:
    """Undo `event_to_bytes`."""
    head, _ = unpack(body)
    return RunEvent(head["at_ns"], head["kind"], head["text"])


def steps_to_bytes(table: StepTable) -> bytes:
    """A twin's steps for the journal."""
    arrays = {name: getattr(table, name) for name in _STEP_ARRAYS}
    arrays |= {f"part_{name}": values for name, values in table.parts.items()}
    return pack({"kv_total_blocks": table.kv_total_blocks}, arrays)


def steps_from_bytes(body: bytes) -> StepTable:
    """Undo `steps_to_bytes`."""
    head, arrays = unpack(body)
    parts = {k.removeprefix("part_"): a for k, a in arrays.items() if k.startswith("part_")}
    columns: dict[str, Any] = {name: arrays[name] for name in _STEP_ARRAYS}
    return StepTable(**columns, parts=parts, kv_total_blocks=head["kv_total_blocks"])
