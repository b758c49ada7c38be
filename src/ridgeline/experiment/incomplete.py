"""Runs that are not whole on disk: trimmed copies, lost tables, and what that keeps from them.

Figures and verdict of such a run are those that it was stored with. They cannot be had again, so
other targets cannot judge it, and it is not compared with what they did judge.
"""

from collections.abc import Sequence

from ridgeline.domain.slo import Slo
from ridgeline.store.run_directory import StoredRun


def on_other_targets(runs: Sequence[StoredRun], slo: Slo | None) -> dict[str, str]:
    """Of runs with figures: those judged by other targets than the study's, each with why."""
    return {
        run.meta.run_id: f"judged by {_words(run.meta.slo)}, where the study now has {_words(slo)}:"
        f" {_why(run)}"
        for run in runs
        if slo is not None and run.summary is not None and run.meta.slo != slo
    }


def incomplete(runs: Sequence[StoredRun]) -> tuple[str, ...]:
    """A line on trimmed copies, and one on each kind of damage."""
    lines = []
    trimmed = [run for run in runs if run.trimmed]
    if trimmed:
        lines.append(
            f"{len(trimmed)} of {len(runs)} runs are not judged again: the times of their chunks"
            " were left out of this copy, so figures and verdicts are those they were stored with"
        )
    damaged: dict[str, list[str]] = {}
    for run in runs:
        if run.damage is not None:
            damaged.setdefault(run.damage, []).append(run.meta.run_id)
    for what, names in damaged.items():
        lines.append(
            f"{', '.join(names)} {what}; the figures are those stored before, and nothing can be"
            " computed from its records again"
        )
    return tuple(lines)


def _why(run: StoredRun) -> str:
    if run.trimmed:
        return "it cannot be judged again, because its chunks were left out of this copy"
    if run.damage is not None:
        return f"it cannot be judged again, because it {run.damage}"
    return "run the study again to judge it by them (what was measured is kept)"


def _words(slo: Slo | None) -> str:
    limits = () if slo is None else slo.limits
    return ", ".join(map(str, limits)) or "no targets"
