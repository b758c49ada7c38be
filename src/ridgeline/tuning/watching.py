"""Following a tuning: what a front end is told, and how runs are turned into trials as they end."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ridgeline.domain.records import RunEvent
from ridgeline.domain.run import SilentWatch, Watch
from ridgeline.experiment.plan import PlannedRun
from ridgeline.store.run_directory import StoredRun
from ridgeline.tuning.futility import Futility, FutilityWatch
from ridgeline.tuning.journal import Asked, TuneJournal
from ridgeline.tuning.judging import trial_of
from ridgeline.tuning.objective import Goal
from ridgeline.tuning.outcome import Judged
from ridgeline.tuning.trial import Candidate, Trial


class TuneWatch(Protocol):
    """Follows a tuning. Implementations: the command line's progress, `SilentTuneWatch`."""

    def asked(self, asked: Asked, expected_s: float) -> None:
        """Take what is measured next and the GPU seconds that it is expected to take."""

    def started(self, name: str, what: str) -> Watch:
        """Take a run that starts (`what` is measured); returns the watch that follows it."""

    def ended(self, name: str, trial: Trial | None, run: StoredRun) -> None:
        """Take a run that ended; `trial` where it is one."""

    def told(self, text: str) -> None:
        """Take something worth telling."""

    def judged(self, judged: Judged) -> None:
        """Take the quality gate's word on a candidate."""

    def left(self, gpu_s: float | None, trials: int | None) -> None:
        """Take what is left of the budget before the next question."""

    def stop_asked(self) -> bool:
        """True once the user wants to end."""


class SilentTuneWatch:
    """Shows nothing and never stops."""

    def asked(self, asked: Asked, expected_s: float) -> None:
        """Ignore it."""

    def started(self, name: str, what: str) -> Watch:
        """Follow it silently."""
        return SilentWatch()

    def ended(self, name: str, trial: Trial | None, run: StoredRun) -> None:
        """Ignore it."""

    def told(self, text: str) -> None:
        """Ignore it."""

    def judged(self, judged: Judged) -> None:
        """Ignore it."""

    def left(self, gpu_s: float | None, trials: int | None) -> None:
        """Ignore it."""

    def stop_asked(self) -> bool:
        """Never."""
        return False


@dataclass(frozen=True, slots=True)
class Wanted:
    """A run of the plan as the trial that it is to be."""

    number: int
    candidate: Candidate
    gpus: int
    may_stop: bool = True


@dataclass(slots=True)
class TrialsWatch:
    """A StudyWatch that writes each trial into the journal as its run ends.

    wanted: by run id. bounds: of runs that were ended early, by folder, from an earlier start.
    A void run that is measured again is written only if that does not come. beside: how many other
    trials were measured meanwhile, which a trial is told with.
    """

    wanted: dict[str, Wanted]
    journal: TuneJournal
    goal: Goal
    watch: TuneWatch
    bounds: dict[str, str]
    retries: int = 1
    found: dict[int, Trial] = field(default_factory=dict)
    took_s: dict[int, float] = field(default_factory=dict)
    over_s: float = 0.0
    beside: int = 0
    _began: dict[str, float] = field(default_factory=dict)
    _held: dict[int, Trial] = field(default_factory=dict)

    def planned(self, runs: Sequence[PlannedRun], kept: Sequence[StoredRun]) -> None:
        """Nothing: the question was told already."""

    def started(self, run: PlannedRun) -> Watch:
        """Take a run that starts; a trial of a change may be ended early."""
        self._began[run.run_id] = time.monotonic()
        shown = self.watch.started(run.run_id, run.experiment)
        wanted = self.wanted.get(run.run_id)
        if wanted is None or not wanted.may_stop:
            return shown
        told = _TellsBound(shown, lambda text: self._bound(run.run_id, text))
        return FutilityWatch(told, Futility(run.slo, run.workload.duration_s))

    def ended(self, run: StoredRun) -> None:
        """Take a run that ended."""
        name = run.meta.run_id
        took_s = time.monotonic() - self._began.get(name, time.monotonic())
        load = run.meta.workload
        # what is not traffic is the start that the run, or the cold run before it, waited for
        traffic_s = load.duration_s + load.warmup_s
        if run.failure is None and name not in self.bounds:
            self.over_s = max(self.over_s, took_s - traffic_s)
        wanted = self.wanted.get(name)
        if wanted is None:
            self.watch.ended(name, None, run)
            return
        self.took_s[wanted.number] = self.took_s.get(wanted.number, 0.0) + took_s
        self.write(wanted, run, self.took_s[wanted.number] * wanted.gpus)

    def stop_asked(self) -> bool:
        """True once the user wants no further run."""
        return self.watch.stop_asked()

    def flush(self) -> None:
        """Write what was held back for a second try that did not come."""
        for number, trial in self._held.items():
            if number not in self.found:
                self.found[number] = trial
                self.journal.trial(trial)
        self._held.clear()

    def _bound(self, name: str, text: str) -> None:
        self.bounds[name] = text
        self.journal.write("bound", run=name, bound=text)

    def write(self, wanted: Wanted, run: StoredRun, gpu_s: float) -> None:
        """Keep the trial of a run that ended."""
        bound = self.bounds.get(run.meta.run_id)
        trial = trial_of(run, wanted.number, wanted.candidate, self.goal, gpu_s=gpu_s, bound=bound)
        self.watch.ended(run.meta.run_id, trial, run)
        if trial is None:
            return
        trial = replace(trial, beside=self.beside)
        again = trial.state == "void" and run.meta.tries <= self.retries
        if again and run.meta.configuration.engine != "twin":
            self._held[wanted.number] = replace(trial, gpu_s=gpu_s)
            return
        self.found[wanted.number] = trial
        self.journal.trial(trial)


class _TellsBound:
    """A Watch that hands the words of a run that is ended early on."""

    def __init__(self, watch: Watch, tell: Callable[[str], None]) -> None:
        self._watch, self._tell = watch, tell
        self.live, self.stop_asked = watch.live, watch.stop_asked

    def event(self, event: RunEvent) -> None:
        """Take something worth telling."""
        if event.kind == "stopped":
            self._tell(event.text)
        self._watch.event(event)
