"""What a search believes at one moment: each candidate's value, its limits, whether it starts.

Gaussian processes on measured over predicted (`residual`), one for the objective and one for each
latency limit, over the pool that the twin was asked about. A crash is no figure: it tells by
`boundary` where engines do not start.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ridgeline.domain.records import Floats
from ridgeline.tuning import boundary
from ridgeline.tuning.futility import limit_of
from ridgeline.tuning.port import Expected
from ridgeline.tuning.residual import Reading, Residual
from ridgeline.tuning.space import Space
from ridgeline.tuning.trial import Candidate, History, Trial

SURE = 0.95  # probability of meeting every limit that the search's own answer must have
VOIDS = 2  # void trials of a candidate after which it is not tried again
CONFIRMED = 2  # trials that the answer has at least, if the budget allows
CONTENDERS = 3
EQUAL = 0.01  # log points within which the answer goes by what needs fewer changes
SMALLEST_SHARE = 0.002  # of requests outside their limits; a smaller one is the same
_Z = 1.959964


@dataclass(frozen=True, slots=True)
class Standing:
    """What is believed of a candidate after the trials so far.

    value: posterior median of the objective; error: its standard error as a logarithm. feasible:
    the probability that every limit is met. trials: that gave a figure.
    """

    candidate: Candidate
    value: float
    error: float
    feasible: float
    trials: int


class Belief:
    """Of the pool's rows: `mean` and `spread` of the log value, `feasible` (probability that every
    limit is met), `open` (may be started), `suspects` (0..1, of a crash), `count` of trials.
    """

    def __init__(
        self,
        space: Space,
        pool: Sequence[Expected],
        history: History,
        *,
        allowed: Sequence[bool],
        limits: Mapping[str, float],
    ) -> None:
        self.pool, self.limits = pool, limits
        self.places = space.places([e.candidate for e in pool])
        rows = {space.resolved(e.candidate).identity: i for i, e in enumerate(pool)}
        self._row = {
            t.candidate.key: rows.get(space.resolved(t.candidate).identity) for t in history.trials
        }
        self._trials = [(r, t) for t in history.trials
                        if (r := self._row[t.candidate.key]) is not None]  # fmt: skip
        self.allowed, self.count = allowed, self._counts()
        self.value = self._model([e.value for e in pool], None)
        self.slow = {
            k: self._model([e.limits.get(k) for e in pool], k) for k in limits if k != "error_rate"
        }
        self.mean, self.spread = self.value.predict()
        self.shares_met = self._shares_met()
        self.feasible = self._feasible()
        self.open = self._may_start(allowed)

    def standings(self) -> tuple[Standing, ...]:
        """Measured, no limit missed with confidence in the latest word on it, and sure enough."""
        found = [
            Standing(self.pool[r].candidate, math.exp(self.mean[r]), float(self.spread[r]),
                     float(self.feasible[r]), self.count[r])
            for r in self.answers()
        ]  # fmt: skip
        ranked = sorted(found, key=lambda s: -s.value)
        # what differs by less than can be told goes by what needs fewer changes
        equal = [s for s in ranked if s.value >= ranked[0].value * math.exp(-EQUAL)]
        equal.sort(key=lambda s: (len(s.candidate.change), -s.trials))
        return (*equal, *ranked[len(equal) :])

    @cached_property
    def ran(self) -> list[int]:
        """Rows whose engines came up, and never crashed."""
        up = {r for r, t in self._trials if t.state not in ("crashed", "refused")}
        return sorted(up - set(self.crashed))

    @cached_property
    def crashed(self) -> list[int]:
        """Rows whose engines crashed."""
        return sorted({r for r, t in self._trials if t.state == "crashed"})

    def unconfirmed(self, most: int) -> list[int]:
        """Contenders for the answer that were measured less often than an answer should be."""
        ranked = sorted(self.answers(0.5), key=lambda r: -self.mean[r])
        close = [r for r in ranked[:CONTENDERS] if self.mean[r] > self.mean[ranked[0]] - 0.05]
        return [r for r in close if self.count[r] < CONFIRMED][:most]

    def best_guess(self, over: Candidate | None = None) -> float:
        """The largest lead (log) of the posterior mean over that of `over`, limits likely met.

        Without a trial of `over`, over the incumbent's.
        """
        row = None if over is None else self._row.get(over.key)
        answers = self.answers(0.5) or [0]
        own = max(float(self.mean[r]) for r in answers) if row is None else float(self.mean[row])
        ahead = [float(m) for m, f, ok in zip(self.mean, self.feasible, self.open, strict=True)
                 if f >= 0.5 and ok]  # fmt: skip
        return max(ahead, default=own) - own

    def row_of(self, candidate: Candidate) -> int | None:
        """The row of one that was tried; None for any other."""
        return self._row.get(candidate.key)

    def why(self, row: int, listed: int = 0, most: int = 1) -> str:
        """One line on why a candidate is measured. listed: windows of it that the same question
        asks for before this one; most: windows that are thought of from this question on.
        """
        seen = sum(r == row and t.state != "void" for r, t in self._trials)
        window, last = seen + listed + 1, seen + max(most, listed + 1)
        again = f"again, window {window} of up to {last}"
        if listed:
            return again
        if row == 0 and not seen:
            return "the baseline, which everything is held against"
        value = math.exp(self.mean[row] - self.mean[0])
        what = again if seen else "expected"
        found = (
            f"{what}: {value:.2f} times the baseline (±{100 * self.spread[row]:.0f} %), limits met"
            f" {self.feasible[row]:.0%}"
        )
        return found if seen or most == 1 else f"{found}; up to {most} windows"

    def answers(self, sure: float = SURE) -> list[int]:
        """Rows that may be named: measured, no trial that speaks against it, and likely enough."""
        return [
            r for r in range(len(self.pool))
            if self.count[r] and self.allowed[r] and self.feasible[r] >= sure
        ]  # fmt: skip

    def _model(self, twin: Sequence[float | None], key: str | None) -> Residual:
        logs = np.array([log_of(key, v) for v in twin])
        readings = [x for r, t in self._trials if (x := self._reading(r, t, key)) is not None]
        found = Residual(self.places, logs, readings)
        past = [r for r, t in self._trials
                if t.stopped and key is not None and limit_of(t.reason or "") == key]  # fmt: skip
        if key is None or not past:
            return found
        beyond = found.beyond(past, log_of(key, self.limits[key]))
        return Residual(self.places, logs, [*readings, *beyond])

    def _reading(self, row: int, trial: Trial, key: str | None) -> Reading | None:
        if trial.state in ("void", "crashed", "refused"):
            return None
        if key is None:
            return _reading(row, *(log_of(None, v) for v in (trial.value, trial.low, trial.high)))
        miss = next((m for m in trial.limits if m.key == key), None)
        if miss is None or miss.value is None:
            return None
        if math.isinf(miss.value):  # failures: as bad as ten times the limit
            return Reading(row, math.log(10 * miss.limit), 0.5)
        return _reading(row, *(log_of(key, v) for v in (miss.value, miss.low, miss.high)))

    def _feasible(self) -> Floats:
        """Probability that every limit is met, by row."""
        found = np.ones(len(self.pool))
        for key, model in self.slow.items():
            mean, spread = model.predict()
            found *= below((log_of(key, self.limits[key]) - mean) / spread)
        return np.asarray(found * self.shares_met, dtype=np.float64)

    def _shares_met(self) -> np.ndarray:
        missed = {
            r for r, t in self._trials for m in t.limits if m.key == "error_rate" and m.met is False
        }
        return np.array([r not in missed for r in range(len(self.pool))])

    def _may_start(self, allowed: Sequence[bool]) -> np.ndarray:
        crashed, ran = self.crashed, self.ran
        self.suspects = boundary.suspicion(self.places, crashed, ran)
        gone = boundary.left(self.places, crashed, ran, stuck=not self.answers())
        voids = [sum(1 for r, t in self._trials if r == i and t.state == "void")
                 for i in range(len(self.pool))]  # fmt: skip
        refused = {r for r, t in self._trials if t.state == "refused"}
        return np.array([
            ok and voids[i] < VOIDS and i not in refused and not gone[i]
            for i, ok in enumerate(allowed)
        ])  # fmt: skip

    def _counts(self) -> list[int]:
        found = [0] * len(self.pool)
        for row, trial in self._trials:
            found[row] += trial.value is not None and trial.state not in ("void", "crashed")
        return found


def log_of(key: str | None, value: float | None) -> float:
    """The logarithm that is modelled; smaller is better for every limit. NaN without a value.

    Of an attainment it is that of the share that fails.
    """
    if key == "attainment" and value is not None:
        return math.log(max(1.0 - value, SMALLEST_SHARE))
    return math.log(value) if value is not None and 0 < value < math.inf else math.nan


def _reading(row: int, value: float, low: float, high: float) -> Reading | None:
    """From logarithms; without an interval a tenth is taken for the error."""
    if math.isnan(value):
        return None
    error = abs(high - low) / (2 * _Z)
    return Reading(row, value, 0.1 if math.isnan(error) else error)


def below(z: Floats) -> Floats:
    """The normal distribution's share below z."""
    from scipy.special import ndtr  # noqa: PLC0415  half a second to import

    return np.asarray(ndtr(z), dtype=np.float64)
