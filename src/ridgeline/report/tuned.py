"""The duel's contenders as rows of a study's page, by the tuning's own rules.

A study's page judges a limit by the point and compares by one interval a pair; a tuning judges by
intervals, pays for its looks and shrinks its finalists. On the page of a tuning both have one rule
and one figure, the tuning's.
"""

from collections.abc import Sequence
from dataclasses import replace

from ridgeline.domain.summary import Interval, Summary
from ridgeline.report.figures import metric
from ridgeline.report.model import COST, TOKENS_PER_GPU, Comparison, Difference, ExperimentRow
from ridgeline.tuning.objective import UNITS, Goal, judge, value_of
from ridgeline.tuning.outcome import Duelist, TuneResult

_LOOKS = "bounds hold for all pairs and looks of the duel together"
_WORDS: dict[str, Comparison] = {
    "clearly better": "clearly better",
    "clearly worse": "clearly worse",
}


def as_tuned(rows: Sequence[ExperimentRow], tune: TuneResult | None) -> tuple[ExperimentRow, ...]:
    """The rows as the tuning judges them; as they are without one."""
    if tune is None or tune.duel is None:
        return tuple(rows)
    known = {one.experiment: one for one in tune.duel.duelists}
    return tuple(_row(row, known.get(row.name), tune) for row in rows)


def _row(row: ExperimentRow, one: Duelist | None, tune: TuneResult) -> ExperimentRow:
    if one is None or row.summary is None:
        return row
    _, limits = judge(row.summary)
    slo = tuple(
        replace(result, met=miss.met) for result, miss in zip(row.summary.slo, limits, strict=True)
    )
    row = replace(row, summary=_estimated(replace(row.summary, slo=slo), one, row, tune))
    if one.ratio is None or tune.goal == "goodput":
        return row  # goodput is no figure of the page's table: its pairs are the duel's alone
    back = None if not one.ratio else 1 / one.ratio - 1
    ends = (None if not one.high else 1 / one.high - 1, None if not one.low else 1 / one.low - 1)
    word = next((w for said, w in _WORDS.items() if one.verdict.startswith(said)), None)
    few = f"{one.pairs} paired round{'s' * (one.pairs != 1)}: no interval"
    reason = few if one.low is None else _LOOKS if one.verdict != "equal" else "equal within 1 %"
    told = {
        COST: Difference(back, *ends, word or "no clear difference", one.pairs, reason),
        TOKENS_PER_GPU: Difference(
            one.ratio - 1,
            None if one.low is None else one.low - 1,
            None if one.high is None else one.high - 1,
            word or "no clear difference",
            one.pairs,
            reason,
        ),
    }
    kept = {k: v for k, v in row.against_baseline.items() if not k.startswith("throughput.")}
    return replace(row, against_baseline={**kept, **told})


_RATES = ("throughput.output_tokens_per_s", TOKENS_PER_GPU)


def _estimated(summary: Summary, one: Duelist, row: ExperimentRow, tune: TuneResult) -> Summary:
    """With price and tokens/s of the duel's estimate in place of the plain mean over its rounds."""
    gpus = 1 if row.configuration is None else row.configuration.gpus
    goal: Goal = "cost" if tune.unit == UNITS["cost"] else "throughput_per_gpu"
    measured = value_of(summary, goal, gpus)
    if tune.goal == "goodput" or not measured or not one.value:
        return summary
    moved, rates, usd = one.value / measured, summary.throughput, summary.cost
    price, tokens = usd.usd_per_million_output_tokens, rates.output_tokens_per_s
    each = rates.per_gpu_output_tokens_per_s
    rates = replace(
        rates,
        output_tokens_per_s=None if tokens is None else tokens * moved,
        per_gpu_output_tokens_per_s=None if each is None else each * moved,
    )
    usd = replace(usd, usd_per_million_output_tokens=None if price is None else price / moved)
    changed = replace(summary, throughput=rates, cost=usd)
    if one.value_low is None or one.value_high is None:
        return changed
    low, high = one.value_low / one.value, one.value_high / one.value
    spans = dict(summary.intervals)
    for path, sides in ((COST, (1 / high, 1 / low)), *((p, (low, high)) for p in _RATES)):
        middle = metric(changed, path)
        if middle is not None:
            spans[path] = Interval(middle * sides[0], middle * sides[1], summary.requests.sent)
    return replace(changed, intervals=spans)
