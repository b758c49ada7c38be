"""Knee and capacity of a load sweep, as pure functions of its levels.

Knee: the lowest load that reaches KNEE_SHARE of the plateau's throughput. Capacity: the highest
rate (or number of users) at which the lower bound of the attainment meets its target with a stable
queue. A load is a number of users (closed loop) or requests per second (open loop).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ridgeline.domain.slo import Slo
from ridgeline.domain.summary import jsonable

KNEE_SCHEMA = 1
KNEE_SHARE = 0.95  # of the plateau's throughput
STILL_RISES = 0.05  # a gain by more than this from one doubling to the next is no plateau
NEAR = 0.1  # a throughput within so much of the largest may be on the plateau
APART = 1.5  # two loads that far apart tell whether throughput still rises
CONFIDENCE_TAIL = 0.025  # of a 95 % interval

LoadKind = Literal["users", "rate"]
LevelState = Literal["valid", "overloaded", "void"]


@dataclass(frozen=True, slots=True)
class KneeLevel:
    """One load and what was found under it; None = not measured, or the sample does not carry it.

    state: valid; overloaded (an open loop whose queue grew: its throughput counts for the plateau,
    and it is above the capacity); void with `reasons` (it counts for nothing). `wanted`: requests
    that the level must have. Latencies in s, of successes; throughput of output tokens, with its
    95 % interval. `attained`: share of the requests inside every per-request limit, with interval.
    """

    run_id: str
    load: float
    state: LevelState
    requests: int
    wanted: int
    reasons: tuple[str, ...] = ()
    tokens_per_s: float | None = None
    tokens_low: float | None = None
    tokens_high: float | None = None
    requests_per_s: float | None = None
    ttft_p95_s: float | None = None
    itl_p95_s: float | None = None
    error_rate: float | None = None
    attained: float | None = None
    attained_low: float | None = None
    attained_high: float | None = None

    @property
    def counts(self) -> bool:
        """True when its throughput may be used."""
        return self.state != "void" and self.tokens_per_s is not None


@dataclass(frozen=True, slots=True)
class Estimate:
    """A load that was looked for, its interval, and why there is none or an end is open."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class KneeResult:
    """A whole search. `target`: what the attainment must reach, None without a per-request limit.

    `notes`: what a reader must know (levels that are void, a budget that was used up). `measured`:
    False for the twin. `engine`: what the server says that it is, None where it does not.
    """

    name: str
    load: LoadKind
    measured: bool
    levels: tuple[KneeLevel, ...]
    plateau_tokens_per_s: float | None
    knee: Estimate
    capacity: Estimate | None = None
    target: float | None = None
    slo: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    engine: str | None = None
    seconds: float | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, Any]:
        """The published JSON form (`ridgeline schema --of knee`)."""
        return {"schema": KNEE_SCHEMA, **jsonable(self)}


def by_load(levels: Sequence[KneeLevel]) -> list[KneeLevel]:
    """Levels whose throughput counts, by load."""
    return sorted((level for level in levels if level.counts), key=lambda level: level.load)


@dataclass(frozen=True, slots=True)
class Plateau:
    """The throughput that no load exceeds, output tokens/s, with an interval."""

    value: float
    low: float
    high: float


def plateau(levels: Sequence[KneeLevel]) -> Plateau | None:
    """The plateau; None while throughput may still rise.

    It may not when a queue grew, or when the highest load gives hardly more than one clearly below.
    The largest of several noisy figures is too large, so it is a mean: of the overloaded levels, or
    of those near the largest whose load is well above the first that is near it.
    """
    known = by_load(levels)
    overloaded = [level for level in known if level.state == "overloaded"]
    if overloaded:
        safe = max((_low(level) for level in known if level.state == "valid"), default=0.0)
        if safe <= sum(map(_tokens, overloaded)) / len(overloaded):
            return _mean(overloaded)
    if not known:
        return None
    last = known[-1]
    below = [level for level in known if level.load * APART <= last.load]
    rises = not below or _tokens(last) > (1 + STILL_RISES) * _tokens(below[-1])
    if rises and not overloaded:
        return None
    best = max(known, key=_tokens)
    near = [level for level in known if _tokens(level) >= (1 - NEAR) * _tokens(best)]
    beyond = [level for level in near if level.load >= APART * near[0].load]
    return _mean(beyond or [best])


def _mean(levels: Sequence[KneeLevel]) -> Plateau:
    n = len(levels)
    value = sum(map(_tokens, levels)) / n
    spread = math.sqrt(sum((_tokens(level) - value) ** 2 for level in levels) / max(n - 1, 1) / n)
    return Plateau(
        value,
        min(sum(map(_low, levels)) / n, value - 2 * spread),
        max(sum(map(_high, levels)) / n, value + 2 * spread),
    )


def knee_bracket(levels: Sequence[KneeLevel]) -> tuple[KneeLevel | None, KneeLevel] | None:
    """The highest load below the knee (None: there is none) and the lowest at it; None without a
    plateau.
    """
    best = plateau(levels)
    if best is None:
        return None
    known = by_load(levels)
    goal = KNEE_SHARE * best.value
    at = next((i for i, level in enumerate(known) if _tokens(level) >= goal), len(known) - 1)
    return (known[at - 1] if at else None), known[at]


def find_knee(levels: Sequence[KneeLevel]) -> Estimate:
    """The knee, between two levels by a straight line through their throughputs.

    Its interval reaches from the highest load that is clearly below (with all lower ones) to the
    lowest that is clearly at it, where "clearly" means by the ends of the throughputs' intervals.
    """
    best, bracket = plateau(levels), knee_bracket(levels)
    if best is None or bracket is None:
        return Estimate(reason=_no_plateau(levels))
    below, first = bracket
    if below is None:
        return Estimate(
            first.load, None, first.load,
            f"the lowest load, {first.load:g}, is at the plateau already",
        )  # fmt: skip
    rise = max(_tokens(first) - _tokens(below), 1e-9)
    part = (KNEE_SHARE * best.value - _tokens(below)) / rise
    value = below.load + min(max(part, 0.0), 1.0) * (first.load - below.load)
    known = by_load(levels)
    low = None
    for level in known:
        if _high(level) >= KNEE_SHARE * best.low:
            break
        low = level.load
    most = KNEE_SHARE * best.high
    high = next((level.load for level in known if _low(level) >= most), known[-1].load)
    reason = None if low is not None else "no load is clearly below the knee"
    return Estimate(
        value, None if low is None else min(low, below.load), max(high, first.load), reason
    )


def _no_plateau(levels: Sequence[KneeLevel]) -> str:
    known = by_load(levels)
    if not known:
        return "no level is valid: " + "; ".join(
            dict.fromkeys(reason for level in levels for reason in level.reasons)
        )
    above = [level for level in levels if level.state == "void" and level.load > known[-1].load]
    if above:
        return f"the level at {above[0].load:g} is void: {'; '.join(above[0].reasons)}"
    return f"throughput still rises at the highest load that was measured, {known[-1].load:g}"


def passes(level: KneeLevel, target: float, most_errors: float | None) -> bool | None:
    """Whether the level is inside its targets, by the lower bound; None when it cannot be told, as
    where the share itself is inside and its lower bound is not.
    """
    if level.state == "overloaded":
        return False
    if not _judged(level) or level.attained is None:
        return None
    if most_errors is not None and (level.error_rate is None or level.error_rate > most_errors):
        return False
    if level.attained < target:
        return False
    return True if level.attained_low is not None and level.attained_low >= target else None


def _judged(level: KneeLevel) -> bool:
    """Whether the level says anything about its targets."""
    if level.state == "overloaded":
        return True
    enough = level.requests >= level.wanted
    return level.state != "void" and enough and level.attained is not None


def find_capacity(
    levels: Sequence[KneeLevel], target: float, most_errors: float | None = None
) -> Estimate:
    """The highest load that passes with all lower ones that could be judged.

    Its interval reaches to the lowest load that clearly fails: overloaded, or with the upper bound
    of its attainment below the target. With a `reason` beside it the value is a lower bound only:
    nothing clearly fails, or a level between could not be judged.
    """
    ordered = sorted(levels, key=lambda level: level.load)
    value, unknown = None, None
    for level in ordered:
        passed = passes(level, target, most_errors)
        if passed is None:
            unknown = unknown or level
        elif passed:
            value = level.load
        else:
            break
    clear = [level.load for level in ordered if _clearly_fails(level, target, most_errors)]
    high = min((load for load in clear if value is None or load > value), default=None)
    if value is not None:
        between = (
            level
            for level in ordered
            if value < level.load < (high or math.inf) and not _judged(level)
        )
        skipped = next(between, None)
        reason = None if high is not None else "no load that was measured clearly fails"
        if skipped is not None:
            reason = _why_unknown(skipped)
        return Estimate(value, value, high, reason)
    if high is not None:
        return Estimate(None, 0.0, high, f"not even the lowest load, {ordered[0].load:g}, passes")
    if unknown is None:
        return Estimate(reason="no load passes, and none clearly fails")
    return Estimate(reason=_why_unknown(unknown))


def _why_unknown(level: KneeLevel) -> str:
    if level.state == "void":
        return f"the level at {level.load:g} is void: {'; '.join(level.reasons)}"
    if level.requests < level.wanted:
        return (
            f"not enough requests: the level at {level.load:g} had {level.requests} of"
            f" {level.wanted}; give it more time"
        )
    inside = f"{level.attained or 0.0:.1%} of the requests at {level.load:g} are inside"
    return f"{inside}, but too few of them for a lower bound that says so: give it more --requests"


def _clearly_fails(level: KneeLevel, target: float, most_errors: float | None) -> bool:
    if level.state == "overloaded":
        return True
    if passes(level, target, most_errors) is not False:
        return False
    if most_errors is not None and (level.error_rate or 0.0) > most_errors:
        return True
    return level.attained_high is not None and level.attained_high < target


def attainment_target(slo: Slo) -> float | None:
    """The share of the requests that must be inside: the SLO's own, else that of its highest
    percentile (ttft_p95_ms asks for 95 %); None without a limit on single requests.
    """
    own = slo.get("attainment")
    limits = [limit for limit in slo.limits if limit.statistic is not None]
    if not limits:
        return None
    if own is not None:
        return own
    shares = [
        int(limit.statistic[1:]) / 100
        for limit in limits
        if limit.statistic is not None and limit.statistic.startswith("p")
    ]
    return max(shares, default=0.95)


def requests_wanted(target: float | None) -> int:
    """Requests of a level: enough that a share above the target can be told from it.

    With n requests that are all inside, the lower bound is 0.025 ** (1 / n); three times what
    that needs leaves room for some that are not. Without a target, what a p95 needs.
    """
    if target is None or target <= 0:
        return 100
    if target >= 1:
        return 1000
    return max(200, math.ceil(3 * math.log(CONFIDENCE_TAIL) / math.log(target)))


def _tokens(level: KneeLevel) -> float:
    assert level.tokens_per_s is not None
    return level.tokens_per_s


def _low(level: KneeLevel) -> float:
    return _tokens(level) if level.tokens_low is None else level.tokens_low


def _high(level: KneeLevel) -> float:
    return _tokens(level) if level.tokens_high is None else level.tokens_high
