"""A study's results from its directory: repeats merged, compared with the baseline, findings held.

Reads the store only; nothing is measured or simulated here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ridgeline.domain.knobs import Configuration
from ridgeline.domain.summary import Summary
from ridgeline.experiment.findings import FindingResult, hold_against
from ridgeline.experiment.runner import recover_study
from ridgeline.experiment.statistics import Difference, compare, merge
from ridgeline.store.codec import to_plain
from ridgeline.store.run_directory import StoredRun, is_finished, read_run
from ridgeline.store.study_directory import ExperimentEntry, RunEntry, StudyDirectory, StudyIndex
from ridgeline.workload.study import Finding, Study

RESULT_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """One experiment. `entries` are its runs by the index; `stored` those that lie on disk.

    `summary` is that of its valid runs, merged. Without a valid run it is that of its last run
    with figures and `void` is True: shown, never compared; None when no run has figures.
    """

    name: str
    change: str
    configuration: Configuration | None
    summary: Summary | None
    void: bool
    entries: tuple[RunEntry, ...]
    stored: tuple[StoredRun, ...]
    against_baseline: Mapping[str, Difference]

    @property
    def valid(self) -> dict[int, Summary]:
        """Summaries of its valid runs by repeat."""
        return {
            run.meta.repeat: run.summary
            for run in self.stored
            if run.valid and run.summary is not None
        }

    @property
    def failure(self) -> str | None:
        """Why there is nothing to compare; None when there is."""
        if self.summary is not None and not self.void:
            return None
        reasons = dict.fromkeys(e.reason for e in self.entries if e.reason)
        return "; ".join(reasons) or "not run yet"


@dataclass(frozen=True, slots=True)
class StudyResult:
    """Everything that a study found."""

    index: StudyIndex
    experiments: tuple[ExperimentResult, ...]
    findings: tuple[FindingResult, ...] = ()

    def experiment(self, name: str | None) -> ExperimentResult | None:
        """The experiment of that name."""
        return next((e for e in self.experiments if e.name == name), None)


def load_results(path: Path) -> StudyResult:
    """Read a study or bench directory; raises StoreError when it is none or damaged.

    Runs that were cut off are recovered first. The findings are those of the directory's copy of
    the study file.
    """
    directory = StudyDirectory(path)
    index, recovered = recover_study(directory)
    return results_of(index, directory, load_study_copy(directory), recovered)


def load_study_copy(directory: StudyDirectory) -> Study | None:
    """The study as its file told, None for a bench."""
    text = directory.study_text()
    if text is None:
        return None
    from ridgeline.workload.studyfile import parse_study  # noqa: PLC0415  brings pydantic and YAML

    return parse_study(text, str(directory.path / "study.yaml"), folder=directory.path)


def results_of(
    index: StudyIndex,
    directory: StudyDirectory,
    study: Study | None,
    recovered: Mapping[str, StoredRun] | None = None,
) -> StudyResult:
    """Results of a study whose index is known. `recovered` runs need not lie on disk."""
    stored: dict[str, StoredRun] = dict(recovered or {})
    for run_id in index.order:
        folder = directory.run_folder(run_id)
        measured = index.runs[run_id].state not in ("planned", "running")
        if measured and run_id not in stored and is_finished(folder):
            stored[run_id] = read_run(folder)
    experiments = [_result(entry, index, stored) for entry in index.experiments]
    baseline = next((e for e in experiments if e.name == index.baseline), None)
    if baseline is not None:
        experiments = [_compared(e, baseline) for e in experiments]
    by_name = {e.name: e for e in experiments}
    findings = study.findings if study is not None else ()
    return StudyResult(
        index,
        tuple(experiments),
        tuple(_held(f, by_name) for f in findings if {f.first, f.second} <= set(by_name)),
    )


def _result(
    entry: ExperimentEntry, index: StudyIndex, stored: Mapping[str, StoredRun]
) -> ExperimentResult:
    entries = tuple(r for r in index.runs.values() if r.experiment == entry.name)
    runs = tuple(stored[r.run_id] for r in entries if r.run_id in stored)
    valid = [r.summary for r in runs if r.valid and r.summary is not None]
    others = [r.summary for r in runs if r.summary is not None]
    summary = merge(valid) if valid else (others[-1] if others else None)
    return ExperimentResult(
        name=entry.name,
        change=entry.change,
        configuration=runs[0].meta.configuration if runs else None,
        summary=summary,
        void=not valid,
        entries=entries,
        stored=runs,
        against_baseline={},
    )


def _compared(experiment: ExperimentResult, baseline: ExperimentResult) -> ExperimentResult:
    if experiment is baseline or not experiment.valid or not baseline.valid:
        return experiment
    return replace(experiment, against_baseline=compare(baseline.valid, experiment.valid))


def _held(finding: Finding, by_name: Mapping[str, ExperimentResult]) -> FindingResult:
    first, second = by_name[finding.first], by_name[finding.second]
    merged = {e.name: e.summary for e in (first, second) if e.summary is not None and not e.void}
    return hold_against(finding, first.valid, second.valid, merged)


def to_json(result: StudyResult) -> dict[str, Any]:
    """The published JSON form of a study's results (`ridgeline schema --of study-result`)."""
    return {
        "schema": RESULT_SCHEMA,
        "baseline": result.index.baseline,
        "runs": [_experiment_json(e) for e in result.experiments],
        "findings": [_finding_json(f) for f in result.findings],
    }


def _experiment_json(experiment: ExperimentResult) -> dict[str, Any]:
    configuration = experiment.configuration
    return {
        "name": experiment.name,
        "change": experiment.change,
        "configuration": None if configuration is None else to_plain(configuration),
        "summary": None if experiment.summary is None else experiment.summary.to_json(),
        "void": experiment.void,
        "failure": experiment.failure,
        "repeats": [
            {"run": e.run_id, "repeat": e.repeat, "seed": e.seed, "state": e.state}
            for e in experiment.entries
        ],
        "against_baseline": {
            metric: {
                "delta": d.delta,
                "low": d.low,
                "high": d.high,
                "verdict": d.verdict,
                "pairs": d.pairs,
                "reason": d.reason,
            }
            for metric, d in experiment.against_baseline.items()
        },
    }


def _finding_json(held: FindingResult) -> dict[str, Any]:
    finding = held.finding
    return {
        "id": finding.id,
        "claim": finding.claim,
        "compare": [finding.first, finding.second],
        "mark": held.mark,
        "expected": finding.expected,
        "as_expected": held.as_expected,
        "ratios": {
            metric: {"ratio": ratio, "low": low, "high": high}
            for metric, (ratio, low, high) in held.ratios.items()
        },
        "reason": held.reason,
        "because": finding.because,
    }
