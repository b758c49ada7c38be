"""The candidates of a question side by side, each in a process of its own on GPUs of its own.

Largest first, and never more GPUs than there are. What a process tells is acted upon here: trials,
bounds and GPU seconds are in the journal as they come. Duel, soak and quality gate stay one at a
time: neighbours share the host's cores, its memory and its power.
"""

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any

from ridgeline.domain.errors import RidgelineError
from ridgeline.domain.run import SilentWatch, Watch
from ridgeline.engines.base import Engine
from ridgeline.engines.guard import GRACE_S
from ridgeline.experiment.ledger import entry_of
from ridgeline.experiment.plan import Plan, PlannedRun
from ridgeline.experiment.protocol import recover
from ridgeline.experiment.runner import interrupts_held
from ridgeline.store.run_directory import read_run
from ridgeline.store.study_directory import StudyDirectory, StudyIndex
from ridgeline.tuning import sidework
from ridgeline.tuning.journal import TuneJournal
from ridgeline.tuning.room import Packing, Room
from ridgeline.tuning.sidework import Job, work
from ridgeline.tuning.trial import Trial
from ridgeline.tuning.watching import TrialsWatch, Wanted

LOOK_S = 0.1
REST_S = GRACE_S + 2.0  # a guard takes this long to end the engine of a process that died


@dataclass(frozen=True, slots=True)
class SideBySide:
    """How trials are measured side by side. engine_for: travels to their processes, so it must be
    a function of a module. rest_s: how long GPUs are left alone whose process died.
    """

    room: Room
    engine_for: Callable[[str], Engine]
    rest_s: float = REST_S


@dataclass(slots=True)
class Task:
    """A candidate to be measured: its trials, their plan, and who takes what comes of them.

    own_s: GPU seconds that its process held its GPUs for.
    """

    wanted: tuple[Wanted, ...]
    plan: Plan
    watch: TrialsWatch
    own_s: float = 0.0

    @property
    def gpus(self) -> int:
        """That it uses."""
        return self.wanted[0].gpus

    @property
    def number(self) -> int:
        """Its first trial's."""
        return self.wanted[0].number


@dataclass(slots=True)
class Meter:
    """GPU seconds: of the GPUs that are in use, at least `floor` of them, since it was made."""

    floor: int
    in_use: int = 0
    used_s: float = 0.0
    _since: float = field(default_factory=time.monotonic)

    def change(self, by: int) -> None:
        """So many more are in use from now on."""
        now = time.monotonic()
        self.used_s += (now - self._since) * max(self.floor, self.in_use)
        self._since, self.in_use = now, self.in_use + by


@dataclass(slots=True, eq=False)
class _Child:
    """A trial's process as its parent knows it."""

    task: Task
    gpus: tuple[str, ...]
    process: BaseProcess
    line: connection.Connection
    begun: float = field(default_factory=time.monotonic)
    run: Watch = field(default_factory=SilentWatch)
    run_id: str = ""
    beside: set[int] = field(default_factory=set)
    told: set[str] = field(default_factory=set)
    over: bool = False
    free_at: float | None = None


class Round:
    """One question's trials from the first start to the last end; `directory` is held meanwhile.

    index: of the directory, with every run of the tasks in it. left_s: GPU seconds that all may
    take. job: what every process is told beside its own plan, GPUs and minutes.
    """

    def __init__(
        self,
        side: SideBySide,
        tasks: Sequence[Task],
        job: Job,
        journal: TuneJournal,
        meter: Meter,
        *,
        directory: StudyDirectory,
        index: StudyIndex,
        left_s: float,
    ) -> None:
        self._side, self._job, self._journal, self._meter = side, job, journal, meter
        self._directory, self._index, self._left_s = directory, index, left_s
        self._waiting = sorted(tasks, key=lambda t: (-t.gpus, t.number))
        self._packing = Packing(side.room.gpus)
        self._going: list[_Child] = []
        self._resting: list[_Child] = []
        self._error: RidgelineError | None = None
        self._started = 0

    def run(self) -> None:
        """Measure them all; raises what a process raised, once the others have been stopped.

        The user's stop ends what runs, and nothing more is started.
        """
        try:
            while self._waiting or self._going or self._resting:
                self._fill()
                self._hear()
        finally:
            for child in self._going:
                child.process.kill()
                child.process.join()
                child.line.close()
        if self._error is not None:
            raise self._error

    def _fill(self) -> None:
        """Start what there is room for, the largest first."""
        now = time.monotonic()
        for child in [c for c in self._resting if c.free_at is not None and c.free_at <= now]:
            self._resting.remove(child)
            self._let_go(child)
        if self._error is not None or any(t.watch.stop_asked() for t in self._waiting):
            self._waiting.clear()
        while len(self._going) < self._side.room.most:
            task = next((t for t in self._waiting if t.gpus <= self._packing.free), None)
            if task is None:
                return
            self._begin(task)
            self._waiting.remove(task)

    def _begin(self, task: Task) -> None:
        gpus = self._packing.take(task.gpus)
        ports = (self._started % len(self._side.room.gpus), len(self._side.room.gpus))
        job = replace(
            self._job, plan=task.plan, gpus=gpus, ports=ports, gpu_minutes=self._minutes(task)
        )
        self._started += 1
        self._hold(task.gpus)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        name = f"trial-{task.number}"
        process = context.Process(target=work, args=(job, theirs), name=name)
        with interrupts_held():
            process.start()
        theirs.close()
        child = _Child(task, gpus, process, ours)
        for other in self._going:
            other.beside.add(task.number)
            child.beside.add(other.task.number)
        self._going.append(child)

    def _minutes(self, task: Task) -> float | None:
        """GPU minutes as the runner of a plan counts them, of what is left for all that share."""
        if self._left_s == float("inf"):
            return None
        self._meter.change(0)
        sharing = [c.task for c in self._going] + self._waiting
        gpus = min(sum(t.gpus for t in sharing), len(self._side.room.gpus))
        wall_s = max(self._left_s - self._meter.used_s, 0.0) / max(gpus, self._meter.floor)
        return wall_s * task.gpus / 60

    def _hear(self) -> None:
        """Take what the processes tell, and pass on to them that they are to stop."""
        lines = [c.line for c in self._going if not c.line.closed]
        ready = connection.wait([*lines, *(c.process.sentinel for c in self._going)], LOOK_S)
        for child in list(self._going):
            ended = child.process.sentinel in ready
            with contextlib.suppress(EOFError, OSError):
                while child.line.poll():
                    self._take(child, *child.line.recv())
            if ended:
                self._end(child)
            else:
                self._pass_on(child)

    def _pass_on(self, child: _Child) -> None:
        word = None
        if self._error is not None or child.task.watch.stop_asked():
            word = sidework.STOP
        elif child.run.stop_asked():
            word = child.run_id
        if word is not None and word not in child.told:
            child.told.add(word)
            self._say(child, word)

    @staticmethod
    def _say(child: _Child, word: str) -> None:
        with contextlib.suppress(OSError):  # it has died, which is seen by itself
            child.line.send(word)

    def _take(self, child: _Child, kind: str, body: Any) -> None:
        watch = child.task.watch
        if kind == sidework.STARTED:
            run: PlannedRun = body
            child.run, child.run_id = watch.started(run), run.run_id
            self._enter(run.run_id, state="running")
        elif kind == sidework.LIVE:
            child.run.live(body)
        elif kind == sidework.EVENT:
            child.run.event(body)
        elif kind == sidework.ENDED:
            stored = read_run(body)
            watch.beside = len(child.beside)
            watch.ended(stored)
            child.run = SilentWatch()
            if stored.meta.run_id in self._index.runs:
                self._write(self._index.with_run(entry_of(stored)))
            self._say(child, sidework.READ)
        else:
            child.over = True
            if kind == sidework.ERROR:
                self._error = self._error or body
            else:
                fresh = tuple(n for n in body if n not in self._index.notes)
                self._write(replace(self._index, notes=(*self._index.notes, *fresh)))

    def _end(self, child: _Child) -> None:
        """Its process is gone; where that was not its own end, its trial is a crash."""
        child.process.join()
        child.line.close()
        self._going.remove(child)
        task = child.task
        task.own_s = (time.monotonic() - child.begun) * task.gpus
        task.watch.flush()
        if child.over:
            self._let_go(child)
            return
        child.free_at = time.monotonic() + self._side.rest_s
        self._resting.append(child)
        self._crashed(child, f"the process that measured it {_how(child.process.exitcode)}")

    def _crashed(self, child: _Child, reason: str) -> None:
        """What of it has no answer is a crash, with what the run that was going on has left."""
        watch = child.task.watch
        for run_id, wanted in watch.wanted.items():
            if wanted.number in watch.found:
                continue
            left = recover(self._directory.run_folder(run_id))
            trial = Trial(
                wanted.number, wanted.candidate, "crashed", reason=reason,
                run=None if left is None else run_id, beside=len(child.beside),
            )  # fmt: skip
            watch.found[wanted.number] = trial
            self._journal.trial(trial)
            self._enter(run_id, state="interrupted", reason=reason)
            if left is None:
                watch.watch.told(f"trial {wanted.number}: {reason}")
            else:
                watch.watch.ended(run_id, trial, left)

    def _let_go(self, child: _Child) -> None:
        self._packing.give(child.gpus)
        self._hold(-child.task.gpus)

    def _hold(self, more: int) -> None:
        """Keep how many GPUs are held from now on, before they are: a kill loses no second."""
        self._meter.change(more)
        held = max(self._meter.floor, self._meter.in_use)
        self._journal.write("held", gpus=held, used_s=self._meter.used_s, at=time.time())

    def _enter(self, run_id: str, **changes: Any) -> None:
        if run_id in self._index.runs:
            entry = replace(self._index.runs[run_id], **changes)
            self._write(self._index.with_run(entry))

    def _write(self, index: StudyIndex) -> None:
        self._index = index
        self._directory.write_index(index)


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
