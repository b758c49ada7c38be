"""A study on disk: study.yaml as it was given, index.json, and one folder a run.

All paths in it are relative, so the folder can be copied, archived and read elsewhere.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

from ridgeline.domain.errors import StoreError
from ridgeline.store import codec
from ridgeline.store.files import make_folder, read_json, write_atomically, write_json
from ridgeline.store.run_directory import State

INDEX_SCHEMA = 1
INDEX_FILE, STUDY_FILE = "index.json", "study.yaml"


@dataclass(frozen=True, slots=True)
class ExperimentEntry:
    """An experiment of the study: its name and its change from the baseline in words."""

    name: str
    change: str


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run of the study. `reason` says why it is void, failed or interrupted."""

    run_id: str
    experiment: str
    repeat: int
    seed: int
    state: State
    fingerprint: str
    reason: str | None = None


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
