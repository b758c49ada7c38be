"""Every latency statistic of one run as plain words: the page and the console print these lines."""

from dataclasses import dataclass

from ridgeline.domain.summary import Percentiles, Summary
from ridgeline.report import numbers
from ridgeline.report.figures import bounds, intent_differs, missing_reason

STATISTICS = ("mean", "p50", "p90", "p95", "p99")
_LATENCIES = (
    ("TTFT", "ttft_s"),
    ("TTFT from intent", "ttft_intent_s"),
    ("first answer", "first_answer_s"),
    ("ITL", "itl_s"),
    ("TPOT", "tpot_s"),
    ("E2E", "e2e_s"),
    ("E2E from intent", "e2e_intent_s"),
    ("wait for a slot", "cap_wait_s"),
    ("worst stall", "worst_stall_s"),
)


@dataclass(frozen=True, slots=True)
class StatisticsLine:
    """One latency: its STATISTICS and the 95 % interval of its p95, over successes or with every
    failure as infinitely slow."""

    name: str
    values: tuple[str, ...]
    interval: str
    failures_as_infinite: bool = False


def statistics_lines(summary: Summary) -> list[StatisticsLine]:
    """All latencies; TTFT from intent only where it differs, the second view only with failures."""
    lines = []
    for words, name in _LATENCIES:
        if name == "ttft_intent_s" and not intent_differs(summary):
            continue
        found = getattr(summary, name)
        if found is None:
            continue
        values = _values(summary, name, found)
        lines.append(StatisticsLine(words, values, _interval(summary, name)))
        worst = summary.failures_as_infinite.get(name)
        if summary.requests.failed and worst is not None:
            values = _values(summary, name, worst)
            lines.append(StatisticsLine(words, values, "", failures_as_infinite=True))
    return lines


def _values(summary: Summary, name: str, found: Percentiles) -> tuple[str, ...]:
    cells = []
    for statistic in STATISTICS:
        value = getattr(found, statistic)
        if value is not None:
            cells.append(numbers.duration(value))
        elif found.n == 0:
            cells.append(numbers.NOT_MEASURED)
        else:
            reason = missing_reason(summary, f"{name}.{statistic}")
            if "too small" in reason:
                cells.append("n too small")
            else:
                cells.append("not resolvable" if "not resolvable" in reason else "–")
    return tuple(cells)


def _interval(summary: Summary, name: str) -> str:
    both = bounds(summary, f"{name}.p95")
    if both is not None:
        return numbers.duration_range(*both)
    found = summary.intervals.get(f"{name}.p95")
    return found.reason if found is not None and found.reason else "–"
