"""Following runs: a live line for a person, plain lines where nobody looks, and Ctrl-C.

Everything goes to standard error.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from ridgeline.cli.output import console, one_line, say
from ridgeline.report.numbers import duration, number

if TYPE_CHECKING:
    from rich.progress import Progress

    from ridgeline.domain.records import RunEvent
    from ridgeline.domain.run import LiveFigures, Watch
    from ridgeline.domain.summary import Summary
    from ridgeline.experiment.plan import PlannedRun
    from ridgeline.store.run_directory import StoredRun


class Stop:
    """Whether the user asked to end. The first Ctrl-C asks, the second does not wait."""

    def __init__(self) -> None:
        self.asked = False

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Take a SIGINT or SIGTERM."""
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        # os.write: a print that the signal came into the middle of must not be entered again.
        os.write(2, b"ridgeline: stopping, what was measured is kept (Ctrl-C again: at once)\n")


@contextlib.contextmanager
def stop_on_interrupt() -> Iterator[Stop]:
    """Let Ctrl-C and SIGTERM set a flag while measuring; the old handlers come back after."""
    stop = Stop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, stop.on_signal) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


class Display(Protocol):
    """Where progress goes. Implementations: `LiveDisplay`, `PlainDisplay`."""

    def begin(self, runs: int, kept: int) -> None:
        """Take the number of runs to do and of those found finished."""

    def start(self, name: str) -> None:
        """Take the start of a run."""

    def live(self, name: str, text: str, share: float | None) -> None:
        """Take current figures of a run and how much of it is over (0..1)."""

    def note(self, text: str) -> None:
        """Take something worth telling."""

    def end(self, name: str, text: str) -> None:
        """Take the end of a run and its figures."""


class PlainDisplay:
    """A line at the start and at the end of each run."""

    def begin(self, runs: int, kept: int) -> None:
        """Say how many runs there are."""
        say(_plan_text(runs, kept))

    def start(self, name: str) -> None:
        """Say that it starts."""
        say(f"{name}: started")

    def live(self, name: str, text: str, share: float | None) -> None:
        """Nothing: nobody looks."""

    def note(self, text: str) -> None:
        """Say it."""
        say(text)

    def end(self, name: str, text: str) -> None:
        """Say what came of it."""
        say(f"{name}: {text}")


class LiveDisplay:
    """A bar over all runs with the time left, and one for each run that is going on."""

    def __init__(self, progress: "Progress") -> None:
        self._progress = progress
        self._whole: Any = None
        self._tasks: dict[str, Any] = {}

    def begin(self, runs: int, kept: int) -> None:
        """Show the bar over all runs when there are several."""
        if runs + kept > 1:
            self._whole = self._progress.add_task(_plan_text(runs, kept), total=runs, figures="")

    def start(self, name: str) -> None:
        """Show a bar for the run."""
        self._tasks[name] = self._progress.add_task(name, total=1.0, figures="")

    def live(self, name: str, text: str, share: float | None) -> None:
        """Move the run's bar."""
        self._progress.update(self._tasks[name], completed=share, figures=text)

    def note(self, text: str) -> None:
        """Print above the bars."""
        self._progress.console.print(text, markup=False)

    def end(self, name: str, text: str) -> None:
        """Take the bar away and print the figures above the rest."""
        task = self._tasks.pop(name, None)
        if task is not None:
            self._progress.remove_task(task)
        self._progress.console.print(f"{name}: {text}", markup=False)
        if self._whole is not None:
            self._progress.advance(self._whole)


@contextlib.contextmanager
def display(*, quiet: bool = False) -> Iterator[Display]:
    """Live bars when standard error is a terminal, plain lines otherwise or when quiet."""
    target = console(to_stderr=True)
    if quiet or not target.is_terminal:
        yield PlainDisplay()
        return
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column  # noqa: PLC0415

    columns = (
        TextColumn(
            "{task.description}", markup=False, table_column=Column(no_wrap=True, max_width=24)
        ),
        BarColumn(bar_width=10),
        TimeRemainingColumn(compact=True),
        TextColumn(
            "{task.fields[figures]}", markup=False, table_column=Column(no_wrap=True, max_width=48)
        ),
    )
    with Progress(*columns, console=target, transient=True) as progress:
        yield LiveDisplay(progress)


class RunProgress:
    """A Watch that shows one run."""

    def __init__(self, name: str, shown: Display, stop: Stop) -> None:
        self._name, self._shown, self._stop = name, shown, stop

    def live(self, figures: "LiveFigures") -> None:
        """Show the current figures."""
        share = min(1.0, figures.elapsed_s / figures.total_s) if figures.total_s > 0 else None
        self._shown.live(self._name, live_text(figures), share)

    def event(self, event: "RunEvent") -> None:
        """Tell an event."""
        self._shown.note(f"{self._name}: {event.kind}: {one_line(event.text)}")

    def stop_asked(self) -> bool:
        """True after the first Ctrl-C."""
        return self._stop.asked


class StudyProgress:
    """A StudyWatch for the terminal. `reasons`: whether a void run's line says why."""

    def __init__(self, shown: Display, stop: Stop, *, reasons: bool = True) -> None:
        self._shown, self._stop, self._reasons = shown, stop, reasons
        self._since: dict[str, float] = {}

    def planned(self, runs: "Sequence[PlannedRun]", kept: "Sequence[StoredRun]") -> None:
        """Show what is to be done, and of real engines how long its traffic takes."""
        self._shown.begin(len(runs), len(kept))
        text = plan_time(runs)
        if text:
            self._shown.note(text)

    def started(self, run: "PlannedRun") -> "Watch":
        """Show that a run starts."""
        self._since[run.run_id] = time.monotonic()
        self._shown.start(run.run_id)
        return RunProgress(run.run_id, self._shown, self._stop)

    def ended(self, run: "StoredRun") -> None:
        """Show what came of it."""
        took = time.monotonic() - self._since.pop(run.meta.run_id, time.monotonic())
        text = ended_text(run, reasons=self._reasons)
        self._shown.end(run.meta.run_id, f"{text} ({took:.1f} s)")

    def stop_asked(self) -> bool:
        """True after the first Ctrl-C."""
        return self._stop.asked


def live_text(figures: "LiveFigures") -> str:
    """Current figures, short enough for 80 columns together with the bar and the time left."""
    parts = []
    if figures.output_tokens_per_s is not None:
        parts.append(f"{number(figures.output_tokens_per_s)} tokens/s")
    if figures.ttft_p95_s is not None:
        parts.append(f"p95 TTFT {duration(figures.ttft_p95_s)}")
    parts.append(f"{figures.failed} error{'' if figures.failed == 1 else 's'}")
    text = ", ".join(parts)
    return text if figures.phase == "measuring" else f"{figures.phase}: {text}"


def ended_text(run: "StoredRun", *, reasons: bool = True) -> str:
    """What came of a run, in one line; without `reasons` a void one does not say why."""
    if run.failure is not None:
        return f"failed, {run.failure.kind}: {one_line(run.failure.text)}"
    if run.summary is None:
        return f"{run.state}, nothing was measured inside the window"
    figures = figures_text(run.summary)
    if not run.summary.verdict.valid:
        why = f": {'; '.join(run.summary.verdict.reasons)}" if reasons else ""
        return f"{figures}; void{why}"
    return f"{run.state}, {figures}"


def figures_text(summary: "Summary") -> str:
    """The headline figures of a summary."""
    parts = []
    rate = summary.throughput.output_tokens_per_s
    if rate is not None:
        parts.append(f"{number(rate)} output tokens/s")
    for name, value in (("TTFT", summary.ttft_s.p95), ("ITL", summary.itl_s.p95)):
        if value is not None:
            parts.append(f"p95 {name} {duration(value)}")
    parts.append(f"{summary.requests.failed} failed of {summary.requests.sent}")
    return ", ".join(parts)


def _plan_text(runs: int, kept: int) -> str:
    finished = f", {kept} already done" if kept else ""
    return f"{runs} run{'' if runs == 1 else 's'}{finished}"


def plan_time(runs: "Sequence[PlannedRun]") -> str:
    """The traffic of the runs of real engines and how many engines are started; "" without any."""
    real = [run for run in runs if run.configuration.engine != "twin"]
    if len(real) < 2:
        return ""
    seconds = sum(run.workload.warmup_s + run.workload.duration_s for run in real)
    gpu = sum(
        (run.workload.warmup_s + run.workload.duration_s) * run.configuration.gpus for run in real
    )
    started = {repr(run.configuration) for run in real if run.configuration.engine != "endpoint"}
    starts = f", {len(started)} engine start{'s' if len(started) > 1 else ''}" if started else ""
    on_gpus = any(run.configuration.gpu is not None for run in real)
    minutes = f" ({gpu / 60:.1f} GPU minutes)" if on_gpus else ""
    if on_gpus and started:
        from ridgeline.experiment.budget import EXPECTED_START_S  # noqa: PLC0415

        starts += f" of about {EXPECTED_START_S / 60:g} minutes, which count as GPU minutes too"
    return (
        f"plan: {seconds / 60:.1f} minutes of traffic{minutes}{starts}; replies' ends come on top"
    )
