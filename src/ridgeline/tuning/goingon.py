"""A duel that the search goes on after: what it told is kept, and the next one begins anew.

It goes on where every finalist fell and the budget holds more, and where the same tuning is begun
again with a larger budget. A finalist falls where it misses a target by its intervals, or dies. All
runs of such a duel are known to the search like trials, the baseline's too, and the next duel has
rounds of its own (`dueling`): in a round of both the baseline's run would be of another hour.
"""

import time
from collections.abc import Mapping

from ridgeline.store.codec import to_plain
from ridgeline.tuning import budgeting
from ridgeline.tuning.budgeting import Limits
from ridgeline.tuning.dueling import Duel
from ridgeline.tuning.journal import FALLEN, Told, TuneJournal, finite
from ridgeline.tuning.judging import trial_of
from ridgeline.tuning.setting import Setting
from ridgeline.tuning.trial import Trial

TRIALS_USED, BUDGET_USED = "the trials of its budget are used", "its budget is used"
BUDGET_ENDS = (TRIALS_USED, BUDGET_USED)  # a larger budget goes on where the search ended so


def leave_behind(
    journal: TuneJournal, duel: Duel, estimates: Mapping[str, float], kind: str = FALLEN
) -> tuple[Trial, ...]:
    """Keep a duel in the journal, which opens the search again; returns its runs as trials.

    kind: `FALLEN`, whose finalists are in no other duel, or `REOPENED`. One line, so that whatever
    ends the process it is either all known or not at all, and then found again by the runs on the
    disk.
    """
    told, rounds = journal.told(), duel.read_begun()  # no round of the next duel has a run yet
    number = max((t.number for t in (*told.trials, *told.dueled)), default=0)
    trials: list[Trial] = []
    for candidate, run in duel.runs():
        made = trial_of(run, number + 1, candidate, duel.setting.goal, gpu_s=0.0)
        if made is not None:  # its time is booked as the duel's
            number, trials = number + 1, [*trials, made]
    journal.write(
        kind,
        changes=[dict(c.change) for c in duel.candidates[1:]],
        estimates=dict(estimates),
        rounds=rounds,
        trials=[finite(to_plain(t)) for t in trials],
        at=time.time(),
    )
    return tuple(trials)


def fallen_words(duel: Duel) -> str:
    """Who fell in it and by what, in one line."""
    parts = []
    for candidate in duel.candidates[1:]:
        missed = ", ".join(m.key for m in duel.limits(candidate) if m.met is False)
        parts.append(f"{candidate.words} {duel.died(candidate) or f'misses {missed}'}")
    rounds = f"{duel.held} round{'s' * (duel.held != 1)}"
    return f"no finalist is left after {rounds} of the duel ({'; '.join(parts)})"


def cannot_go_on(
    setting: Setting, limits: Limits, told: Told, start_s: float, *, others: bool
) -> str | None:
    """Why the budget does not hold what would follow a fallen duel; None: it does.

    others: whether there are measured candidates that may go into the next duel as they are.
    """
    left_s = budgeting.left_s(limits, told)
    duel_s = budgeting.again_of(setting, start_s).total_s
    trial_s = 0.0 if others else budgeting.trial_s(setting, start_s)
    if duel_s + trial_s > left_s:
        what = "another duel" if others else "another trial and its duel"
        return (
            f"{max(left_s, 0.0) / 60:.1f} GPU minutes are left, {what} would take about"
            f" {(duel_s + trial_s) / 60:.1f}"
        )
    count = budgeting.left_trials(limits, told)
    return TRIALS_USED if count is not None and count <= 0 and not others else None


def ended_words(ended: str, limits: Limits, told: Told, rest: str = "") -> str:
    """Why the search ended, with what is left of the budget where that is what ended it.

    rest: why it did not go on after a duel in which every finalist fell.
    """
    if rest:
        return f"every finalist fell in the duel; {rest}"
    left_s = budgeting.left_s(limits, told)
    if ended != BUDGET_USED or limits.gpu_s is None or left_s < 0.05 * limits.gpu_s:
        return ended
    return (
        f"its share of the budget is used ({left_s / 60:.1f} of {limits.gpu_s / 60:g} GPU minutes"
        " were left at the end: duel and soak took less than was kept for them)"
    )
