"""A session out of its parts: the space, the ground, the search, and what its end is judged by."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ridgeline.domain.knobs import Configuration
from ridgeline.domain.numerals import counted
from ridgeline.experiment.protocol import Calibrate
from ridgeline.tuning import afterwards, budgeting
from ridgeline.tuning.budgeting import Limits
from ridgeline.tuning.concluding import conclude, side_of
from ridgeline.tuning.dueling import PLAN
from ridgeline.tuning.envelope import envelope
from ridgeline.tuning.expecting import Oracle
from ridgeline.tuning.gate import Gate, allowed_risk, gated, not_judged
from ridgeline.tuning.journal import TuneJournal
from ridgeline.tuning.lasting import LastingEngines
from ridgeline.tuning.measuring import StudyGround
from ridgeline.tuning.nearest import nearest_of
from ridgeline.tuning.outcome import Bought, TuneResult
from ridgeline.tuning.ranges import space_of
from ridgeline.tuning.room import gpus_shown, room_of
from ridgeline.tuning.search import REPEATS, Search, Windows
from ridgeline.tuning.session import Found, Session
from ridgeline.tuning.setting import Setting
from ridgeline.tuning.sidebyside import SideBySide
from ridgeline.tuning.space import Space
from ridgeline.tuning.speculating import speculation_lines
from ridgeline.tuning.trial import Candidate, History
from ridgeline.tuning.watching import TuneWatch

STAND_IN = "H100-SXM"  # by which options are resolved where the GPU is not known; never a figure
LONG = 2.0  # windows of what may be best, over the shortest


def assembled(
    setting: Setting,
    folder: Path,
    engines: LastingEngines,
    journal: TuneJournal,
    watch: TuneWatch,
    *,
    oracle: Oracle,
    limits: Limits,
    command: str = "",
    study_text: str | None = None,
    calibrate: Calibrate | None = None,
    seed: int = 0,
) -> Session:
    """A session that has not begun. Raises BadInput for a space that cannot be."""
    room = room_of(setting, visible=gpus_shown(setting))
    ground = StudyGround(
        setting, folder, engines, journal, watch, oracle.expect, command, calibrate,
        side=SideBySide(room, engines.engine_for) if room.several else None,
    )  # fmt: skip
    gate = Gate(setting, folder, engines, journal, watch, start_s=lambda: ground.expected_start_s)
    space = space_for(setting)
    windows = Windows(setting.window_s, max(LONG * setting.window_s, setting.workload.duration_s))
    search = Search(space, ground, setting.slo, windows, seed=seed, risk=allowed_risk(setting),
                    repeats=REPEATS if limits.trials is None else 1, barred=gate.barred,
                    room=room if room.several else None)  # fmt: skip
    return Session(
        setting, folder, ground, oracle, search, standings_of(search), engines, journal, watch,
        limits, gate, command, study_text, calibrate, space, room,
    )  # fmt: skip


def standings_of(search: Search) -> Any:
    """The finalists that a search names, with its estimates."""

    def ranked(history: History) -> Sequence[tuple[Candidate, float]]:
        found = [(s.candidate, s.value) for s in search.standings(history)]
        named = {c.key for c, _ in found}
        others = sorted(
            (t for t in history.trials if t.state in ("feasible", "unsure") and t.value),
            key=lambda t: -(t.value or 0.0),
        )
        for trial in others:  # places that are left go to what may meet the targets
            if trial.candidate.key not in named:
                named.add(trial.candidate.key)
                found.append((trial.candidate, trial.value or 0.0))
        return found

    return ranked


def space_for(setting: Setting) -> Space:
    """The space around the baseline, narrowed as the study file says."""
    base: Configuration = replace(setting.configuration, engine="twin", launch=None)
    if base.gpu is None and base.gpu_figures is None:
        base = replace(base, gpu=STAND_IN)
    spec = setting.spec
    return space_of(base, setting.workload, setting.slo, wanted=spec.space, only=spec.only)


def plan_words(session: Session) -> list[str]:
    """What is about to happen, in lines for a person."""
    setting, limits, space = session.setting, session.limits, session.space
    names = ", ".join(d.name for d in space.dimensions) if space else ""
    points = 0 if space is None else space.size
    told = session.journal.told()
    lines = [f"tune {setting.study}: {counted(points)} combinations of {names}"]
    run_s, start_s = setting.run_s(setting.window_s), session.ground.expected_start_s
    side = f", {setting.places} engines side by side" if setting.places > 1 else ""
    lines.append(
        f"a trial: {setting.window_s:g} s measured, {run_s:.0f} s with warm-up; an engine start:"
        f" about {start_s:.0f} s{side}"
    )
    if session.room is not None and session.room.why:
        lines.append(session.room.why)
        if session.room.several:
            lines.append("duel, soak and quality gate run one at a time: neighbours share the host")
    lines += budget_words(setting, limits, start_s)
    lines += [f"quality: {why}" for why in unjudged(setting)]
    if gated(setting):
        share = setting.spec.quality_threshold
        lines.append(
            f"quality: a candidate that is not exact may win only if it recovers {share:.1%} of the"
            " baseline's answers (docs/quality.md)"
        )
    if told.trials:
        used = budgeting.spent_s(told) / 60
        lines.append(
            f"it goes on: {len(told.trials)} trials are known, {used:.1f} GPU minutes used"
        )
    return lines


def _starts_words(reserve: budgeting.Reserve) -> str:
    engines = f"the duel's {reserve.contenders} engines"
    if reserve.starts <= reserve.contenders:
        return f"for the starts of {engines}"
    return f"for {reserve.starts} starts of {engines}, which take turns in every round"


def budget_words(setting: Setting, limits: Limits, start_s: float) -> list[str]:
    """Where the budget goes, before any of it is spent; `start_s`: of an engine."""
    reserve = budgeting.reserve_of(setting, limits, start_s)
    parts = {
        "for the quality gate": reserve.gate_s,
        _starts_words(reserve): reserve.starts_s,
        f"for {reserve.rounds} rounds of it": reserve.rounds_s,
        "for the soak": reserve.soak_s,
    }
    told = ", ".join(f"{s / 60:.1f} {what}" for what, s in parts.items() if s)
    lines = []
    if limits.gpu_s is not None:
        places, run_s = setting.places, setting.run_s(setting.window_s) + setting.cold_s
        group_s = (setting.starting_s(start_s, places) + places * run_s) * setting.gpus_for()
        count = int(max(limits.gpu_s - reserve.total_s, 0.0) / max(group_s, 1e-9) * places)
        needed = f" of {reserve.needed_s / 60:.1f} needed" if reserve.share < 1 else ""
        lines.append(
            f"budget: {limits.gpu_s / 60:g} GPU minutes{_wall(setting, limits.gpu_s)}, of them"
            f" {reserve.total_s / 60:.1f}{needed} kept from the search ({told}); about {count}"
            f" trial{'s' * (count != 1)} fit{'s' * (count == 1)} into the rest (more where one"
            " start is measured several times), and it ends earlier when no more is to be gained"
        )
        least_s = budgeting.needed_s(setting, start_s)
        if least_s > reserve.without_gate_s:
            lines.append(
                f"budget: too small to keep {least_s / 60:.1f} GPU minutes for a duel of"
                f" {PLAN.least} rounds with one finalist and its soak; it may end undecided"
            )
        elif reserve.share < 1:
            lines.append("budget: fewer finalists than asked for may go on")
    if limits.trials is not None:
        lines.append(
            f"budget: {limits.trials} trials, then a duel and a soak of about"
            f" {reserve.needed_s / 60:.1f} GPU minutes ({told})"
            if limits.trials > 1
            else "budget: 1 trial, which is the baseline's: nothing else is measured, so nothing"
            " can be better; give --trials 2 or more for a search"
        )
    return lines


def _wall(setting: Setting, gpu_s: float) -> str:
    gpus = setting.gpus_for()
    return "" if gpus == 1 else f" ({gpu_s / gpus / 60:.3g} minutes of {gpus} GPUs)"


def unjudged(setting: Setting) -> tuple[str, ...]:
    """Why nothing but what is exact was tried where the study file allows more, in one line."""
    why = not_judged(setting)
    return () if why is None or setting.spec.risk == "exact" else (why,)


def concluded(session: Session, found: Found, ablation: tuple[Bought, ...]) -> TuneResult:
    """The result, with what is worked out on the twin at the end; no engine is needed for it."""
    reaches, by = envelope(session, found)
    winner = side_of(session, found, found.winner)
    nearest = nearest_of(session, found, side_of(session, found, Candidate()))
    return conclude(
        session, found, ablation=ablation, envelope=reaches, envelope_by=by,
        certificate=afterwards.certificate(session, found, winner),
        quality=unjudged(session.setting), notes=speculation_lines(session, found),
        nearest=nearest,
    )  # fmt: skip
