"""The search: which configurations are measured next, and which one is the best so far.

The twin ranks a few hundred candidates (`pool`). Gaussian processes on measured over predicted, one
for the objective and one for each latency limit, correct it (`residual`, `belief`). What is
measured next, and how often while its engine is up, has the largest expected gain of the answer for
a GPU second, engine starts included (`prospects`). Where engines stay up from one question to the
next, a question asks for one window of each: whether another follows is decided on what it showed.
What crashed is left with its surroundings (`boundary`). The search goes on while the budget lasts
and something 2 % better may well be there.

The search keeps nothing between two questions: it is a function of the history, the ground's
expectations and the seed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ridgeline.domain.slo import Slo
from ridgeline.tuning.belief import CONFIRMED, CONTENDERS, Belief, Standing
from ridgeline.tuning.pool import looks
from ridgeline.tuning.port import Ask, Ground
from ridgeline.tuning.prospects import Batch, Prospects
from ridgeline.tuning.risk import Risk
from ridgeline.tuning.space import Space
from ridgeline.tuning.trial import Candidate, History

if TYPE_CHECKING:
    from ridgeline.tuning.room import Room

ENOUGH = 0.05  # probability of something 2 % better below which nothing more is measured
REPEATS = 8  # measurements of an engine that is up, at most


@dataclass(frozen=True, slots=True)
class Windows:
    """Seconds that a trial measures: of the search, and of what confirms an answer at its end."""

    short_s: float
    long_s: float


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the search expects of going on.

    gain: the expected gain (log) of the best next measurement; candidate: whose. chance: the
    probability that any candidate meets the limits and is 2 % better than the incumbent.
    best_guess: the largest believed lead (log) of any candidate that likely meets the limits, below
    0 when there is none ahead. belief: the twin's weight, 0..1. looks: how many candidates were
    looked at. over: the probability that any meets the limits and is 2 % better than the one asked
    about; answered: whether anything measured meets the limits surely, as an incumbent has to
    (without, `chance` is 1 and `gain` over nothing); targets: whether there are limits.
    """

    gain: float
    best_guess: float
    candidate: Candidate | None
    belief: float
    looks: int
    chance: float
    over: float
    answered: bool = True
    targets: bool = True


class Search:
    """Our `Policy`. See the module.

    space, ground: what may be varied, and where it is measured (only `places`, `expect` and
    `cost_s` are asked). slo: the limits, latencies and shares. enough: ends the search (`ENOUGH`).
    risk: the highest class that is proposed. repeats: how often an engine that is up is measured at
    most. barred: why a candidate may not win whatever its figures are, None = it may. room: GPUs
    on which candidates are measured side by side, None = one after another.
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
        repeats: int = REPEATS,
        barred: Callable[[Candidate], str | None] = lambda _: None,
        room: "Room | None" = None,
    ) -> None:
        self._space, self._ground, self._windows = space, ground, windows
        self._limits = {limit.key: limit.value for limit in slo.limits}
        self._seed, self._enough, self._risk = seed, enough, risk
        self._repeats = repeats
        self._barred, self._room = barred, room
        self._last: tuple[History, _View] | None = None

    def ask(self, history: History, left_s: float) -> Ask | None:
        """The next measurement within `left_s` GPU seconds; None: nothing more is worth it."""
        view = self._view(history)
        if not history.trials:
            return self._fitting(view.belief, self._filled(view, view.opening), left_s)
        if view.batch.rows and view.prospects.chance >= self._enough:
            return self._fitting(view.belief, self._filled(view, view.batch), left_s)
        places = self._ground.places if self._room is None else self._room.most
        rows = view.belief.unconfirmed(places)
        while self._room is not None and len(rows) > 1 and not self._fit(self._room, view, rows):
            rows = rows[:-1]
        again = Batch(tuple(rows), CONFIRMED if self._ground.lasting else self._repeats, 0.0, None)
        return self._fitting(view.belief, again, left_s, self._windows.long_s)

    def _filled(self, view: "_View", batch: Batch) -> Batch:
        return batch if self._room is None else view.prospects.alongside(batch, self._room)

    @staticmethod
    def _fit(room: "Room", view: "_View", rows: Sequence[int]) -> bool:
        return room.fits([view.belief.pool[r].candidate for r in rows])

    def best(self, history: History) -> Standing | None:
        """The incumbent: measured, feasible as far as is known, the best in the model's view."""
        found = self.standings(history)
        return found[0] if found else None

    def standings(self, history: History) -> tuple[Standing, ...]:
        """Measured candidates that may be named as the answer, the best first: the finalists."""
        return self._view(history).belief.standings()

    def outlook(self, history: History, over: Candidate | None = None) -> Outlook:
        """What going on would bring; the certificate prints it. over: what `best_guess` and
        `over` are over, without it the incumbent: the duel may have named another one.
        """
        view = self._view(history)
        belief, batch = view.belief, view.batch
        return Outlook(
            batch.gain,
            belief.best_guess(over),
            None if batch.leader is None else belief.pool[batch.leader].candidate,
            belief.value.belief,
            len(belief.pool),
            view.prospects.chance,
            view.prospects.chance_over(None if over is None else belief.row_of(over)),
            bool(belief.answers()),
            bool(self._limits),
        )

    def likeliest(self, history: History) -> tuple[float, int]:
        """The largest probability (0..1) of any candidate that may start to meet every limit, and
        among how many that were looked at.
        """
        belief = self._view(history).belief
        chances = belief.feasible[belief.open]
        return float(chances.max(initial=0.0)), len(belief.pool)

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
        belief = Belief(self._space, pool, history, allowed=allowed, limits=self._limits)
        window_s = self._windows.short_s
        return _View(belief, Prospects(belief, self._ground, window_s, random, self._repeats))

    def _fitting(
        self, belief: Belief, batch: Batch, left_s: float, window_s: float | None = None
    ) -> Ask | None:
        """The largest beginning of the batch that the budget holds, as often as it holds."""
        window = self._windows.short_s if window_s is None else window_s
        for count in range(len(batch.rows), 0, -1):
            # The baseline alone is measured several times at once: the search, and the duel after
            # it, know the noise between runs by repeats only.
            alone = batch.rows == (0,) and not belief.count[0]
            once = self._ground.lasting and not alone
            for times in range(1 if once else batch.times, 0, -1):
                rows = [(r, k) for k in range(times) for r in batch.rows[:count]]
                candidates = tuple(belief.pool[r].candidate for r, _ in rows)
                if self._ground.cost_s(candidates, window) <= left_s:
                    why = tuple(belief.why(r, k, batch.times) for r, k in rows)
                    return Ask(candidates, window, why)
        return None


@dataclass
class _View:
    """What is believed at one moment, and what more would bring: worked out once, in any order."""

    belief: Belief
    prospects: Prospects

    @cached_property
    def batch(self) -> Batch:
        """What is worth most for a GPU second."""
        return self.prospects.batch()

    @property
    def opening(self) -> Batch:
        """The baseline, and beside it what the twin alone would choose."""
        return self.prospects.batch(beside=0)
