"""One number for one claim: what a contender of a duel gives, and gives over the baseline.

The headline, the duel's table, the page's table of experiments and winner.yaml all print these
figures. A finalist's ratio to the baseline is taken round by round, so that what a round has in
common cancels, and shrunk towards the other finalists (`shrink`); its value is the baseline's times
that ratio. The ratio's bounds are those of the duel's last look over all rounds that both were in:
they hold for all pairs and all looks together at 95 %, and are what "clearly" is judged by.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.experiment.statistics import t_interval
from ridgeline.tuning.duel import DuelPlan, Round, last_look
from ridgeline.tuning.shrink import shrink

Span = tuple[float | None, float | None, float | None]  # value, low, high
NONE: Span = (None, None, None)


@dataclass(frozen=True, slots=True)
class Claim:
    """A finalist over the baseline (1.1 = 10 % more). rounds: those behind ratio and bounds alike.

    low, high: None with fewer rounds than the duel looks at. verdict: of the last look.
    """

    ratio: float
    low: float | None
    high: float | None
    rounds: int
    verdict: str


def claim_of(rounds: Sequence[Round], plan: DuelPlan, contender: int) -> Claim | None:
    """The claim of a finalist; contender 0 is the baseline. None without a common round."""
    ratio = _ratio(rounds, plan, contender)
    if ratio is None:
        return None
    last = last_look(rounds, plan, contender, 0)
    low, high = (None if v is None else 1 + v for v in (last.low, last.high))
    return Claim(
        ratio,
        None if low is None else min(low, ratio),
        None if high is None else max(high, ratio),
        last.rounds,
        last.word,
    )


def _ratio(rounds: Sequence[Round], plan: DuelPlan, contender: int) -> float | None:
    """Shrunk, from the rounds that the baseline was in."""
    against: list[Round] = []
    for one in rounds:
        base = one.get(0)
        if base:
            against.append(
                {i: (v / base if (v := one.get(i)) else None) for i in range(1, plan.contenders)}
            )
    found = shrink(against, range(1, plan.contenders)).get(contender)
    return None if found is None else found.value


def value_of_each(rounds: Sequence[Round], plan: DuelPlan) -> dict[int, Span]:
    """Every contender's objective with its 95 % interval; None, None where a round tells none."""
    found: dict[int, Span] = {}
    base = _mean([v for r in rounds if (v := r.get(0))])
    if base[0] is not None:
        found[0] = base
    alone = shrink(rounds, range(1, plan.contenders))
    for i, one in alone.items():
        ratio = None if base[0] is None else _ratio(rounds, plan, i)
        value = one.value if ratio is None or base[0] is None else base[0] * ratio
        moved = value / one.value
        low, high = (None if v is None else v * moved for v in (one.low, one.high))
        found[i] = (value, low, high)
    return found


def _mean(values: Sequence[float]) -> Span:
    """The geometric mean with Student's interval."""
    if not values:
        return NONE
    low, mean, high = t_interval([math.log(v) for v in values])
    ends = (None if v is None else math.exp(v) for v in (low, high))
    return (math.exp(mean), *ends)  # type: ignore[return-value]
