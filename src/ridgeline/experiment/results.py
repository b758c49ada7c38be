"""A study's results from its directory: repeats merged, compared with the baseline, findings held.

Reads the store only; nothing is measured or simulated here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ridgeline.domain.knobs import Configuration
from ridgeline.domain.slo import Slo
from ridgeline.domain.summary import Summary
from ridgeline.experiment.findings import FindingResult, Ratio, hold_against
from ridgeline.experiment.incomplete import incomplete, on_other_targets
from ridgeline.experiment.ledger import recover_study
from ridgeline.experiment.pairs import far_apart, on_another_build, refused, same_builds
from ridgeline.experiment.routercost import RouterCost, cost_json, router_costs
from ridgeline.experiment.statistics import Difference, compare, merge
from ridgeline.store.codec import to_plain
from ridgeline.store.run_directory import StoredRun, is_finished, read_run
from ridgeline.store.study_directory import ExperimentEntry, RunEntry, StudyDirectory, StudyIndex
from ridgeline.workload.study import EQUAL_WITHIN, Finding, Study

RESULT_SCHEMA = 1
OUTDATED = "measured under an earlier study file or version: shown, not compared"


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """One experiment. `entries` are its runs by the index; `stored` those that lie on disk.

    `summary` is that of its valid runs, merged. Without a valid run it is that of its last run
    with figures and `void` is True: shown, never compared; None when no run has figures.
    `left_out`: runs that are valid in themselves but no part of this result, with the reason.
    """

    name: str
    change: str
    configuration: Configuration | None
    summary: Summary | None
    void: bool
    entries: tuple[RunEntry, ...]
    stored: tuple[StoredRun, ...]
    against_baseline: Mapping[str, Difference]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def planned(self) -> tuple[RunEntry, ...]:
        """Its runs as the study stands now, measured or not."""
        return tuple(entry for entry in self.entries if not entry.outdated)

    @property
    def counted(self) -> dict[int, StoredRun]:
        """Its valid runs by repeat, without those that are left out."""
        return {
            run.meta.repeat: run
            for run in self.stored
            if run.valid and run.summary is not None and run.meta.run_id not in self.left_out
        }

    @property
    def valid(self) -> dict[int, Summary]:
        """Summaries of those runs by repeat."""
        return {n: run.summary for n, run in self.counted.items() if run.summary is not None}

    @property
    def void_runs(self) -> dict[int, StoredRun]:
        """Void runs that have figures, by repeat: never compared, but told beside what is."""
        return {
            run.meta.repeat: run
            for run in self.stored
            if run.state == "void"
            and run.summary is not None
            and run.meta.run_id not in self.left_out
        }

    @property
    def failure(self) -> str | None:
        """Why there is nothing to compare; None when there is."""
        if self.summary is not None and not self.void:
            return None
        told = [e.reason for e in self.entries if e.reason]
        reasons = dict.fromkeys([*told, *self.left_out.values()])
        return "; ".join(reasons) or "not run yet"


@dataclass(frozen=True, slots=True)
class StudyResult:
    """Everything that a study found. `warnings` are about how its pairs were measured."""

    index: StudyIndex
    experiments: tuple[ExperimentResult, ...]
    findings: tuple[FindingResult, ...] = ()
    warnings: tuple[str, ...] = ()
    router_costs: tuple[RouterCost, ...] = ()

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

    return parse_study(text, str(directory.path / "study.yaml"), folder=directory.path, stored=True)


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
    slo = study.slo if study is not None and index.kind == "study" else None
    experiments = [_result(entry, index, stored, slo) for entry in index.experiments]
    baseline = next((e for e in experiments if e.name == index.baseline), None)
    within = EQUAL_WITHIN if study is None else study.equal_within
    costs, told_of_costs = router_costs(experiments, within)
    warnings: list[str] = []
    if baseline is not None:
        others = [e for e in experiments if e is not baseline]
        told = [(refused(e.counted, baseline.counted), far_apart(e.counted, baseline.counted))
                for e in others]  # fmt: skip
        warnings = [text for pair in told for text in pair if text]
        experiments = [_compared(e, baseline, within) for e in experiments]
    by_name = {e.name: e for e in experiments}
    findings = study.findings if study is not None else ()
    return StudyResult(
        index,
        tuple(experiments),
        tuple(_held(f, by_name, within) for f in findings if {f.first, f.second} <= set(by_name)),
        tuple(dict.fromkeys([*warnings, *told_of_costs, *incomplete(tuple(stored.values()))])),
        costs,
    )


def _result(
    entry: ExperimentEntry,
    index: StudyIndex,
    stored: Mapping[str, StoredRun],
    slo: Slo | None,
) -> ExperimentResult:
    entries = tuple(r for r in index.runs.values() if r.experiment == entry.name)
    runs = tuple(stored[r.run_id] for r in entries if r.run_id in stored)
    outdated = {r.run_id: OUTDATED for r in entries if r.outdated}
    now = [run for run in runs if run.meta.run_id not in outdated]
    left_out = {**outdated, **on_other_targets(now, slo), **on_another_build(now)}
    valid = [
        r.summary
        for r in runs
        if r.valid and r.summary is not None and r.meta.run_id not in left_out
    ]
    others = [r.summary for r in runs if r.summary is not None]
    return ExperimentResult(
        name=entry.name,
        change=entry.change,
        configuration=(now or runs)[0].meta.configuration if runs else None,
        summary=merge(valid) if valid else (others[-1] if others else None),
        void=not valid,
        entries=entries,
        stored=runs,
        against_baseline={},
        left_out=left_out,
    )


Valid = dict[int, Summary]


def _pairs(first: ExperimentResult, second: ExperimentResult) -> tuple[Valid, Valid]:
    """The valid summaries of both by repeat, without pairs of different server builds."""
    a, b = same_builds(first.counted, second.counted)
    return {r: first.valid[r] for r in a}, {r: second.valid[r] for r in b}


def _compared(
    experiment: ExperimentResult, baseline: ExperimentResult, equal_within: float
) -> ExperimentResult:
    mine, base = _pairs(experiment, baseline)
    if experiment is baseline or not mine or not base:
        return experiment
    return replace(experiment, against_baseline=compare(base, mine, equal_within))


def _held(
    finding: Finding, by_name: Mapping[str, ExperimentResult], equal_within: float
) -> FindingResult:
    first, second = by_name[finding.first], by_name[finding.second]
    why = refused(first.counted, second.counted)
    a, b = _pairs(first, second)
    if why is not None and not set(a) & set(b):
        return FindingResult(finding, None, {}, why)
    merged = {e.name: e.summary for e in (first, second) if e.summary is not None and not e.void}
    return hold_against(finding, a, b, merged, equal_within, void=_void(first, second))


def _void(first: ExperimentResult, second: ExperimentResult) -> tuple[Valid, Valid]:
    """The void summaries of both by repeat, without pairs of different server builds."""
    a, b = same_builds({**first.void_runs, **first.counted}, {**second.void_runs, **second.counted})
    return (
        {r: run.summary for r, run in a.items() if run.summary and r in first.void_runs},
        {r: run.summary for r, run in b.items() if run.summary and r in second.void_runs},
    )


def to_json(result: StudyResult) -> dict[str, Any]:
    """The published JSON form of a study's results (`ridgeline schema --of study-result`)."""
    return {
        "schema": RESULT_SCHEMA,
        "baseline": result.index.baseline,
        "runs": [_experiment_json(e) for e in result.experiments],
        "findings": [_finding_json(f) for f in result.findings],
        "warnings": list(result.warnings),
        "router_cost": [cost_json(cost) for cost in result.router_costs],
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
            {
                "run": e.run_id,
                "repeat": e.repeat,
                "seed": e.seed,
                "state": e.state,
                "left_out": experiment.left_out.get(e.run_id),
                "tries": e.tries,
            }
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
                "detectable": d.detectable,
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
        "pairs": held.pairs,
        "pairs_with_void": held.pairs_with_void,
        "ratios": {metric: _ratio_json(ratio) for metric, ratio in held.ratios.items()},
        "reason": held.reason,
        "because": finding.because,
    }


def _ratio_json(found: Ratio) -> dict[str, Any]:
    names = ("ratio", "low", "high")
    void = found.with_void
    return {
        "ratio": found.ratio,
        "low": found.low,
        "high": found.high,
        "detectable": found.detectable,
        "with_void": None if void is None else dict(zip(names, void, strict=True)),
    }
