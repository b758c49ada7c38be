"""Whom a duel names: what died in it, or is not decided by it, is never called a clear winner."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ridgeline.tuning.dueling import BLOCKS_WORDS, PLAN, Duel
from ridgeline.tuning.meeting import LEAST
from ridgeline.tuning.objective import BETWEEN_RUNS, judge, over_limit
from ridgeline.tuning.port import Expected
from ridgeline.tuning.risk import risk_of
from ridgeline.tuning.trial import Candidate

SAME = 0.002  # relative: a twin whose figures differ by less says that nothing is changed
NONE_MEETS = "no configuration meets the targets"
ONE_ROUND = "no clear winner: one round of the duel decides nothing"
NO_DUEL = "no duel was held: its budget is used"


@dataclass(frozen=True, slots=True)
class Choice:
    """The winner, whether it is clear, and why. recommended False: not even the baseline is.

    instead: words of those that the duel cannot tell from it and that change more.
    """

    winner: Candidate
    clear: bool
    why: str
    recommended: bool = True
    instead: tuple[str, ...] = ()


def choose(duel: Duel, out: Collection[str]) -> Choice:
    """The baseline, unless one is clearly better than it and no worse in its targets, or meets the
    targets where the baseline misses them, is not shown to meet them, or does not run. A baseline
    that misses them is never recommended; where nothing is shown to meet them then, what comes
    nearest to them is named before what gives more.

    `out`: words of the disqualified.
    """
    baseline = duel.candidates[0]
    rivals = [
        c for c in duel.candidates[1:]
        if c.words not in out and not duel.died(c) and duel.meets(c) is not False and duel.value(c)
    ]  # fmt: skip
    ranked = sorted(rivals, key=lambda c: duel.estimate(c)[0] or 0.0, reverse=True)
    sure = [c for c in ranked if duel.meets(c) is True]
    died = duel.died(baseline)
    if died:
        why = f"the baseline does not run, it {died}"
        # The budget may end the duel after one round, which decides nothing, as is said of the one
        # whose run was within its targets: what does not run is no choice beside it.
        sure = sure or [c for c in ranked if _one_run_within(duel, c)]
        if sure:
            first, instead = simplest(duel, sure)
            return _if_long_enough(duel, first, why, len(duel.summaries(first)), instead)
        none = f"{why}, and no finalist that runs meets the targets for sure"
        return Choice(baseline, False, none, recommended=False)
    if not duel.held:
        return Choice(baseline, False, NO_DUEL)
    if duel.meets(baseline) is False:
        if sure:
            first, instead = simplest(duel, sure)
            why = "it meets the targets, which the baseline misses"
            return _if_long_enough(duel, first, why, _pairs(duel, first), instead)
        if ranked:
            near = likeliest_of(duel, ranked)
            first, instead = simplest(duel, near)
            why = "the baseline misses the targets; this one may meet them and may miss them"
            if len(near) < len(ranked):
                why += f"; of {len(ranked)} finalists that may, it is nearest to its targets"
            long = _if_long_enough(duel, first, why, _pairs(duel, first), instead)
            return replace(long, clear=False)
        return Choice(baseline, False, NONE_MEETS, recommended=False)
    return _better(duel, ranked, sure)


def likeliest_of(duel: Duel, ranked: Sequence[Candidate]) -> list[Candidate]:
    """Of those that may meet the targets the ones with the best chance to, in their order: the
    figure that is the furthest over its limit, or the least within it, is the lowest, but for what
    runs of one configuration differ by anyway.
    """
    over = {c.key: max(map(over_limit, duel.limits(c)), default=math.inf) for c in ranked}
    least = min(over.values())
    return [c for c in ranked if over[c.key] <= least + BETWEEN_RUNS]


def _better(duel: Duel, ranked: list[Candidate], sure: list[Candidate]) -> Choice:
    """Against a baseline that does not miss the targets for sure: what is clearly better than it,
    or, where it is not shown to meet them, what is, unless that seems to be worth less.
    """
    baseline = duel.candidates[0]
    if duel.held < LEAST:
        return Choice(baseline, False, ONE_ROUND)
    clear = [c for c in sure if duel.beats(c, baseline)]
    if clear:
        first, instead = simplest(duel, clear)
        return Choice(first, True, "clearly better than the baseline", instead=instead)
    meeting = [c for c in sure if not _seems_worse(duel, c)]
    if meeting and duel.meets(baseline) is None:
        first, instead = simplest(duel, meeting)
        why = "it meets the targets, which the baseline is not shown to meet"
        long = _if_long_enough(duel, first, why, _pairs(duel, first), instead)
        return replace(long, clear=False)
    perhaps = [c for c in ranked if duel.beats(c, baseline)]
    if not perhaps:
        why = "no clear winner: no finalist is clearly better than the baseline"
        early = _taken_back(duel, ranked)
        why += f" ({early})" if early else ""
        dead = [f"{c.words} {d}" for c in duel.candidates[1:] if (d := duel.died(c))]
        why += f" ({'; '.join(dead)})" if dead else ""
        why += f" ({BLOCKS_WORDS})" if duel.in_blocks else ""
        if duel.held < PLAN.least:
            why += f" ({_short(duel.held)})"
        return Choice(baseline, False, why)
    first, instead = simplest(duel, perhaps)
    if duel.meets(baseline):
        why = f"no clear winner: {first.words} is clearly better but may miss the targets"
        return Choice(baseline, False, why)
    why = "clearly better than the baseline, but like the baseline it may miss the targets"
    return Choice(first, False, why, instead=instead)


def _one_run_within(duel: Duel, candidate: Candidate) -> bool:
    """Whether it has one valid run alone, whose own intervals meet every target."""
    runs = duel.summaries(candidate)
    return len(runs) == 1 and judge(next(iter(runs.values())))[0] == "feasible"


def _pairs(duel: Duel, candidate: Candidate) -> int:
    """Rounds in which it and the baseline both have a valid run."""
    return len(set(duel.summaries(candidate)) & set(duel.summaries(duel.candidates[0])))


def _seems_worse(duel: Duel, candidate: Candidate) -> bool:
    """Whether the duel's estimate of it is below that of the baseline."""
    own, before = (duel.estimate(c)[0] for c in (candidate, duel.candidates[0]))
    return own is not None and before is not None and own < before


def _taken_back(duel: Duel, ranked: Sequence[Candidate]) -> str | None:
    """Who was clearly better at an earlier look and is not at the last one."""
    for candidate in ranked:
        since = duel.once_clear(candidate)
        if since is not None:
            return (
                f"{candidate.words} was after round {since}, {duel.held} rounds do not bear it out"
            )
    return None


def simplest(duel: Duel, ranked: Sequence[Candidate]) -> tuple[Candidate, tuple[str, ...]]:
    """Of the best and those that the duel cannot tell from it, the one that changes least.

    Told apart are two by a clear difference, or by one above the duel's tie (1 %) in their common
    rounds. Of those that are left: the fewest changes of the baseline, then the lowest class of
    risk, then the lowest latency. Also the words of the others.
    """
    best = ranked[0]
    equal = [best, *(c for c in ranked[1:] if _no_difference(duel, best, c))]
    first = min(equal, key=lambda c: (len(c.change), _risk(duel, c), _latency(duel, c)))
    return first, tuple(c.words for c in equal if c != first)


@dataclass(frozen=True, slots=True)
class Group:
    """A finalist with the search's estimate. of: words of those that it stands for: neither the
    twin nor the measurements tell them from it, and they change as much or more.
    """

    candidate: Candidate
    value: float
    of: tuple[str, ...] = ()


def groups_of(
    ranked: Sequence[tuple[Candidate, float]], expected: Mapping[object, Expected]
) -> list[Group]:
    """Candidates with the search's estimates, the best first: one for all that are alike.

    The leader keeps its place. The simplest of those that are alike follows it, and takes it where
    also the twin sees no difference at all. Alike are two within the noise of a run
    (`BETWEEN_RUNS`) of which the twin expects the same, or of which one is a part of the other's
    changes and the twin, where it knows both, sees less than the duel's tie.

    `expected`: the twin's, by a candidate's key.
    """
    found: list[Group] = []
    rest = list(ranked)
    while rest:
        first, value = rest[0]
        near = [pair for pair in rest if _alike(rest[0], pair, expected)]
        simple, its = min(near, key=lambda pair: len(pair[0].change))
        alike = [pair for pair in rest if pair in near or _alike((simple, its), pair, expected)]
        rest = [pair for pair in rest if pair not in alike]
        leads = not found and simple != first and not _same(first, simple, expected)
        if leads:
            found.append(Group(first, value))
        named = {first.key, simple.key} if leads else {simple.key}
        found.append(Group(simple, its, tuple(c.words for c, _ in alike if c.key not in named)))
    return found


def _alike(
    one: tuple[Candidate, float],
    other: tuple[Candidate, float],
    expected: Mapping[object, Expected],
) -> bool:
    (a, v), (b, w) = one, other
    if a == b:
        return True
    if not a.change or not b.change or min(v, w) < max(v, w) * (1 - BETWEEN_RUNS):
        return False
    if _same(a, b, expected):
        return True
    told = [e.value for c in (a, b) if (e := expected.get(c.key)) is not None and e.value]
    part = a.change.items() < b.change.items() or b.change.items() < a.change.items()
    return part and (len(told) < 2 or math.isclose(told[0], told[1], rel_tol=PLAN.tie))


def _same(a: Candidate, b: Candidate, expected: Mapping[object, Expected]) -> bool:
    """Whether the twin has the same figures for both, of the objective and of every limit."""
    x, y = expected.get(a.key), expected.get(b.key)
    if x is None or y is None or not x.value or not y.value:
        return False
    figures = [(x.value, y.value), *((v, y.limits.get(k)) for k, v in x.limits.items())]
    return all(w is not None and math.isclose(v, w, rel_tol=SAME) for v, w in figures)


def _no_difference(duel: Duel, one: Candidate, other: Candidate) -> bool:
    pair = duel.against(one, other)
    if pair is None or pair.delta is None or pair.rounds < PLAN.least:
        return False
    return not pair.word.startswith("clearly") and abs(pair.delta) <= PLAN.tie


def _risk(duel: Duel, candidate: Candidate) -> int:
    dtype = duel.setting.configuration.knobs.dtype
    knobs = {n: v for n, v in candidate.change.items() if n != "routing"}
    return risk_of(knobs, "bfloat16" if dtype in (None, "auto") else str(dtype)).risk


def _latency(duel: Duel, candidate: Candidate) -> tuple[float, float]:
    """The largest share of a latency target that its runs use, then their p95 ITL."""
    summary = duel.merged(candidate)
    if summary is None:
        return math.inf, math.inf
    _, limits = judge(summary)
    shares = [m.value / m.limit for m in limits if m.key.endswith("_ms") and m.value is not None]
    itl_s = summary.failures_as_infinite["itl_s"].p95
    return max(shares, default=0.0), math.inf if itl_s is None else itl_s


def _if_long_enough(
    duel: Duel, winner: Candidate, why: str, rounds: int, instead: tuple[str, ...]
) -> Choice:
    if duel.in_blocks:
        return Choice(winner, False, f"{why}; {BLOCKS_WORDS}", instead=instead)
    if rounds >= PLAN.least:
        return Choice(winner, True, why, instead=instead)
    return Choice(winner, False, f"{why}; seen in {_short(rounds)}", instead=instead)


def _short(rounds: int) -> str:
    nothing = "one round decides nothing, " if rounds < LEAST else ""
    return f"{rounds} round{'s' * (rounds != 1)} only, {nothing}at least {PLAN.least} tell"
