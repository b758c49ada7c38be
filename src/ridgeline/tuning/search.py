"""The search: which configurations are measured next, and which one is the best so far.

The twin ranks a few hundred candidates (`pool`). Gaussian processes on measured over predicted, one
for the objective and one for each latency limit, correct it (`residual`). Drawn from their
posterior, every candidate has a chance to be feasible and better than the incumbent; what is
measured next has the largest expected gain for a GPU second, engine starts included. Engines that
may be up side by side are chosen together. First windows are short; the long ones are for what may
be best. What crashed is left with its surroundings (`boundary`).

The search keeps nothing between two questions: it is a function of the history, the ground's
expectations and the seed.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ridgeline.domain.records import Floats
from ridgeline.domain.slo import Slo
from ridgeline.tuning import boundary
from ridgeline.tuning.pool import looks
from ridgeline.tuning.port import Ask, Expected, Ground
from ridgeline.tuning.residual import Reading, Residual
from ridgeline.tuning.risk import Risk
from ridgeline.tuning.space import Space
from ridgeline.tuning.trial import Candidate, History, Trial

ENOUGH = 0.003  # expected gain (log) of the best candidate below which nothing more is measured
SURE = 0.95  # probability of meeting every limit that the search's own answer must have
DRAWS = 192
SHORTLIST = 90  # candidates that are drawn jointly
FLOOR = 0.7  # log points below the best that a configuration is worth which misses a limit
SHY = 3  # power of the chance not to crash: a second crash shall differ from the first in much
DOUBTFUL = 0.1  # suspicion above which engines are not started side by side
VOIDS = 2  # void trials of a candidate after which it is not tried again
CONFIRMED = 2  # trials that the answer has at least, if the budget allows
CONTENDERS = 3
EQUAL = 0.01  # log points within which the answer goes by what needs fewer changes
SMALLEST_SHARE = 0.002  # of requests outside their limits; a smaller one is the same
_Z = 1.959964


@dataclass(frozen=True, slots=True)
class Windows:
    """Seconds that a trial measures: the first of a candidate, and of one that may be best."""

    short_s: float
    long_s: float


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


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the search expects of going on.

    gain: the expected gain (log) of the best next candidate over the incumbent, its chance of
    meeting the limits included; candidate: that one. best_guess: the largest believed lead (log)
    of any candidate that likely meets the limits, below 0 when there is none ahead. belief: the
    twin's weight, 0..1. looks: how many candidates were looked at.
    """

    gain: float
    best_guess: float
    candidate: Candidate | None
    belief: float
    looks: int


class Search:
    """Our `Policy`. See the module.

    space, ground: what may be varied, and where it is measured (only `places`, `expect` and
    `cost_s` are asked). slo: the limits, latencies and shares. risk: the highest class that is
    proposed. repeats: how often an engine that is up is measured (a start costs as much as several
    windows). barred: why a candidate may not win whatever its figures are, None = it may.
    """

    def __init__(
        self,
        space: Space,
        ground: Ground,
        slo: Slo,
        windows: Windows,
        *,
        seed: int = 0,
        enough: float = ENOUGH,
        risk: Risk = Risk.NEUTRAL,
        repeats: int = 1,
        barred: Callable[[Candidate], str | None] = lambda _: None,
    ) -> None:
        self._space, self._ground, self._windows = space, ground, windows
        self._limits = {limit.key: limit.value for limit in slo.limits}
        self._seed, self._enough, self._risk = seed, enough, risk
        self._repeats = repeats
        self._barred = barred
        self._last: tuple[History, _View] | None = None

    def ask(self, history: History, left_s: float) -> Ask | None:
        """The next measurement within `left_s` GPU seconds; None: nothing more is worth it."""
        view = self._view(history)
        if not history.trials:
            return self._fitting(view, view.opening(self._ground, self._windows), left_s)
        chosen = view.batch(self._ground, self._windows)
        if chosen and view.gain >= self._enough:
            return self._fitting(view, chosen, left_s)
        return self._fitting(view, view.unconfirmed(self._ground.places), left_s, again=True)

    def best(self, history: History) -> Standing | None:
        """The incumbent: measured, feasible as far as is known, the best in the model's view."""
        found = self.standings(history)
        return found[0] if found else None

    def standings(self, history: History) -> tuple[Standing, ...]:
        """Measured candidates that may be named as the answer, the best first: the finalists."""
        return self._view(history).standings()

    def outlook(self, history: History) -> Outlook:
        """What going on would bring; the certificate prints it."""
        view = self._view(history)
        view.batch(self._ground, self._windows)
        pool = view.pool
        return Outlook(
            view.gain,
            view.best_guess(),
            None if view.leader is None else pool[view.leader].candidate,
            view.value.belief,
            len(pool),
        )

    def _view(self, history: History) -> "_View":
        """Worked out anew for another history; several questions about one share it."""
        if self._last is None or self._last[0] is not history:
            self._last = (history, self._looked(history))
        return self._last[1]

    def _looked(self, history: History) -> "_View":
        random = np.random.default_rng([self._seed, len(history.trials)])
        first = np.random.default_rng(self._seed)  # the same points at random in every question
        measured = [t.candidate for t in history.trials]
        good = sorted((t for t in history.trials if t.value and t.state in ("feasible", "unsure")
                       and self._barred(t.candidate) is None),
                      key=lambda t: -(t.value or 0.0))[:CONTENDERS]  # fmt: skip
        pool = looks(
            self._space, self._ground, self._limits,
            measured=measured, good=[t.candidate for t in good], random=first,
        )  # fmt: skip
        allowed = [
            self._space.risk(e.candidate) <= self._risk and self._barred(e.candidate) is None
            for e in pool
        ]
        return _View(
            self._space,
            pool,
            history,
            allowed=allowed,
            limits=self._limits,
            random=random,
            repeats=self._repeats,
        )

    def _fitting(
        self, view: "_View", rows: Sequence[int], left_s: float, *, again: bool = False
    ) -> Ask | None:
        """The largest beginning of the batch that the budget holds."""
        for count in range(len(rows), 0, -1):
            chosen = rows[:count]
            old = again or all(view.count[r] for r in chosen)
            window = self._windows.long_s if old else self._windows.short_s
            for times in (self._repeats, 1):
                rows_ = [r for _ in range(times) for r in chosen]
                candidates = [view.pool[r].candidate for r in rows_]
                if self._ground.cost_s(candidates, window) <= left_s:
                    return Ask(tuple(candidates), window, tuple(view.why(r) for r in rows_))
        return None


class _View:
    """All that is believed at one moment."""

    def __init__(
        self,
        space: Space,
        pool: Sequence[Expected],
        history: History,
        *,
        allowed: Sequence[bool],
        limits: Mapping[str, float],
        random: np.random.Generator,
        repeats: int,
    ) -> None:
        self._repeats = repeats
        self.pool, self._limits, self._random = pool, limits, random
        self._places = space.places([e.candidate for e in pool])
        rows = {space.resolved(e.candidate).identity: i for i, e in enumerate(pool)}
        self._row = {
            t.candidate.key: rows.get(space.resolved(t.candidate).identity) for t in history.trials
        }
        self._trials = [(r, t) for t in history.trials
                        if (r := self._row[t.candidate.key]) is not None]  # fmt: skip
        self._allowed, self.count = allowed, self._counts()
        self._modelled = [k for k in limits if k != "error_rate"]
        self.value = self._model([e.value for e in pool], None)
        self._slow = {k: self._model([e.limits.get(k) for e in pool], k) for k in self._modelled}
        self._mean, self._spread = self.value.predict()
        self.feasible, self._open = self._feasible(), self._may_start(allowed)
        self.gain, self.leader = 0.0, None  # type: float, int | None
        self._gains: dict[int, tuple[float, float]] = {}

    def standings(self) -> tuple[Standing, ...]:
        """Measured, no limit missed with confidence in the latest word on it, and sure enough."""
        found = [
            Standing(self.pool[r].candidate, math.exp(self._mean[r]), float(self._spread[r]),
                     float(self.feasible[r]), self.count[r])
            for r in self._answers()
        ]  # fmt: skip
        ranked = sorted(found, key=lambda s: -s.value)
        # what differs by less than can be told goes by what needs fewer changes
        equal = [s for s in ranked if s.value >= ranked[0].value * math.exp(-EQUAL)]
        equal.sort(key=lambda s: (len(s.candidate.change), -s.trials))
        return (*equal, *ranked[len(equal) :])

    def opening(self, ground: Ground, windows: Windows) -> list[int]:
        """The baseline, and beside it what the twin alone would choose."""
        rest = [r for r in self.batch(ground, windows, beside=0) if r != 0]
        return [0, *rest][: ground.places]

    def batch(self, ground: Ground, windows: Windows, beside: int | None = None) -> list[int]:
        """Rows with the largest expected gain together for a GPU second; sets gain and leader."""
        rows, worth, values = self._drawn
        incumbent = self._incumbent(rows, worth)
        # An incumbent that is sure enough to be named is not doubted for ever at its limits.
        sure = self.feasible[rows[incumbent]] >= SURE
        held = (values if sure else worth)[:, incumbent].copy()
        chosen = [] if beside is None else [beside]
        gains = {r: self._gain(worth[:, i] - held, r) for i, r in enumerate(rows) if self._open[r]}
        if not gains:
            return chosen
        self.leader = max(gains, key=lambda r: gains[r])
        self.gain = gains[self.leader]
        total, best_rate = 0.0, 0.0
        while len(chosen) < max(1, ground.places):
            options = []
            for i, r in enumerate(rows):
                doubted = self._suspects[r] > DOUBTFUL and any(
                    self._suspects[c] > DOUBTFUL for c in chosen
                )
                if self._open[r] and r not in chosen and not doubted:
                    more = total + self._gain(worth[:, i] - held, r)
                    options.append((more, i, r))
            options = sorted(options, reverse=True)[:12]
            if not options:
                break
            rated = [(m / self._cost(ground, windows, [*chosen, r]), m, i, r)
                     for m, i, r in options if m > 0]  # fmt: skip
            if not rated or max(rated)[0] <= best_rate:
                break
            best_rate, total, i, row = max(rated)
            chosen.append(row)
            held = np.maximum(held, worth[:, i])
        return chosen

    def unconfirmed(self, most: int) -> list[int]:
        """Contenders for the answer that were measured less often than an answer should be."""
        ranked = sorted(self._answers(0.5), key=lambda r: -self._mean[r])
        close = [r for r in ranked[:CONTENDERS] if self._mean[r] > self._mean[ranked[0]] - 0.05]
        return [r for r in close if self.count[r] < CONFIRMED][:most]

    def best_guess(self) -> float:
        """The largest lead (log) of the posterior mean over the incumbent's, limits likely met."""
        answers = self._answers(0.5) or [0]
        own = max(float(self._mean[r]) for r in answers)
        ahead = [float(m) for m, f, ok in zip(self._mean, self.feasible, self._open, strict=True)
                 if f >= 0.5 and ok]  # fmt: skip
        return max(ahead, default=own) - own

    def why(self, row: int) -> str:
        """One line on why a candidate is measured."""
        times, chance = self.count[row], self.feasible[row]
        if row == 0 and not times:
            return "the baseline, which everything is held against"
        value = math.exp(self._mean[row] - self._mean[0])
        what = "measured again, longer" if times else "expected"
        spread = 100 * self._spread[row]
        return f"{what}: {value:.2f} times the baseline (±{spread:.0f} %), limits met {chance:.0%}"

    def _cost(self, ground: Ground, windows: Windows, rows: Sequence[int]) -> float:
        old = all(self.count[r] for r in rows)
        candidates = [self.pool[r].candidate for r in rows] * self._repeats
        return max(1e-9, ground.cost_s(candidates, windows.long_s if old else windows.short_s))

    def _gain(self, better: Floats, row: int) -> float:
        """Expected gain (log); of what one more noisy trial cannot tell less is gained."""
        spread, noise = float(self._spread[row]), self.value.noise / math.sqrt(self._repeats)
        told = spread / math.hypot(spread, noise)
        sure: float = (1.0 - float(self._suspects[row])) ** SHY
        return float(np.maximum(better, 0.0).mean()) * told * sure

    @cached_property
    def _drawn(self) -> tuple[list[int], Floats, Floats]:
        """Draws of what candidates of the shortlist are worth: their log value where every limit
        is met, else a floor below all that is of interest; and of the values alone.
        """
        hopeful = self._mean + self._spread + 0.5 * np.log(np.maximum(self.feasible, 1e-6))
        hopeful[~self._open] = -np.inf
        order = np.argsort(-hopeful, kind="stable")[:SHORTLIST].tolist()
        own = [r for r in range(len(self.pool)) if self.count[r]]
        rows = list(dict.fromkeys((0, *own, *order)))
        values = self.value.draws(rows, DRAWS, self._random)
        floor = float(np.max(self._mean)) - FLOOR
        met = np.ones_like(values, dtype=bool)
        for key, model in self._slow.items():
            met &= model.draws(rows, DRAWS, self._random) <= _log(key, self._limits[key])
        met &= self._shares_met[rows]
        return rows, np.where(met, values, np.minimum(values, floor) - 1.0), values

    def _incumbent(self, rows: Sequence[int], worth: Floats) -> int:
        """Column of the measured candidate with the best mean worth, else of the baseline."""
        own = [i for i, r in enumerate(rows) if self.count[r] and self._allowed[r]]
        return max(own, key=lambda i: worth[:, i].mean()) if own else 0

    def _answers(self, sure: float = SURE) -> list[int]:
        """Rows that may be named: measured, no trial that speaks against it, and likely enough."""
        return [
            r for r in range(len(self.pool))
            if self.count[r] and self._allowed[r] and self.feasible[r] >= sure
        ]  # fmt: skip

    def _model(self, twin: Sequence[float | None], key: str | None) -> Residual:
        logs = np.array([_log(key, v) for v in twin])
        readings = [x for r, t in self._trials if (x := self._reading(r, t, key)) is not None]
        return Residual(self._places, logs, readings)

    def _reading(self, row: int, trial: Trial, key: str | None) -> Reading | None:
        if trial.state in ("void", "crashed", "refused"):
            return None
        if key is None:
            return _reading(row, *(_log(None, v) for v in (trial.value, trial.low, trial.high)))
        miss = next((m for m in trial.limits if m.key == key), None)
        if miss is None or miss.value is None:
            return None
        if math.isinf(miss.value):  # failures: as bad as ten times the limit
            return Reading(row, math.log(10 * miss.limit), 0.5)
        return _reading(row, *(_log(key, v) for v in (miss.value, miss.low, miss.high)))

    def _feasible(self) -> Floats:
        """Probability that every limit is met, by row."""
        found = np.ones(len(self.pool))
        for key, model in self._slow.items():
            mean, spread = model.predict()
            found *= _normal((_log(key, self._limits[key]) - mean) / spread)
        missed = {
            r for r, t in self._trials for m in t.limits if m.key == "error_rate" and m.met is False
        }
        self._shares_met = np.array([r not in missed for r in range(len(self.pool))])
        return np.asarray(found * self._shares_met, dtype=np.float64)

    def _may_start(self, allowed: Sequence[bool]) -> np.ndarray:
        crashed = sorted({r for r, t in self._trials if t.state == "crashed"})
        ran = sorted({r for r, t in self._trials if t.state not in ("crashed", "refused")})
        ran = [r for r in ran if r not in crashed]
        self._suspects = boundary.suspicion(self._places, crashed, ran)
        gone = boundary.left(self._places, crashed, ran)
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


def _log(key: str | None, value: float | None) -> float:
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


def _normal(z: Floats) -> Floats:
    """The normal distribution's share below z."""
    from scipy.special import ndtr  # noqa: PLC0415  half a second to import

    return np.asarray(ndtr(z), dtype=np.float64)
