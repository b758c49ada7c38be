"""Scores of policies: GPU seconds until the incumbent is truly within 2 % of the optimum."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.tuning.keeping import each
from benchmarks.tuning.rivals import Grid, RandomSearch, Tpe, incumbent
from ridgeline.domain.slo import slo_from_mapping
from ridgeline.tuning.port import Policy
from ridgeline.tuning.risk import Risk
from ridgeline.tuning.search import Search, Windows
from ridgeline.tuning.trial import Candidate, History

WITHIN = 0.98
SHORT_S, LONG_S = 10.0, 25.0
MOST_TRIALS = 200  # of a rival, after which a search counts as not having come there
ANSWER_S = 2400.0  # GPU seconds of each GPU that our own search goes on for at least
MOST_S = 7200.0  # of each GPU, after which it counts as not having come there
POLICIES = ("random", "grid", "tpe", "ours")


@dataclass(frozen=True, slots=True)
class Score:
    """One search. reach_s: GPU seconds until the incumbent was truly near the optimum, infinite
    when it never was. spent_s: of the search, ours up to `ANSWER_S`. Of a rival's answer, its
    incumbent at the end: regret of its true value, of the optimum's (0.02 = 2 % below; None without
    an answer), infeasible and crashed its true state, error the log of its measured value over the
    true one. crashes: starts that failed.
    """

    setting: str
    policy: str
    seed: int
    reach_s: float
    spent_s: float
    regret: float | None
    infeasible: bool
    crashed: bool
    error: float | None
    crashes: int
    trials: int


def run(ground: Any, policy: str, seed: int, most_s: float = math.inf) -> Score:
    """Replay one search. A rival's ends when it is near the optimum, at `MOST_TRIALS` or `most_s`.

    Ours goes on for `ANSWER_S` at least and gives no answer here: what `ridgeline tune` answers,
    duel and all inside its budget, is scored in `ending`. Where it was not near by then it goes on
    like a rival, for `reach_s` alone.
    """
    chooser = policy_of(ground, policy, seed)
    search = Replay(ground, chooser)
    if not isinstance(chooser, Search):
        search.go(most_s, MOST_TRIALS, until_near=math.isinf(most_s))
        best = incumbent(search.history.trials)
        found = None if best is None else best.candidate
        value = None if best is None else best.value
        return _Ended(ground, policy, seed, search.history, search.reach).score(found, value)
    search.go(min(most_s, ANSWER_S * ground.gpus))
    answered = search.history
    if math.isinf(search.reach):
        search.go(min(most_s, MOST_S * ground.gpus), until_near=True)
    return _Ended(ground, policy, seed, answered, search.reach).score(None, None)


@dataclass
class Replay:
    """A search that goes on. reach: GPU seconds until its incumbent was near the optimum."""

    ground: Any
    chooser: Policy
    history: History = field(default_factory=History)
    reach: float = math.inf

    def go(self, most_s: float, trials: float = math.inf, *, until_near: bool = False) -> None:
        """Up to so many GPU seconds in all, so many trials, or until it is near."""
        while len(self.history.trials) < trials and not (until_near and math.isfinite(self.reach)):
            ask = self.chooser.ask(self.history, most_s - self.history.gpu_s)
            if ask is None:
                break
            found = self.ground.measure(ask, len(self.history.trials) + 1)
            self.history = self.history.with_trials(found)
            if math.isinf(self.reach):
                answer = _answer(self.chooser, self.history)
                if answer is not None and _near(self.ground, answer):
                    self.reach = self.history.gpu_s


def policy_of(ground: Any, name: str, seed: int) -> Policy:
    """The policy of POLICIES with this name."""
    space = ground.space
    if name == "random":
        return RandomSearch(space, ground, SHORT_S, seed)
    if name == "grid":
        return Grid(space, ground, SHORT_S)
    if name == "tpe":
        return Tpe(space, ground, SHORT_S, seed)
    slo = slo_from_mapping(ground.limits)
    return Search(space, ground, slo, Windows(SHORT_S, LONG_S), seed=seed, risk=Risk.LOSSY)


def _answer(chooser: Policy, history: History) -> Candidate | None:
    if isinstance(chooser, Search):
        best = chooser.best(history)
        return None if best is None else best.candidate
    found = incumbent(history.trials)
    return None if found is None else found.candidate


def _near(ground: Any, candidate: Candidate) -> bool:
    row = ground.row(candidate)
    return bool(
        row is not None
        and ground.truth.feasible[row]
        and ground.truth.figures[row, 0] >= WITHIN * ground.truth.best
    )


@dataclass(frozen=True, slots=True)
class _Ended:
    """A search that is over."""

    ground: Any
    policy: str
    seed: int
    history: History
    reach: float

    def score(self, found: Candidate | None, value: float | None) -> Score:
        """Held against the truth: the answer, and what it was estimated to give."""
        ground, truth = self.ground, self.ground.truth
        row = None if found is None else ground.row(found)
        own = None if row is None else float(truth.figures[row, 0])
        crashes = row is not None and bool(ground.crashing[row])
        return Score(
            ground.name, self.policy, self.seed, self.reach, self.history.gpu_s,
            None if own is None else 1 - own / truth.best,
            row is not None and not crashes and not bool(truth.feasible[row]),
            crashes,
            None if own is None or value is None else math.log(value / own),
            sum(t.state == "crashed" for t in self.history.trials),
            len(self.history.trials),
        )  # fmt: skip


def replay(
    grounds: Mapping[str, Callable[[int], Any]], policies: Sequence[str], seeds: int, kept: Path,
) -> Iterator[Score]:  # fmt: skip
    """Every policy on every setting under every seed, seed by seed; what `kept` (JSON lines) has
    already is not run again. Seeds whose truth has no feasible configuration are left out.
    """
    return each(
        grounds, range(seeds), policies, kept,
        kind=Score, which=lambda s: (s.setting, s.seed, s.policy),
        run=lambda ground, seed, policy: run(ground, policy, seed),
    )  # fmt: skip
