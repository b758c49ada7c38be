"""Recorded traffic, read for an exact replay: arrival times, lengths, and what prompts share.

Formats: mooncake (JSONL with timestamp in ms, input_length, output_length, hash_ids of blocks of
512 tokens), azure (CSV with TIMESTAMP, ContextTokens, GeneratedTokens), burstgpt (CSV with
Timestamp in seconds, Model, Request tokens, Response tokens, ...) and records (a run's folder or
its requests.parquet). A format that is not stated is told by the first line. Nothing is repaired: a
missing value, a time before the last one or a length that none can have is an error with its row.
"""

import csv
import datetime
import hashlib
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.domain.errors import BadInput
from ridgeline.domain.numerals import counted
from ridgeline.domain.workload import Trace

FORMATS = ("mooncake", "azure", "burstgpt", "records")
BLOCK_TOKENS = 512  # of a hash id
MOST_ROWS = 20_000_000
MOST_TOKENS = 10_000_000
REQUESTS_TABLE = "requests.parquet"
LAST_REQUEST_S = 0.001  # a window ends before its end: so much later the last request is in it
_HOW = f"state one with format: ({', '.join(FORMATS)})"


@dataclass(frozen=True, slots=True)
class TraceRows:
    """The requests of a trace. at_s: from its first one on, ascending.

    chain[i]: the pieces that prompt i begins with and others have too, each (key, tokens).
    left_out: rows without a reply (failures of the recorded service).
    """

    at_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    chain: tuple[tuple[tuple[int, int], ...], ...] | None = None
    left_out: int = 0


@dataclass(slots=True)
class _Reader:
    """Collects rows and refuses what cannot be replayed."""

    name: str
    at: list[float]
    prompt: list[int]
    output: list[int]
    hashes: list[Sequence[int]]
    left_out: int = 0

    def error(self, row: int, what: str) -> BadInput:
        return BadInput(what, where=f"{self.name}, row {row}", fix="correct or remove the row")

    def count(self, row: int, name: str, value: Any, *, least: int = 1) -> int:
        """A number of tokens, from JSON or text."""
        if value is None or value == "":
            raise self.error(row, f"{name} is missing")
        try:
            found = float(value)
        except (TypeError, ValueError):
            raise self.error(row, f"{name} is no number: {value!r}") from None
        if isinstance(value, bool) or found != math.floor(found):
            raise self.error(row, f"{name} must be a whole number, not {value!r}")
        if not least <= found <= MOST_TOKENS:
            raise self.error(row, f"{name} must be {least} to {counted(MOST_TOKENS)}, not {value}")
        return int(found)

    def add(self, row: int, at: float, prompt: int, output: int) -> None:
        if not math.isfinite(at):
            raise self.error(row, f"the time stamp is no number: {at}")
        if self.at and at < self.at[-1]:
            raise self.error(
                row, f"its time ({at:g} s) is before that of the row above ({self.at[-1]:g} s)"
            )
        if len(self.at) >= MOST_ROWS:
            raise BadInput(f"has more than {counted(MOST_ROWS)} rows", where=self.name)
        self.at.append(at)
        self.prompt.append(prompt)
        self.output.append(output)


def open_trace(
    path: Path, form: str | None = None, *, speed: float = 1.0, from_s: float = 0.0,
    to_s: float | None = None,
) -> Trace:  # fmt: skip
    """Read a trace once and describe the part that is to be replayed. Raises BadInput."""
    path = _table_of(path)
    digest = _digest(path)
    form = form or _format_of(path)
    rows = _read(str(path), form, digest)
    at = rows.at_s
    kept = (at >= from_s) & (at < (math.inf if to_s is None else to_s))
    if not kept.any():
        until = "its end" if to_s is None else f"{to_s:g} s"
        last = float(at[-1]) if len(at) else 0.0
        raise BadInput(
            f"no request from {from_s:g} s to {until}; the trace lasts {last:g} s", where=str(path)
        )
    prompts, outputs = rows.prompt_tokens[kept], rows.output_tokens[kept]
    return Trace(
        file=str(path),
        format=form,
        digest=digest,
        speed=speed,
        from_s=from_s,
        to_s=to_s,
        rows=int(kept.sum()),
        seconds=(float(at[kept][-1]) - from_s) / speed,
        mean_prompt_tokens=float(prompts.mean()),
        mean_output_tokens=float(outputs.mean()),
        longest_prompt=int(prompts.max()),
        longest=int((prompts.astype(np.int64) + outputs).max()),
        left_out=rows.left_out,
    )


def replayed(trace: Trace) -> TraceRows:
    """The requests of the part that is replayed; at_s counts from its beginning, in replay time.

    Raises BadInput when the file is not the one that was described.
    """
    path = Path(trace.file)
    if _digest(path) != trace.digest:
        raise BadInput("is another file than when the study was read", where=trace.file)
    rows = _read(trace.file, trace.format, trace.digest)
    at = rows.at_s
    kept = (at >= trace.from_s) & (at < (math.inf if trace.to_s is None else trace.to_s))
    chain = None
    if rows.chain is not None:
        chain = tuple(rows.chain[i] for i in np.flatnonzero(kept))
    return TraceRows(
        (at[kept] - trace.from_s) / trace.speed,
        rows.prompt_tokens[kept], rows.output_tokens[kept], chain,
    )  # fmt: skip


def trace_window_s(trace: Trace, warmup_s: float) -> float:
    """The window of a whole replay: what is left of it after the warm-up, its last request inside.

    Raises BadInput when nothing is left.
    """
    left = trace.seconds - warmup_s
    if left <= 0 and trace.digest:
        raise BadInput(
            f"the replay lasts {trace.seconds:.3g} s, and its first {warmup_s:g} s are warm-up",
            where=trace.file, fix="give a shorter warm-up",
        )  # fmt: skip
    return max(left, 0.0) + LAST_REQUEST_S


def _table_of(path: Path) -> Path:
    """The file itself; of a folder with one run, that run's table of requests."""
    if not path.is_dir():
        return path
    if (path / REQUESTS_TABLE).is_file():
        return path / REQUESTS_TABLE
    inside = sorted(p.parent for p in path.glob(f"*/{REQUESTS_TABLE}"))
    if len(inside) == 1:
        return inside[0] / REQUESTS_TABLE
    if not inside:
        raise BadInput(f"is a folder without {REQUESTS_TABLE}", where=str(path))
    names = ", ".join(p.name for p in inside[:5])
    raise BadInput(f"holds {len(inside)} runs", where=str(path), fix=f"name one of {names}")


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=str(path)) from None


def _format_of(path: Path) -> str:
    """The format by the first line. Raises BadInput when it is none of the known ones."""
    if path.suffix == ".parquet":
        return "records"
    with path.open("rb") as file:
        line = file.readline(1 << 16).decode("utf-8", "replace").strip("\ufeff \r\n")
    if line.startswith("{") and '"timestamp"' in line and '"input_length"' in line:
        return "mooncake"
    heads = [head.strip().lower() for head in line.split(",")]
    if {"timestamp", "contexttokens", "generatedtokens"} <= set(heads):
        return "azure"
    if {"timestamp", "request tokens", "response tokens"} <= set(heads):
        return "burstgpt"
    raise BadInput("is no trace in a known format", where=str(path), fix=_HOW)


@lru_cache(maxsize=4)
def _read(file: str, form: str, digest: str) -> TraceRows:
    """All rows; `digest` makes a changed file another one."""
    path = Path(file)
    reader = _Reader(file, [], [], [], [])
    readers: Mapping[str, Callable[[Path, _Reader], None]] = {
        "mooncake": _mooncake, "azure": _azure, "burstgpt": _burstgpt, "records": _records,
    }  # fmt: skip
    try:
        readers[form](path, reader)
    except UnicodeDecodeError as error:
        raise BadInput(f"is not UTF-8 text (byte {error.start})", where=file) from None
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=file) from None
    if not reader.at:
        raise BadInput("has no requests", where=file)
    at = np.array(reader.at)
    return TraceRows(
        at - at[0],
        np.array(reader.prompt, dtype=np.int32),
        np.array(reader.output, dtype=np.int32),
        shared_chains(reader.hashes, reader.prompt) if reader.hashes else None,
        reader.left_out,
    )


def _mooncake(path: Path, reader: _Reader) -> None:
    with path.open(encoding="utf-8") as lines:
        for row, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except ValueError:
                raise reader.error(row, "is not JSON") from None
            if not isinstance(value, dict):
                raise reader.error(row, "is not a JSON object")
            at = value.get("timestamp")
            if isinstance(at, bool) or not isinstance(at, int | float):
                raise reader.error(row, f"timestamp must be a number (ms), not {at!r}")
            prompt, output = (
                reader.count(row, name, value.get(name))
                for name in ("input_length", "output_length")
            )
            hashes = value.get("hash_ids", [])
            if not isinstance(hashes, list) or any(not isinstance(h, int) for h in hashes):
                raise reader.error(row, "hash_ids must be a list of whole numbers")
            if len(hashes) > -(-prompt // BLOCK_TOKENS):
                what = f"{len(hashes)} hash_ids for {prompt} tokens: one stands for {BLOCK_TOKENS}"
                raise reader.error(row, what)
            reader.add(row, at / 1e3, prompt, output)
            reader.hashes.append(hashes)


def _csv_rows(
    path: Path, reader: _Reader, columns: Sequence[str]
) -> Iterator[tuple[int, list[str]]]:
    """(row from 1 after the head, the values of the columns) of a CSV file."""
    with path.open(encoding="utf-8-sig", newline="") as text:
        table = csv.reader(text)
        head = [name.strip().lower() for name in next(table, [])]
        try:
            places = [head.index(name.lower()) for name in columns]
        except ValueError:
            missing = ", ".join(c for c in columns if c.lower() not in head)
            raise BadInput(f"has no column {missing}", where=reader.name, fix=_HOW) from None
        for row, values in enumerate(table, start=1):
            if not values:
                continue
            if len(values) <= max(places):
                raise reader.error(row, f"has {len(values)} columns of {len(head)}")
            yield row, [values[place].strip() for place in places]


def _azure(path: Path, reader: _Reader) -> None:
    columns = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    for row, (stamp, prompt, output) in _csv_rows(path, reader, columns):
        try:
            at = datetime.datetime.fromisoformat(stamp)
        except ValueError:
            raise reader.error(row, f"TIMESTAMP is no time: {stamp!r}") from None
        if at.tzinfo is None:
            at = at.replace(tzinfo=datetime.UTC)
        reader.add(
            row, at.timestamp(), reader.count(row, "ContextTokens", prompt),
            reader.count(row, "GeneratedTokens", output),
        )  # fmt: skip


def _burstgpt(path: Path, reader: _Reader) -> None:
    columns = ("Timestamp", "Request tokens", "Response tokens")
    for row, (stamp, prompt, output) in _csv_rows(path, reader, columns):
        try:
            at = float(stamp)
        except ValueError:
            raise reader.error(row, f"Timestamp is no number: {stamp!r}") from None
        asked = reader.count(row, "Request tokens", prompt)
        made = reader.count(row, "Response tokens", output, least=0)
        if made:
            reader.add(row, at, asked, made)
        else:  # the recorded service failed
            reader.left_out += 1


def _records(path: Path, reader: _Reader) -> None:
    """A run of ours: when requests were meant to start, and the tokens that were counted."""
    import polars as pl  # noqa: PLC0415  heavy

    names = ("intended_ns", "prompt_tokens", "planned_prompt_tokens", "output_tokens",
             "planned_output_tokens")  # fmt: skip
    try:
        frame = pl.read_parquet(io.BytesIO(path.read_bytes()), columns=list(names))
    except OSError:
        raise
    except Exception:
        raise BadInput("is no table of a run's requests", where=reader.name, fix=_HOW) from None
    frame = frame.sort("intended_ns")
    rows = zip(*(frame[name].to_list() for name in names), strict=True)
    for row, (at, prompt, planned_prompt, output, planned_output) in enumerate(rows, start=1):
        reader.add(
            row, at / 1e9,
            reader.count(row, "prompt_tokens", planned_prompt if prompt is None else prompt),
            reader.count(row, "output_tokens", output or planned_output),
        )  # fmt: skip


def shared_chains(
    hashes: Sequence[Sequence[int]], prompts: Sequence[int]
) -> tuple[tuple[tuple[int, int], ...], ...]:
    """What each prompt shares with others, from the hash ids of its blocks.

    A prompt is a path through a tree of blocks; a block stands for all before it too. It is shared
    when another prompt passes it. Neighbours that the same prompts pass make one piece.
    """
    nodes: dict[tuple[int, int], int] = {}  # (block before, hash id) -> number from 1
    passed: list[int] = [0]
    paths = []
    for ids in hashes:
        node, path = 0, []
        for one in ids:
            key = (node, one)
            node = nodes.setdefault(key, len(passed))
            if node == len(passed):
                passed.append(0)
            passed[node] += 1
            path.append(node)
        paths.append(path)
    found = []
    for path, prompt in zip(paths, prompts, strict=True):
        pieces: list[tuple[int, int]] = []
        before = 0
        for place, node in enumerate(path):
            if passed[node] < 2:
                break
            tokens = min(BLOCK_TOKENS, prompt - place * BLOCK_TOKENS)
            if pieces and passed[node] == before:
                pieces[-1] = (pieces[-1][0], pieces[-1][1] + tokens)
            else:
                pieces.append((node, tokens))
            before = passed[node]
        found.append(tuple(pieces))
    return tuple(found)
