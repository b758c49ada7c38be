"""The journal of a run: append-only frames that survive `kill -9`.

A frame is its length and CRC-32 (both little-endian, 4 bytes) and then a kind byte and a body.
What has reached `os.write` is in the kernel's hands and outlives the process. A last frame that
was cut short, or whose checksum is wrong, ends the reading: everything before it is whole.
"""

import contextlib
import fcntl
import json
import os
import struct
import threading
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ridgeline.domain.errors import StoreError
from ridgeline.domain.records import RequestRecord, RunEvent, StepTable
from ridgeline.domain.rows import RequestRows
from ridgeline.domain.secrets import mask_all
from ridgeline.store import codec
from ridgeline.store.files import store_error

MAGIC = b"RIDGEJ3\n"
OLDER = (b"RIDGEJ2\n",)  # without frames of many requests; read as before
_FRAME = struct.Struct("<II")
HEAD, COLUMNS, REQUEST, ROWS, EVENT, STEPS, FACTS = b"H", b"C", b"R", b"B", b"E", b"S", b"F"
FLUSH_EVERY_S = 0.25


@dataclass(slots=True)
class JournalContent:
    """What a journal holds. `head` and `facts` are JSON objects; facts is None in a torn run.

    cut_bytes: length of the torn tail that was left out.
    """

    head: dict[str, Any] = field(default_factory=dict)
    requests: list[RequestRecord] = field(default_factory=list)
    events: list[RunEvent] = field(default_factory=list)
    steps: StepTable | None = None
    facts: dict[str, Any] | None = None
    cut_bytes: int = 0


class Journal:
    """A RecordSink that appends to a file. Close it, or use it as a context manager.

    Records are encoded by the caller (microseconds) and written by a thread of its own every
    quarter of a second, because a write may wait for the disk and the load client must not.
    An error of the disk is raised as StoreError by the next call; what was written stays.
    """

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        self.path = path
        self._study = path.parent.parent  # of <study>/<run>/<journal>
        self._buffer = bytearray(MAGIC)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._rows = codec.RowWriter()
        self._error: StoreError | None = None
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            self._fd = os.open(path, flags, 0o644)
            # Tells a live run from an abandoned one: the kernel drops it with the process.
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise store_error(error, path) from error
        self._append(HEAD, json.dumps(mask_all(head), separators=(",", ":")).encode())
        self._append(COLUMNS, json.dumps(self._rows.columns, separators=(",", ":")).encode())
        self._flush()
        self._raise_error()
        self._thread = threading.Thread(target=self._flush_often, name="journal", daemon=True)
        self._thread.start()

    def request(self, record: RequestRecord) -> None:
        """Take one ended request."""
        self._append(REQUEST, self._rows.to_bytes(record))

    def rows(self, rows: RequestRows) -> None:
        """Take many ended requests, as one frame."""
        self._append(ROWS, codec.rows_to_bytes(rows))

    def event(self, event: RunEvent) -> None:
        """Take one event."""
        self._append(EVENT, codec.event_to_bytes(event))

    def steps(self, table: StepTable) -> None:
        """Take a twin's steps."""
        self._append(STEPS, codec.steps_to_bytes(table))

    def facts(self, facts: dict[str, Any]) -> None:
        """Take what is known at the end of the run: the frame that says it was not torn."""
        self._append(FACTS, json.dumps(mask_all(facts), separators=(",", ":")).encode())

    def close(self) -> None:
        """Write what is left and let go of the file; raises StoreError if that fails."""
        if self._closing:
            return
        self._closing = True
        self._wake.set()
        self._thread.join()
        self._flush()
        with contextlib.suppress(OSError):
            os.close(self._fd)
        self._raise_error()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, kind: bytes, body: bytes) -> None:
        self._raise_error()
        payload = kind + body
        frame = _FRAME.pack(len(payload), zlib.crc32(payload))
        with self._lock:
            self._buffer += frame
            self._buffer += payload

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _flush_often(self) -> None:
        while not self._closing:
            self._wake.wait(FLUSH_EVERY_S)
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            data, self._buffer = memoryview(self._buffer), bytearray()
        try:
            while data and self._error is None:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            found = store_error(error, self.path)
            kept = f"what was measured is kept, see `ridgeline report {self._study}`"
            self._error = StoreError(found.what, where=found.where, fix=f"{found.fix}; {kept}")


def is_being_written(path: Path) -> bool:
    """True while a living process holds the journal open."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def read_journal(path: Path) -> JournalContent:
    """Everything whole in a journal; raises StoreError only when it cannot be read at all.

    Read frame by frame: a long run's file beside its records would be the most that it ever holds.
    """
    try:
        with path.open("rb") as file:
            return _read(file, os.fstat(file.fileno()).st_size, path)
    except OSError as error:
        raise store_error(error, path, "cannot read") from error


def _read(file: BinaryIO, size: int, path: Path) -> JournalContent:
    content = JournalContent()
    rows = codec.RowReader(codec.RowWriter.columns)
    begin = file.read(len(MAGIC))
    if begin != MAGIC and begin not in OLDER:
        # Killed before the first write came through: nothing was measured yet.
        if not MAGIC.startswith(begin):
            raise StoreError("is not a journal of Ridgeline", where=str(path))
        return JournalContent(cut_bytes=size)
    at = len(MAGIC)
    while at + _FRAME.size < size:
        frame = file.read(_FRAME.size)
        if len(frame) < _FRAME.size:
            break
        length, checksum = _FRAME.unpack(frame)
        start = at + _FRAME.size
        if length == 0 or start + length > size:
            break
        payload = file.read(length)
        if len(payload) < length or zlib.crc32(payload) != checksum:
            break
        try:
            if payload[:1] == COLUMNS:
                rows = codec.RowReader(json.loads(payload[1:]))
            else:
                _take(content, rows, payload[:1], payload[1:])
        except (ValueError, KeyError, TypeError, struct.error):
            break  # a frame of an unknown form: nothing after it can be trusted to be ours
        at = start + length
    content.cut_bytes = size - at
    return content


def _take(content: JournalContent, rows: codec.RowReader, kind: bytes, body: bytes) -> None:
    if kind == REQUEST:
        content.requests.append(rows.from_bytes(body))
    elif kind == ROWS:
        content.requests += codec.rows_from_bytes(body).records()
    elif kind == EVENT:
        content.events.append(codec.event_from_bytes(body))
    elif kind == STEPS:
        content.steps = codec.steps_from_bytes(body)
    elif kind == HEAD:
        content.head = json.loads(body)
    elif kind == FACTS:
        content.facts = json.loads(body)
    else:
        raise ValueError(kind)
