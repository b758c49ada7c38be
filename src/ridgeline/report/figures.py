"""Reading figures out of summaries, and judging rows: what the table, the sentence and the charts
agree on. Pure."""

import math

from ridgeline.domain.errors import RidgelineError
from ridgeline.domain.slo import Limit, parse_slo
from ridgeline.domain.summary import Interval, SloResult, Summary
from ridgeline.experiment.statistics import FEW_PAIRS
from ridgeline.report import numbers
from ridgeline.report.model import (
    COST,
    TOKENS,
    TOKENS_PER_GPU,
    TTFT_INTENT_P95,
    TTFT_P95,
    Difference,
    ExperimentRow,
    StudyReport,
)

NO_PRICE = "no price"
INTENT_DIFFERS_S = 1e-3  # TTFT from intent is shown beside TTFT from this difference at p95 on


def metric(summary: Summary, path: str) -> float | None:
    """A figure by its dotted path; latencies count failures as infinitely slow where known."""
    group, _, name = path.partition(".")
    counts = summary.requests
    if group in summary.failures_as_infinite and (counts.failed or counts.unfinished):
        value = getattr(summary.failures_as_infinite[group], name)
        # A percentile that this view cannot support falls back on nothing: None says so.
        return None if value is None else float(value)
    value = getattr(getattr(summary, group), name)
    return None if value is None else float(value)


def interval(summary: Summary, path: str) -> Interval | None:
    """The 95 % interval of a figure, None when none was computed."""
    return summary.intervals.get(path)


def bounds(summary: Summary, path: str) -> tuple[float, float] | None:
    """Low and high of a figure's interval when both are known."""
    found = interval(summary, path)
    if found is None or found.low is None or found.high is None:
        return None
    return found.low, found.high


def missing_reason(summary: Summary, path: str) -> str:
    """Why a figure is None, in words."""
    if path.startswith("cost.") and summary.throughput.output_tokens_per_s is not None:
        return NO_PRICE
    found = interval(summary, path)
    return found.reason if found is not None and found.reason else numbers.NOT_MEASURED


def latency_text(summary: Summary, path: str) -> str:
    """A latency, "∞ (10 % failed)", or the reason why there is none."""
    value = metric(summary, path)
    if value is None:
        return missing_reason(summary, path)
    if math.isinf(value):
        return f"∞ ({_lost(summary)})"
    return numbers.duration(value)


def _lost(summary: Summary) -> str:
    """How many replies never came to an end, and whose doing that was."""
    counts = summary.requests
    parts = [f"{numbers.percent(counts.error_rate)} failed"] if counts.failed else []
    if counts.unfinished and counts.sent:
        parts.append(f"{numbers.percent(counts.unfinished / counts.sent)} not finished")
    return ", ".join(parts)


def ttft_path(report: StudyReport) -> str:
    """Which TTFT is judged: from intent in open loop, else from sending."""
    return TTFT_INTENT_P95 if report.open_loop else TTFT_P95


def intent_differs(summary: Summary) -> bool:
    """True when TTFT from intent and TTFT differ by more than 1 ms at p95."""
    sent, intent = summary.ttft_s.p95, summary.ttft_intent_s.p95
    return sent is not None and intent is not None and abs(intent - sent) > INTENT_DIFFERS_S


def limit_of(text: str) -> Limit | None:
    """The limit that an SloResult names ("ttft_p95_ms=2000"), None when it is only a label."""
    try:
        return parse_slo(text).limits[0]
    except (RidgelineError, IndexError):
        return None


def slo_state(summary: Summary) -> bool | None:
    """True: every limit met. False: one missed. None: no limits, or one could not be judged."""
    if any(result.met is False for result in summary.slo):
        return False
    if not summary.slo or any(result.met is None for result in summary.slo):
        return None
    return True


_FIGURE_WORDS = {
    "throughput.output_tokens_per_s": "output tokens/s",
    "throughput.per_gpu_output_tokens_per_s": "output tokens/s per GPU",
    "throughput.input_tokens_per_s": "input tokens/s",
    "throughput.chunks_per_s": "chunks/s",
    "throughput.requests_per_s": "requests/s",
    "cost.usd_per_million_output_tokens": "$/Mtok",
    "cost.usd_per_thousand_requests": "$ per 1000 requests",
    "goodput.attainment": "attainment",
    "goodput.requests_per_s": "goodput",
    "requests.error_rate": "error rate",
}
_METRIC_WORDS = {
    "ttft": "TTFT",
    "ttft_intent": "TTFT from intent",
    "itl": "ITL",
    "tpot": "TPOT",
    "e2e": "E2E",
    "error_rate": "error rate",
    "attainment": "attainment",
}


def path_words(path: str) -> str:
    """A figure's dotted path in words: "ttft_s.p95" -> "p95 TTFT"."""
    group, _, statistic = path.partition(".")
    name = "worst stall" if group == "worst_stall_s" else _METRIC_WORDS.get(group[:-2])
    return f"{statistic} {name}" if name else _FIGURE_WORDS.get(path, path)


def limit_words(limit: Limit) -> str:
    """ttft_p95_ms -> "p95 TTFT"."""
    name = _METRIC_WORDS[limit.metric]
    return f"{limit.statistic} {name}" if limit.statistic else name


def limit_figure(limit: Limit, value: float) -> str:
    """A value in the limit's own unit (SLO values are ms or shares)."""
    return numbers.share(value) if limit.statistic is None else numbers.duration(value / 1e3)


def miss_factor(summary: Summary) -> float:
    """How far outside the SLO: the largest (value / limit) of the missed limits, maybe infinite.

    For attainment, a lower limit, (1 - value) / (1 - limit). 1.0 when nothing is missed.
    """
    worst = 1.0
    for result in summary.slo:
        limit = limit_of(result.limit)
        if result.met is not False or limit is None or result.value is None:
            continue
        if limit.key == "attainment":
            over, room = 1 - result.value, 1 - limit.value
        else:
            over, room = result.value, limit.value
        worst = max(worst, over / room if room > 0 else math.inf)
    return worst


def slo_lines(summary: Summary) -> list[tuple[str, bool | None]]:
    """Every limit in words with what was found, and whether it was met (None = not judged)."""
    lines: list[tuple[str, bool | None]] = []
    for result in summary.slo:
        words, met = slo_words(result)
        lines.append((f"{_whose(result)}{words}", met))
    return lines


def slo_words(result: SloResult) -> tuple[str, bool | None]:
    """One limit in words with what was found, and whether it was met."""
    limit = limit_of(result.limit)
    if limit is None:
        return result.limit, result.met
    found = "too little data"
    if result.value is not None:
        found = limit_figure(limit, result.value)
    kind = "at least" if limit.key == "attainment" else "at most"
    asked = limit_figure(limit, limit.value)
    return f"{limit_words(limit)} {found}, {kind} {asked}", result.met


def _whose(result: SloResult) -> str:
    """The class of requests that a limit is for, as the beginning of a line."""
    return "" if result.traffic_class is None else f"{result.traffic_class}: "


def missed(summary: Summary) -> list[str]:
    """Each missed limit in words: "p95 TTFT 3 030 ms, limit 2 000 ms".

    Over several repeats the value is the worst one's, and says so: the mean stands beside it.
    """
    repeats = any("mean over" in note for note in summary.notes)
    texts = []
    for result in summary.slo:
        limit = limit_of(result.limit)
        if result.met is not False:
            continue
        if limit is None:
            texts.append(result.limit)
            continue
        value = math.nan if result.value is None else result.value
        texts.append(
            f"{_whose(result)}{limit_words(limit)} {limit_figure(limit, value)}"
            f"{' in its worst repeat' if repeats else ''}, limit {limit_figure(limit, limit.value)}"
        )
    return texts


def comparison_words(difference: Difference) -> str:
    """The verdict; where nothing is clear also how large a change would have been found."""
    words: str = difference.verdict
    if words == "no clear difference" and difference.detectable is not None:
        words += f" (±{numbers.percent(difference.detectable)} would be found)"
    elif difference.reason == FEW_PAIRS:
        words += " (two pairs are too few)"
    return words


def worst_repeats(summary: Summary, *, open_loop: bool) -> list[str]:
    """Limits that a repeat misses although the mean beside them keeps them, in words."""
    texts = []
    for result in summary.slo:
        limit = limit_of(result.limit)
        if result.met is not False or result.value is None or limit is None:
            continue
        if result.traffic_class is not None:
            continue  # the table has no mean of a class beside which it could be missed
        if limit.key == "error_rate":
            mean = summary.requests.error_rate
        elif limit.statistic is None:
            continue
        else:
            intent = open_loop and limit.metric == "ttft"
            group = "ttft_intent_s" if intent else f"{limit.metric}_s"
            seconds = metric(summary, f"{group}.{limit.statistic}")
            mean = None if seconds is None else seconds * 1e3
        if mean is not None and mean <= limit.value:
            found = limit_figure(limit, result.value)
            texts.append(f"{limit_words(limit)} {found} in its worst repeat")
    return texts


def ranking_metric(report: StudyReport) -> str:
    """Cost when prices are known, else tokens/s per GPU, else tokens/s: what rows are sorted by."""
    ranked = [r.summary for r in report.rows if r.ranked and r.summary is not None]
    if ranked and all(metric(s, COST) is not None for s in ranked):
        return COST
    return throughput_metric(report)


def throughput_metric(report: StudyReport) -> str:
    """Tokens/s per GPU when every row's GPUs are known, else tokens/s."""
    ranked = [row for row in report.rows if row.ranked]
    known = ranked and all(
        row.gpus_known
        and row.summary is not None
        and metric(row.summary, TOKENS_PER_GPU) is not None
        for row in ranked
    )
    return TOKENS_PER_GPU if known else TOKENS


def better_is_lower(path: str) -> bool:
    """Direction of a metric."""
    return not path.startswith(("throughput.", "goodput."))


def sort_value(summary: Summary, path: str) -> float:
    """Ascending = better first; unknown last."""
    value = metric(summary, path)
    if value is None:
        return math.inf
    return value if better_is_lower(path) else -value


def sorted_rows(report: StudyReport) -> list[ExperimentRow]:
    """Inside the SLO by cost, then not judged, then outside by cost, then void, then failed."""
    path = ranking_metric(report)

    def key(row: ExperimentRow) -> tuple[int, float]:
        if row.summary is None:
            return 4, 0.0
        if row.void:
            return 3, 0.0
        state = slo_state(row.summary)
        group = 0 if state or not row.summary.slo else (1 if state is None else 2)
        return group, sort_value(row.summary, path)

    return sorted(report.rows, key=key)


# Knobs that change what the model computes, and so perhaps what it answers.
_NUMERICS = ("quantization", "kv_cache_dtype", "dtype")


def numerics_changed(report: StudyReport, row: ExperimentRow) -> tuple[str, ...]:
    """Which knobs give other numbers inside the model than the baseline's, () when none does.

    Speed and cost are measured here; whether the answers are still as good is not.
    """
    base = report.row(report.baseline)
    if base is None or base.configuration is None or row.configuration is None:
        return ()
    before, after = base.configuration.knobs, row.configuration.knobs
    return tuple(k for k in _NUMERICS if getattr(before, k) != getattr(after, k))


def comparisons(report: StudyReport) -> int:
    """How many experiments are compared with the baseline in the table."""
    path = ranking_metric(report)
    known = [row.against_baseline.get(path) for row in report.rows if row.ranked]
    return sum(d is not None and d.low is not None for d in known)


def comparisons_words(report: StudyReport) -> str:
    """What several intervals at once mean; "" for fewer than two."""
    n = comparisons(report)
    if n and report.tune is not None:
        return (
            "Intervals against the baseline hold for all pairs and all looks of the duel together"
            " at 95 %; a limit is met or missed where its whole interval is."
        )
    if n < 2:
        return ""
    return (
        f"Each interval is at 95 % by itself, not adjusted for the {n} comparisons: of that many"
        f" equal configurations about {0.05 * n:.1g} would look clearly different by chance."
    )
