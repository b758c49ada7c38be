"""A ground whose truth is a function: for tests of search policies."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ridgeline.tuning.port import Ask, Expected
from ridgeline.tuning.trial import Candidate, Miss, State, Trial

Figures = Callable[[Candidate], tuple[float, Mapping[str, float]]]


class FormulaGround:
    """`truth` and `twin` give (objective, figure of each limit); both see the candidate only."""

    def __init__(
        self,
        truth: Figures,
        twin: Figures,
        limits: Mapping[str, float],
        *,
        crashes: Callable[[Candidate], bool] = lambda c: False,
        noise: float = 0.03,
        places: int = 1,
        start_s: float = 100.0,
        lasting: bool = False,
    ) -> None:
        self.truth, self.twin, self.limits, self.crashes = truth, twin, limits, crashes
        self.noise, self._places, self.start_s = noise, places, start_s
        self.lasting = lasting
        self.up: set[object] = set()  # keys of what the last question started
        self.looked: set[object] = set()

    @property
    def places(self) -> int:
        return self._places

    def expect(self, candidates: Sequence[Candidate]) -> tuple[Expected, ...]:
        self.looked.update(c.key for c in candidates)
        found = []
        for candidate in candidates:
            value, figures = self.twin(candidate)
            met = all(v <= self.limits[k] for k, v in figures.items())
            found.append(
                Expected(
                    candidate, value, value * 0.8, value * 1.2, 0.8 if met else 0.2, None, figures
                )
            )
        return tuple(found)

    def cost_s(self, candidates: Sequence[Candidate], window_s: float) -> float:
        fresh = {c.key for c in candidates} - self.up  # distinct ones start together
        return self.start_s * bool(fresh) + len(candidates) * (window_s + 10.0)

    def measure_one(self, candidate: Candidate, number: int) -> Trial:
        """One trial of one candidate."""
        return self.measure(Ask((candidate,), 10.0, ("",)), number)[0]

    def measure(self, ask: Ask, first: int) -> tuple[Trial, ...]:
        share = self.cost_s(ask.candidates, ask.window_s) / len(ask.candidates)
        if self.lasting:
            self.up = {c.key for c in ask.candidates if not self.crashes(c)}
        found: list[Trial] = []
        for candidate in ask.candidates:
            number = first + len(found)
            if self.crashes(candidate):
                if any(t.candidate.key == candidate.key for t in found):
                    continue
                found.append(Trial(number, candidate, "crashed", gpu_s=share, reason="planted"))
                continue
            random = np.random.default_rng([number, 77])
            value, figures = self.truth(candidate)
            seen = value * math.exp(self.noise * random.standard_normal())
            misses = []
            for key, figure in figures.items():
                got = figure * math.exp(self.noise * random.standard_normal())
                low, high = got * math.exp(-2 * self.noise), got * math.exp(2 * self.noise)
                met = (
                    True if high <= self.limits[key] else False if low > self.limits[key] else None
                )
                misses.append(Miss(key, self.limits[key], got, low, high, met))
            state: State = "feasible"
            if any(m.met is False for m in misses):
                state = "infeasible"
            elif any(m.met is None for m in misses):
                state = "unsure"
            low, high = seen * math.exp(-2 * self.noise), seen * math.exp(2 * self.noise)
            found.append(
                Trial(number, candidate, state, seen, low, high, tuple(misses), ask.window_s, share)
            )
        return tuple(found)
