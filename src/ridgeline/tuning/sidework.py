"""One candidate in a process of its own, beside others: what the process does and what it tells.

Several clients in one Python process would limit each other (one interpreter, one lock), so each
has its own, with its own engine on its own GPUs. It stores runs where all runs are; the index, the
journal and every decision are its parent's. It ends with its parent, and its engine's guard ends
the engine then.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from ridgeline.domain.calibration import ClientCalibration
from ridgeline.domain.errors import RidgelineError
from ridgeline.domain.records import RunEvent
from ridgeline.domain.run import LiveFigures, Watch
from ridgeline.engines.base import Engine
from ridgeline.engines.started import share_ports
from ridgeline.experiment.plan import Plan, PlannedRun
from ridgeline.experiment.runner import run_plan
from ridgeline.load.worker import die_with_parent, leave
from ridgeline.store.run_directory import StoredRun
from ridgeline.store.study_directory import StudyDirectory, StudyIndex

# What is heard: that nothing more is wanted, that an ended run was read, or the id of a run that is
# to end early.
STOP, READ = "stop", "read"
# What is told, each with its body: (kind, body).
STARTED, LIVE, EVENT, ENDED, OVER, ERROR = "started", "live", "event", "ended", "over", "error"


@dataclass(frozen=True, slots=True)
class Job:
    """A candidate to be measured: a plan of its runs into `folder`, on these GPUs.

    gpu_minutes, start_s, retries, command: see `run_plan`. calibration: what the client can do
    here. ports: (which, of how many): processes that look for free ones at once must not find the
    same.
    """

    plan: Plan
    folder: Path
    gpus: tuple[str, ...]
    engine_for: Callable[[str], Engine]
    command: str
    retries: int
    gpu_minutes: float | None = None
    start_s: float | None = None
    calibration: ClientCalibration | None = None
    ports: tuple[int, int] = (0, 1)


class SharedFolder(StudyDirectory):
    """A study directory that a parent holds and whose index it writes; runs go into it."""

    def exists(self) -> bool:
        """False: nothing of the index is ours."""
        return False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """The parent holds it."""
        yield

    def write_index(self, index: StudyIndex) -> None:
        """Nothing: the parent does."""


def work(job: Job, line: Connection) -> None:
    """Measure it and tell how it goes; the body of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent decides
    die_with_parent()
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(job.gpus)
    share_ports(*job.ports)
    home = Home(line)
    able = job.calibration
    try:
        outcome = run_plan(
            job.plan, SharedFolder(job.folder), job.engine_for, home, command=job.command,
            gpu_minutes=job.gpu_minutes, retries=job.retries, start_s=job.start_s,
            calibrate=None if able is None else lambda _: able,
        )  # fmt: skip
    except RidgelineError as error:
        home.tell(ERROR, error)
    else:
        home.tell(OVER, outcome.index.notes)


class Home:
    """The parent as its child sees it: a StudyWatch whose every word goes there."""

    def __init__(self, line: Connection) -> None:
        self._line = line
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._ending: set[str] = set()
        self._read = threading.Semaphore(0)
        threading.Thread(target=self._listen, daemon=True).start()

    def tell(self, kind: str, body: object) -> None:
        """Send it; where nobody listens any more there is nothing left to do."""
        try:
            with self._lock:
                self._line.send((kind, body))
        except OSError:
            leave()

    def planned(self, runs: Sequence[PlannedRun], kept: Sequence[StoredRun]) -> None:
        """Nothing: the parent knows what it asked for."""

    def started(self, run: PlannedRun) -> Watch:
        """Tell that a run starts, the first load of a fresh engine included."""
        self.tell(STARTED, run)
        return _Distant(self, run.run_id)

    def ended(self, run: StoredRun) -> None:
        """Tell where it lies, and wait until it was read: a second try would move it aside."""
        self.tell(ENDED, run.folder)
        self._read.acquire()

    def stop_asked(self) -> bool:
        """Whether the parent has said so."""
        return self._stop.is_set()

    def to_end(self, run_id: str) -> bool:
        """Whether the run is to end."""
        return self._stop.is_set() or run_id in self._ending

    def _listen(self) -> None:
        try:
            while True:
                word = self._line.recv()
                if word == STOP:
                    self._stop.set()
                elif word == READ:
                    self._read.release()
                else:
                    self._ending.add(word)
        except (EOFError, OSError):  # the parent is gone
            leave()


class _Distant:
    """A Watch of a run that is followed in the parent."""

    def __init__(self, home: Home, run_id: str) -> None:
        self._home, self._run_id = home, run_id

    def stop_asked(self) -> bool:
        """True once the parent has said so."""
        return self._home.to_end(self._run_id)

    def live(self, figures: LiveFigures) -> None:
        """Send the current figures."""
        self._home.tell(LIVE, figures)

    def event(self, event: RunEvent) -> None:
        """Send it."""
        self._home.tell(EVENT, event)
