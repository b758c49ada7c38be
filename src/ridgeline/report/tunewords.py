"""Words that a tuning's texts share: states, targets, a figure with its interval."""

from ridgeline.report import numbers
from ridgeline.tuning.outcome import Spread, TuneResult

NO_FIGURE = "–"
STATES = {
    "feasible": "✓ meets the targets", "unsure": "? may meet them", "infeasible": "✗ misses them",
    "void": "⊘ void", "crashed": "✗ crashed", "refused": "✗ not started",
}  # fmt: skip


def has_targets(result: TuneResult) -> bool:
    """Whether the study set any: without them nothing is met or missed."""
    sides = any(side.limits for side in (result.winner, result.baseline))
    return sides or any(trial.limits for trial in result.trials)


def spread_words(one: Spread | None) -> str:
    """A figure with its interval."""
    if one is None:
        return NO_FIGURE
    text = numbers.number(one.value)
    if one.low is None or one.high is None:
        return text
    return f"{text} ({numbers.number(one.low)} to {numbers.number(one.high)})"
