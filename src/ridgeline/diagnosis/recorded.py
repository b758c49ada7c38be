"""What `ridgeline watch --record` left: figures as rows of the store's telemetry, and pages.

figures.jsonl is appended to at each look, so that a kill loses nothing; telemetry.parquet, as the
store has it beside a run, is made of it at the end, or when somebody reads the folder.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ridgeline.domain.errors import StoreError
from ridgeline.domain.records import TelemetryRow
from ridgeline.store.tables import TELEMETRY, read_telemetry, write_telemetry

FIGURES = "figures.jsonl"
GPU = "gpu_"


@dataclass(frozen=True, slots=True)
class Recorded:
    """One replica over the whole recording. means: of the figures, over the looks that told them.

    looks, up: how often it was looked at, and answered. first_findings: the finding that came first
    (or none) -> share of the looks in which it answered.
    """

    name: str
    looks: int
    up: int
    seconds: float
    means: Mapping[str, float]
    first_findings: Mapping[str, float]


def is_recording(folder: Path) -> bool:
    """Whether `watch --record` wrote there."""
    return (folder / FIGURES).is_file()


def close(folder: Path) -> None:
    """Write telemetry.parquet of what was recorded. Raises StoreError."""
    if is_recording(folder):
        write_telemetry(folder, list(_rows(_lines(folder))))


def telemetry(folder: Path) -> tuple[TelemetryRow, ...]:
    """The rows of a recording, made anew where a kill left none or old ones. Raises StoreError."""
    table = folder / TELEMETRY
    if not table.exists() or table.stat().st_mtime < (folder / FIGURES).stat().st_mtime:
        close(folder)
    return read_telemetry(folder)


def summaries(folder: Path) -> list[Recorded]:
    """By replica, in the order in which they were given. Raises StoreError."""
    values: dict[str, dict[str, list[float]]] = {}
    last: dict[str, int] = {}
    for row in telemetry(folder):
        values.setdefault(row.unit, {}).setdefault(row.metric, []).append(row.value)
        last[row.unit] = row.at_ns
    firsts: dict[str, Counter[str]] = {}
    for line in _lines(folder):
        if line.get("up"):
            found = line.get("findings") or ["none"]
            firsts.setdefault(str(line["replica"]), Counter())[str(found[0])] += 1
    return [
        Recorded(
            name, len(told.get("up", ())), round(sum(told.get("up", ()))), last[name] / 1e9,
            {metric: sum(v) / len(v) for metric, v in told.items() if metric != "up"},
            {k: n / firsts[name].total() for k, n in firsts.get(name, Counter()).most_common()},
        )
        for name, told in values.items()
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stretch:
    """Looks in a row at one replica with the same first finding, in seconds from the first look.

    finding: its id, NONE where there is none, DOWN where it did not answer.
    """

    replica: str
    begin_s: float
    end_s: float
    finding: str


NONE, DOWN = "none", "no answer"


def stretches(folder: Path) -> list[Stretch]:
    """What came first, over the time, each until the replica's next look. Raises StoreError."""
    lines = _lines(folder)
    if not lines:
        return []
    begun = float(lines[0]["at"])
    found: dict[str, list[Stretch]] = {}
    for line in lines:
        at, name = float(line["at"]) - begun, str(line["replica"])
        first = str((line.get("findings") or [NONE])[0]) if line.get("up") else DOWN
        rows = found.setdefault(name, [])
        if rows:
            rows[-1] = replace(rows[-1], end_s=at)
        if not rows or rows[-1].finding != first:
            rows.append(Stretch(name, at, at, first))
    return [stretch for rows in found.values() for stretch in rows]


def series(folder: Path) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Replica -> figure -> (seconds from the first look, value), in order. Raises StoreError."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in telemetry(folder):
        rows = found.setdefault(row.unit, {}).setdefault(row.metric, [])
        rows.append((row.at_ns / 1e9, row.value))
    return found


def _lines(folder: Path) -> list[dict[str, Any]]:
    """Whole lines only: the last one may have been cut off by a kill."""
    path = folder / FIGURES
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise StoreError("cannot be read", where=str(path)) from error
    found = []
    for number, line in enumerate(text.splitlines()):
        try:
            body = json.loads(line)
            float(body["at"]), str(body["replica"])
        except (ValueError, KeyError, TypeError):
            if number == text.count("\n"):
                break
            raise StoreError(f"line {number + 1} is damaged", where=str(path)) from None
        found.append(body)
    return found


def _rows(lines: Sequence[Mapping[str, Any]]) -> Iterator[TelemetryRow]:
    """A row a figure: at_ns since the first look, unit the replica, metric the figure."""
    if not lines:
        return
    begun = float(lines[0]["at"])
    for line in lines:
        at = round((float(line["at"]) - begun) * 1e9)
        for metric, value in _flat(line):
            source = "gpu" if metric.startswith(GPU) else "engine"
            yield TelemetryRow(at, source, str(line["replica"]), metric.removeprefix(GPU), value)


def _flat(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in line.items():
        if name == "at":
            continue
        if isinstance(value, bool | int | float):
            yield name, float(value)
        elif isinstance(value, dict):  # ttft_s: {p50, p95}
            for word, inner in value.items():
                yield f"{name.removesuffix('_s')}_{word}_s", float(inner)
