"""What a tuning may use, what it has used, and what is kept for the duel and the soak.

All of it in GPU seconds: seconds of wall time times the GPUs that are held meanwhile, which are at
least the baseline's, whether a configuration uses them or not (`Setting.gpus_for`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ridgeline.tuning.blocks import Known
from ridgeline.tuning.duel import NOISE
from ridgeline.tuning.dueling import PLAN
from ridgeline.tuning.gate import reserved_s
from ridgeline.tuning.journal import Told
from ridgeline.tuning.setting import Setting
from ridgeline.tuning.soaking import GRACE_S, SOAK_S

MOST_RESERVED = 0.45  # of the whole budget: a search that may measure nothing finds nothing
TELLS = 0.45  # relative difference that a duel should tell under it
LEAST_TRIALS = 2  # the baseline and one candidate: less is no search
SPARE_ROUNDS = 1  # for void runs; without one it narrows the duel's bounds


@dataclass(frozen=True, slots=True)
class Limits:
    """A budget: GPU seconds, trials of the search; None = no limit."""

    gpu_s: float | None = None
    trials: int | None = None

    def holds_more_than(self, other: Mapping[str, Any] | None) -> bool:
        """Whether one of its limits is above that of an earlier budget; None: not known."""
        if other is None:
            return False
        pairs = ((self.gpu_s, other.get("gpu_s")), (self.trials, other.get("trials")))
        now, then = (
            [math.inf if v is None else v for v in side] for side in zip(*pairs, strict=True)
        )
        return any(n > t for n, t in zip(now, then, strict=True)) and all(
            n >= t for n, t in zip(now, then, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Reserve:
    """What the search leaves, in GPU seconds: for the quality gate, for the `starts` of the duel's
    engines, for its runs (`rounds` of `contenders`, the first loads of fresh engines with them) and
    for the soak. share: how much of that the budget really keeps, 1 = all of it.

    Engines that do not all stay up side by side are started anew in every round
    (`Setting.starts`).
    """

    gate_s: float
    starts_s: float
    rounds_s: float
    soak_s: float
    contenders: int
    rounds: int
    starts: int
    share: float = 1.0

    @property
    def needed_s(self) -> float:
        """All of it."""
        return self.gate_s + self.starts_s + self.rounds_s + self.soak_s

    @property
    def total_s(self) -> float:
        """What is kept."""
        return self.share * self.needed_s

    @property
    def without_gate_s(self) -> float:
        """What the quality gate leaves of it to the duel and the soak."""
        return self.share * (self.needed_s - self.gate_s)


def reserve_of(setting: Setting, limits: Limits, start_s: float) -> Reserve:
    """What is kept, with the study's finalists. A budget that is too small for that keeps at most
    MOST_RESERVED, and fewer go on (`finalists_held`); but never less than one finalist needs, as
    long as the least search fits beside it: what a search finds and no duel can confirm is worth
    nothing.
    """
    rounds = PLAN.least + SPARE_ROUNDS
    made = _reserve(setting, start_s, setting.spec.finalists, rounds)
    if limits.gpu_s is None:
        return made
    least_s = made.gate_s + needed_s(setting, start_s)
    fits = least_s + _least_search_s(setting, start_s) <= limits.gpu_s
    kept_s = max(MOST_RESERVED * limits.gpu_s, least_s if fits else 0.0)
    share = min(1.0, kept_s / made.needed_s)
    return replace(made, share=share)


def _reserve(setting: Setting, start_s: float, finalists: int, rounds: int) -> Reserve:
    contenders = finalists + 1
    starts = setting.starts(contenders, rounds)
    gpus = setting.gpus_for()
    run_s = setting.run_s(setting.workload.duration_s)
    return Reserve(
        gate_s=reserved_s(setting, start_s),
        starts_s=gpus * setting.starting_s(start_s, contenders, rounds=rounds),
        rounds_s=gpus * (contenders * rounds * run_s + starts * setting.cold_s),
        starts=starts,
        soak_s=soak_s(setting, start_s, finalists),
        contenders=contenders,
        rounds=rounds,
    )


def again_of(setting: Setting, start_s: float) -> Reserve:
    """What is kept for a duel after one in which every finalist fell: one finalist, the least
    rounds and its soak. Where engines stay up side by side the finalist's and the baseline's are.
    """
    made = _reserve(setting, start_s, 1, PLAN.least)
    return replace(made, starts_s=0.0, starts=0) if setting.places > 1 else made


def trial_s(setting: Setting, start_s: float) -> float:
    """GPU seconds of one trial on an engine of its own."""
    one_s = start_s + setting.run_s(setting.window_s) + setting.cold_s
    return one_s * setting.gpus_for()


def _least_search_s(setting: Setting, start_s: float) -> float:
    """GPU seconds of a search that can find anything at all."""
    return LEAST_TRIALS * trial_s(setting, start_s)


def soak_s(setting: Setting, start_s: float, finalists: int) -> float:
    """GPU seconds of one soak; its engine is up only where all of the duel's are."""
    starts_s = 0.0 if finalists + 1 <= setting.places else start_s
    return (starts_s + setting.run_s(SOAK_S) + GRACE_S) * setting.gpus_for()


def spent_s(told: Told) -> float:
    """GPU seconds that were used so far, killed processes' included."""
    return sum(t.gpu_s for t in told.trials) + told.other_s + told.lost_s


def finalists_held(
    setting: Setting, left_s: float, start_s: float, known: Known | None = None
) -> int:
    """How many finalists go on with `left_s` for their duel and a soak, at least 1: the most whose
    duel tells `TELLS` under `NOISE`, else as many as tell the least difference. known: the search's
    noise, whose degrees of freedom help to tell.

    One that is decided says more than one with three finalists that is not.
    """
    counts = range(setting.spec.finalists, 0, -1)
    told = {n: _tells(setting, left_s, start_s, n, known) for n in counts}
    return next((n for n, x in told.items() if x <= TELLS), min(told, key=lambda n: (told[n], n)))


def _tells(
    setting: Setting, left_s: float, start_s: float, finalists: int, known: Known | None
) -> float:
    """The difference that the rounds tell which `left_s` holds; infinite without any."""
    held = 0
    for rounds in range(PLAN.least, PLAN.most + 1):
        made = _reserve(setting, start_s, finalists, rounds)
        if made.needed_s - made.gate_s <= left_s:
            held = rounds
    plan = replace(PLAN, contenders=finalists + 1, known=known, aim=held or None)
    return plan.tells(held, NOISE)


def needed_s(setting: Setting, start_s: float) -> float:
    """GPU seconds of a duel of one finalist with the least rounds, and its soak."""
    made = _reserve(setting, start_s, 1, PLAN.least)
    return made.needed_s - made.gate_s


def left_s(limits: Limits, told: Told) -> float:
    """GPU seconds that are left in all; infinite without a limit."""
    return math.inf if limits.gpu_s is None else limits.gpu_s - spent_s(told)


def left_trials(limits: Limits, told: Told) -> int | None:
    """Trials that the search may still ask for; None without a limit."""
    if limits.trials is None:
        return None
    return limits.trials - len(told.history.trials)
