"""From what a session came to, to its result: both sides, the history, the answer."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ridgeline.domain.slo import parse_slo
from ridgeline.domain.summary import Summary
from ridgeline.store.run_directory import is_finished, read_run
from ridgeline.tuning.budgeting import spent_s
from ridgeline.tuning.duel import Against
from ridgeline.tuning.journal import Told
from ridgeline.tuning.measuring import TRIALS
from ridgeline.tuning.objective import UNITS, Goal, judge, nearest_miss
from ridgeline.tuning.outcome import Bought, Line, Reach, Side, TuneResult
from ridgeline.tuning.session import Found, Session
from ridgeline.tuning.setting import Setting
from ridgeline.tuning.trial import Candidate, Trial
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
) -> TuneResult:
    """The result of a session that came to its end."""
    setting, told = session.setting, session.journal.told()
    winner = side_of(session, found, found.winner)
    baseline = winner if not found.winner.change else side_of(session, found, Candidate())
    duel = None
    if found.duel is not None:
        duel = found.duel.result(found.rounds, found.estimates)
    return TuneResult(
        study=setting.study,
        source="twin" if setting.simulated else "measured",
        goal=setting.spec.objective,
        unit=UNITS[setting.goal],
        verdict=sentence(setting, found, winner, baseline),
        clear=found.clear,
        winner=winner,
        baseline=baseline,
        trials=tuple(lines(told)),
        ended=found.ended,
        gpu_s=spent_s(told),
        duel=duel,
        soak=found.soak,
        ablation=tuple(ablation),
        envelope=tuple(envelope),
        envelope_by=envelope_by,
        certificate=certificate or {},
        quality=tuple(quality),
        judged=told.judged,
        notes=(*told.notes, *notes),
        nearest_miss=_nearest(told, found),
        recommended=found.recommended,
    )


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
            t.reason, t.run, t.limits,
        )
        for t in told.trials
    ]  # fmt: skip


def side_of(session: Session, found: Found, candidate: Candidate) -> Side:
    """One configuration with its figures: of the duel, else of its latest trial that has some."""
    setting = session.setting
    served = setting.served(candidate)
    made = Side(candidate.words, candidate.change, served.gpus, serve_command(served))
    duel = found.duel
    summary = None if duel is None else duel.merged(candidate)
    if duel is not None and summary is not None:
        value = duel.estimate(candidate)
        made = replace(made, measured="duel")
        return _with(made, setting, summary, value, len(duel.summaries(candidate)))
    for trial in reversed(found.told.history.of(candidate)):
        folder = session.folder / TRIALS / (trial.run or "")
        if trial.value is not None and trial.run is not None and is_finished(folder):
            stored = read_run(folder).summary
            if stored is not None:
                value = (trial.value, trial.low, trial.high)
                return _with(replace(made, measured="trial"), setting, stored, value, 1)
    return made


def _with(
    side: Side,
    setting: Setting,
    summary: Summary,
    value: tuple[float | None, float | None, float | None],
    runs: int,
) -> Side:
    """The side with the figures of its runs; `value` with its interval."""
    state, limits = judge(summary)
    meets = {"feasible": True, "infeasible": False}.get(state) if setting.slo.limits else None
    return Side(
        side.words, side.change, side.gpus, side.command, *value,
        summary.cost.usd_per_million_output_tokens,
        summary.throughput.per_gpu_output_tokens_per_s,
        _p95_ms(summary, "ttft"), _p95_ms(summary, "itl"), meets, limits, runs, side.measured,
    )  # fmt: skip


def _p95_ms(summary: Summary, metric: str) -> float | None:
    """The value that its limit was judged by (of repeats the worst one's); without one its own."""
    for result in summary.slo:
        of_all = result.traffic_class is None and result.value is not None
        if of_all and parse_slo(result.limit).get(f"{metric}_p95_ms") is not None:
            return result.value
    seconds = summary.failures_as_infinite[f"{metric}_s"].p95
    return None if seconds is None else seconds * 1e3


def sentence(setting: Setting, found: Found, winner: Side, baseline: Side) -> str:
    """The answer in one sentence, with its numbers."""
    if not found.winner.change:
        meets = {True: "; it meets the targets", False: "; it misses the targets"}
        tail = meets.get(baseline.meets, "") if baseline.meets is not None else ""
        lost = [s for s in found.soak if not s.passed]
        dead = f" ({', '.join(f'{s.words} {s.reason}' for s in lost)})" if lost else ""
        if not found.recommended:
            return f"No recommendation: {found.why}{dead}."
        return f"The baseline stays: {found.why}{dead}{tail}."
    text = f"Serve with {winner.words}: {_figures(winner)}"
    assert found.duel is not None
    pair = found.duel.against(found.winner, Candidate())
    if pair is not None and pair.delta is not None:
        text += f"; {change_words(pair, setting.goal)}, {pair.rounds} paired rounds"
    before = f"; before: {_figures(baseline)}" if baseline.measured else ""
    miss = ", which misses the targets" if baseline.meets is False else ""
    died = found.duel.died(Candidate())
    told = found.why if died or not found.clear else ""
    return f"{text}{before}{miss}; {told}." if told else f"{text}{before}{miss}."


def change_words(pair: Against, goal: Goal) -> str:
    """A difference with its bounds, in words; of cost what a token costs."""
    ratios = [None if v is None else 1 + v for v in (pair.delta, pair.low, pair.high)]
    of = UNITS[goal]
    if goal == "cost":
        back = [None if not r else 1 / r for r in ratios]
        ratios, of = [back[0], back[2], back[1]], "USD per output token"
    mean, low, high = (None if r is None else 100 * (r - 1) for r in ratios)
    text = f"{mean:+.0f} % {of} against the baseline"
    return text if low is None or high is None else f"{text} ({low:+.0f} to {high:+.0f} %)"


def _figures(side: Side) -> str:
    parts = []
    if side.usd_per_million_output_tokens is not None:
        parts.append(f"${side.usd_per_million_output_tokens:.3g} per million output tokens")
    if side.output_tokens_per_s_per_gpu is not None:
        parts.append(f"{side.output_tokens_per_s_per_gpu:,.0f} tokens/s per GPU")
    for name, value in (("TTFT", side.ttft_p95_ms), ("ITL", side.itl_p95_ms)):
        if value is not None and math.isfinite(value):
            parts.append(
                f"p95 {name} {value:,.3g} ms" if value < 1e3 else f"p95 {name} {value:,.0f} ms"
            )
    return ", ".join(parts) or "no figures"


def _nearest(told: Told, found: Found) -> str | None:
    """Where no trial meets the targets: the one that misses them by the least."""
    trials: Sequence[Trial] = told.history.trials
    if any(t.state in ("feasible", "unsure") for t in trials) or found.winner.change:
        return None
    runs = [(t.candidate, t.limits) for t in trials if t.state == "infeasible" and t.limits]
    nearest = nearest_miss(runs)
    return None if nearest is None else nearest.words
