"""The table of experiments as plain words, once: page and console print the same cells."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from ridgeline.domain.summary import Summary
from ridgeline.report import numbers
from ridgeline.report.figures import (
    bounds,
    comparison_words,
    latency_text,
    metric,
    missed,
    missing_reason,
    numerics_changed,
    ranking_metric,
    slo_state,
    sorted_rows,
    ttft_path,
    worst_repeats,
)
from ridgeline.report.model import (
    CHUNKS,
    COST,
    ITL_P95,
    TOKENS,
    TOKENS_PER_GPU,
    Difference,
    ExperimentRow,
    StudyReport,
)

CHUNK_IS_TOKEN = 0.02  # chunks/s and tokens/s count as the same below this relative difference
OTHER_WORKLOAD = "other workload than the baseline's"
State = Literal["inside", "outside", "not judged", "no SLO", "void", "failed"]
MARKS = {"reproduced": "✓", "not reproduced": "○", "reversed": "⇄"}
GROUPS: tuple[tuple[State, str], ...] = (
    ("inside", "✓ inside the SLO"),
    ("no SLO", "no SLO was set"),
    ("not judged", "? SLO not decided: too little data"),
    ("outside", "✗ outside the SLO"),
    ("void", "⊘ void: shown, not ranked, in no average"),
    ("failed", "⊘ failed: no figures"),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure, its 95 % interval, the published value beside it, and whether it breaks a limit.

    `band`: of a prediction, where a measurement of it is expected nine times of ten.
    """

    value: str
    interval: str = ""
    published: str = ""
    missed: bool = False
    alarm: bool = False
    band: str = ""

    @property
    def is_figure(self) -> bool:
        """False where words stand in a figure's place: they wrap, and are never struck out."""
        return self.value[:1] in "0123456789$∞−–"


@dataclass(frozen=True, slots=True)
class TableRow:
    """One experiment's cells. `difference` is against the baseline in `metric_path`; `numerics`
    says when the model computes otherwise than the baseline's, `worst` which limits one repeat
    misses although the mean keeps them, `traffic` that its workload is not the baseline's."""

    name: str
    change: str
    state: State
    why: str
    is_baseline: bool
    ttft: Cell
    itl: Cell
    tokens: Cell
    per_gpu: Cell
    cost: Cell
    errors: Cell
    difference: Difference | None
    difference_text: str
    metric_path: str
    source_word: str
    marks: str
    numerics: str = ""
    worst: str = ""
    traffic: str = ""


def table_rows(report: StudyReport) -> list[TableRow]:
    """All experiments in the report's order."""
    path = ranking_metric(report)
    return [_row(report, row, path) for row in sorted_rows(report)]


def band_words(report: StudyReport) -> str:
    """What the bands in the table are; "" where it has none."""
    if not any(row.summary is not None and row.summary.bands for row in report.rows):
        return ""
    basis = "calibrated" if report.badge.calibration == "calibrated" else "prior"
    return (
        "In brackets: the band in which a measurement of the predicted figure is expected, nine"
        f" times of ten, from how well the twin's {basis} constants are known. The interval above"
        " it is over repeats of the twin."
    )


def arrows(text: str) -> str:
    """ "32 -> 64" with a real arrow, which never breaks in two."""
    return text.replace("->", "→")


def metric_words(path: str) -> str:
    """What the bar against the baseline compares."""
    return {COST: "$/Mtok", TOKENS_PER_GPU: "tokens/s per GPU"}.get(path, "output tokens/s")


def _row(report: StudyReport, row: ExperimentRow, path: str) -> TableRow:
    summary = row.summary
    is_baseline = row.name == report.baseline
    difference = None if is_baseline or not row.ranked else row.against_baseline.get(path)
    return TableRow(
        name=row.name,
        change=arrows(row.change),
        marks="".join(MARKS[mark] for mark in row.marks),
        state=_state(row),
        why=_why(row),
        is_baseline=is_baseline,
        ttft=_latency(row, ttft_path(report), "ttft_p95_ms"),
        itl=_latency(row, ITL_P95, "itl_p95_ms"),
        tokens=_tokens(row),
        # its band says what that of the tokens says: left out, or the table would be too wide
        per_gpu=replace(
            _figure(summary, TOKENS_PER_GPU, numbers.number, numbers.number_range), band=""
        )
        if row.gpus_known
        else Cell("not known"),
        cost=_figure(summary, COST, numbers.dollars, numbers.number_range),
        errors=_errors(row),
        difference=difference,
        difference_text=_difference_text(report, row, difference, path),
        metric_path=path,
        source_word="" if summary is None else _source(summary),
        numerics="numerics change: output quality was not checked"
        if numerics_changed(report, row)
        else "",
        traffic=OTHER_WORKLOAD if row.other_workload and not is_baseline else "",
        worst=""
        if summary is None
        else "; ".join(worst_repeats(summary, open_loop=report.open_loop)),
    )


def _source(summary: Summary) -> str:
    return "TWIN" if summary.source == "twin" else "MEASURED"


def _state(row: ExperimentRow) -> State:
    if row.summary is None:
        return "failed"
    if row.void:
        return "void"
    state = slo_state(row.summary)
    if state is None:
        return "not judged" if row.summary.slo else "no SLO"
    return "inside" if state else "outside"


def _why(row: ExperimentRow) -> str:
    """What stands behind the state: the missed limits, or the reasons of a void or failed run."""
    if row.summary is None or row.void:
        reasons = [reason for run in row.runs for reason in run.reasons]
        return row.failure or (reasons[0] if reasons else "no run ended with figures")
    return "; ".join(missed(row.summary))


def _latency(row: ExperimentRow, path: str, published_key: str) -> Cell:
    published = row.published.get(published_key)
    text = "" if published is None else numbers.duration(published / 1e3)
    if row.summary is None:
        return Cell("–", published=text)
    both = bounds(row.summary, path)
    finite = both is not None and math.isfinite(metric(row.summary, path) or math.inf)
    return Cell(
        value=latency_text(row.summary, path),
        interval=numbers.duration_range(*both) if both and finite else "",
        published=text,
        missed=any(
            r.met is False and r.traffic_class is None and _limits(r.limit, published_key)
            for r in row.summary.slo  # a class's limit is held against its own row, further down
        ),
        alarm=math.isinf(metric(row.summary, path) or 0.0),
        band=_band(row.summary, path, numbers.duration_range),
    )


def _band(summary: Summary, path: str, form: Callable[[float, float], str]) -> str:
    found = summary.bands.get(path)
    return "" if found is None else form(found.low, found.high)


def _limits(limit: str, key: str) -> bool:
    """Whether a missed limit belongs to the column of `key` (any statistic of its metric)."""
    return limit.startswith(key.split("_", 1)[0] + "_")


def _tokens(row: ExperimentRow) -> Cell:
    cell = _figure(row.summary, TOKENS, numbers.number, numbers.number_range)
    published = row.published.get("chunks_per_s")
    if published is None:
        return cell
    text = f"{numbers.number(published)} chunks/s"
    ours = None if row.summary is None else metric(row.summary, CHUNKS)
    tokens = None if row.summary is None else metric(row.summary, TOKENS)
    # Published rates count chunks. Where a chunk is not a token, ours stands in the same unit too.
    if ours is not None and tokens and abs(ours / tokens - 1) > CHUNK_IS_TOKEN:
        text += f", ours {numbers.number(ours)}"
    return replace(cell, published=text)


def _figure(
    summary: Summary | None,
    path: str,
    one: Callable[[float | None], str],
    two: Callable[[float, float], str],
) -> Cell:
    if summary is None:
        return Cell("–")
    value = metric(summary, path)
    if value is None:
        return Cell(missing_reason(summary, path))
    both = bounds(summary, path)
    estimated = " est." if summary.tokens_estimated else ""
    band = _band(summary, path, two)
    return Cell(one(value) + estimated, two(*both) if both else "", band=band)


def _errors(row: ExperimentRow) -> Cell:
    published = row.published.get("error_rate")
    text = "" if published is None else numbers.share(published)
    if row.summary is None:
        return Cell("–", published=text)
    counts = row.summary.requests
    if not counts.failed:
        return Cell("0" if counts.sent else numbers.NOT_MEASURED, published=text)
    return Cell(
        numbers.share(counts.error_rate),
        f"{numbers.grouped(str(counts.failed))} of {numbers.grouped(str(counts.sent))} failed",
        text,
        missed=any(r.met is False and r.limit.startswith("error_rate") for r in row.summary.slo),
        alarm=True,
    )


def _difference_text(
    report: StudyReport, row: ExperimentRow, difference: Difference | None, path: str
) -> str:
    if report.baseline is None:
        return ""
    if row.name == report.baseline:
        return "baseline"
    if not row.ranked:
        return "not compared"
    if difference is None or difference.delta is None:
        return difference.reason if difference and difference.reason else "not compared"
    if difference.low is None or difference.high is None:
        delta = numbers.percent(difference.delta, signed=True)
        return f"{delta} ({difference.reason or 'no interval'})"
    delta, between = numbers.percent_between(
        difference.delta, difference.low, difference.high, signed=True
    )
    return f"{delta} ({between}), {_word(difference, path)}"


def _word(difference: Difference, path: str) -> str:
    if difference.reason is not None:
        return difference.reason
    if path != COST or difference.verdict == "no clear difference":
        return comparison_words(difference)
    return "clearly cheaper" if difference.verdict == "clearly better" else "clearly dearer"


def error_texts(row: ExperimentRow) -> list[str]:
    """Each class of failed requests with its count and one quoted message."""
    if row.summary is None:
        return []
    messages = {one.kind: one.message for one in row.errors}
    counts = row.summary.requests.failures or {one.kind: one.count for one in row.errors}
    texts = []
    for kind, count in counts.items():
        message = messages.get(kind)
        quoted = f': "{message}"' if message else ""
        texts.append(f"{kind} × {numbers.grouped(str(count))}{quoted}")
    return texts
