"""Step logs as files: written by the twin, and a real engine's held against the twin."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

from ridgeline.domain.errors import BadInput
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.workload import Workload
from ridgeline.engines.twin import twin_of
from ridgeline.twin.fleet import Fleet
from ridgeline.twin.offer import Offer
from ridgeline.twin.scheduler import Scheduler
from ridgeline.twin.trace import (
    Recorder,
    StepLine,
    StepLog,
    difference,
    header,
    read_step_logs,
    replay,
)
from ridgeline.workload.schedule import draw_schedule


@dataclass(frozen=True, slots=True)
class Compared:
    """Engine runs and steps that were replayed, and the first difference of each run with one."""

    logs: int
    steps: int
    differences: tuple[str, ...]

    def words(self) -> str:
        """For a person, one line."""
        if not self.differences:
            return "the twin decides the same"
        more = len(self.differences) - 1
        return f"the twin decides otherwise: {self.differences[0]}" + (
            f" ({more} more runs differ)" if more else ""
        )


def record(configuration: Configuration, workload: Workload, path: Path) -> int:
    """Simulate a load and write every step of the (only) replica to a file; returns their number.

    Raises BadInput for several replicas: a step log is one engine's.
    """
    twin = twin_of(configuration)
    if twin.knobs.data_parallel > 1:
        raise BadInput(
            f"has {twin.knobs.data_parallel} replicas; a step log is one engine's",
            where="data_parallel_size",
            fix="trace an experiment with one replica",
        )
    offer = Offer(draw_schedule(workload))
    fleet = Fleet(twin, offer, trace=True)
    (engine,) = fleet.replicas
    with _writing(path) as file:
        _write(file, header(twin.knobs, twin.memory.usable_blocks))
        steps = 0

        def hear(line: StepLine) -> None:
            nonlocal steps
            steps += 1
            _write(file, line.to_json())

        recorder = Recorder(engine.scheduler, hear)
        engine.scheduler = cast(Scheduler, recorder)
        offer.begin(fleet)
        fleet.run_until(None)
    return steps


def compare(path: Path, out: Path | None = None) -> Compared:
    """Replay an engine's log on the twin; `out` gets the twin's lines.

    Raises BadInput for a file that is no step log.
    """
    logs = read_step_logs(_lines(path))
    if not logs:
        raise BadInput("is empty", where=str(path), fix="log with scripts/vllm_step_log.py")
    steps, differences = 0, []
    with nullcontext() if out is None else _writing(out) as file:
        for log in logs:
            found = None
            if file is not None:
                _write(file, {**log.settings, "engine": "twin"})
            for engine, twin in _pairs(log):
                steps += 1
                if file is not None:
                    _write(file, twin.to_json())
                found = found or difference(engine, twin)
                if found and file is None:
                    break
            if found:
                differences.append(found)
    return Compared(len(logs), steps, tuple(differences))


def _pairs(log: StepLog) -> Iterator[tuple[StepLine, StepLine]]:
    return zip(log.lines, replay(log), strict=True)


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot be read: {error}", where=str(path)) from None
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        try:
            yield f"{path}:{number}", json.loads(line)
        except ValueError as error:
            if number == len(lines) and not text.endswith("\n"):
                return  # the engine was stopped while it wrote
            raise BadInput(f"is no JSON: {error}", where=f"{path}:{number}") from None


def _writing(path: Path) -> TextIO:
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot be written: {error}", where=str(path)) from None


def _write(file: TextIO, line: dict[str, Any]) -> None:
    file.write(json.dumps(line, separators=(",", ":")) + "\n")
