"""A run's records as Parquet tables (zstd), readable by any tool that knows Parquet.

requests.parquet: one row a request, times in ns, null where something did not happen.
chunks.parquet:   one row a content chunk of a measured run: request, at_ns, shared.
segments.parquet: a twin's chunks as runs of steps: request, replica, first, count.
steps.parquet:    a twin's steps. Times are stored as differences, which compress well:
                  `start_delta_ns` to the row before, `duration_ns`, `delivery_ns` after the end.
telemetry.parquet: one row a reading beside a measured run: at_ns, source, unit, metric, value.
"""

import contextlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline.domain.errors import StoreError
from ridgeline.domain.records import (
    NUMBER_COLUMNS,
    TEXT_COLUMNS,
    Bools,
    Floats,
    Ints,
    RequestRecord,
    RunRecords,
    StepTable,
    TelemetryRow,
)
from ridgeline.store.files import clear_errors, sync

if TYPE_CHECKING:
    import polars as pl

REQUESTS, CHUNKS = "requests.parquet", "chunks.parquet"
STEPS, SEGMENTS = "steps.parquet", "segments.parquet"
TELEMETRY = "telemetry.parquet"
_MAGIC = b"PAR1"  # a Parquet file begins and ends with it
_PLAIN_STEP_COLUMNS = (
    "replica", "prefill_tokens", "decode_tokens", "padded_tokens", "context_tokens", "mode",
    "running", "waiting", "kv_used_blocks", "flops", "bytes_read",
)  # fmt: skip


def write_tables(folder: Path, requests: Sequence[RequestRecord], steps: StepTable | None) -> None:
    """Write the tables of a run into an existing folder; raises StoreError."""
    _load_polars()
    import polars as pl  # noqa: PLC0415

    rows = sorted(requests, key=attrgetter("index"))
    kinds: dict[str, Any] = dict.fromkeys(("index", *NUMBER_COLUMNS), pl.Int64)
    kinds |= dict.fromkeys(TEXT_COLUMNS, pl.String)
    # One attrgetter for all columns: a run has tens of thousands of rows.
    values = zip(*map(attrgetter(*kinds), rows), strict=True) if rows else ([] for _ in kinds)
    columns = {
        name: pl.Series(name, column, dtype=kind)
        for (name, kind), column in zip(kinds.items(), values, strict=True)
    }
    _write(pl.DataFrame(columns), folder / REQUESTS)
    if any(r.chunk_ns is not None for r in rows) or steps is None:
        _write(_chunk_frame(rows), folder / CHUNKS)
    if steps is not None:
        _write(_segment_frame(rows), folder / SEGMENTS)
        _write(_step_frame(steps), folder / STEPS)


def read_tables(folder: Path) -> RunRecords:
    """The records of a run as they went in; raises StoreError when a table is missing or bad."""
    _load_polars()
    frame = _read(folder / REQUESTS)
    index: Ints = frame["index"].to_numpy().astype(np.int64)
    steps = _read_steps(folder / STEPS) if (folder / STEPS).exists() else None
    found = [_no_chunks()]
    if (folder / CHUNKS).exists():
        found.append(_read_chunks(folder / CHUNKS, index))
    if steps is not None:
        found.append(_read_segments(folder / SEGMENTS, index, steps))
    start, stamps, shared = _by_request(found, len(index))
    return RunRecords(
        index=index,
        numbers={n: _number_column(frame, n) for n in NUMBER_COLUMNS},
        text={n: _text_column(frame, n) for n in TEXT_COLUMNS},
        chunk_start=start,
        chunk_ns=stamps,
        chunk_shared=shared,
        steps=steps,
    )


def write_telemetry(folder: Path, rows: Sequence[TelemetryRow]) -> None:
    """Write the readings beside a run into an existing folder; raises StoreError."""
    _load_polars()
    import polars as pl  # noqa: PLC0415

    kinds: dict[str, Any] = {
        "at_ns": pl.Int64, "source": pl.Categorical, "unit": pl.Categorical,
        "metric": pl.Categorical, "value": pl.Float64,
    }  # fmt: skip
    columns = {n: pl.Series(n, [getattr(r, n) for r in rows], dtype=k) for n, k in kinds.items()}
    _write(pl.DataFrame(columns), folder / TELEMETRY)


def read_telemetry(folder: Path) -> tuple[TelemetryRow, ...]:
    """The readings beside a run in the order in which they were taken; empty when none are kept.

    Raises StoreError for a damaged table.
    """
    _load_polars()
    path = folder / TELEMETRY
    if not path.exists():
        return ()
    frame = _read(path)
    names = ("at_ns", "source", "unit", "metric", "value")
    try:
        rows = zip(*(frame[name].to_list() for name in names), strict=True)
    except Exception as error:
        raise StoreError(f"is damaged or of another version ({error})", where=str(path)) from error
    return tuple(TelemetryRow(*row) for row in rows)


def broken(path: Path) -> str | None:
    """What is wrong with a table by its first and last bytes, in words; None for a whole one."""
    try:
        with path.open("rb") as table:
            first = table.read(len(_MAGIC))
            table.seek(-len(_MAGIC), os.SEEK_END)
            whole = first == table.read() == _MAGIC
    except FileNotFoundError:
        return "missing"
    except OSError:
        return "cannot be read"
    return None if whole else "cut off or overwritten"


@dataclass(frozen=True, slots=True)
class _Chunks:
    """Chunks in request order: row (of the request) and time of each."""

    row: Ints
    stamps: Ints
    shared: Bools


def _no_chunks() -> _Chunks:
    return _Chunks(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_))


def _by_request(found: list[_Chunks], n: int) -> tuple[Ints, Ints, Bools]:
    """Bounds of each request's chunks, their times and marks. A request is in one source only."""
    used = [f for f in found if len(f.row)] or [found[0]]
    start = np.zeros(n + 1, dtype=np.int64)
    if len(used) == 1:  # no copies: a run may have millions of chunks
        np.cumsum(np.bincount(used[0].row, minlength=n), out=start[1:])
        return start, used[0].stamps, used[0].shared
    row = np.concatenate([f.row for f in used])
    np.cumsum(np.bincount(row, minlength=n), out=start[1:])
    order = np.argsort(row, kind="stable")
    stamps = np.concatenate([f.stamps for f in used])[order]
    return start, stamps, np.concatenate([f.shared for f in used])[order]


def _load_polars() -> None:
    """Import polars with an allocator that gives freed pages back at once.

    Otherwise it keeps them for seconds, a tenth of what a long run holds. It reads its settings as
    it is loaded; engines that are started later must not see them.
    """
    name = "_RJEM_MALLOC_CONF"
    told = name in os.environ
    os.environ.setdefault(name, "dirty_decay_ms:0,muzzy_decay_ms:0")
    try:
        import polars  # noqa: F401, PLC0415
    finally:
        if not told:
            del os.environ[name]


def _chunk_frame(rows: Sequence[RequestRecord]) -> "pl.DataFrame":
    import polars as pl  # noqa: PLC0415

    with_chunks = [r for r in rows if r.chunk_ns is not None and len(r.chunk_ns)]
    stamps = [r.chunk_ns for r in with_chunks if r.chunk_ns is not None]
    shared = [
        np.zeros(len(s), np.bool_) if r.chunk_shared is None else r.chunk_shared
        for r, s in zip(with_chunks, stamps, strict=True)
    ]
    counts = [len(s) for s in stamps]
    return pl.DataFrame(
        {
            "request": np.repeat(np.array([r.index for r in with_chunks], np.int64), counts),
            "at_ns": np.concatenate([np.empty(0, np.int64), *stamps]),
            "shared": np.concatenate([np.empty(0, np.bool_), *shared]),
        }
    )


def _segment_frame(rows: Sequence[RequestRecord]) -> "pl.DataFrame":
    import polars as pl  # noqa: PLC0415

    with_steps = [(r.index, r.steps) for r in rows if r.steps is not None]
    counts = [len(s.first) for _, s in with_steps]
    empty = np.empty(0, np.int64)

    return pl.DataFrame(
        {
            "request": np.repeat([i for i, _ in with_steps], counts).astype(np.int64),
            "replica": np.repeat([s.replica for _, s in with_steps], counts).astype(np.int16),
            "first": np.concatenate([empty, *(s.first for _, s in with_steps)]),
            "count": np.concatenate([empty, *(s.count for _, s in with_steps)]).astype(np.int32),
        }
    )


def _step_frame(steps: StepTable) -> "pl.DataFrame":
    import polars as pl  # noqa: PLC0415

    return pl.DataFrame(
        {
            **{name: getattr(steps, name) for name in _PLAIN_STEP_COLUMNS},
            "start_delta_ns": np.diff(steps.start_ns, prepend=np.int64(0)),
            "duration_ns": steps.end_ns - steps.start_ns,
            "delivery_ns": steps.delivered_ns - steps.end_ns,
            **{f"part_{name}": values for name, values in steps.parts.items()},
            "kv_total_blocks": pl.Series([steps.kv_total_blocks] * len(steps), dtype=pl.Int64),
        }
    )


def _read_steps(path: Path) -> StepTable:
    frame = _read(path)
    try:
        start = np.cumsum(frame["start_delta_ns"].to_numpy())
        end = start + frame["duration_ns"].to_numpy()
        columns: dict[str, Any] = {
            name: frame[name].to_numpy(writable=True) for name in _PLAIN_STEP_COLUMNS
        }
        return StepTable(
            start_ns=start,
            end_ns=end,
            delivered_ns=end + frame["delivery_ns"].to_numpy(),
            parts={
                name.removeprefix("part_"): frame[name].to_numpy(writable=True)
                for name in frame.columns
                if name.startswith("part_")
            },
            kv_total_blocks=frame["kv_total_blocks"][0] if len(frame) else None,
            **columns,
        )
    except Exception as error:
        raise StoreError(f"is damaged or of another version ({error})", where=str(path)) from error


def _read_chunks(path: Path, index: Ints) -> _Chunks:
    frame = _read(path)
    return _Chunks(
        np.searchsorted(index, frame["request"].to_numpy()),
        frame["at_ns"].to_numpy(),
        frame["shared"].to_numpy(),
    )


def _read_segments(path: Path, index: Ints, steps: StepTable) -> _Chunks:
    """Chunk times of all requests from the steps that delivered them, without a Python loop."""
    frame = _read(path)
    replica, count = frame["replica"].to_numpy(), frame["count"].to_numpy().astype(np.int64)
    base = np.searchsorted(steps.replica, replica) + frame["first"].to_numpy()
    before = np.cumsum(count) - count
    step_row = np.repeat(base - before, count) + np.arange(int(count.sum()))
    if len(step_row) and not 0 <= int(step_row.min()) <= int(step_row.max()) < len(steps):
        raise StoreError("is damaged: refers to steps that are not there", where=str(path))
    row = np.repeat(np.searchsorted(index, frame["request"].to_numpy()), count)
    at = steps.delivered_ns[step_row]
    merged = (row[1:] == row[:-1]) & (at[1:] == at[:-1])  # see `step_chunk_ns`
    if merged.any():
        own = np.concatenate([[True], ~merged])
        row, at = row[own], at[own]
    return _Chunks(row, at, np.zeros(len(row), np.bool_))


def _number_column(frame: "pl.DataFrame", name: str) -> Floats:
    """A column with NaN where nothing is known; a column that an older file lacks is all NaN."""
    import polars as pl  # noqa: PLC0415

    if name not in frame.columns:
        return np.full(len(frame), np.nan)
    values: Floats = frame[name].cast(pl.Float64).fill_null(float("nan")).to_numpy(writable=True)
    return values


def _text_column(frame: "pl.DataFrame", name: str) -> list[str | None]:
    return frame[name].to_list() if name in frame.columns else [None] * len(frame)


def _write(frame: "pl.DataFrame", path: Path) -> None:
    buffer = io.BytesIO()  # so that a full disk is an OSError of ours, not one of polars' own
    frame.write_parquet(buffer, compression="zstd")
    with clear_errors(path):
        try:
            path.write_bytes(buffer.getbuffer())
            sync(path)
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            raise


def _read(path: Path) -> "pl.DataFrame":
    import polars as pl  # noqa: PLC0415

    try:
        return pl.read_parquet(path, glob=False)
    except Exception as error:  # polars' errors share no base with OSError; the file is the news
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise StoreError(f"cannot read ({text})", where=str(path)) from error
