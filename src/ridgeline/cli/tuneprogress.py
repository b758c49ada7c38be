"""A tuning on the terminal: the best so far, what runs, what is left."""

import time
from typing import TYPE_CHECKING

from ridgeline.cli.output import one_line
from ridgeline.cli.progress import Display, RunProgress, Stop, ended_text
from ridgeline.report.numbers import number

if TYPE_CHECKING:
    from ridgeline.domain.run import Watch
    from ridgeline.store.run_directory import StoredRun
    from ridgeline.tuning.journal import Asked
    from ridgeline.tuning.outcome import Judged
    from ridgeline.tuning.trial import Candidate, Trial

UNITS = {"throughput_per_gpu": "tokens/s per GPU", "pareto": "tokens/s per GPU",
         "goodput": "requests/s per GPU"}  # fmt: skip
WORDS = {
    "feasible": "meets the targets", "unsure": "meets them perhaps", "infeasible": "misses them",
    "void": "void", "crashed": "crashed", "refused": "refused",
}  # fmt: skip


class TuneProgress:
    """A TuneWatch for the terminal."""

    def __init__(self, shown: Display, stop: Stop, goal: str) -> None:
        self._shown, self._stop, self._goal = shown, stop, goal
        self._since: dict[str, float] = {}
        self._good: list[tuple[float, Candidate]] = []  # what may win, with the objective
        self._begun = False

    def asked(self, asked: "Asked", expected_s: float) -> None:
        """Say what is measured next, why, and how long it should take."""
        self._begun = True
        for i, (candidate, why) in enumerate(zip(asked.candidates, asked.why, strict=True)):
            self._shown.note(f"trial {asked.first + i}: {candidate.words}: {why}")
        self._shown.note(f"about {_span(expected_s)} of GPU time for {len(asked.candidates)}")

    def started(self, name: str, what: str) -> "Watch":
        """Show that a run starts."""
        self._since[name] = time.monotonic()
        self._shown.start(name)
        return RunProgress(name, self._shown, self._stop)

    def ended(self, name: str, trial: "Trial | None", run: "StoredRun") -> None:
        """Show what came of it."""
        took = time.monotonic() - self._since.pop(name, time.monotonic())
        text = ended_text(run)
        if trial is not None and trial.state != "void":
            text = f"{WORDS[trial.state]}: {one_line(trial.reason or text)}"
        if trial is not None and trial.value and trial.state in ("feasible", "unsure"):
            self._good.append((trial.value, trial.candidate))
        self._shown.end(name, f"{text} ({took:.1f} s)")

    def told(self, text: str) -> None:
        """Say it."""
        self._shown.note(one_line(text))

    def judged(self, judged: "Judged") -> None:
        """Say the verdict; what holds a change that did not pass is no best so far any more."""
        self.told(f"quality: {judged.words}: {judged.sentence()}")
        if not judged.may_win:
            part = judged.part.items()
            self._good = [(v, c) for v, c in self._good if not part <= c.change.items()]

    def left(self, gpu_s: float | None, trials: int | None) -> None:
        """Say the best so far and what is left."""
        parts = [] if gpu_s is None else [f"{_span(max(gpu_s, 0.0))} of GPU time left"]
        parts += [] if trials is None else [f"{trials} trial{'s' * (trials != 1)} left"]
        if self._good:
            value, candidate = max(self._good, key=lambda pair: pair[0])
            parts.insert(0, f"best so far: {candidate.words} ({self._words(value)})")
        if parts and self._begun:
            self._shown.note("; ".join(parts))

    def _words(self, value: float) -> str:
        """An objective: tokens per USD as the price that people know."""
        if self._goal == "cost":
            return f"${1e6 / value:.3g} per million output tokens"
        return f"{number(value)} {UNITS.get(self._goal, '')}".strip()

    def stop_asked(self) -> bool:
        """True after the first Ctrl-C."""
        return self._stop.asked


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} minutes"
