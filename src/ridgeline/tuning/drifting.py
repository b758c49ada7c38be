"""Whether the host changed its speed during a tuning, by repeats of one configuration.

One line is fitted through the logarithms of all throughputs over the time of measuring, with a
level for each configuration and length of window; its slope is judged by Student's t. The noise of
a run is that of these repeats alone: hosts differ in it from 5 to 30 %, and a usual noise, which it
was taken for before, called a drift in a fifth of the tunings on a host of 20 %. So few repeats
tell a large drift only.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from ridgeline.experiment.statistics import t_quantile
from ridgeline.store.run_directory import StoredRun, is_finished, read_run
from ridgeline.tuning.dueling import Duel
from ridgeline.tuning.journal import Told

# Two-sided: as many tunings on a host without a drift are told one, whatever the noise of a run is
# (5 to 30 %, by simulation in tests/tuning/test_drifting.py).
LEVEL = 0.1
LEAST = 0.05  # a speed that moves by less from the first run to the last is no news to anybody


@dataclass(frozen=True, slots=True)
class Reading:
    """One run: of which configuration (in words), begun at which minute, output tokens/s, planned
    seconds of its window.
    """

    words: str
    minute: float
    tokens: float
    window_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Drift:
    """What moved: by configuration in words the factor from its first to its last run, and at which
    minutes of the tuning these were. slope: of the logarithm, a minute.
    """

    factors: Mapping[str, tuple[float, float, float]]
    slope: float

    def sentence(self, *, in_blocks: bool = False) -> str:
        """One line for people; in_blocks: the duel's runs of a round were not interleaved."""
        parts = [
            f"{words} × {factor:.2f} between minute {first:.0f} and {last:.0f}"
            for words, (factor, first, last) in self.factors.items()
        ]
        word = "slowed" if self.slope < 0 else "became faster"
        pairs = (
            "Rounds were measured in blocks, so pairs carry it in full"
            if in_blocks
            else "Of a pair it cancels as far as both runs of a round have it"
        )
        return (
            f"the host seems to have {word} during the tuning: {'; '.join(parts)}. {pairs}; a limit"
            " is judged by the mean over rounds, whose interval it widens; the search compares what"
            " was measured minutes apart"
        )


def reading_of(run: StoredRun, words: str, begun: float) -> Reading | None:
    """A valid run as a reading; None for any other. begun: of all, seconds since the epoch."""
    if run.summary is None or not run.valid or not run.summary.throughput.output_tokens_per_s:
        return None
    at = datetime.fromisoformat(run.meta.started_at).timestamp()
    return Reading(
        words, (at - begun) / 60, run.summary.throughput.output_tokens_per_s,
        run.meta.workload.duration_s,
    )  # fmt: skip


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
    if drift is None:
        return ()
    return (drift.sentence(in_blocks=any(duel.in_blocks for duel in duels)),)


def drift_of(readings: Sequence[Reading]) -> Drift | None:
    """The drift; None where repeats differ by no more than their own scatter about a level tells,
    move by less than `LEAST`, or are too few for a scatter.
    """
    levels: dict[tuple[str, float], list[Reading]] = {}
    for one in sorted(readings, key=lambda r: r.minute):
        levels.setdefault((one.words, one.window_s), []).append(one)
    repeated = {key: own for key, own in levels.items() if len(own) > 1}
    times, logs, moved, freedom = 0.0, 0.0, 0.0, -1
    for own in repeated.values():
        minutes = np.array([r.minute for r in own])
        values = np.log([r.tokens for r in own])
        minutes, values = minutes - minutes.mean(), values - values.mean()
        times += float((minutes**2).sum())
        moved += float((minutes * values).sum())
        logs += float((values**2).sum())
        freedom += len(own) - 1
    if times <= 0 or freedom < 1:
        return None
    slope = moved / times
    error = math.sqrt(max(logs - slope * moved, 0.0) / freedom / times)
    longest = max(own[-1].minute - own[0].minute for own in repeated.values())
    if abs(slope) <= t_quantile(freedom, 1 - LEVEL / 2) * error or abs(slope) * longest < LEAST:
        return None
    many = {words for words, _ in repeated if sum(w == words for w, _ in repeated) > 1}
    found = {
        f"{words} ({window_s:g} s windows)" if words in many else words: (
            own[-1].tokens / own[0].tokens, own[0].minute, own[-1].minute,
        )
        for (words, window_s), own in repeated.items()
    }  # fmt: skip
    return Drift(found, slope)
