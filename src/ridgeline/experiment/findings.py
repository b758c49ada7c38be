"""Published findings held against our own paired runs, with the reason from the step accounting."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ridgeline.domain.summary import Summary
from ridgeline.experiment.statistics import SHARES, Difference, difference_of
from ridgeline.workload.study import EQUAL_WITHIN, Finding, Mark

SAME = 0.03  # a figure of the accounting that differs by less explains nothing
MOST_CAUSES = 4
# Two pairs that happen to agree give an interval a hundred times too narrow, and nothing in them
# says so: with one degree of freedom the noise is not known. Three show at least a spread.
FEWEST_MARKED = 3


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio that was found, with its 95 % interval.

    detectable: the relative change that as many pairs with as much noise would find in four of five
    studies; None where the interval is too close to 1 to matter, and below FEWEST_MARKED pairs,
    where the noise is not known. with_void: (ratio, low, high) when the void runs that have figures
    count too, None when there are none or they have no such figure; its ends are None for one pair.
    """

    ratio: float
    low: float
    high: float
    detectable: float | None = None
    with_void: tuple[float, float | None, float | None] | None = None


@dataclass(frozen=True, slots=True)
class FindingResult:
    """A finding, its mark and why.

    `ratios`: per metric of the claim the first experiment over the second, from `pairs` pairs of
    valid runs. mark is None when it cannot be told; `reason` then says what is missing.
    `pairs_with_void`: pairs when void runs that have figures count too.
    """

    finding: Finding
    mark: Mark | None
    ratios: Mapping[str, Ratio]
    reason: str
    pairs: int = 0
    pairs_with_void: int = 0

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
    *,
    void: tuple[Mapping[int, Summary], Mapping[int, Summary]] = ({}, {}),
) -> FindingResult:
    """Mark one finding from the valid runs (repeat -> summary) of its two experiments.

    `merged` are the experiments' merged summaries by name, for the reason. `void`: the summaries of
    the first's and the second's void runs; they decide nothing, but what they would change is told.
    """
    for name, runs in ((finding.first, first), (finding.second, second)):
        if not runs:
            return FindingResult(finding, None, {}, f"{name} has no valid run")
    every = {**void[0], **first}, {**void[1], **second}
    pairs, with_void = len(set(first) & set(second)), len(set(every[0]) & set(every[1]))
    ratios: dict[str, Ratio] = {}

    def result(mark: Mark | None, reason: str) -> FindingResult:
        return FindingResult(finding, mark, ratios, reason, pairs, with_void)

    for metric in dict.fromkeys(s.metric for s in finding.statements):
        difference = difference_of(metric, second, first, equal_within)
        ratio = None if difference is None else _ratio(metric, difference)
        if ratio is None:
            why = "not measured" if difference is None else difference.reason
            return result(None, f"{metric}: {why}")
        if with_void > pairs:
            ratio = replace(ratio, with_void=_with_void(metric, *every))
        ratios[metric] = ratio
    reason = explain(merged[finding.second], merged[finding.first])
    if pairs < FEWEST_MARKED:
        return result(None, f"too few pairs: {pairs} valid, a mark takes {FEWEST_MARKED}. {reason}")
    intervals = {metric: (ratio.low, ratio.high) for metric, ratio in ratios.items()}
    return result(finding.mark(intervals, equal_within), reason)


def _ratio(metric: str, difference: Difference) -> Ratio | None:
    """Ratio with its interval; a share that may be zero has none."""
    delta, low, high = difference.delta, difference.low, difference.high
    if metric in SHARES or delta is None or low is None or high is None:
        return None
    known = difference.detectable if difference.pairs >= FEWEST_MARKED else None
    return Ratio(1 + delta, 1 + low, 1 + high, known)


def _with_void(
    metric: str, first: Mapping[int, Summary], second: Mapping[int, Summary]
) -> tuple[float, float | None, float | None] | None:
    """The ratio over all pairs that have figures, void ones too."""
    found = difference_of(metric, second, first)
    if found is None or found.delta is None or metric in SHARES:
        return None
    ends = (None if end is None else 1 + end for end in (found.low, found.high))
    return (1 + found.delta, *ends)  # type: ignore[return-value]


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
