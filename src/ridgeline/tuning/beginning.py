"""How a tuning begins, or goes on in a folder that holds a part of it."""

import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ridgeline.domain.errors import BadInput
from ridgeline.experiment.ledger import begin_index
from ridgeline.experiment.plan import plan_runs
from ridgeline.store.study_directory import StudyDirectory
from ridgeline.tuning.finalists import changes_of
from ridgeline.tuning.goingon import BUDGET_ENDS, leave_behind
from ridgeline.tuning.journal import FALLEN, REOPENED, SCHEMA, Told
from ridgeline.tuning.measuring import TRIALS
from ridgeline.tuning.question import differences, question_of
from ridgeline.tuning.question import told as told_differences

if TYPE_CHECKING:
    from ridgeline.tuning.session import Session


def begin(session: "Session") -> Told:
    """Make the folder a study, take up what is there; returns what the journal told before.

    Raises BadInput where the folder holds another tuning.
    """
    told = session.journal.told()
    question, price = question_of(session.setting), session.setting.configuration.price_per_gpu_hour
    _check_same(session, told, question)
    _show_baseline(session)
    if told.fingerprint is None:
        session.journal.write(
            "begin", schema=SCHEMA, fingerprint=session.setting.fingerprint, at=time.time(),
            question=question, price=price,
        )  # fmt: skip
    else:
        _go_on(session, told)
    if not session.setting.simulated:
        session.journal.beat.begin()
    return told


def _check_same(session: "Session", told: Told, question: Mapping[str, Any]) -> None:
    """Refuse to go on with another question; raises BadInput that names the difference."""
    if told.fingerprint is None:
        return
    found = [] if told.question is None else differences(told.question, question)
    if not found and told.fingerprint == session.setting.fingerprint:
        return
    what = told_differences(found) if found else "another baseline, load or target"
    raise BadInput(
        f"holds the tuning of another question: {what}",
        where=str(session.journal.path),
        fix="choose another folder with --out, or take the change back",
    )


def _go_on(session: "Session", told: Told) -> None:
    """Charge what the process before used and could not book; search on with a larger budget.

    The line is written also for nothing: from it on time is counted anew.
    """
    if not session.setting.simulated and told.asked:
        session.journal.write("lost", gpu_s=_lost_s(session, told), at=time.time())
    price = session.setting.configuration.price_per_gpu_hour
    if price and told.price and price != told.price:
        _price_again(session, told.price, price)
    ended = told.phases.get("finalists")
    if ended is None or ended["ended"] not in BUDGET_ENDS:
        return
    if session.limits.holds_more_than(ended.get("budget")):
        duel = session.duel_of(changes_of(ended))
        duel.read()
        kind = FALLEN if duel.fallen else REOPENED  # who fell in it is known to have
        leave_behind(session.journal, duel, ended["estimates"], kind)
        session.watch.told("the budget is larger than before: the search goes on")


def _price_again(session: "Session", before: float, price: float) -> None:
    """Another price changes what a token costs, and no measurement."""
    kept = session.journal.told().phases.get("finalists")
    duel = session.duel_of(() if kept is None else changes_of(kept))
    for folder, whole in (
        (session.folder, duel.plan(1)),
        (session.folder / TRIALS, session.ground.whole),
    ):
        directory = StudyDirectory(folder)
        if directory.exists():
            directory.write_index(begin_index(whole, (), directory, session.command, whole))
    factor = before / price if session.setting.goal == "cost" else 1.0
    session.journal.write("priced", price=price, factor=factor, at=time.time())
    session.watch.told(
        f"the price was {before:g} USD per GPU hour and is {price:g}: costs are worked out"
        " anew, nothing is measured again"
    )


def _show_baseline(session: "Session") -> None:
    """Make the directory a study at once, so that it can be reported on from the start."""
    directory = StudyDirectory(session.folder)
    if directory.exists():
        return
    plan = session.duel_of(()).plan(1)
    directory.write_index(begin_index(plan, plan_runs(plan), directory, session.command, plan))
    if session.study_text is not None:
        directory.write_study_text(session.study_text)


def _lost_s(session: "Session", told: Told) -> float:
    """GPU seconds of the process before: from the last line that accounts for all time up to it
    to its last beat. In a folder from before there were beats: to the last file that it wrote.
    """
    until = session.journal.beat.last
    if until is None:
        until = told.last_at
        for path in session.folder.rglob("*"):
            with contextlib.suppress(OSError):
                until = max(until, path.stat().st_mtime)
    gpus = max(session.setting.gpus_for(), told.held_gpus)
    held_s = told.held_s + (until - told.last_at) * gpus
    return max(held_s - told.unbooked_s, 0.0)
