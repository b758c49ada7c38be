"""The duel of the finalists: when it may stop, and who is clearly better than whom.

A round measures every contender that is still in once, interleaved, under one fresh seed, so what
a round has in common cancels in the log ratio of two contenders. After each round each pair is
looked at with Student's t. The noise is that of all contenders and rounds together (`blocks`), as
one pair alone tells it with two degrees of freedom after three rounds, and that of what the search
measured more than once, which counts for a few more; it is never taken for
smaller than the pair's own rounds have it. For a contender that seems noisier than the others
the pair's own variance counts, with the pair's degrees of freedom and fewer of the search's.

Looking several times and at several pairs is paid for in advance: the error that is allowed (5 %)
is divided among the pairs, and among the looks in proportion to the rounds seen, most of it to
those that the budget was known to hold before the first round. So the chance that any pair is
called clearly different when it is not stays below it, whatever the rounds depend on
(by the union bound; that noises may differ tenfold between contenders is tested by simulation).
What is said is the word of the last look alone: an early "clearly" that later rounds do not bear
out is taken back. (Always-valid bounds for an unknown variance are wider than this at the three to
eight rounds that a duel has.)
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from ridgeline.experiment.statistics import t_quantile
from ridgeline.tuning.blocks import MOST_FOR_ONE, Known, Noise, noise_of
from ridgeline.tuning.meeting import LEAST

Word = Literal["clearly better", "clearly worse", "equal", "no clear difference"]
NOISE = 0.1  # of a run, by which rounds are weighed: what hosts were seen to have
AIMED = 0.9  # of the error: what is left lets a duel go on that gets more rounds than was thought
Round = Mapping[int, float | None]  # contender -> objective; None or absent: no valid figure


@dataclass(frozen=True, slots=True)
class DuelPlan:
    """contenders: how many, the baseline included. tie: a relative difference that counts as none.

    error: allowed chance of any wrong "clearly". A duel has least to most rounds. known: the noise
    as the search saw it. aim: rounds that the budget holds, as was known before the first one.
    in_blocks: each contender's runs were done one after another, so what the host did meanwhile
    lies in the contender and not in the error: no pair has bounds, and none is told apart.
    missed: allowed chance, over all looks, that what is just at a limit is called missed.
    """

    contenders: int
    least: int = 3
    most: int = 8
    error: float = 0.05
    tie: float = 0.01
    known: Known | None = None
    aim: int | None = None
    in_blocks: bool = False
    missed: float = 0.025

    def level(self, rounds: int) -> float:
        """The share of `error` that one pair may use at the look after so many rounds.

        Looks up to `aim` share `AIMED` of it, those beyond it the rest: a budget that holds three
        rounds would else keep nine tenths for looks that never come.
        """
        pairs = self.contenders * (self.contenders - 1) // 2
        return self.error / pairs * self._part(rounds, self.least)

    def missing(self, rounds: int) -> float:
        """The share of `missed` for one limit at the look after so many rounds, one-sided: limits
        are looked at from `LEAST` rounds on, and at any look a finalist may be out for good.
        """
        return self.missed * self._part(min(max(rounds, LEAST), self.most), LEAST)

    def _part(self, rounds: int, since: int) -> float:
        """Of an error that is spent on the looks after `since` rounds and later ones."""
        aim = self.most if self.aim is None else min(max(self.aim, self.least), self.most)
        within = rounds <= aim
        looks = range(since, aim + 1) if within else range(aim + 1, self.most + 1)
        part = 1.0 if aim == self.most else AIMED if within else 1 - AIMED
        return part * rounds / sum(looks)

    def tells(self, rounds: int, noise: float) -> float:
        """The relative difference from which a pair is told apart after so many rounds of all.

        noise: of one run (0.1 = 10 %), the same for all. Infinite below `least` rounds.
        """
        freedom = (self.contenders - 1) * (rounds - 1)
        if rounds < self.least or freedom < 1:
            return math.inf
        freedom += 0 if self.known is None else self.known.freedom
        width = t_quantile(freedom, 1 - self.level(min(rounds, self.most)) / 2)
        return math.expm1(width * noise * math.sqrt(2 / rounds))

    def noise(self, rounds: Sequence[Round]) -> Noise | None:
        """Of one run, from these rounds and the search; None where the rounds tell none."""
        found = noise_of(rounds, range(self.contenders))
        return found if found is None or self.known is None else self.known + found

    def noise_of_one(self, variance: float, freedom: int) -> Noise:
        """Of one run, from a pair's own rounds and, for less than in `noise`, from the search."""
        own = Noise(variance, freedom, frozenset())
        if self.known is None:
            return own
        return replace(self.known, freedom=min(self.known.freedom, MOST_FOR_ONE)) + own


@dataclass(frozen=True, slots=True)
class Against:
    """`one` over `other`: relative difference (0.1 = 10 % more) with its bounds at the look's
    level, over so many shared rounds. None where there are too few.
    """

    one: int
    other: int
    delta: float | None
    low: float | None
    high: float | None
    word: Word
    rounds: int


@dataclass(frozen=True, slots=True)
class DuelState:
    """How the duel stands. leader: the best mean of those that are in; None without a round.

    pairs: every pair at the last look, `one` the one with the better mean. out: clearly worse than
    some other one at some look, so not measured any more (the baseline is: by the last look).
    best: the leader is clearly better than all others. ties: those that it is not clearly better
    than. done, with the reason in words.
    """

    leader: int | None
    pairs: tuple[Against, ...]
    out: frozenset[int]
    ties: tuple[int, ...]
    best: bool
    done: bool
    reason: str


def stand(rounds: Sequence[Round], plan: DuelPlan, barred: frozenset[int] = frozenset()) -> DuelState:  # noqa: E501  # fmt: skip
    """The state after these rounds. `barred` missed a limit, crashed or failed the quality gate."""
    decided: dict[tuple[int, int], Against] = {}
    gone: set[int] = set()
    for seen in range(plan.least, len(rounds) + 1):
        decided = _looks(rounds[:seen], plan)
        lost = {  # losing against one who is barred is no reason
            _worse(a)
            for a in decided.values()
            if a.word.startswith("clearly") and not barred & {a.one, a.other}
        }
        gone = gone - {0} | lost  # the baseline is measured on, and judged by the last look
    out = barred | gone
    inside = [c for c in range(plan.contenders) if c not in out]
    leader = _leader(rounds, inside)
    if leader is None:
        done = bool(barred) and not inside
        reason = "no contender is left" if done else "no round yet"
        return DuelState(None, tuple(decided.values()), out, (), False, done, reason)
    ties = tuple(c for c in inside if c != leader)
    best = not ties and len(rounds) >= plan.least
    equal = bool(ties) and all(_word(decided, leader, c) == "equal" for c in ties)
    done = best or equal or len(rounds) >= plan.most
    reason = (
        _left_alone(leader, barred, plan, decided) if best
        else f"equal within {100 * plan.tie:g} %" if equal
        else f"no clear difference after {len(rounds)} rounds" if done
        else "goes on"
    )  # fmt: skip
    return DuelState(leader, tuple(map(_turned, decided.values())), out, ties, best, done, reason)


def _left_alone(
    leader: int,
    barred: frozenset[int],
    plan: DuelPlan,
    decided: Mapping[tuple[int, int], Against],
) -> str:
    """Why nobody else is in: by the last look clearly beaten, or out for another reason."""
    others = {c for c in range(plan.contenders) if c != leader}
    rest = others - barred
    if rest and all(_word(decided, leader, c).startswith("clearly") for c in rest):
        return "clearly the best" + (" of those that may win" if barred else "")
    if not rest:
        what = "the baseline" if others == {0} else "the other" if len(others) == 1 else "the rest"
        return f"one contender is left: {what} misses a target, died or is disqualified"
    return "one contender is left: the rest fell clearly behind in its rounds or is out"


def last_look(rounds: Sequence[Round], plan: DuelPlan, one: int, other: int) -> Against:
    """One pair after all of these rounds."""
    return _look(rounds, plan, one, other, plan.noise(rounds))


def _looks(rounds: Sequence[Round], plan: DuelPlan) -> dict[tuple[int, int], Against]:
    """Every pair after these rounds."""
    noise = plan.noise(rounds)
    pairs = combinations(range(plan.contenders), 2)
    return {pair: _look(rounds, plan, *pair, noise) for pair in pairs}


def _look(
    rounds: Sequence[Round],
    plan: DuelPlan,
    one: int,
    other: int,
    noise: Noise | None,
) -> Against:
    """One pair after these rounds, at this look's level. noise: of all together."""
    steps = [
        math.log(a / b) for r in rounds if (a := r.get(one)) and (b := r.get(other)) and a > 0 < b
    ]
    n = len(steps)
    if n < plan.least or plan.in_blocks:
        delta = math.expm1(math.fsum(steps) / n) if n else None
        return Against(one, other, delta, None, None, "no clear difference", n)
    mean = math.fsum(steps) / n
    own = math.fsum((s - mean) ** 2 for s in steps) / (n - 1) / 2
    if noise is None or noise.noisy & {one, other}:
        noise = plan.noise_of_one(own, n - 1)
    variance, freedom = max(own, noise.variance), noise.freedom
    width = t_quantile(freedom, 1 - plan.level(len(rounds)) / 2)
    half = width * math.sqrt(2 * variance / n)
    low, high = mean - half, mean + half
    tie = math.log1p(plan.tie)
    word: Word = "no clear difference"
    if -tie <= low and high <= tie:
        word = "equal"
    elif low > 0 or high < 0:
        word = "clearly better" if low > 0 else "clearly worse"
    return Against(one, other, math.expm1(mean), math.expm1(low), math.expm1(high), word, n)


def _worse(pair: Against) -> int:
    return pair.other if pair.word == "clearly better" else pair.one


def _word(decided: Mapping[tuple[int, int], Against], one: int, other: int) -> Word:
    found = decided.get((min(one, other), max(one, other)))
    return "no clear difference" if found is None else found.word


def _turned(pair: Against) -> Against:
    """With the better one first."""
    if pair.delta is None or pair.delta >= 0:
        return pair
    back = [None if v is None else -v / (1 + v) for v in (pair.delta, pair.high, pair.low)]
    words: dict[Word, Word] = {"clearly worse": "clearly better", "clearly better": "clearly worse"}
    word = words.get(pair.word, pair.word)
    return Against(pair.other, pair.one, back[0], back[1], back[2], word, pair.rounds)


def _leader(rounds: Sequence[Round], inside: Sequence[int]) -> int | None:
    """The best mean log value over the rounds that all who are in have in common.

    Without a common round over each one's own.
    """
    logs = {c: {i: math.log(v) for i, r in enumerate(rounds) if (v := r.get(c)) and v > 0}
            for c in inside}  # fmt: skip
    common = set.intersection(*(set(found) for found in logs.values())) if logs else set()
    means = {
        c: math.fsum(found[i] for i in (common or found)) / len(common or found)
        for c, found in logs.items()
        if found
    }
    return max(means, key=lambda c: (means[c], -c)) if means else None
