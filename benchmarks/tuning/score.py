"""Scores of policies: GPU seconds until the incumbent is truly within 2 % of the optimum."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tuning.rivals import Grid, RandomSearch, Tpe, incumbent
from ridgeline.domain.slo import slo_from_mapping
from ridgeline.tuning.duel import DuelPlan, Round, stand
from ridgeline.tuning.port import Policy
from ridgeline.tuning.risk import Risk
from ridgeline.tuning.search import Search, Windows
from ridgeline.tuning.shrink import shrink
from ridgeline.tuning.trial import Candidate, History

WITHIN = 0.98
SHORT_S, LONG_S = 10.0, 25.0
MOST_TRIALS = 200  # of a rival, after which a search counts as not having come there
MOST_OURS = 60  # trials of our own search: a budget, should its stopping rule not end it before
FINALISTS = 3
DUEL_S = 25.0
POLICIES = ("random", "grid", "tpe", "ours")


@dataclass(frozen=True, slots=True)
class Score:
    """One search. reach_s: GPU seconds until the incumbent was truly near the optimum, infinite
    when it never was. spent_s: of the whole search. regret: of the final answer's true value, of
    the optimum's (0.02 = 2 % below); None without an answer. infeasible, crashed: the answer's
    true state. error: log of the final estimate over the true value. crashes: starts that failed.
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
    duel_s: float = 0.0


def run(ground: Any, policy: str, seed: int, most_s: float = math.inf) -> Score:
    """Replay one search to its end; a rival's ends when it is near the optimum."""
    chooser = _policy(ground, policy, seed)
    history, reach = History(), math.inf
    left = most_s
    most = MOST_OURS if policy == "ours" else MOST_TRIALS
    while len(history.trials) < most:
        ask = chooser.ask(history, left)
        if ask is None:
            break
        history = history.with_trials(ground.measure(ask, len(history.trials) + 1))
        left = most_s - history.gpu_s
        answer = _answer(chooser, history)
        if math.isinf(reach) and answer is not None and _near(ground, answer):
            reach = history.gpu_s
            if policy != "ours" and math.isinf(most_s):
                break
    if isinstance(chooser, Search):
        return _ended(ground, chooser, history, seed, reach)
    best = incumbent(history.trials)
    found = None if best is None else best.candidate
    value = None if best is None else best.value
    return _Ended(ground, policy, seed, history, reach).score(found, value)


def _policy(ground: Any, name: str, seed: int) -> Policy:
    space = ground.space
    if name == "random":
        return RandomSearch(space, ground, SHORT_S, seed)
    if name == "grid":
        return Grid(space, ground, SHORT_S)
    if name == "tpe":
        return Tpe(space, ground, SHORT_S, seed)
    slo = slo_from_mapping(ground.limits)
    return Search(
        space, ground, slo, Windows(SHORT_S, LONG_S), seed=seed, risk=Risk.LOSSY, repeats=3
    )


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


def _ended(ground: Any, search: Search, history: History, seed: int, reach: float) -> Score:
    """Ours ends with a duel; the estimate is the shrunk one of its winner."""
    end = _Ended(ground, "ours", seed, history, reach)
    finalists = [s.candidate for s in search.standings(history)[:FINALISTS]]
    if not finalists:
        return end.score(None, None)
    leader, value, seconds = duel(ground, [Candidate(), *finalists])
    return end.score(leader, value, seconds)


def duel(
    ground: Any, contenders: Sequence[Candidate]
) -> tuple[Candidate | None, float | None, float]:
    """Winner, shrunk estimate, GPU seconds. Whoever misses a limit over its rounds is out."""
    unique = {c.key: c for c in contenders}
    rivals = list(unique.values())
    plan = DuelPlan(len(rivals))
    rounds: list[Round] = []
    limits = np.log(list(ground.limits.values()))
    slow: list[list[np.ndarray]] = [[] for _ in rivals]
    barred: frozenset[int] = frozenset()
    state = stand(rounds, plan)
    while not state.done:
        row: dict[int, float | None] = {}
        for c, candidate in enumerate(rivals):
            if c not in state.out:
                number = 10_000 + 100 * len(rounds) + c
                figures, _ = ground.one(candidate, number, DUEL_S)
                row[c] = float(figures[0])
                slow[c].append(np.log(figures[1:]))
        rounds.append(row)
        means = [np.mean(s, axis=0) if s else None for s in slow]
        if len(rounds) >= plan.least:
            barred |= {c for c, m in enumerate(means) if m is not None and (m > limits).any()}
        state = stand(rounds, plan, barred)
    seconds = sum(len(r) for r in rounds) * (DUEL_S + 4.0) + ground.cost_s(rivals, 0.0)
    if state.leader is None:
        return None, None, seconds
    # The baseline is no finalist; where it wins, it is told as measured.
    group = [c for c in range(len(rivals)) if rivals[c].change and c not in barred]
    found = shrink(rounds, group if state.leader in group else [state.leader])
    return rivals[state.leader], found[state.leader].value, seconds


@dataclass(frozen=True, slots=True)
class _Ended:
    """A search that is over."""

    ground: Any
    policy: str
    seed: int
    history: History
    reach: float

    def score(self, found: Candidate | None, value: float | None, duel_s: float = 0.0) -> Score:
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
            len(self.history.trials), duel_s,
        )  # fmt: skip


def replay(
    grounds: Mapping[str, Callable[[int], Any]], policies: Sequence[str], seeds: int, kept: Path,
) -> Iterator[Score]:  # fmt: skip
    """Every policy on every setting under every seed, seed by seed; what `kept` (JSON lines) has
    already is not run again. Seeds whose truth has no feasible configuration are left out.
    """
    done = {(s.setting, s.policy, s.seed): s for s in read(kept)}
    with kept.open("a", encoding="utf-8") as file:
        for seed in range(seeds):
            for name, make in grounds.items():
                for policy in policies:
                    score = done.get((name, policy, seed))
                    if score is None and not math.isnan(make(seed).truth.best):
                        score = run(make(seed), policy, seed)
                        file.write(json.dumps(asdict(score)) + "\n")
                        file.flush()
                    if score is not None:
                        yield score


def read(kept: Path) -> list[Score]:
    """Scores that a file has; none without a file."""
    if not kept.exists():
        return []
    return [Score(**json.loads(line)) for line in kept.read_text("utf-8").splitlines()]
