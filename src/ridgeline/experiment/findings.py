"""Published findings held against our own paired runs, with the reason from the step accounting."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.domain.summary import Summary
from ridgeline.experiment.statistics import SHARES, Difference, difference_of
from ridgeline.workload.study import EQUAL_WITHIN, Finding, Mark

SAME = 0.03  # a figure of the accounting that differs by less explains nothing
MOST_CAUSES = 4


@dataclass(frozen=True, slots=True)
class FindingResult:
    """A finding, its mark and why.

    `ratios`: per metric of the claim the first experiment over the second, (ratio, low, high).
    mark is None when it cannot be told; `reason` then says what is missing.
    """

    finding: Finding
    mark: Mark | None
    ratios: Mapping[str, tuple[float, float, float]]
    reason: str

    @property
    def as_expected(self) -> bool | None:
        """Whether the mark is the one expected; None without an expectation."""
        return None if self.finding.expected is None else self.mark == self.finding.expected


def hold_against(
    finding: Finding,
    first: Mapping[int, Summary],
    second: Mapping[int, Summary],
    merged: Mapping[str, Summary],
    equal_within: float = EQUAL_WITHIN,
) -> FindingResult:
    """Mark one finding from the valid runs (repeat -> summary) of its two experiments.

    `merged` are the experiments' merged summaries by name, for the reason.
    """
    for name, runs in ((finding.first, first), (finding.second, second)):
        if not runs:
            return FindingResult(finding, None, {}, f"{name} has no valid run")
    ratios: dict[str, tuple[float, float, float]] = {}
    for statement in finding.statements:
        difference = difference_of(statement.metric, second, first, equal_within)
        ratio = None if difference is None else _ratio(statement.metric, difference)
        if ratio is None:
            why = "not measured" if difference is None else difference.reason
            return FindingResult(finding, None, ratios, f"{statement.metric}: {why}")
        ratios[statement.metric] = ratio
    intervals = {metric: (low, high) for metric, (_, low, high) in ratios.items()}
    mark = finding.mark(intervals, equal_within)
    reason = explain(merged[finding.second], merged[finding.first])
    return FindingResult(finding, mark, ratios, reason)


def _ratio(metric: str, difference: Difference) -> tuple[float, float, float] | None:
    """Ratio with its interval; a share that may be zero has none."""
    delta, low, high = difference.delta, difference.low, difference.high
    if metric in SHARES or delta is None or low is None or high is None:
        return None
    return 1 + delta, 1 + low, 1 + high


@dataclass(frozen=True, slots=True)
class _Cause:
    """A figure of the accounting: where it is and how it reads. kind: s (seconds), share, number.

    `weight` orders causes whose change is equally large: what acts before what follows from it.
    """

    path: str
    words: str
    kind: str
    weight: float = 1.0


_CAUSES = (
    _Cause("steps.mean_step_s", "mean step", "s", 2.0),
    _Cause("steps.mean_decode_batch", "decode batch", "number", 1.5),
    _Cause("steps.part.launch", "launch share of the step time", "share", 2.0),
    _Cause("steps.part.weights", "share of the linear layers", "share"),
    _Cause("steps.part.attention_decode", "share of decode attention", "share"),
    _Cause("steps.part.attention_prefill", "share of prefill attention", "share"),
    _Cause("steps.part.cpu", "share of engine CPU", "share"),
    _Cause("steps.no_graph_share", "steps without a CUDA graph", "share", 1.5),
    _Cause("steps.prefill_step_share", "steps that carry a prefill", "share"),
    _Cause("steps.prefill_tokens_per_step", "prompt tokens in such a step", "number"),
    _Cause("steps.idle_share", "idle time", "share", 1.5),
    _Cause("steps.kv_use_mean", "KV blocks in use", "share"),
    _Cause("steps.tokens_per_step", "tokens a step", "number", 1.5),
    _Cause("steps.mean_waiting", "requests waiting per replica", "number"),
    _Cause("steps.gpu_sm_active", "SMs active", "share", 2.0),
    _Cause("steps.gpu_dram_active", "DRAM active", "share"),
    _Cause("accounting.queue", "queue of a request", "s", 2.0),
    _Cause("accounting.prefill", "prefill of a request", "s"),
    _Cause("accounting.decode", "decode of a request", "s"),
)


def explain(before: Summary, after: Summary) -> str:
    """What changed in the step accounting from one run to another, largest changes first."""
    if not before.steps or not after.steps:
        return "nothing was sampled beside these runs that would account for it"
    changes = []
    for cause in _CAUSES:
        a, b = _figure(before, cause.path), _figure(after, cause.path)
        if a is None or b is None:
            continue
        size = _size(cause, a, b)
        if size > SAME:
            changes.append((size * cause.weight, cause, a, b))
    if not changes:
        step = before.steps.get("mean_step_s")
        batch = before.steps.get("mean_decode_batch")
        same = f"the steps are the same within {100 * SAME:.0f} %"
        if step is None or batch is None:
            return same
        return f"{same}: mean step {_shown(step, 's')}, decode batch {batch:.3g}"
    changes.sort(key=lambda change: -change[0])
    parts = (
        f"{cause.words} {_shown(a, cause.kind)} → {_shown(b, cause.kind)}"
        for _, cause, a, b in changes[:MOST_CAUSES]
    )
    return "; ".join(parts)


def _figure(summary: Summary, path: str) -> float | None:
    place, _, name = path.partition(".")
    values: Mapping[str, float] = getattr(summary, place)
    return values.get(name)


def _size(cause: _Cause, a: float, b: float) -> float:
    """How large a change is: the difference of shares, the log ratio of the rest."""
    if cause.kind == "share":
        return abs(b - a)
    if a <= 0 or b <= 0:
        return 0.0 if a == b else 1.0
    return abs(math.log(b / a))


def _shown(value: float, kind: str) -> str:
    if kind == "share":
        return f"{100 * value:.3g} %"
    if kind == "s":
        return f"{_plain(value * 1e3)} ms" if value < 10 else f"{value:.3g} s"
    return _plain(value)


def _plain(value: float) -> str:
    """About three significant figures, never with an exponent."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
