"""Many runs: in order, resumable, a twin's spread over the cores.

A run that is finished in the directory under the same fingerprint is not repeated; one that failed,
was void or was cut off is done again when asked for again. What another configuration left under
the same name is moved aside, never overwritten.
"""

import contextlib
import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from ridgeline.domain.errors import RunFailed
from ridgeline.domain.run import SilentWatch, Watch
from ridgeline.engines.base import Engine
from ridgeline.experiment.budget import Budget
from ridgeline.experiment.engines import (
    BLOCKS_NOTE,
    COLD_NOTE,
    TURNS_NOTE,
    Engines,
    start_seconds,
)
from ridgeline.experiment.ledger import KEPT, begin_index, entry_of, split_runs
from ridgeline.experiment.plan import Plan, PlannedRun, plan_runs
from ridgeline.experiment.protocol import Calibrate, carry_out
from ridgeline.store.run_directory import (
    StoredRun,
    read_run,
    set_aside,
)
from ridgeline.store.study_directory import (
    RunEntry,
    StudyDirectory,
    StudyIndex,
)

# User-seconds of twins above which worker processes save more than the second their start takes.
POOL_PAYS = 20_000


class StudyWatch(Protocol):
    """Follows a study. Implementations: the command line's progress, `SilentStudyWatch`."""

    def planned(self, runs: Sequence[PlannedRun], kept: Sequence[StoredRun]) -> None:
        """Take the runs still to be done, and those found finished."""

    def started(self, run: PlannedRun) -> Watch:
        """Take a run that starts; returns the watch that follows it."""

    def ended(self, run: StoredRun) -> None:
        """Take a run that ended."""

    def stop_asked(self) -> bool:
        """True once the user wants no further run to start."""


class SilentStudyWatch:
    """Shows nothing and never stops."""

    def planned(self, runs: Sequence[PlannedRun], kept: Sequence[StoredRun]) -> None:
        """Ignore them."""

    def started(self, run: PlannedRun) -> Watch:
        """Follow it silently."""
        return SilentWatch()

    def ended(self, run: StoredRun) -> None:
        """Ignore it."""

    def stop_asked(self) -> bool:
        """Never."""
        return False


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a study went: the directory's index afterwards, and whether the user stopped it.

    `planned` are the ids of the runs that were asked for; the index may hold more.
    """

    index: StudyIndex
    interrupted: bool
    planned: tuple[str, ...] = ()

    @property
    def without_result(self) -> tuple[RunEntry, ...]:
        """Runs of this plan that have no valid result."""
        return tuple(e for r in self.planned if (e := self.index.runs[r]).state not in KEPT)


def run_plan(
    plan: Plan,
    directory: StudyDirectory,
    engine_for: Callable[[str], Engine],
    watch: StudyWatch,
    *,
    command: str,
    study_text: str | None = None,
    cores: int | None = None,
    keep: bool = True,
    gpu_minutes: float | None = None,
    retries: int = 0,
    notes: Sequence[str] = (),
    whole: Plan | None = None,
    calibrate: Calibrate | None = None,
    start_s: float | None = None,
) -> Outcome:
    """Do every run of the plan that is not there yet; raises StoreError.

    `engine_for` gives the engine of a configuration's engine name. `keep` False measures also what
    is there (it is moved aside). `gpu_minutes` limits the time of real GPUs: no run starts whose
    traffic and expected engine start would exceed it; the rest stays planned. `retries`: how often
    a void run of a real engine is measured again, at once, so that it stays beside its pair.
    `notes` go into the index. `whole` is the plan that
    this one is a part of: what it holds beyond and is on disk stays in the index as it is.
    `calibrate` tells what the load client can do here, before each run of a real engine.
    `start_s`: how long an engine start took before, which a budget plans with.
    """
    runs = plan_runs(plan)
    with directory.held():
        index = begin_index(plan, runs, directory, command, whole or plan)
        if study_text is not None:
            directory.write_study_text(study_text)
        todo, kept = split_runs(runs, directory, keep=keep)
        book = _book(index, directory, watch, kept, calibrate)
        for note in notes:
            book.note(note)
        turns = tuple(e.configuration for e in plan.experiments) if plan.turns else ()
        engines = Engines(engine_for, directory.path, turns)
        with contextlib.closing(engines):
            budget = Budget(gpu_minutes, retries, longest_start_s=start_s)
            _do(todo, kept, book, engines, cores=cores or usable_cores(), budget=budget)
        for line in engines.left_behind:
            book.note(line)
    planned = tuple(run.run_id for run in runs)
    states = {book.index.runs[run_id].state for run_id in planned}
    return Outcome(book.index, watch.stop_asked() or "interrupted" in states, planned)


def _book(
    index: StudyIndex,
    directory: StudyDirectory,
    watch: StudyWatch,
    kept: Sequence[StoredRun],
    calibrate: Calibrate | None,
) -> "_Book":
    for run in kept:
        index = index.with_run(entry_of(run))
    directory.write_index(index)
    return _Book(directory, index, watch, calibrate)


def _do(
    todo: Sequence[PlannedRun],
    kept: Sequence[StoredRun],
    book: "_Book",
    engines: Engines,
    *,
    cores: int,
    budget: "Budget",
) -> None:
    """Twins over the cores, everything else one after another."""
    in_pool = [r for r in todo if r.configuration.engine == "twin"]
    in_turn = engines.order([r for r in todo if r.configuration.engine != "twin"])
    if engines.in_blocks:
        book.note(BLOCKS_NOTE)
    if engines.in_turns:
        book.note(TURNS_NOTE)
    names = {run.run_id for run in todo}
    done = [run for run in kept if run.meta.run_id not in names]
    book.watch.planned([*in_pool, *engines.colds(), *in_turn], done)
    workers = min(cores, len(in_pool))
    if workers > 1 and sum(map(_user_seconds, in_pool)) > POOL_PAYS:
        _run_in_pool(in_pool, book, engines.engine_for, workers)
    else:
        in_turn = [*engines.order(in_pool), *in_turn]
    before = {run.meta.run_id: run for run in kept if run.meta.run_id in names}
    _run_in_turn(in_turn, book, engines, budget, before)


def _user_seconds(run: PlannedRun) -> float:
    """How much traffic a run simulates: requests in flight (a rate counts for a second) x time."""
    return run.workload.arrivals.peak * (run.workload.warmup_s + run.workload.duration_s)


def usable_cores() -> int:
    """Cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


@dataclass(slots=True)
class _Book:
    """Keeps the index on disk in step with the runs."""

    directory: StudyDirectory
    index: StudyIndex
    watch: StudyWatch
    calibrate: Calibrate | None = None

    def started(self, run: PlannedRun) -> Watch:
        self._write(replace(self.index.runs[run.run_id], state="running", reason=None))
        return self.watch.started(run)

    def ended(self, run: StoredRun) -> None:
        self._write(entry_of(run))
        self.watch.ended(run)

    def left_out(self, run: PlannedRun, reason: str) -> None:
        self._write(replace(self.index.runs[run.run_id], reason=reason))

    def note(self, text: str) -> None:
        if text not in self.index.notes:
            self.index = replace(self.index, notes=(*self.index.notes, text))
            self.directory.write_index(self.index)

    def _write(self, entry: RunEntry) -> None:
        self.index = self.index.with_run(entry)
        self.directory.write_index(self.index)


def _run_in_turn(
    runs: Sequence[PlannedRun],
    book: _Book,
    engines: Engines,
    budget: Budget,
    before: Mapping[str, StoredRun],
) -> None:
    """One run after another; `before` are the tries of an earlier start, void or failed, by id."""
    for run in runs:
        if book.watch.stop_asked():
            return
        refused = budget.refusal(run, engines)
        if refused is not None:
            book.left_out(run, refused)
            continue
        begun = time.monotonic()
        with budget.watching(run, engines), _stoppable_start(run, book.watch, engines):
            _load_cold(run, book, engines, budget)
            if book.watch.stop_asked():
                return
            done = _measure(run, book, engines, budget, before.get(run.run_id))
        budget.spend(run, time.monotonic() - begun, start_seconds(done))
        if budget.given_up:
            book.note(f"an engine start was given up when {budget.minutes:g} GPU minutes were used")
        for _ in range(0 if run.configuration.engine == "twin" else budget.retries):
            if done.state != "void" or book.watch.stop_asked() or budget.refusal(run, engines):
                break
            begun = time.monotonic()
            with _stoppable_start(run, book.watch, engines):  # where its engine has died
                done = _measure(run, book, engines, budget, done)
            budget.spend(run, time.monotonic() - begun)
    if budget.minutes is not None and budget.used > budget.minutes:
        book.note(f"{budget.used:.1f} GPU minutes were used, {budget.minutes:g} were planned for")


@contextlib.contextmanager
def _stoppable_start(run: PlannedRun, watch: StudyWatch, engines: Engines) -> Iterator[None]:
    """While an engine may be starting: the start is given up when the user asks to stop.

    Traffic looks at `watch` itself; a start has nothing that could be kept.
    """
    if not engines.starts_due(run):
        yield
        return
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            if watch.stop_asked():
                engines.give_up()
                return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _measure(
    run: PlannedRun,
    book: _Book,
    engines: Engines,
    budget: Budget,
    before: StoredRun | None = None,
) -> StoredRun:
    """One run; `before` is the try before it, which moves aside and, if void, stands in the notes.

    A try that failed measured nothing and is not counted.
    """
    folder = book.directory.run_folder(run.run_id)
    facts, notes = engines.known(run)
    aside = set_aside(folder)  # an earlier try
    tries = 1
    if before is not None and engines.of(run).name != "twin":
        void = before.state == "void" and before.summary is not None
        tries = before.meta.tries + void
        if void and before.summary is not None and aside is not None:
            why = "; ".join(before.summary.verdict.reasons)
            again = f"try {tries}: the one before it, kept in {aside.name}, is void: {why}"
            notes = (*notes, f"measured again, {again}")
    watch = book.started(run)
    stored = carry_out(
        run,
        folder,
        budget.told(engines.of(run)),
        watch,
        known=facts,
        notes=notes,
        calibrate=book.calibrate,
        tries=tries,
    )
    book.ended(stored)
    return stored


def _load_cold(run: PlannedRun, book: _Book, engines: Engines, budget: Budget) -> None:
    """Give a fresh engine its first load, which is stored beside the study's runs."""
    cold = engines.cold_due(run)
    if cold is None:
        return
    folder = engines.cold_folder(cold)
    watch = book.watch.started(cold)
    stored = carry_out(cold, folder, budget.told(engines.of(cold)), watch, notes=(COLD_NOTE,))
    engines.cold_done(stored)
    book.watch.ended(stored)


def _run_in_pool(
    runs: Sequence[PlannedRun], book: _Book, engine_for: Callable[[str], Engine], workers: int
) -> None:
    """Twins in processes of their own; after a stop the running ones (about a second) end."""
    waiting = list(reversed(runs))
    with _pool(workers) as pool:
        going: dict[Future[Path], PlannedRun] = {}
        while waiting or going:
            while waiting and len(going) < workers and not book.watch.stop_asked():
                run = waiting.pop()
                book.started(run)
                folder = book.directory.run_folder(run.run_id)
                with interrupts_held():
                    going[pool.submit(_work, run, folder, engine_for)] = run
            if not going:
                return
            done, _ = wait(going, timeout=0.2, return_when=FIRST_COMPLETED)
            for future in done:
                run = going.pop(future)
                book.ended(read_run(future.result()))


@contextlib.contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Fresh processes (spawn: no locks or threads are inherited), ended at once on an exception."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_ignore_interrupt)
    try:
        yield pool
    except BaseException as error:
        for process in list((pool._processes or {}).values()):  # no public way to stop one early
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise RunFailed(
                "a worker process was killed (out of memory?)",
                fix="start the same command again: finished runs are kept",
            ) from error
        raise
    pool.shutdown()


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back while worker processes may start: they inherit the mask, so that one that
    comes before they can ignore it does not kill them. Here it arrives afterwards.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ignore_interrupt() -> None:
    """Ctrl-C reaches the whole process group; the parent decides what it means."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _work(run: PlannedRun, folder: Path, engine_for: Callable[[str], Engine]) -> Path:
    """One run in a worker; what came of it is read back from the disk by the parent."""
    # A run keeps some hundred thousand records alive; looking through them for cycles again and
    # again takes a fifth of its time and finds none.
    gc.disable()
    try:
        return carry_out(run, folder, engine_for(run.configuration.engine), SilentWatch()).folder
    finally:
        gc.enable()
