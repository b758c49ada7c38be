"""What measuring more would bring: the knowledge gradient, for a GPU second.

A measurement is worth what the search's own answer is expected to gain by it: a candidate turns out
better than the incumbent and may be named (its limits are met surely enough after the
measurement), or what is learnt shows another measured one to be better, the incumbent's fall
included. All is worked out on joint draws from the posterior: a reading moves the mean of a
candidate by its draw's deviation times the share that readings under this noise tell, and the means
of the others in proportion to their covariance with it. How often an engine is measured is weighed
with it, as a start costs several windows and a repeat one. Engines that may be up side by side are
chosen together.

Where engines stay up, repeats are not promised: each is asked for after the one before was seen,
and of several that start together only the one that then leads is measured on. So a batch costs the
start and one window of each, and the repeats of one. To charge all of them with all repeats made
three engines look as if they were three times as dear to try as one, and put every window of a
batch on one candidate that would hardly meet its limits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ridgeline.domain.records import Floats
from ridgeline.tuning import boundary
from ridgeline.tuning.belief import SURE, Belief, below, log_of
from ridgeline.tuning.port import Ground
from ridgeline.tuning.trial import Candidate

if TYPE_CHECKING:
    from ridgeline.tuning.room import Room

DRAWS = 192
SHORTLIST = 90  # candidates that are drawn jointly, beside those that were measured
FLOOR = 0.7  # log points below the best that having no answer is worth
SHY = 2  # power of the chance not to crash: what starts surely is preferred
DOUBTFUL = 0.1  # suspicion above which engines are not started side by side
SHARED_FATE = 0.4  # what a crash of one may say of another that is started beside it
MATTERS = math.log(1.02)  # a lead that is worth going on for
TIMES = (1, 2, 3, 5, 8)  # how often an engine that is up may be measured
ALONE = 3  # measurements of the baseline where nothing starts beside it
OPTIONS = 12  # candidates for a place whose costs are asked
# A GPU that would stand idle is used for what adds this share of what the best one brings.
WORTH_A_GPU = 0.1


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows to measure side by side. times: each so often, or where engines stay up so often at
    most. gain: expected of the best of them (log).
    """

    rows: tuple[int, ...]
    times: int
    gain: float
    leader: int | None


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Draws (draws x columns) of log values, and by limit of its figure; columns are rows of the
    pool. lead: over the incumbent's, or over the floor where there is no answer yet.
    """

    rows: list[int]
    values: Floats
    figures: dict[str, Floats]
    lead: Floats
    answers: list[int]


class Prospects:
    """See the module. window_s: seconds of a measurement; most: times that an engine may be
    measured at most; with 1 none is measured twice.
    """

    def __init__(
        self,
        belief: Belief,
        ground: Ground,
        window_s: float,
        random: np.random.Generator,
        most: int,
    ) -> None:
        self._belief, self._ground, self._window_s = belief, ground, window_s
        self._random, self._times = random, [t for t in TIMES if t <= most] or [1]

    @cached_property
    def chance(self) -> float:
        """The probability that any candidate meets every limit and is worth so much more than the
        incumbent that it matters (2 %); 1 while there is no answer.
        """
        return self._chance_of(self._drawn.lead) if self._drawn.answers else 1.0

    def chance_over(self, row: int | None) -> float:
        """The same over that row, whether or not it may be an answer; None: over the incumbent."""
        drawn = self._drawn
        if row is None or row not in drawn.rows:
            return self.chance
        return self._chance_of(drawn.values - drawn.values[:, [drawn.rows.index(row)]])

    def _chance_of(self, lead: Floats) -> float:
        drawn, belief = self._drawn, self._belief
        better = (lead > MATTERS) & self._met & belief.open[drawn.rows]
        sure = np.where(better, 1.0 - belief.suspects[drawn.rows], 0.0)
        return float(sure.max(axis=1).mean())

    def batch(self, beside: int | None = None) -> Batch:
        """The largest expected gain for a GPU second; `beside`: a row that is measured anyway."""
        alone = () if beside is None else (beside,)
        best, best_rate = Batch(alone, min(ALONE, self._times[-1]), 0.0, None), 0.0
        for times in self._times:
            found, rate = self._greedy(times, beside)
            if rate > best_rate:
                best, best_rate = found, rate
        return best

    def _greedy(self, times: int, beside: int | None) -> tuple[Batch, float]:
        """The batch for so many repeats, place by place, and its gain for a GPU second."""
        rows, worth = self._drawn.rows, self._worth(times)
        alone = worth.mean(axis=0)
        chosen = [] if beside is None else [beside]
        held = np.zeros(len(worth))
        best_rate, leader = 0.0, None
        while len(chosen) < max(1, self._ground.places):
            totals = np.maximum(held[:, None], worth).mean(axis=0)
            free = [i for i, r in enumerate(rows) if self._may_join(r, chosen) and totals[i] > 0]
            free = sorted(free, key=lambda i: -totals[i])[:OPTIONS]
            rated = [(totals[i] / self._cost([*chosen, rows[i]], times), -i) for i in free]
            if not rated or max(rated)[0] <= best_rate:
                break
            best_rate, at = max(rated)
            leader = -at if leader is None else leader
            chosen.append(rows[-at])
            held = np.maximum(held, worth[:, -at])
        gain = 0.0 if leader is None else float(alone[leader])
        row = None if leader is None else rows[leader]
        return Batch(tuple(chosen), times, gain, row), best_rate

    def alongside(self, batch: Batch, room: "Room") -> Batch:
        """The batch, and beside it what GPUs that it leaves free may measure meanwhile: at each
        place what adds most for a GPU to what is expected of all together.
        """
        rows, worth = self._drawn.rows, self._worth(batch.times)
        column = {row: i for i, row in enumerate(rows)}
        chosen = list(batch.rows)
        held = worth[:, [column[r] for r in chosen]].max(axis=1)
        least = max(WORTH_A_GPU * batch.gain, 1e-9)
        while True:
            more = (np.maximum(held[:, None], worth) - held[:, None]).mean(axis=0)
            free = [
                i for i, r in enumerate(rows)
                if more[i] >= least and self._may_join(r, chosen)
                and room.fits(self._of([*chosen, r]))
            ]  # fmt: skip
            if not free:
                return replace(batch, rows=tuple(chosen))
            own = {i: room.gpus_of(*self._of([rows[i]])) for i in free}
            at = max(free, key=lambda i: (more[i] / own[i], -i))
            chosen.append(rows[at])
            held = np.maximum(held, worth[:, at])

    def _of(self, rows: Sequence[int]) -> list[Candidate]:
        return [self._belief.pool[r].candidate for r in rows]

    def _may_join(self, row: int, chosen: Sequence[int]) -> bool:
        """Whether it may start, also beside the others: two that would die of the same cause would
        teach no more than one.
        """
        belief = self._belief
        if not belief.open[row] or row in chosen or (self._times == [1] and belief.count[row]):
            return False
        doubted = belief.suspects[row] > DOUBTFUL
        return not any(
            (doubted and belief.suspects[c] > DOUBTFUL)
            or max(self._fate(c)[row], self._fate(row)[c]) > SHARED_FATE
            for c in chosen
        )

    def _fate(self, row: int) -> Floats:
        """What a crash of `row`, which nothing points to, would say of the others."""
        ran = self._belief.ran
        if row == 0 or row in ran:  # the baseline is taken to run: it is what is there
            return np.zeros(len(self._belief.pool))
        if row not in self._fates:
            self._fates[row] = boundary.suspicion(self._belief.places, [row], sorted({0, *ran}))
        return self._fates[row]

    @cached_property
    def _fates(self) -> dict[int, Floats]:
        return {}

    def _cost(self, rows: Sequence[int], times: int) -> float:
        """GPU seconds; see the module for what a repeat costs where engines stay up."""
        if not self._ground.lasting:
            return max(1e-9, self._ground.cost_s(self._of(rows) * times, self._window_s))
        own = self._of(rows)
        more_s = 0.0
        if times > 1:
            more_s = self._ground.cost_s(own[:1] * times, self._window_s)
            more_s -= self._ground.cost_s(own[:1], self._window_s)
        return max(1e-9, self._ground.cost_s(own, self._window_s) + more_s)

    def _worth(self, times: int) -> Floats:
        """(draws x columns): what the answer gains in each draw when the column was measured."""
        drawn, belief = self._drawn, self._belief
        at = drawn.rows
        lead = drawn.lead.mean(axis=0)
        off = drawn.values - drawn.values.mean(axis=0)
        told = _told(belief.spread[at], belief.value.noise, times)
        moved = off * told
        about = drawn.lead - lead
        variance = np.maximum((off**2).sum(axis=0), 1e-12)
        own = lead + (off * about).sum(axis=0) / variance * moved
        sure = (1.0 - belief.suspects[at]) ** SHY
        worth = np.where(self._named(times), np.maximum(own, 0.0), 0.0)
        for i in drawn.answers:
            share = (off * about[:, [i]]).sum(axis=0) / variance
            worth = np.maximum(worth, lead[i] + share * moved)
        return np.asarray(worth * sure, dtype=np.float64)

    def _named(self, times: int) -> np.ndarray:
        """(draws x columns): whether the column may be named once it was measured."""
        drawn, belief = self._drawn, self._belief
        met = np.ones_like(drawn.values)
        for key, figures in drawn.figures.items():
            model, limit = belief.slow[key], log_of(key, belief.limits[key])
            mean, spread = (x[drawn.rows] for x in model.predict())
            told = _told(spread, model.noise, times)
            left = spread * np.sqrt(np.maximum(1.0 - told**2, 1e-9))
            met *= below((limit - mean - told * (figures - mean)) / left)
        return np.asarray((met >= SURE) & belief.shares_met[drawn.rows])

    @cached_property
    def _met(self) -> np.ndarray:
        """(draws x columns): whether every limit is met in truth."""
        drawn, belief = self._drawn, self._belief
        met = np.ones_like(drawn.values, dtype=bool)
        for key, figures in drawn.figures.items():
            met &= figures <= log_of(key, belief.limits[key])
        return np.asarray(met & belief.shares_met[drawn.rows])

    @cached_property
    def _drawn(self) -> _Drawn:
        belief = self._belief
        hopeful = belief.mean + belief.spread + 0.5 * np.log(np.maximum(belief.feasible, 1e-6))
        hopeful[~belief.open] = -np.inf
        order = np.argsort(-hopeful, kind="stable")[:SHORTLIST].tolist()
        own = [r for r in range(len(belief.pool)) if belief.count[r]]
        rows = list(dict.fromkeys((0, *own, *order)))
        values = belief.value.draws(rows, DRAWS, self._random)
        figures = {k: m.draws(rows, DRAWS, self._random) for k, m in belief.slow.items()}
        named = set(belief.answers())
        answers = [i for i, r in enumerate(rows) if r in named]
        if answers:
            means = values.mean(axis=0)
            held = values[:, max(answers, key=lambda i: means[i])]
            return _Drawn(rows, values, figures, values - held[:, None], answers)
        floor = float(np.max(belief.mean)) - FLOOR
        return _Drawn(rows, values, figures, values - floor, [])


def _told(spread: Floats, noise: float, times: int) -> Floats:
    """How far a mean moves by so many readings, as a share of its standard deviation."""
    return np.asarray(spread / np.hypot(spread, noise / math.sqrt(times)), dtype=np.float64)
