"""Which targets the nearest configuration would meet, at an error that counts how it was chosen.

The nearest is picked for its figures, so the end of its own interval flatters it: of ten equals
with one run each the calmest draw is taken. The allowed error (`ERROR`) is therefore divided among
all that it was picked from and the limits that are named, so that by the union bound the chance of
any wrong word stays below it. Of a configuration that was in fewer than `PLAN.least` rounds nothing
is promised: what its run had is told, and what that may stand for under the noise between runs.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ridgeline.domain.numerals import significant
from ridgeline.domain.slo import SHARE_KEYS
from ridgeline.experiment.statistics import t_quantile
from ridgeline.tuning.blocks import TELLING
from ridgeline.tuning.dueling import PLAN, Duel
from ridgeline.tuning.meeting import mean_of_runs
from ridgeline.tuning.objective import BETWEEN_RUNS
from ridgeline.tuning.outcome import Side
from ridgeline.tuning.trial import Candidate, Miss, Trial

ERROR = 0.025  # chance that any target is said to be met which is not
DIGITS = 2  # of a target that would be met
# Of a latency from run to run, as a standard deviation of its logarithm, until a search's own
# repeats tell it: the most that the search's model allows (residual.NOISE; H200 hosts had 20 to
# 30 %). It counts for so many degrees of freedom beside theirs.
USUAL, USUAL_FREEDOM = 0.25, 8
_Z = 1.959964  # of the 95 % intervals that single runs have


@dataclass(frozen=True, slots=True)
class Scatter:
    """Standard deviation of the logarithm of one run's figure, and its degrees of freedom."""

    deviation: float
    freedom: int


def is_firm(side: Side) -> bool:
    """Whether it was in enough rounds of a duel to promise anything."""
    return side.measured == "duel" and side.runs >= PLAN.least


def would_meet(side: Side, duel: Duel, among: int) -> tuple[str, ...]:
    """For each limit that a firm side does not meet, the one that it would ("itl_p95_ms 26").

    duel: that its figures are of. among: firm sides that it was picked from, itself included.
    """
    open_ = [(n, miss) for n, miss in enumerate(side.limits) if miss.met is not True]
    runs = [duel.summaries(c) for c in duel.candidates]
    which = duel.candidates.index(Candidate(side.change))
    tail = ERROR / max(among * len(open_), 1)
    found = []
    for number, miss in open_:
        if miss.key in SHARE_KEYS:
            end = _share_end(miss, tail)
        else:
            mean = mean_of_runs(runs, which, number)
            if mean is None or miss.value is None:
                continue
            end = max(math.exp(mean.log + mean.half(tail=tail)), miss.value)
        if end is not None and (told := _outwards(miss.key, end)) is not None:
            found.append(f"{miss.key} {told:g}")
    return tuple(found)


def had(side: Side, trials: Iterable[Trial], among: int) -> tuple[str, ...]:
    """For each limit that it does not meet, what its run had and may stand for ("itl_p95_ms 19.3
    (up to 41)"); of shares, whose noise between runs no logarithm tells, the figure alone.

    trials: of the search, for the noise between runs. among: sides that are not firm and that it
    was picked from, itself included.
    """
    trials = list(trials)
    open_ = [m for m in side.limits if m.met is not True and m.value is not None]
    tail = ERROR / max(among * len(open_), 1)
    found = []
    for miss in open_:
        text = f"{miss.key} {significant(miss.value or 0.0)}"
        most = None if miss.key in SHARE_KEYS else may_be(miss, scatter_of(trials, miss.key), tail)
        told = None if most is None else _outwards(miss.key, most)
        found.append(text if told is None else f"{text} (up to {told:g})")
    return tuple(found)


def may_be(miss: Miss, scatter: Scatter, tail: float) -> float | None:
    """Upper bound of the true figure behind one run, in its unit, wrong in a share `tail` of cases:
    the scatter between runs and the run's own error together. None without a figure.
    """
    if miss.value is None or miss.high is None or not 0 < miss.value <= miss.high < math.inf:
        return None
    own = max(math.log(miss.high / miss.value) / _Z - BETWEEN_RUNS, 0.0)
    quantile = t_quantile(scatter.freedom, 1 - tail)
    return miss.value * math.exp(quantile * math.hypot(scatter.deviation, own))


def scatter_of(trials: Iterable[Trial], key: str) -> Scatter:
    """Of the figure for a limit, by whole runs of one configuration and window in the search,
    together with what is usual.
    """
    logs: dict[object, list[float]] = {}
    for trial in trials:
        if trial.state not in TELLING or trial.stopped:
            continue
        value = next((m.value for m in trial.limits if m.key == key), None)
        if value is not None and 0 < value < math.inf:
            logs.setdefault((trial.candidate.key, trial.window_s), []).append(math.log(value))
    left = sum(_squares(own) for own in logs.values())
    freedom = USUAL_FREEDOM + sum(len(own) - 1 for own in logs.values())
    return Scatter(math.sqrt((USUAL_FREEDOM * USUAL**2 + left) / freedom), freedom)


def _squares(own: Sequence[float]) -> float:
    mean = math.fsum(own) / len(own)
    return math.fsum((x - mean) ** 2 for x in own)


def _share_end(miss: Miss, tail: float) -> float | None:
    """The unfavourable end of a share's 95 % interval, moved out to `tail` on the logit scale."""
    end = miss.low if miss.key == "attainment" else miss.high
    if end is None or miss.value is None or not (0 < end < 1 and 0 < miss.value < 1):
        return end
    middle = math.log(miss.value / (1 - miss.value))
    away = math.log(end / (1 - end)) - middle
    moved = middle + away * t_quantile(10_000, 1 - tail) / _Z
    return 1 / (1 + math.exp(-moved))


def _outwards(key: str, end: float) -> float | None:
    """To two digits away from the figure."""
    if not math.isfinite(end) or end <= 0:
        return None
    step = 10.0 ** (math.floor(math.log10(end)) + 1 - DIGITS)
    whole = math.floor(end / step) if key == "attainment" else math.ceil(end / step)
    found = round(whole * step, 12)
    return min(found, 1.0) if key in SHARE_KEYS else found
