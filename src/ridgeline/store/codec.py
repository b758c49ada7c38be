"""Values to bytes and back: frozen dataclasses as JSON, records as a JSON head with raw arrays.

Nothing here is pickled: a stored run may come from somebody else's machine.
"""

import json
import math
import struct
import sys
from collections.abc import Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any, ClassVar, TypeVar, get_type_hints

import numpy as np

from ridgeline.domain.errors import StoreError
from ridgeline.domain.records import RequestRecord, RunEvent, StepRuns, StepTable
from ridgeline.domain.rows import MISSING, ROW_TEXTS, RequestRows

T = TypeVar("T")

_KINDS = get_type_hints(RequestRecord)
_NUMBERS = tuple(name for name, kind in _KINDS.items() if kind in (int, int | None))
_TEXTS = tuple(name for name, kind in _KINDS.items() if kind in (str, str | None))
_SCALARS = frozenset(_NUMBERS + _TEXTS)
_numbers_of, _texts_of = attrgetter(*_NUMBERS), attrgetter(*_TEXTS)
_KEPT_TEXTS = 256
_LITTLE = sys.byteorder == "little"


def _row_of(numbers: int) -> struct.Struct:
    """So many numbers, then the lengths of texts, chunk_ns and chunk_shared (-1: none)."""
    return struct.Struct(f"<{numbers}qIii")


_ROW = _row_of(len(_NUMBERS))
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


class RowWriter:
    """Requests for the journal, in microseconds each: numbers at fixed places, then texts, arrays.

    `columns` says what stands where; whoever reads needs it (`RowReader`).
    """

    columns: ClassVar[dict[str, list[str]]] = {"numbers": list(_NUMBERS), "texts": list(_TEXTS)}

    def __init__(self) -> None:
        self._known: dict[tuple[str | None, ...], bytes] = {}

    def to_bytes(self, record: RequestRecord) -> bytes:
        """One request."""
        texts = _texts_of(record)
        said = self._known.get(texts)
        if said is None:
            said = json.dumps(texts, separators=(",", ":")).encode()
            if len(self._known) < _KEPT_TEXTS:  # a few finish reasons, and failures that repeat
                self._known[texts] = said
        stamps, shared = record.chunk_ns, record.chunk_shared
        parts = [
            _ROW.pack(
                *[MISSING if value is None else value for value in _numbers_of(record)],
                len(said),
                -1 if stamps is None else len(stamps),
                -1 if shared is None else len(shared),
            ),
            said,
        ]
        if stamps is not None:
            parts.append((stamps if _LITTLE else stamps.astype("<i8")).tobytes())
        if shared is not None:
            parts.append(shared.tobytes())
        if record.steps is not None:
            arrays = {"first": record.steps.first, "count": record.steps.count}
            parts.append(pack({"replica": record.steps.replica}, arrays))
        return b"".join(parts)


class RowReader:
    """Undoes `RowWriter`, whose `columns` may be those of another version."""

    def __init__(self, columns: Mapping[str, list[str]]) -> None:
        numbers, texts = columns["numbers"], columns["texts"]
        # What a record has no place for (of another version) is left out.
        self._numbers = [(n, i) for i, n in enumerate(numbers) if n in _SCALARS]
        self._texts = [(n, i) for i, n in enumerate(texts) if n in _SCALARS]
        self._row = _row_of(len(numbers))
        self._count = len(texts)
        self._known: dict[bytes, dict[str, Any]] = {}  # a few finish reasons, and failures

    def from_bytes(self, body: bytes) -> RequestRecord:
        """One request; raises ValueError, TypeError or struct.error for what is none."""
        *numbers, length, stamps, shared = self._row.unpack_from(body)
        at = self._row.size + length
        values: dict[str, Any] = {
            name: None if (value := numbers[place]) == MISSING else value
            for name, place in self._numbers
        }
        values.update(self._said(body[self._row.size : at]))
        if stamps >= 0:
            found = np.frombuffer(body, dtype="<i8", count=stamps, offset=at)
            values["chunk_ns"] = found.astype(np.int64)
            at += found.nbytes
        if shared >= 0:
            values["chunk_shared"] = np.frombuffer(body, np.bool_, shared, at).copy()
            at += shared
        if at < len(body):
            head, arrays = unpack(body[at:])
            values["steps"] = StepRuns(head["replica"], arrays["first"], arrays["count"])
        return RequestRecord(**values)

    def _said(self, body: bytes) -> dict[str, Any]:
        """The texts by name."""
        known = self._known.get(body)
        if known is not None:
            return known
        texts = json.loads(body)
        if len(texts) != self._count:
            raise ValueError("another count of texts than its columns say")
        said = {name: texts[place] for name, place in self._texts}
        if len(self._known) < _KEPT_TEXTS:
            self._known[body] = said
        return said


def rows_to_bytes(rows: RequestRows) -> bytes:
    """Many requests for the journal."""
    head = {"names": list(rows.names), "said": ROW_TEXTS, "texts": rows.texts}
    arrays = {
        "numbers": rows.numbers.ravel(),
        "said": rows.said,
        "chunks": rows.chunks,
        "chunk_ns": rows.chunk_ns,
        "chunk_shared": rows.chunk_shared,
    }
    return pack(head, arrays)


def rows_from_bytes(body: bytes) -> RequestRows:
    """Undo `rows_to_bytes`, also for the columns of another version.

    Raises ValueError, KeyError, TypeError or struct.error for bytes that are none of its work.
    """
    head, arrays = unpack(body)
    names, said = head["names"], head["said"]
    numbers = arrays["numbers"].reshape(-1, len(names))
    count, chunk_ns, chunks = len(numbers), arrays["chunk_ns"], arrays["chunks"]
    if not len(chunks) == len(arrays["said"]) == count or not (
        int(chunks.sum()) == len(chunk_ns) == len(arrays["chunk_shared"])
    ):
        raise ValueError("columns of different lengths")
    texts = [dict(zip(said, values, strict=True)) for values in head["texts"]]
    if count and not 0 <= int(arrays["said"].min()) <= int(arrays["said"].max()) < len(texts):
        raise ValueError("texts that are not there")
    known = [place for place, name in enumerate(names) if name in _SCALARS]
    return RequestRows(
        numbers if len(known) == len(names) else numbers[:, known],
        arrays["said"],
        chunks,
        tuple(tuple(values.get(name) for name in ROW_TEXTS) for values in texts),
        chunk_ns,
        arrays["chunk_shared"],
        [names[place] for place in known],
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
