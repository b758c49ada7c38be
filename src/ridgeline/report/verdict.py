"""The verdict on a report's runs in words: how many are valid, and why the others are not."""

from collections.abc import Sequence

from ridgeline.report.alike import kind_of, told_once
from ridgeline.report.model import RunLine, StudyReport


def run_counts(report: StudyReport) -> tuple[int, int, str]:
    """Valid runs, all runs, and both in words: "35 of 36 runs valid, 1 void".

    Runs that were measured again say so: "all 3 runs valid, in 5 tries".
    """
    runs = [run for row in report.rows for run in row.runs]
    valid, count, words = _counted(runs)
    tries = sum(run.tries for run in runs)
    return valid, count, f"{words}, in {tries} tries" if tries > len(runs) else words


def _counted(runs: Sequence[RunLine]) -> tuple[int, int, str]:
    valid = sum(run.state == "valid" for run in runs)
    if not runs:
        return 0, 0, "no run recorded"
    noun = "run" if len(runs) == 1 else "runs"
    if valid == len(runs):
        return valid, valid, "valid" if len(runs) == 1 else f"all {valid} {noun} valid"
    if len(runs) == 1:
        return 0, 1, runs[0].state
    others = []
    for state in ("void", "failed", "interrupted", "not run", "left out"):
        count = sum(run.state == state for run in runs)
        if count:
            others.append(f"{count} {state}")
    return valid, len(runs), f"{valid} of {len(runs)} {noun} valid, {', '.join(others)}"


def void_lines(report: StudyReport) -> list[tuple[str, str, str]]:
    """(runs, state, reasons) of every run that is not valid.

    Runs of one experiment whose reasons differ in their figures only share a line; it has the first
    one's figures.
    """
    lines: list[tuple[str, str, str]] = []
    for row in report.rows:
        groups: dict[str, list[RunLine]] = {}
        for run in row.runs:
            if run.state != "valid":
                groups.setdefault(f"{run.state}: {kind_of('; '.join(run.reasons))}", []).append(run)
        for first, *rest in groups.values():
            reasons = "; ".join(told_once(first.reasons)) or "no reason recorded"
            names = ", ".join(run.run_id for run in (first, *rest))
            lines.append((names, first.state, reasons))
    return lines
