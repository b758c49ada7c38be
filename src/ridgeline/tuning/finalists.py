"""Who meets the baseline in the duel: what leads the search, and near misses where nothing is sure.

The finalists are chosen once, and the journal keeps them: a resumed duel has the same contenders.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ridgeline.domain.errors import GIVEN_UP
from ridgeline.tuning.dueling import Duel
from ridgeline.tuning.journal import Told
from ridgeline.tuning.meeting import LEAST
from ridgeline.tuning.objective import over_limit
from ridgeline.tuning.trial import Candidate, History, Trial

# How far a limit may be exceeded by what still meets the baseline in the duel. Two visits to H200
# hosts had p95 latencies of one configuration 20 to 30 % apart from run to run: at 25 % (standard
# deviation of the logarithm) a run lies up to 63 % above what it is on the whole in 95 of 100.
NEAR = math.log(1.63)

Ranked = tuple[Candidate, float]  # with the search's estimate of the objective


def contenders(
    standings: Sequence[Ranked], history: History, fallen: Collection[object]
) -> list[Ranked]:
    """Measured changes of the baseline that may go into a duel, the best first.

    standings: the search's own. fallen: keys of those that missed a target or died in an earlier
    duel. Where no trial of the others meets every limit for sure, near misses follow, the nearest
    first.
    """
    found = [
        (c, value)
        for c, value in standings
        if c.change and c.key not in fallen and may_win(history.of(c))
    ]
    if any(t.state == "feasible" and t.candidate.key not in fallen for t in history.trials):
        return found
    named = {c.key for c, _ in found} | set(fallen)
    return found + [pair for pair in near_misses(history) if pair[0].key not in named]


def near_misses(history: History) -> list[Ranked]:
    """Changes whose runs exceed their worst limit by no more than `NEAR`, the nearest first; the
    value and each limit's figure are geometric means over the runs.
    """
    found: list[tuple[float, float, Candidate]] = []
    for candidate in {t.candidate.key: t.candidate for t in history.trials}.values():
        runs = [t for t in history.of(candidate) if t.value]
        if not candidate.change or not runs or not may_win(history.of(candidate)):
            continue
        over = _worst(runs)
        if over <= NEAR:
            value = math.exp(math.fsum(math.log(t.value or 1.0) for t in runs) / len(runs))
            found.append((over, -value, candidate))
    found.sort(key=lambda one: one[:2])
    return [(candidate, -value) for _, value, candidate in found]


def _worst(runs: Sequence[Trial]) -> float:
    """Log of how far the worst limit is exceeded; infinite where one is not known."""
    by_key: dict[str, list[float]] = {}
    for trial in runs:
        for miss in trial.limits:
            by_key.setdefault(miss.key, []).append(over_limit(miss))
    means = [math.inf if math.inf in own else math.fsum(own) / len(own) for own in by_key.values()]
    return max(means, default=math.inf)


def may_win(trials: Sequence[Trial]) -> bool:
    """Whether a candidate has a figure and never crashed: once in two is once too often."""
    return not any(map(crashed, trials)) and any(t.value is not None for t in trials)


def crashed(trial: Trial) -> bool:
    """A start that a budget ended tells nothing about the engine."""
    return trial.state == "crashed" and GIVEN_UP not in (trial.reason or "")


def baseline_stays(told: Told, duel: Duel | None) -> bool:
    """Whether the baseline may stay: it runs, and does not miss the targets, by its runs in the
    duel where these can tell, else by its latest trial with a figure.
    """
    baseline = Candidate()
    if duel is not None and len(duel.summaries(baseline)) >= LEAST:
        meets = duel.meets(baseline)
        if meets is not None:
            return meets
    trials = told.history.of(baseline)
    if not trials or any(t.state == "refused" or crashed(t) for t in trials):
        return False
    figures = [t for t in trials if t.value is not None]
    return not figures or figures[-1].state != "infeasible"


def changes_of(finalists: Mapping[str, Any]) -> tuple[Candidate, ...]:
    """The finalists as the journal keeps them; JSON has no tuples."""
    return tuple(
        Candidate({n: tuple(v) if isinstance(v, list) else v for n, v in change.items()})
        for change in finalists["changes"]
    )


def why_none(told: Told) -> str:
    """In words, why nothing goes into a duel."""
    trials = told.history.trials
    if not trials:
        return "nothing was measured"
    if all(t.state in ("void", "crashed", "refused") for t in trials):
        first = next(t for t in trials if t.reason)
        return f"no trial has a figure that counts; the first is {first.state}: {first.reason}"
    tried = [t for t in trials if t.candidate.change]
    if not tried:
        return "nothing but the baseline was measured"
    if any(t.state in ("feasible", "unsure") for t in tried):
        if any(not j.may_win for j in told.judged):
            return "no change of the baseline that may win is in the lead"
        return "no change of the baseline is in the lead"
    return "no configuration that was tried meets the targets"
