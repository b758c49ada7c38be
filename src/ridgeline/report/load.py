"""A study or bench directory -> StudyReport. Reads the store, measures and simulates nothing.

Charts that need single requests or steps (distributions, roofline, time) come from the first
valid repeat of each experiment; figures and intervals are over all valid repeats.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from ridgeline.domain.errors import BadInput, StoreError
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.metrics import take_sample
from ridgeline.domain.run import Source
from ridgeline.domain.slo import Slo
from ridgeline.domain.workload import Client, Workload
from ridgeline.experiment.findings import FEWEST_MARKED, FindingResult, Ratio
from ridgeline.experiment.knee import KIND, read_knee
from ridgeline.experiment.protocol import bounds_of
from ridgeline.experiment.results import (
    ExperimentResult,
    StudyResult,
    load_results,
    load_study_copy,
)
from ridgeline.experiment.speculation import speculation_over_load
from ridgeline.report import numbers
from ridgeline.report.crossovertext import speculation_words
from ridgeline.report.evidence import distribution, error_lines, roofline_points, series
from ridgeline.report.figures import path_words
from ridgeline.report.how import how_measured, load_words
from ridgeline.report.model import (
    Badge,
    Difference,
    ErrorLine,
    ExperimentRow,
    FindingLine,
    Mark,
    Roof,
    RunLine,
    RunState,
    StudyReport,
)
from ridgeline.report.routertext import router_text
from ridgeline.report.tuned import as_tuned
from ridgeline.store.run_directory import StoredRun
from ridgeline.store.study_directory import RunEntry, StudyDirectory
from ridgeline.tuning.outcome import read_result

_PARTS = "part."


def load_report(path: Path, *, details: bool = True) -> StudyReport:
    """Read a directory that `study` or `bench` wrote; raises StoreError when it is none.

    `details` False leaves out what only the charts need (seconds for a large study).
    """
    return report_of(load_results(path), StudyDirectory(path), details=details)


def report_of(
    result: StudyResult, directory: StudyDirectory, *, details: bool = True
) -> StudyReport:
    """The report of results that were read already."""
    study = load_study_copy(directory)
    published = study.published if study is not None else None
    marks: dict[str, list[Mark]] = {}
    for held in result.findings:
        if held.mark is not None:
            marks.setdefault(held.finding.first, []).append(held.mark)
    rows = tuple(
        _row(
            experiment,
            result,
            published=published.runs.get(experiment.name, {}) if published else {},
            marks=tuple(marks.get(experiment.name, ())),
            details=details,
        )
        for experiment in result.experiments
    )
    base = result.experiment(result.index.baseline) or (
        result.experiments[0] if result.experiments else None
    )
    first = base.stored[0] if base is not None and base.stored else _any_run(result)
    workload = first.meta.workload if first is not None else None
    configuration = first.meta.configuration if first is not None else None
    sweeps = result.index.kind == KIND  # every level has its own load
    if workload is not None and not sweeps and base is not None and base.stored:
        rows = tuple(
            _held_to(workload, row, e) for row, e in zip(rows, result.experiments, strict=True)
        )
    tune = read_result(directory.path)
    rows = as_tuned(rows, tune)
    return StudyReport(
        name=result.index.name,
        model=configuration.model if configuration is not None else "",
        badge=_badge(result, first),
        rows=rows,
        baseline=result.index.baseline,
        gpus=_gpus(configuration),
        load=load_words(workload) if workload is not None and not sweeps else None,
        open_loop=workload is not None and not workload.arrivals.closed_loop,
        slo=first.meta.slo if first is not None else Slo(),
        findings=tuple(_finding(held) for held in result.findings),
        findings_source=published.source if published is not None else None,
        how=how_measured(result, first),
        study_yaml=directory.study_text(),
        reproduce=result.index.command or None,
        ridgeline_version=result.index.ridgeline,
        warnings=result.warnings,
        router_costs=tuple(router_text(cost) for cost in result.router_costs),
        speculation=tuple(
            line
            for one in speculation_over_load(result.experiments)
            for line in speculation_words(one)
        ),
        knee=read_knee(directory) if sweeps else None,
        tune=tune,
    )


def _held_to(workload: Workload, row: ExperimentRow, experiment: ExperimentResult) -> ExperimentRow:
    """The row, marked where its traffic is another than the baseline's."""
    if not experiment.stored:
        return row
    own, base = _traffic(experiment.stored[0].meta.workload), _traffic(workload)
    return replace(row, other_workload=own != base)


def _traffic(workload: Workload) -> Workload:
    """What is asked of the server; for how long and with which draws is another matter."""
    return replace(
        workload, duration_s=0.0, warmup_s=0.0, warmup_auto=False, requests=None, seed=0, salt=None,
        client=Client(),
    )  # fmt: skip


def _any_run(result: StudyResult) -> StoredRun | None:
    return next((run for e in result.experiments for run in e.stored), None)


def _gpus(configuration: Configuration | None) -> str | None:
    if configuration is None:
        return None
    if configuration.gpu is not None:
        return f"{configuration.gpus} {configuration.gpu}"
    return configuration.url


def _badge(result: StudyResult, first: StoredRun | None) -> Badge:
    engine = result.index.engine
    source: Source = "twin" if engine == "twin" else "measured"
    server = first.facts.server if first is not None and first.facts is not None else {}
    configuration = first.meta.configuration if first is not None else None
    date = first.meta.started_at[:10] if first is not None else result.index.created_at[:10]
    gpu_name = configuration.gpu if configuration is not None else None
    if source == "twin":
        constants = server.get("constants")
        known: Literal["prior", "calibrated"] = "prior" if constants == "prior" else "calibrated"
        return Badge(source, known if constants else None, engine, None, gpu_name, date)
    name, version = server.get("engine"), server.get("version")
    return Badge(
        source,
        None,
        str(name) if name else engine,
        str(version) if version else configuration.engine_version if configuration else None,
        gpu_name,
        date,
    )


def _row(
    experiment: ExperimentResult,
    result: StudyResult,
    *,
    published: Mapping[str, float],
    marks: tuple[Mark, ...],
    details: bool,
) -> ExperimentRow:
    row = ExperimentRow(
        name=experiment.name,
        change=experiment.change,
        summary=experiment.summary,
        configuration=experiment.configuration,
        load=load_words(experiment.stored[0].meta.workload) if experiment.stored else None,
        void=experiment.summary is not None and experiment.void,
        failure=experiment.failure,
        against_baseline={
            metric: Difference(d.delta, d.low, d.high, d.verdict, d.pairs, d.reason, d.detectable)
            for metric, d in experiment.against_baseline.items()
        },
        published=dict(published),
        marks=marks,
        runs=tuple(_line(entry, experiment, result) for entry in experiment.entries),
        roof=_roof(experiment.configuration),
        step_parts=_step_parts(experiment),
        errors=_errors(experiment),
    )
    return _with_details(row, experiment) if details else row


def _step_parts(experiment: ExperimentResult) -> dict[str, float]:
    if experiment.summary is None:
        return {}
    steps = experiment.summary.steps
    return {n.removeprefix(_PARTS): share for n, share in steps.items() if n.startswith(_PARTS)}


def _line(entry: RunEntry, experiment: ExperimentResult, result: StudyResult) -> RunLine:
    run = next((r for r in experiment.stored if r.meta.run_id == entry.run_id), None)
    order = result.index.order.index(entry.run_id) + 1 if entry.run_id in result.index.order else 0
    reasons: tuple[str, ...] = (entry.reason,) if entry.reason else ()
    warnings: tuple[str, ...] = ()
    if run is not None and run.summary is not None:
        reasons = run.summary.verdict.reasons or reasons
        warnings = run.summary.verdict.warnings
    state = _state(entry, run)
    left_out = experiment.left_out.get(entry.run_id)
    if left_out is not None and (state == "valid" or entry.outdated):
        state, reasons = "left out", (left_out,)
    if state == "not run" and not reasons:
        reasons = ("it was planned and has not run",)
    reasons = tuple(r.removeprefix(f"{state}: ") for r in reasons)  # the state stands beside it
    return RunLine(
        run_id=entry.run_id,
        experiment=entry.experiment,
        repeat=entry.repeat,
        order=order,
        state=state,
        reasons=reasons,
        seed=entry.seed,
        warnings=warnings,
        tries=entry.tries,
    )


def _state(entry: RunEntry, run: StoredRun | None) -> RunState:
    if run is not None and run.valid:
        return "valid"
    if run is None and entry.state in ("planned", "running", "done"):
        return "not run"
    found = run.state if run is not None else entry.state
    states: dict[str, RunState] = {"failed": "failed", "interrupted": "interrupted"}
    return states.get(found, "void")


def _roof(configuration: Configuration | None) -> Roof | None:
    """The roofs of the GPU in the precision that the run computes in; None for unknown hardware."""
    if configuration is None or configuration.gpu is None:
        return None
    bounds = bounds_of(configuration)
    if bounds is None:
        return None
    try:
        device = configuration.device()
    except BadInput:
        return None
    flops = {} if device is None else device.flops
    dtype = next((name for name, peak in flops.items() if peak == bounds.flops_per_s), "dense")
    return Roof(configuration.gpu, bounds.flops_per_s, bounds.bytes_per_s, dtype)


def _with_details(row: ExperimentRow, experiment: ExperimentResult) -> ExperimentRow:
    """Adds what needs records: of the first counted run, else of the last run with figures."""
    with_figures = [run for run in experiment.stored if run.facts is not None and run.summary]
    counted = list(experiment.counted.values())
    run = next(iter(counted), with_figures[-1] if with_figures else None)
    if run is None or run.facts is None:
        return row
    try:
        records = run.records()
    except StoreError:
        # A copy without the tables still has every figure; only the pictures are missing.
        return row
    window = run.facts.window
    sample = take_sample(records, window)
    open_loop = not run.meta.workload.arrivals.closed_loop
    steps = records.steps
    return replace(
        row,
        ttft=distribution(sample.successes("ttft_intent_s" if open_loop else "ttft_s")),
        itl=distribution(sample.successes("itl_s"), sample.successes("worst_stall_s")),
        roofline=roofline_points(steps, window, run.meta.configuration.gpus)
        if steps is not None and len(steps)
        else (),
        series=series(run.meta.run_id, records, window, run.events),
        details_of=run.meta.run_id,
    )


def _errors(experiment: ExperimentResult) -> tuple[ErrorLine, ...]:
    """Failures over the runs behind the summary, with one message of each class."""
    found: dict[str, ErrorLine] = {}
    for run in experiment.stored:
        counted = run.meta.repeat in experiment.counted or experiment.void
        if run.facts is None or run.summary is None or not counted:
            continue
        if not run.summary.requests.failed:
            continue
        try:
            records = run.records()
        except StoreError:
            continue
        for line in error_lines(records, take_sample(records, run.facts.window)):
            before = found.get(line.kind)
            count = line.count + (before.count if before else 0)
            message = before.message if before and before.message else line.message
            found[line.kind] = ErrorLine(line.kind, count, message)
    return tuple(sorted(found.values(), key=lambda line: -line.count))


def _finding(held: FindingResult) -> FindingLine:
    finding = held.finding
    ours = "; ".join(_ratio_words(metric, ratio, held) for metric, ratio in held.ratios.items())
    return FindingLine(
        claim=finding.claim,
        mark=held.mark,
        published=finding.published or "–",
        ours=f"{ours}: {finding.first} over {finding.second}" if ours else "not decided",
        reason=held.reason,
        expected=finding.expected,
        expected_because=finding.because,
    )


def _ratio_words(metric: str, found: Ratio, held: FindingResult) -> str:
    """A ratio, its interval and what it rests on; what the void runs would change comes last."""
    found_by = _pairs(held.pairs)
    if held.pairs < FEWEST_MARKED:
        found_by += ": too few to know the noise"
    elif found.detectable is not None:
        found_by += f", ±{numbers.percent(found.detectable)} would be found"
    text = (
        f"{path_words(metric)} × {numbers.number(found.ratio)} (95 % interval"
        f" {numbers.number(found.low)} to {numbers.number(found.high)}; {found_by})"
    )
    if found.with_void is None:
        return text
    ratio, low, high = found.with_void
    span = "" if low is None else f" ({numbers.number(low)} to {numbers.number(high)})"
    counted = _pairs(held.pairs_with_void)
    return f"{text}, with the void runs × {numbers.number(ratio)}{span} over {counted}"


def _pairs(count: int) -> str:
    return "1 pair" if count == 1 else f"{count} pairs"
