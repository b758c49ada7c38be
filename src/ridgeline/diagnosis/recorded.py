"""What `ridgeline watch --record` left: figures as rows of the store's telemetry, and pages.

figures.jsonl is appended to at each look, so that a kill loses nothing (`keeping.py`);
telemetry.parquet, as the store has it beside a run, is made of it at the end, or when somebody
reads the folder. Where nobody looked for a while, or the clock was set back, nothing is said of the
time in between.
"""

import itertools
import json
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ridgeline.diagnosis.keeping import Dropped, dropped, figure_files
from ridgeline.domain.errors import StoreError
from ridgeline.domain.records import TelemetryRow
from ridgeline.store.tables import TELEMETRY, read_telemetry, write_telemetry

GPU = "gpu_"
COST, RATE, HOURLY = "usd_per_million_output_tokens", "output_tokens_per_s", "usd_per_hour"
MOST_APART = 3.0  # times the usual time between two looks: nobody looked in between


@dataclass(frozen=True, slots=True)
class Recorded:
    """One replica over the whole recording. means: of the figures, over the looks that told them;
    the cost of a token is all that was paid over all tokens, not a mean of ratios.

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
    return bool(figure_files(folder))


def close(folder: Path) -> None:
    """Write telemetry.parquet of what was recorded. Raises StoreError."""
    if is_recording(folder):
        write_telemetry(folder, list(_rows(_lines(folder))))


def telemetry(folder: Path) -> tuple[TelemetryRow, ...]:
    """The rows of a recording, made anew where a kill left none or old ones. Raises StoreError."""
    table = folder / TELEMETRY
    newest = max((p.stat().st_mtime for p in figure_files(folder)), default=0.0)
    if not table.exists() or table.stat().st_mtime < newest:
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
            _means(told),
            {k: n / firsts[name].total() for k, n in firsts.get(name, Counter()).most_common()},
        )
        for name, told in values.items()
    ]  # fmt: skip


def _means(told: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Means over the looks; the price is the same at each, and tokens only come at some."""
    found = {metric: sum(v) / len(v) for metric, v in told.items() if metric not in ("up", COST)}
    hourly, rate = found.get(HOURLY), found.get(RATE)
    if COST in told and hourly is None:  # an older recording: by the looks with tokens
        paid = [cost * r for cost, r in zip(told[COST], (r for r in told[RATE] if r), strict=False)]
        hourly = statistics.median(paid) * 3600 / 1e6 if paid else None
    if hourly is not None and rate:
        found[COST] = hourly / (rate * 3600) * 1e6
    return found


@dataclass(frozen=True, slots=True)
class Stretch:
    """Looks in a row at one replica with the same first finding, in seconds from the first look.

    finding: its id, NONE where there is none, DOWN where it did not answer. Where two looks are far
    apart a stretch ends MOST_APART usual times after the first of them.
    """

    replica: str
    begin_s: float
    end_s: float
    finding: str


NONE, DOWN = "none", "no answer"


def stretches(folder: Path) -> list[Stretch]:
    """What came first, over the time, each until the replica's next look. Raises StoreError."""
    looks: dict[str, list[tuple[float, str]]] = {}
    for at, line in _timed(_lines(folder)):
        first = str((line.get("findings") or [NONE])[0]) if line.get("up") else DOWN
        looks.setdefault(str(line["replica"]), []).append((at, first))
    return [s for name, rows in looks.items() for s in _stretches_of(name, rows)]


def _stretches_of(name: str, looks: Sequence[tuple[float, str]]) -> list[Stretch]:
    gaps = [b - a for (a, _), (b, _) in itertools.pairwise(looks)]
    most = MOST_APART * statistics.median(gaps) if gaps else 0.0
    ends = [at + min(gap, most) for (at, _), gap in zip(looks, gaps, strict=False)]
    rows: list[Stretch] = []
    for (at, first), end in zip(looks, (*ends, looks[-1][0]), strict=True):
        if rows and rows[-1].finding == first and rows[-1].end_s == at:
            rows[-1] = replace(rows[-1], end_s=end)
        else:
            rows.append(Stretch(name, at, end, first))
    return rows


def _timed(lines: Sequence[dict[str, Any]]) -> list[tuple[float, dict[str, Any]]]:
    """(seconds from the first look, line). A clock that was set back goes on from where it was."""
    found: list[tuple[float, dict[str, Any]]] = []
    shift, last = -float(lines[0]["at"]) if lines else 0.0, 0.0
    for line in lines:
        at = float(line["at"]) + shift
        if at < last:
            shift, at = shift + last - at, last
        found.append((at, line))
        last = at
    return found


def twins(folder: Path) -> bool:
    """Whether some of the pages were a digital twin's. Raises StoreError."""
    return any(line.get("source") == "twin" for line in _lines(folder))


def gone(folder: Path) -> tuple[Dropped, float]:
    """What the bound of the recording took, and how many seconds of its figures: from the first
    look to the first that is left. Raises StoreError.
    """
    found = dropped(folder)
    left = next((float(line["at"]) for line in _lines(folder)), None)
    if found.begun is None or left is None:
        return found, 0.0
    return found, max(0.0, left - found.begun)


def damaged(folder: Path) -> int:
    """How many lines of the figures cannot be read. Raises StoreError."""
    return _read(folder)[1]


def series(folder: Path) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Replica -> figure -> (seconds from the first look, value), in order. Raises StoreError."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in telemetry(folder):
        rows = found.setdefault(row.unit, {}).setdefault(row.metric, [])
        rows.append((row.at_ns / 1e9, row.value))
    return found


def _lines(folder: Path) -> list[dict[str, Any]]:
    return _read(folder)[0]


def _read(folder: Path) -> tuple[list[dict[str, Any]], int]:
    """Whole lines, and how many are damaged: a kill cuts the last one off, or a full disk one."""
    texts = []
    for path in figure_files(folder):
        try:
            texts.append(path.read_text("utf-8", errors="replace"))
        except OSError as error:
            raise StoreError("cannot be read", where=str(path)) from error
    found, bad = [], 0
    for line in filter(None, "\n".join(texts).split("\n")):
        try:
            body = json.loads(line)
            float(body["at"]), str(body["replica"])
        except (ValueError, KeyError, TypeError):
            bad += 1
            continue
        found.append(body)
    return found, bad


def _rows(lines: Sequence[dict[str, Any]]) -> Iterator[TelemetryRow]:
    """A row a figure: at_ns since the first look, unit the replica, metric the figure."""
    for at, line in _timed(lines):
        for metric, value in _flat(line):
            source = "gpu" if metric.startswith(GPU) else "engine"
            name = metric.removeprefix(GPU)
            yield TelemetryRow(round(at * 1e9), source, str(line["replica"]), name, value)


def _flat(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in line.items():
        if name == "at":
            continue
        if isinstance(value, bool | int | float):
            yield name, float(value)
        elif isinstance(value, dict):  # ttft_s: {p50, p95}
            for word, inner in value.items():
                yield f"{name.removesuffix('_s')}_{word}_s", float(inner)
