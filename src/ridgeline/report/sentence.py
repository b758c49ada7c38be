"""The answer in one sentence, made from the results.

It names a winner only where the paired interval against the baseline is clear of zero (or where the
baseline is outside the SLO and the winner inside). Otherwise the sentence is that nothing clearly
wins, or that nothing meets the SLO and which experiment comes nearest.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from ridgeline.domain.knee import KneeResult
from ridgeline.domain.slo import Limit
from ridgeline.domain.summary import Summary
from ridgeline.report import numbers
from ridgeline.report.figures import (
    better_is_lower,
    bounds,
    intent_differs,
    latency_text,
    limit_of,
    metric,
    miss_factor,
    missed,
    numerics_changed,
    ranking_metric,
    slo_state,
    sorted_rows,
    ttft_path,
)
from ridgeline.report.kneetext import capacity_sentence, knee_sentence
from ridgeline.report.model import COST, ITL_P95, TOKENS, Difference, ExperimentRow, StudyReport
from ridgeline.report.table import arrows
from ridgeline.report.tunetext import manager, nearest
from ridgeline.tuning.outcome import TuneResult

Tone = Literal["good", "neutral", "bad"]


@dataclass(frozen=True, slots=True)
class Answer:
    """`text` is the sentence, `notes` what must be read with it; `row` is the experiment it names.

    "bad" stands for: outside the SLO, void, or more errors than allowed. It is never colour alone:
    the text says it too.
    """

    text: str
    tone: Tone
    row: str | None = None
    notes: tuple[str, ...] = ()


def answer(report: StudyReport) -> Answer:
    """The sentence for a study or, with one row and no baseline, for one run."""
    if report.knee is not None:
        return _of_sweep(report.knee)
    if report.tune is not None:
        return _of_tuning(report.tune)
    found = _answer(report)
    row = report.row(found.row)
    changed = () if row is None else numerics_changed(report, row)
    if not changed:
        return found
    text = (
        f"{found.text} Its numerics change ({', '.join(changed)}): output quality was not checked."
    )
    return replace(found, text=text)


def _of_sweep(result: KneeResult) -> Answer:
    """Knee and capacity of a load sweep."""
    capacity = capacity_sentence(result)
    text = knee_sentence(result) if capacity is None else f"{capacity} {knee_sentence(result)}"
    known = result.knee.value is not None
    if result.capacity is not None:
        known = result.capacity.value is not None
    return Answer(text, "neutral" if known else "bad", notes=tuple(f"{n}." for n in result.notes))


def _of_tuning(result: TuneResult) -> Answer:
    """The tuning's own words: its estimate, its intervals, its rule for the targets."""
    duelists = () if result.duel is None else result.duel.duelists
    row = next((d.experiment for d in duelists if d.change == result.winner.change), None)
    tone: Tone = "good" if result.clear else "neutral"
    if not result.recommended or (not result.winner.change and result.baseline.meets is False):
        tone = "bad"
    said = (manager(result), nearest(result))
    return Answer(result.verdict, tone, row, tuple(text for text in said if text))


def _answer(report: StudyReport) -> Answer:
    ranked = [row for row in sorted_rows(report) if row.ranked]
    if not ranked:
        return _nothing_valid(report)
    if report.baseline is None and len(report.rows) == 1:
        return _single(report, ranked[0])
    # Only what carries the study's own load can win it: 100 users on one GPU is another question.
    loaded = [row for row in ranked if not _other(report, row)]
    inside = [row for row in loaded if _state(row) or not _summary(row).slo]
    if inside:
        return _best_of(report, inside)
    lighter = tuple(
        f"{row.name} meets it, but serves {row.load}."
        if row.load != report.load
        else f"{row.name} meets it, but under another workload."
        for row in ranked
        if row not in loaded and _state(row)
    )
    found = _nothing_inside(report, loaded or ranked)
    return replace(found, notes=(*lighter, *found.notes))


def _other(report: StudyReport, row: ExperimentRow) -> bool:
    """Whether it carries other traffic than the study's: its figures answer another question."""
    return row.other_workload or (report.load is not None and row.load not in (None, report.load))


def _summary(row: ExperimentRow) -> Summary:
    assert row.summary is not None, "only ranked rows reach the sentence"
    return row.summary


def _state(row: ExperimentRow) -> bool | None:
    return slo_state(_summary(row))


def _nothing_valid(report: StudyReport) -> Answer:
    reasons = [reason for row in report.rows for run in row.runs for reason in run.reasons]
    reasons += [row.failure for row in report.rows if row.failure]
    if not report.rows:
        return Answer("No run has been made yet.", "bad")
    what = "The run is void" if len(report.rows) == 1 else "No experiment has a valid run"
    why = f": {reasons[0]}" if reasons else ""
    void = next((row for row in report.rows if row.summary is not None), None)
    notes = _error_notes(void) if void is not None else ()
    return Answer(f"{what}{why}. Its figures are shown, not to be relied on.", "bad", notes=notes)


def _single(report: StudyReport, row: ExperimentRow) -> Answer:
    summary = _summary(row)
    load = f" with {row.load or report.load}" if row.load or report.load else ""
    subject = report.gpus or row.name
    text = f"{subject} gave {_tokens(summary)}{load} at {_latencies(report, summary)}"
    if metric(summary, COST) is not None:
        text += f", {numbers.dollars(metric(summary, COST))} per million output tokens"
    state = slo_state(summary)
    if state:
        text += ": inside the SLO"
    elif state is False:
        text += f": outside the SLO ({'; '.join(missed(summary))})"
    elif summary.slo:
        text += ": the SLO cannot be judged (" + "; ".join(_unjudged(summary)) + ")"
    bad = state is False or _too_many_errors(row)
    return Answer(
        text + ".", "bad" if bad else "good" if state else "neutral", row.name, _error_notes(row)
    )


def _unjudged(summary: Summary) -> list[str]:
    return [f"{r.words}: too little data" for r in summary.slo if r.met is None]


def _nothing_inside(report: StudyReport, ranked: list[ExperimentRow]) -> Answer:
    outside = [row for row in ranked if _state(row) is False]
    if not any(_summary(row).slo for row in ranked):
        load = f" under the study's load ({report.load})" if report.load else ""
        others = ", ".join(f"{row.name} ({row.load or 'load not known'})" for row in ranked)
        text = f"No experiment{load} has a valid run; valid are only: {others}."
        return Answer(text, "bad")
    if not outside:
        unjudged = "; ".join(_unjudged(_summary(ranked[0])))
        return Answer(f"The SLO cannot be judged for any experiment ({unjudged}).", "bad")
    undecided = len(ranked) - len(outside)
    nearest = min(outside, key=lambda row: miss_factor(_summary(row)))
    text = (
        f"No experiment meets the SLO. The nearest miss is {_named(report, nearest)}: "
        f"{'; '.join(missed(_summary(nearest)))}."
    )
    notes = _error_notes(nearest)
    if undecided:
        notes = (*notes, f"{undecided} could not be judged: too little data.")
    return Answer(text, "bad", nearest.name, notes)


def _best_of(report: StudyReport, inside: list[ExperimentRow]) -> Answer:
    path = ranking_metric(report)
    baseline = report.row(report.baseline)
    base_ranked = baseline is not None and baseline.ranked
    base_outside = base_ranked and baseline is not None and _state(baseline) is False
    clear = [row for row in inside if _clear_gain(row, path)]
    if clear:
        best = clear[0]
        text = _serves(report, best) + f": {_gain(best.against_baseline[path], path)}"
        tone: Tone = "good" if _summary(best).slo else "neutral"
    elif base_outside and baseline is not None:
        best = inside[0]
        text = _serves(report, best) + (
            f": inside the SLO, which the baseline misses ({'; '.join(missed(_summary(baseline)))})"
        )
        tone = "good"
    else:
        return _no_winner(report, inside, path)
    notes = _rivals(report, best, inside, path) + _error_notes(best)
    if clear and base_outside and baseline is not None:
        base_missed = "; ".join(missed(_summary(baseline)))
        notes = (f"The baseline is outside the SLO ({base_missed}).", *notes)
    return Answer(text + ".", "bad" if _too_many_errors(best) else tone, best.name, notes)


def _no_winner(report: StudyReport, inside: list[ExperimentRow], path: str) -> Answer:
    others = [row for row in inside if row.name != report.baseline]
    slo = " inside the SLO" if _summary(inside[0]).slo else ""
    adjective = _adjective(path)
    base = report.row(report.baseline)
    if base is None or not base.ranked:
        best = inside[0]
        text = _serves(report, best) + f", the {_superlative(path)} of {len(inside)}{slo}"
        return Answer(text + ".", "neutral", best.name, _error_notes(best))
    stands = "The baseline stands: nothing" if base in inside else "Nothing"
    text = f"{stands} is clearly {adjective} than the baseline{slo}"
    if others:
        nearest = others[0]
        difference = nearest.against_baseline.get(path)
        text += (
            f". {_named(report, nearest)} comes closest: {_latencies(report, _summary(nearest))}"
        )
        text += f" for {_price(_summary(nearest), path)}"
        if difference is not None and difference.delta is not None:
            text += f", {_gain(difference, path)}, {difference.verdict}"
    return Answer(text + ".", "neutral", base.name, _error_notes(base))


def _clear_gain(row: ExperimentRow, path: str) -> bool:
    difference = row.against_baseline.get(path)
    return difference is not None and difference.verdict == "clearly better"


def _rivals(
    report: StudyReport, best: ExperimentRow, inside: list[ExperimentRow], path: str
) -> tuple[str, ...]:
    """Names those whose interval overlaps the winner's: the order among them is not settled."""
    own = bounds(_summary(best), path)
    if own is None:
        return ()
    names = []
    for row in inside:
        other = bounds(_summary(row), path)
        overlaps = other is not None and other[0] <= own[1] and own[0] <= other[1]
        if row.name not in (best.name, report.baseline) and overlaps:
            names.append(row.name)
    if not names:
        return ()
    return (f"Not clearly apart from it: {', '.join(names)} (their 95 % intervals overlap).",)


def _serves(report: StudyReport, row: ExperimentRow) -> str:
    summary = _summary(row)
    gpus = _gpus(report, row)
    where = f"On {gpus}, " if gpus else ""
    load = f" serves {row.load or report.load}" if row.load or report.load else " serves"
    path = ranking_metric(report)
    return (
        f"{where}{_named(report, row)}{load} at {_latencies(report, summary)} "
        f"{'for' if path == COST else 'with'} {_price(summary, path)}"
    )


def _gpus(report: StudyReport, row: ExperimentRow) -> str | None:
    if row.configuration is not None and row.configuration.gpu:
        return f"{row.configuration.gpus} {row.configuration.gpu}"
    return report.gpus


def _named(report: StudyReport, row: ExperimentRow) -> str:
    if row.name == report.baseline:
        return f"the baseline ({row.name})"
    return (
        f"{row.name} ({arrows(row.change)})" if row.change and row.change != row.name else row.name
    )


def _latencies(report: StudyReport, summary: Summary) -> str:
    """The p95 of TTFT and ITL; of those that are not known the reason, once."""
    paths = [(ttft_path(report), "p95 TTFT from intent" if report.open_loop else "p95 TTFT")]
    if not report.open_loop and intent_differs(summary):
        paths.append(("ttft_intent_s.p95", "p95 TTFT from intent"))
    paths.append((ITL_P95, "p95 ITL"))
    texts, missing = [], dict[str, list[str]]()
    for path, label in paths:
        text = latency_text(summary, path)
        if metric(summary, path) is None:
            missing.setdefault(text, []).append(label)
        else:
            texts.append(f"{text} {label}")
    texts += [f"no {' or '.join(labels)} ({why})" for why, labels in missing.items()]
    return " and ".join(texts) if len(texts) == 2 else ", ".join(texts)


def _tokens(summary: Summary) -> str:
    value = metric(summary, TOKENS)
    estimated = " (estimated from chunks)" if summary.tokens_estimated else ""
    return f"{numbers.number(value)} output tokens/s{estimated}"


def _price(summary: Summary, path: str) -> str:
    if path == COST:
        return f"{numbers.dollars(metric(summary, COST))} per million output tokens"
    per_gpu = " per GPU" if "per_gpu" in path else ""
    return f"{numbers.number(metric(summary, path))} output tokens/s{per_gpu}"


def _adjective(path: str) -> str:
    return "cheaper" if better_is_lower(path) else "faster"


def _superlative(path: str) -> str:
    return "cheapest" if better_is_lower(path) else "fastest"


def _gain(difference: Difference, path: str) -> str:
    """ "27 % cheaper than the baseline (95 % interval 22 to 31 %)", the sign turned to the word."""
    if difference.delta is None:
        return "the difference from the baseline is not known"
    sign = -1 if better_is_lower(path) else 1
    gain = sign * difference.delta
    word = _adjective(path) if gain >= 0 else ("dearer" if better_is_lower(path) else "slower")
    if gain < 0:
        sign, gain = -sign, -gain
    if difference.low is None or difference.high is None:
        why = difference.reason or "no interval"
        return f"{numbers.percent(gain)} {word} than the baseline ({why})"
    low, high = sorted((sign * difference.low, sign * difference.high))
    told, between = numbers.percent_between(gain, low, high)
    return f"{told} {word} than the baseline (95 % interval {between})"


def _allowed_errors(summary: Summary) -> float:
    for result in summary.slo:
        limit: Limit | None = limit_of(result.limit)
        whole = result.traffic_class is None
        if whole and limit is not None and limit.key == "error_rate":
            return limit.value
    return 0.0


def _too_many_errors(row: ExperimentRow) -> bool:
    summary = _summary(row)
    return (summary.requests.error_rate or 0.0) > _allowed_errors(summary)


def _error_notes(row: ExperimentRow) -> tuple[str, ...]:
    summary = row.summary
    if summary is None or not summary.requests.failed:
        return ()
    counts = summary.requests
    rate = counts.error_rate if counts.error_rate is not None else math.nan
    return (
        f"{counts.failed} of {counts.sent} requests failed (error rate {numbers.share(rate)}); "
        "throughput and cost count successes only.",
    )
