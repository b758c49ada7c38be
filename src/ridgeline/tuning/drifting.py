"""Whether the host changed its speed during a tuning, by repeats of one configuration.

One line is fitted through the logarithms of all throughputs over the time of measuring, with a
level for each configuration; its slope is judged by Student's t. The noise of a run is that of the
repeats themselves together with what stored visits to H200 hosts had, as two or three repeats alone
tell next to nothing of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from ridgeline.experiment.statistics import t_quantile
from ridgeline.store.run_directory import StoredRun, is_finished, read_run
from ridgeline.tuning.duel import NOISE
from ridgeline.tuning.dueling import Duel
from ridgeline.tuning.journal import Told

# Standard deviation of the logarithm of a run's throughput around its configuration's mean: what
# the duel's plan takes (duel.NOISE; 0.06 to 0.18 in five visits of results/h200), counted
# for eight degrees of freedom.
USUAL, USUAL_FREEDOM = NOISE, 8
# Two-sided. With the stored visits' repeats in a shuffled order, so that no trend is left, a drift
# is told in 3 to 12 % of cases by visit, 7 % on the whole (tests/tuning/test_drifting.py).
LEVEL = 0.1


@dataclass(frozen=True, slots=True)
class Reading:
    """One run: of which configuration (in words), begun at which minute, output tokens/s."""

    words: str
    minute: float
    tokens: float


@dataclass(frozen=True, slots=True)
class Drift:
    """What moved: by configuration in words the factor from its first to its last run, and at which
    minutes of the tuning these were. slope: of the logarithm, a minute.
    """

    factors: Mapping[str, tuple[float, float, float]]
    slope: float

    def sentence(self) -> str:
        """One line for people."""
        parts = [
            f"{words} × {factor:.2f} between minute {first:.0f} and {last:.0f}"
            for words, (factor, first, last) in self.factors.items()
        ]
        word = "slowed" if self.slope < 0 else "became faster"
        return (
            f"the host seems to have {word} during the tuning: {'; '.join(parts)}. Pairs are"
            " compared within a round, limits are judged by the worst run; the search compares what"
            " was measured minutes apart"
        )


def reading_of(run: StoredRun, words: str, begun: float) -> Reading | None:
    """A valid run as a reading; None for any other. begun: of all, seconds since the epoch."""
    if run.summary is None or not run.valid or not run.summary.throughput.output_tokens_per_s:
        return None
    at = datetime.fromisoformat(run.meta.started_at).timestamp()
    return Reading(words, (at - begun) / 60, run.summary.throughput.output_tokens_per_s)


def drift_words(told: Told, duels: Sequence[Duel], folder: Path) -> tuple[str, ...]:
    """The drift of a tuning in words, none without one: by its trials in that folder and its duels.

    Runs that were ended early count for nothing: they were judged on their beginning.
    """
    begun = min((a.at for a in told.asked), default=0.0)
    found: list[Reading | None] = []
    for trial in told.history.trials:
        if trial.value is not None and trial.run is not None and is_finished(folder / trial.run):
            found.append(reading_of(read_run(folder / trial.run), trial.candidate.words, begun))
    for duel in duels:
        found += [reading_of(run, candidate.words, begun) for candidate, run in duel.runs()]
    drift = drift_of([one for one in found if one is not None])
    return () if drift is None else (drift.sentence(),)


def drift_of(readings: Sequence[Reading]) -> Drift | None:
    """The drift; None where repeats differ by no more than runs do anyway, or there are none."""
    by_words: dict[str, list[Reading]] = {}
    for one in sorted(readings, key=lambda r: r.minute):
        by_words.setdefault(one.words, []).append(one)
    repeated = {words: own for words, own in by_words.items() if len(own) > 1}
    times, logs, freedom = 0.0, 0.0, -1
    moved = 0.0
    for own in repeated.values():
        minutes = np.array([r.minute for r in own])
        values = np.log([r.tokens for r in own])
        minutes, values = minutes - minutes.mean(), values - values.mean()
        times += float((minutes**2).sum())
        moved += float((minutes * values).sum())
        logs += float((values**2).sum())
        freedom += len(own) - 1
    if times <= 0 or freedom < 0:
        return None
    slope = moved / times
    left = max(logs - slope * moved, 0.0)
    freedom += USUAL_FREEDOM
    variance = (USUAL_FREEDOM * USUAL**2 + left) / freedom
    if abs(slope) * math.sqrt(times / variance) <= t_quantile(freedom, 1 - LEVEL / 2):
        return None
    found = {
        words: (own[-1].tokens / own[0].tokens, own[0].minute, own[-1].minute)
        for words, own in repeated.items()
    }
    return Drift(found, slope)
