"""One run on disk: run.json, its tables, and its journal while it goes on.

run.json is written last: a folder that has it is complete. A folder that only has a journal is a
run that is going on or was killed. A folder with neither holds nothing.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ridgeline.domain.errors import StoreError
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.records import RequestRecord, RunEvent, RunRecords, StepTable
from ridgeline.domain.run import RunFacts
from ridgeline.domain.slo import Slo
from ridgeline.domain.summary import Summary, jsonable
from ridgeline.domain.workload import Workload
from ridgeline.store import codec
from ridgeline.store.files import clear_errors, make_folder, read_json, write_json
from ridgeline.store.tables import (
    CHUNKS,
    REQUESTS,
    SEGMENTS,
    STEPS,
    broken,
    read_tables,
    write_tables,
)

RUN_SCHEMA = 1
RUN_FILE, JOURNAL_FILE, ENGINE_LOG = "run.json", "journal.ridgeline", "engine.log"

State = Literal["planned", "running", "done", "failed", "void", "interrupted"]


@dataclass(frozen=True, slots=True)
class RunMeta:
    """What a run was meant to be, known before it starts.

    `fingerprint` is equal for runs that must give the same result on the same machine: it covers
    configuration, workload (with its seed), targets and versions. `repeat` counts from 1.
    `started_at` is ISO 8601 in UTC. `tries`: how often it was measured, this time included; those
    before it were void.
    """

    run_id: str
    study: str
    experiment: str
    repeat: int
    configuration: Configuration
    workload: Workload
    slo: Slo
    salt: str
    fingerprint: str
    started_at: str
    endpoint: str = "chat"
    versions: Mapping[str, str] = field(default_factory=dict)
    host: Mapping[str, Any] = field(default_factory=dict)
    tries: int = 1


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run has no result: a class and the words of whoever failed."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A finished run as it lies on disk. `records()` reads the tables.

    facts and summary are None for a run that failed before it measured anything. `unsaved` holds
    the records of a run that was recovered where nothing can be written (a full disk, a copy that
    is read-only). `left_out`: tables that a copy was made without on purpose, by file name, as its
    run.json says; `scripts/trim_results.py` writes it.
    """

    folder: Path
    meta: RunMeta
    state: State
    facts: RunFacts | None
    summary: Summary | None
    failure: Failure | None
    events: tuple[RunEvent, ...]
    ended_at: str
    unsaved: RunRecords | None = field(default=None, repr=False, compare=False)
    left_out: tuple[str, ...] = ()

    def records(self) -> RunRecords:
        """All requests (with steps for a twin); raises StoreError when a table is missing.

        Those of a trimmed run have no chunks.
        """
        if self.unsaved is not None:
            return self.unsaved
        if self.damage is not None:
            raise StoreError(
                self.damage,
                where=str(self.folder),
                fix="copy it again, or measure again; scripts/trim_results.py marks what it leaves"
                " out",
            )
        return read_tables(self.folder)

    @property
    def trimmed(self) -> bool:
        """True for a copy that says it leaves out its chunks: its figures cannot be had again."""
        return self.unsaved is None and CHUNKS in self.left_out and not self._has(CHUNKS)

    @property
    def damage(self) -> str | None:
        """Tables that should be whole and are not; None when all are, or nothing was measured.

        Looks at the ends of the files alone, which tell a table that is missing or was cut off.
        """
        if self.unsaved is not None or self.summary is None:
            return None
        wanted = [REQUESTS]
        if self._has(STEPS) or self._has(SEGMENTS):
            wanted += [STEPS, SEGMENTS]
        elif CHUNKS not in self.left_out:
            twin = self.facts is not None and self.facts.source == "twin"
            wanted += [STEPS, SEGMENTS] if twin and not self._has(CHUNKS) else [CHUNKS]
        found = {name: broken(self.folder / name) for name in wanted}
        words = [f"{name} {what}" for name, what in found.items() if what is not None]
        return f"is damaged: {' and '.join(words)}" if words else None

    def _has(self, name: str) -> bool:
        return (self.folder / name).exists()

    @property
    def valid(self) -> bool:
        """True when its figures may be compared and averaged: whole and not void."""
        return self.state == "done"


def write_records(
    folder: Path, requests: list[RequestRecord], steps: StepTable | None = None
) -> RunRecords:
    """Write a run's tables and read them back, so that its figures are those of what is stored.

    Once they are written the list is emptied: beside the columns the requests would be held twice.
    The run is not finished before `write_run`. Raises StoreError.
    """
    make_folder(folder)
    write_tables(folder, requests, steps)
    requests.clear()
    return read_tables(folder)


def write_run(run: StoredRun) -> None:
    """Finish a run whose tables are written, and drop its journal. Raises StoreError."""
    write_json(run.folder / RUN_FILE, _to_json(run))
    with contextlib.suppress(OSError):
        (run.folder / JOURNAL_FILE).unlink(missing_ok=True)


def read_run(folder: Path) -> StoredRun:
    """Read run.json of a finished run; raises StoreError when it is missing or damaged."""
    path = folder / RUN_FILE
    body = read_json(path)
    if body.get("schema") != RUN_SCHEMA:
        raise StoreError(
            f"has schema {body.get('schema')!r}, this version reads {RUN_SCHEMA}",
            where=str(path),
            fix="read it with the version of Ridgeline that wrote it",
        )
    where = str(path)
    try:
        summary = body["summary"]
        facts, failure = body["facts"], body["failure"]
        return StoredRun(
            folder=folder,
            meta=codec.from_plain(RunMeta, body["run"], where),
            state=body["state"],
            facts=None if facts is None else codec.from_plain(RunFacts, facts, where),
            summary=None if summary is None else summary_from_json(summary, where),
            failure=None if failure is None else codec.from_plain(Failure, failure, where),
            events=tuple(codec.from_plain(RunEvent, e, where) for e in body["events"]),
            ended_at=body["ended_at"],
            left_out=tuple(body.get("left_out", ())),
        )
    except KeyError as error:
        raise StoreError(f"is damaged: no key {error.args[0]!r}", where=where) from None


def summary_from_json(body: Mapping[str, Any], where: str) -> Summary:
    """Undo `Summary.to_json`."""
    return codec.from_plain(Summary, codec.infinities_back(dict(body)), where)


def is_finished(folder: Path) -> bool:
    """True when run.json is there."""
    return (folder / RUN_FILE).exists()


def set_aside(folder: Path) -> Path | None:
    """Move a folder that another configuration left here out of the way; nothing is deleted.

    Returns its new place, None when there was none.
    """
    if not folder.exists():
        return None
    n = 1
    while (aside := folder.with_name(f"{folder.name}.old-{n}")).exists():
        n += 1
    with clear_errors(folder, "cannot move the earlier run aside"):
        folder.rename(aside)
    return aside


def _to_json(run: StoredRun) -> dict[str, Any]:
    meta = codec.to_plain(run.meta)
    return {
        "schema": RUN_SCHEMA,
        "state": run.state,
        "ended_at": run.ended_at,
        "run": meta,
        "verdict": None if run.summary is None else jsonable(run.summary.verdict),
        "summary": None if run.summary is None else run.summary.to_json(),
        "failure": None if run.failure is None else codec.to_plain(run.failure),
        "facts": None if run.facts is None else codec.to_plain(run.facts),
        "events": [codec.to_plain(e) for e in run.events],
        **({"left_out": list(run.left_out)} if run.left_out else {}),
    }
