"""The policies that ours is held against. All get the same space, noise, starts and places.

A candidate that a rule refuses costs them nothing, as it costs us nothing. They need not measure
the baseline. Their incumbent is the best measured value among trials whose measured figures meet
every limit.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from ridgeline.tuning.port import Ask, Ground
from ridgeline.tuning.space import Point, Space
from ridgeline.tuning.trial import Candidate, History, Trial

if TYPE_CHECKING:
    import optuna

TRIES = 200  # draws for one place; a space that is used up ends the search
FAR = 3.0  # violation (log) of a crashed or refused candidate


def incumbent(trials: Sequence[Trial]) -> Trial | None:
    """The best measured value whose measured figures meet the limits."""
    met = [t for t in trials if t.value and all(m.value is not None and m.value <= m.limit
                                                for m in t.limits)]  # fmt: skip
    return max(met, key=lambda t: t.value or 0.0, default=None)


class Rival:
    """A policy that measures each of its candidates once, in windows of one length."""

    def __init__(self, space: Space, ground: Ground, window_s: float) -> None:
        self.space, self.ground, self.window_s = space, ground, window_s

    def ask(self, history: History, left_s: float) -> Ask | None:
        """As many as there are places."""
        chosen: list[Candidate] = []
        while len(chosen) < self.ground.places and (c := self.another(history, chosen)) is not None:
            chosen.append(c)
        if not chosen or self.ground.cost_s(chosen, self.window_s) > left_s:
            return None
        return Ask(tuple(chosen), self.window_s, ("",) * len(chosen))

    def another(self, history: History, beside: Sequence[Candidate]) -> Candidate | None:
        """The next candidate, None when there is none."""
        raise NotImplementedError

    def can_run(self, candidate: Candidate) -> bool:
        """Whether no rule refuses it; known before a start."""
        return self.space.refused(candidate) is None and (
            self.ground.expect([candidate])[0].refused is None
        )


class RandomSearch(Rival):
    """Every candidate as likely as another, none twice."""

    def __init__(self, space: Space, ground: Ground, window_s: float, seed: int) -> None:
        super().__init__(space, ground, window_s)
        self._random = np.random.default_rng([seed, 1])

    def another(self, history: History, beside: Sequence[Candidate]) -> Candidate | None:
        seen = {self.space.resolved(t.candidate).identity for t in history.trials}
        seen |= {self.space.resolved(c).identity for c in beside}
        for _ in range(TRIES):
            candidate = self.space.candidate(self.space.draw(self._random))
            if self.can_run(candidate) and self.space.resolved(candidate).identity not in seen:
                return candidate
        return None


class Grid(Rival):
    """Two knobs, all pairs in ascending order: what vLLM's auto_tune.sh does."""

    def __init__(self, space: Space, ground: Ground, window_s: float) -> None:
        super().__init__(space, ground, window_s)
        self._left = self._pairs()

    def another(self, history: History, beside: Sequence[Candidate]) -> Candidate | None:
        return next(self._left, None)

    def _pairs(self) -> Iterator[Candidate]:
        names = [n for n in ("max_num_seqs", "max_num_batched_tokens") if n in self.space.names]
        values = [next(d.values for d in self.space.dimensions if d.name == n) for n in names]
        for pair in product(*values):
            candidate = Candidate({n: v for n, v in zip(names, pair, strict=True)
                                   if v != self.space.own[n]})  # fmt: skip
            if self.can_run(candidate):
                yield candidate


class Tpe(Rival):
    """Optuna's TPE sampler with constraints, the log value to be made larger.

    Trials that are running count as bad ones (constant liar), so that places are filled with
    different candidates. A crash is a far violation: told as failed, it would teach nothing.
    """

    def __init__(self, space: Space, ground: Ground, window_s: float, seed: int) -> None:
        super().__init__(space, ground, window_s)
        import optuna  # noqa: PLC0415  only the benchmark needs it

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        self._study = optuna.create_study(sampler=sampler, direction="maximize")
        self._running: list[optuna.Trial] = []
        self._told = 0

    def another(self, history: History, beside: Sequence[Candidate]) -> Candidate | None:
        self._tell(history)
        for _ in range(TRIES):
            trial = self._study.ask()
            candidate = self.space.candidate(self._point(trial))
            if self.can_run(candidate):
                self._running.append(trial)
                return candidate
            self._finish(trial, None, FAR, ())
        return None

    def _tell(self, history: History) -> None:
        for done in history.trials[self._told :]:
            trial = self._running.pop(0)
            if done.value is None:
                self._finish(trial, None, FAR, ())
                continue
            over = [math.log(m.value / m.limit) for m in done.limits if m.value]
            self._finish(trial, math.log(done.value), 0.0, over)
        self._told = len(history.trials)

    def _finish(
        self, trial: "optuna.Trial", value: float | None, crash: float, over: Sequence[float]
    ) -> None:
        for i, violation in enumerate((crash, *over)):
            trial.set_constraint(f"c{i}", violation)
        worst = min((t.value for t in self._study.trials if t.value is not None), default=0.0)
        self._study.tell(trial, worst if value is None else value)

    def _point(self, trial: "optuna.Trial") -> Point:
        values = []
        for dimension in self.space.dimensions:
            most = len(dimension.values) - 1
            at = (
                trial.suggest_int(dimension.name, 0, most)
                if dimension.ordered
                else trial.suggest_categorical(dimension.name, list(range(most + 1)))
            )
            values.append(dimension.values[int(at)])
        return tuple(values)
