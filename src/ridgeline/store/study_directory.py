"""A study on disk: study.yaml as it was given, index.json, and one folder a run.

All paths in it are relative, so the folder can be copied, archived and read elsewhere.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from ridgeline.domain.errors import StoreError
from ridgeline.store import codec
from ridgeline.store.files import (
    clear_errors,
    make_folder,
    read_json,
    store_error,
    write_atomically,
    write_json,
)
from ridgeline.store.journal import is_being_written
from ridgeline.store.run_directory import State

INDEX_SCHEMA = 1
INDEX_FILE, STUDY_FILE, LOCK_FILE = "index.json", "study.yaml", ".lock"


@dataclass(frozen=True, slots=True)
class ExperimentEntry:
    """An experiment of the study: its name and its change from the baseline in words."""

    name: str
    change: str


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run of the study. `reason` says why it is void, failed or interrupted.

    outdated: it was measured under an earlier study file or version and is no part of the study as
    it stands now: kept and shown, never compared. tries: how often it was measured, this one
    included, the others being void: a run that is tried until it is valid is a chosen one.
    """

    run_id: str
    experiment: str
    repeat: int
    seed: int
    state: State
    fingerprint: str
    reason: str | None = None
    outdated: bool = False
    tries: int = 1


@dataclass(frozen=True, slots=True)
class StudyIndex:
    """What a study directory holds. `order` are the run ids in the order in which they run.

    kind: "study" or "bench". `baseline` is None where nothing is compared. `command` reproduces it.
    """

    name: str
    kind: str
    engine: str
    baseline: str | None
    experiments: tuple[ExperimentEntry, ...]
    order: tuple[str, ...]
    runs: dict[str, RunEntry]
    created_at: str
    command: str
    ridgeline: str
    schema: int = INDEX_SCHEMA
    notes: tuple[str, ...] = field(default=())

    def with_run(self, entry: RunEntry) -> "StudyIndex":
        """A copy in which one run's entry is replaced."""
        return replace(self, runs={**self.runs, entry.run_id: entry})


class StudyDirectory:
    """The folder of a study. Every change of the index is atomic."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run_folder(self, run_id: str) -> Path:
        """Where a run's files lie."""
        return self.path / run_id

    def exists(self) -> bool:
        """True when a study was written here."""
        return (self.path / INDEX_FILE).exists()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the directory while measuring into it; raises StoreError when another process does.

        The kernel lets go of it with the process, however that ends.
        """
        make_folder(self.path)
        path = self.path / LOCK_FILE
        with clear_errors(path):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise StoreError(
                    "another Ridgeline is measuring into this folder",
                    where=str(self.path),
                    fix="wait for it or choose another folder with --out",
                ) from None
            raise store_error(error, path) from error
        try:
            yield
        finally:
            os.close(fd)

    def is_held(self) -> bool:
        """True while a living process measures into this directory."""
        return is_being_written(self.path / LOCK_FILE)

    def index(self) -> StudyIndex:
        """Read index.json; raises StoreError when it is missing, damaged or of another version."""
        path = self.path / INDEX_FILE
        if not path.exists():
            raise StoreError(
                "holds no study (no index.json)",
                where=str(self.path),
                fix="give the folder that `ridgeline study` or `ridgeline bench` wrote",
            )
        body = read_json(path)
        if body.get("schema") != INDEX_SCHEMA:
            raise StoreError(
                f"has schema {body.get('schema')!r}, this version reads {INDEX_SCHEMA}",
                where=str(path),
                fix="read it with the version of Ridgeline that wrote it",
            )
        return codec.from_plain(StudyIndex, body, str(path))

    def write_index(self, index: StudyIndex) -> None:
        """Replace index.json; raises StoreError."""
        make_folder(self.path)
        write_json(self.path / INDEX_FILE, codec.to_plain(index))

    def study_text(self) -> str | None:
        """The study file as it was given, None for a bench."""
        path = self.path / STUDY_FILE
        return path.read_text(encoding="utf-8") if path.exists() else None

    def write_study_text(self, text: str) -> None:
        """Keep a copy of the study file."""
        make_folder(self.path)
        write_atomically(self.path / STUDY_FILE, text.encode())
