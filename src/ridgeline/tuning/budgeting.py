"""What a tuning may use, what it has used, and what is kept for the duel and the soak."""

import math
from dataclasses import dataclass

from ridgeline.tuning.dueling import PLAN
from ridgeline.tuning.gate import reserved_s
from ridgeline.tuning.journal import Told
from ridgeline.tuning.setting import Setting
from ridgeline.tuning.soaking import GRACE_S, SOAK_S

MOST_RESERVED = 0.45  # of the whole budget: a search that may measure nothing finds nothing


@dataclass(frozen=True, slots=True)
class Limits:
    """A budget: GPU seconds, trials of the search; None = no limit."""

    gpu_s: float | None = None
    trials: int | None = None


def spent_s(told: Told) -> float:
    """GPU seconds that were used so far, killed processes' included."""
    return sum(t.gpu_s for t in told.trials) + told.other_s + told.lost_s


def reserve_s(setting: Setting, limits: Limits, start_s: float) -> float:
    """GPU seconds that the search leaves to the quality gate, the duel and the soak."""
    needed_s = _duel_s(setting, start_s) + reserved_s(setting, start_s)
    return needed_s if limits.gpu_s is None else min(needed_s, MOST_RESERVED * limits.gpu_s)


def duel_share_s(setting: Setting, limits: Limits, start_s: float) -> float:
    """The part of `reserve_s` that the quality gate leaves to the duel and the soak."""
    duel_s = _duel_s(setting, start_s)
    share = duel_s / (duel_s + reserved_s(setting, start_s))
    return share * reserve_s(setting, limits, start_s)


def finalists_held(setting: Setting, left_s: float, start_s: float) -> int:
    """How many finalists a duel of the least rounds and a soak can have in `left_s`, at least 1.

    One that is decided says more than one with three finalists that is not.
    """
    for finalists in range(setting.spec.finalists, 1, -1):
        if _duel_s(setting, start_s, finalists) <= left_s:
            return finalists
    return 1


def _duel_s(setting: Setting, start_s: float, finalists: int | None = None) -> float:
    contenders = (finalists or setting.spec.finalists) + 1
    run_s = setting.run_s(setting.workload.duration_s)
    groups = 1 if contenders <= setting.places or setting.simulated else contenders
    duel_s = groups * start_s + contenders * (PLAN.least * run_s + setting.cold_s)
    return (duel_s + setting.run_s(SOAK_S) + GRACE_S) * setting.configuration.gpus


def left_s(limits: Limits, told: Told) -> float:
    """GPU seconds that are left in all; infinite without a limit."""
    return math.inf if limits.gpu_s is None else limits.gpu_s - spent_s(told)


def left_trials(limits: Limits, told: Told) -> int | None:
    """Trials that the search may still ask for; None without a limit."""
    if limits.trials is None:
        return None
    return limits.trials - len(told.history.trials)
