"""From what a session came to, to its result: both sides, the history, the answer."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ridgeline.domain.slo import parse_slo
from ridgeline.domain.summary import Summary
from ridgeline.store.run_directory import is_finished, read_run
from ridgeline.tuning.budgeting import spent_s
from ridgeline.tuning.drifting import drift_words
from ridgeline.tuning.duelresult import result_of
from ridgeline.tuning.front import front_of
from ridgeline.tuning.goingon import ended_words, fallen_words
from ridgeline.tuning.journal import Told
from ridgeline.tuning.measuring import TRIALS
from ridgeline.tuning.objective import UNITS, judge, nearest_miss, value_of
from ridgeline.tuning.outcome import Bought, Line, Nearest, Reach, Side, TuneResult
from ridgeline.tuning.saying import sentence
from ridgeline.tuning.session import Found, Session
from ridgeline.tuning.setting import Setting
from ridgeline.tuning.trial import Candidate, Miss, State, Trial
from ridgeline.tuning.winning import serve_command


def conclude(
    session: Session,
    found: Found,
    *,
    ablation: Sequence[Bought] = (),
    envelope: Sequence[Reach] = (),
    envelope_by: str | None = None,
    certificate: Mapping[str, Any] | None = None,
    quality: Sequence[str] = (),
    notes: Sequence[str] = (),
    nearest: Nearest | None = None,
) -> TuneResult:
    """The result of a session that came to its end. nearest: see `tuning.nearest`."""
    setting, told = session.setting, session.journal.told()
    winner = side_of(session, found, found.winner)
    baseline = winner if not found.winner.change else side_of(session, found, Candidate())
    duel = None
    if found.duel is not None:
        duel = result_of(found.duel, found.rounds, found.estimates)
    fallen = [fallen_words(duel) for duel in found.before if duel.fallen]
    return TuneResult(
        study=setting.study,
        source="twin" if setting.simulated else "measured",
        goal=setting.spec.objective,
        unit=UNITS[setting.goal],
        verdict=sentence(setting, found, winner, baseline, nearest),
        clear=found.clear,
        winner=winner,
        baseline=baseline,
        trials=tuple(lines(told)),
        ended=ended_words(found.ended, session.limits, told, found.rest),
        gpu_s=spent_s(told),
        duel=duel,
        soak=found.soak,
        ablation=tuple(ablation),
        envelope=tuple(envelope),
        envelope_by=envelope_by,
        certificate=certificate or {},
        quality=tuple(quality),
        judged=told.judged,
        notes=(*told.notes, *fallen, *_drift(session, found), *notes),
        nearest_miss=_nearest(told, found) if nearest is None else nearest.side.words,
        nearest=nearest,
        recommended=found.recommended,
        front=front_of(session, found),
    )


def _drift(session: Session, found: Found) -> tuple[str, ...]:
    if session.setting.simulated:
        return ()
    duels = (*found.before, *(() if found.duel is None else (found.duel,)))
    return drift_words(session.journal.told(), duels, session.folder / TRIALS)


def lines(told: Told) -> list[Line]:
    """Every trial, with why it was asked for."""
    why = told.why
    phase: dict[int, str] = {}
    for asked in told.asked:
        phase |= {asked.first + i: asked.phase for i in range(len(asked.candidates))}
    return [
        Line(
            t.number, t.candidate.words, t.candidate.change, t.state, why.get(t.number, ""),
            phase.get(t.number, "search"), t.value, t.low, t.high, t.gpu_s, t.window_s, t.stopped,
            t.reason, t.run, t.limits, t.beside,
        )
        for t in told.trials
    ]  # fmt: skip


def side_of(session: Session, found: Found, candidate: Candidate) -> Side:
    """One configuration with its figures: of the duel, else of its latest trial that has some."""
    setting = session.setting
    served = setting.served(candidate)
    made = Side(candidate.words, candidate.change, served.gpus, serve_command(served))
    duel = found.duel_with(candidate)
    summary = None if duel is None else duel.merged(candidate)
    if duel is not None and summary is not None:
        value = duel.estimate(candidate)
        made = replace(made, measured="duel")
        judged, runs = duel.judged(candidate), len(duel.summaries(candidate))
        return _with(made, setting, summary, value, judged=judged, runs=runs)
    for trial in reversed(found.told.history.of(candidate)):
        folder = session.folder / TRIALS / (trial.run or "")
        if trial.value is not None and trial.run is not None and is_finished(folder):
            stored = read_run(folder).summary
            if stored is not None:
                value = (trial.value, trial.low, trial.high)
                made = replace(made, measured="trial")
                return _with(made, setting, stored, value, judged=judge(stored), runs=1)
    return made


def _with(
    side: Side,
    setting: Setting,
    summary: Summary,
    value: tuple[float | None, float | None, float | None],
    *,
    judged: tuple[State, tuple[Miss, ...]],
    runs: int,
) -> Side:
    """The side with the figures of its runs; `value` with its interval."""
    state, limits = judged
    meets = {"feasible": True, "infeasible": False}.get(state) if setting.slo.limits else None
    usd, tokens = _of_estimate(setting, summary, value[0], side.gpus)
    return Side(
        side.words, side.change, side.gpus, side.command, *value, usd, tokens,
        _p95_ms(summary, "ttft"), _p95_ms(summary, "itl"), meets, limits, runs, side.measured,
    )  # fmt: skip


def _of_estimate(
    setting: Setting, summary: Summary, value: float | None, gpus: int
) -> tuple[float | None, float | None]:
    """USD per million tokens and tokens/s per GPU that the estimate stands for.

    Of one configuration both are its objective times a constant; of goodput they are figures of
    their own, as its runs had them.
    """
    usd = summary.cost.usd_per_million_output_tokens
    tokens = summary.throughput.per_gpu_output_tokens_per_s
    measured = value_of(summary, setting.goal, gpus)
    if setting.goal == "goodput" or not measured or not value:
        return usd, tokens
    moved = value / measured
    if setting.goal == "cost":
        usd = 1e6 / value
    elif usd is not None:
        usd /= moved
    return usd, None if tokens is None else tokens * moved


def _p95_ms(summary: Summary, metric: str) -> float | None:
    """The value that its limit was judged by (of repeats the worst one's); without one its own."""
    for result in summary.slo:
        of_all = result.traffic_class is None and result.value is not None
        if of_all and parse_slo(result.limit).get(f"{metric}_p95_ms") is not None:
            return result.value
    seconds = summary.failures_as_infinite[f"{metric}_s"].p95
    return None if seconds is None else seconds * 1e3


def _nearest(told: Told, found: Found) -> str | None:
    """Where no trial meets the targets: the one that misses them by the least."""
    trials: Sequence[Trial] = told.history.trials
    if any(t.state in ("feasible", "unsure") for t in trials) or found.winner.change:
        return None
    runs = [(t.candidate, t.limits) for t in trials if t.state == "infeasible" and t.limits]
    nearest = nearest_miss(runs)
    return None if nearest is None else nearest.words
