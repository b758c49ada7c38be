"""`ridgeline study`: run a study file's experiments, compare them, hold findings and gates."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli import options
from ridgeline.cli.output import (
    GATE_FAILED,
    INTERRUPTED,
    NOT_COMPLETED,
    command_line,
    say,
    show,
    write_json,
)
from ridgeline.cli.selftest import Calibrated
from ridgeline.domain.errors import BadInput

if TYPE_CHECKING:
    from ridgeline.experiment.results import ExperimentResult, StudyResult
    from ridgeline.experiment.runner import Outcome
    from ridgeline.store.study_directory import StudyDirectory
    from ridgeline.workload.study import Study


def study(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The study file (YAML).")],
    *,
    engine: Annotated[
        str | None, typer.Option(metavar="E", help="Serve with this engine instead of the file's.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Runs of each experiment.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Only this experiment and the baseline; may be repeated."
        ),
    ] = None,
    gate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Exit 1 when a repeat of this experiment misses a limit of the file's SLO.",
        ),
    ] = None,
    check_published: Annotated[
        bool,
        typer.Option(
            "--check-published", help="Exit 1 when a finding's mark is not the one expected."
        ),
    ] = False,
    gpu_minutes: Annotated[
        float | None,
        typer.Option(
            metavar="M",
            min=0,
            help="Start no run that would exceed M GPU minutes, engine starts included.",
        ),
    ] = None,
    retries: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="How often a real engine's void run is measured again."
        ),
    ] = 1,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the results as JSON; - is stdout.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where results go [runs/<name>].")
    ] = None,
    no_calibration: options.NoCalibration = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Plain lines instead of live bars, no table.")
    ] = False,
) -> int:
    """Run every experiment of FILE, repeated and interleaved, and compare it with the baseline.

    Runs that are finished in DIR are not repeated. Ctrl-C keeps what was measured.
    """
    from ridgeline.cli.progress import StudyProgress, display, stop_on_interrupt  # noqa: PLC0415
    from ridgeline.experiment.engines import check_startable, engine_named  # noqa: PLC0415
    from ridgeline.experiment.plan import plan_of  # noqa: PLC0415
    from ridgeline.experiment.results import results_of, to_json  # noqa: PLC0415
    from ridgeline.experiment.runner import run_plan  # noqa: PLC0415
    from ridgeline.store.study_directory import StudyDirectory  # noqa: PLC0415
    from ridgeline.workload.study import override  # noqa: PLC0415
    from ridgeline.workload.studyfile import load_study  # noqa: PLC0415

    given = override(load_study(file), engine=engine)
    loaded = override(given, repeats=repeats, only=only or ())
    gates = [loaded.experiment(name).name for name in gate or ()]
    _check(loaded, gates, check_published=check_published)
    notes = check_startable(loaded, str(file))
    for note in notes:
        say(f"note: {note}")
    plan = plan_of(loaded)
    directory = StudyDirectory(out or Path("runs") / loaded.name)
    with stop_on_interrupt() as stop, display(quiet=quiet) as shown:
        outcome = run_plan(
            plan,
            directory,
            engine_named,
            StudyProgress(shown, stop),
            command=command_line(),
            study_text=loaded.text,
            gpu_minutes=gpu_minutes,
            retries=retries,
            notes=notes,
            whole=plan_of(given),
            calibrate=None if no_calibration else Calibrated(shown.note),
        )
    result = results_of(outcome.index, directory, loaded)
    write_json(json, to_json(result))
    if quiet:
        for warning in result.warnings:
            say(f"warning: {warning}")
    else:
        _show(result, directory, to_stderr=json == "-")
    say(f"results: {directory.path} (`ridgeline report {directory.path} --html FILE` for the page)")
    if outcome.interrupted:
        return INTERRUPTED
    code = _judge(result, gates, check_published=check_published)
    return NOT_COMPLETED if _tell_missing(result, outcome) else code


def _check(study: "Study", gates: list[str], *, check_published: bool) -> None:
    """Refuse gates that cannot be judged, before anything runs."""
    of_classes = any(k.slo.limits for e in study.experiments for k in e.workload.classes)
    if gates and not study.slo.limits and not of_classes:
        raise BadInput(
            "--gate needs limits", where=f"study {study.name}", fix="add slo: to the study file"
        )
    if check_published and not any(f.expected for f in study.findings):
        raise BadInput(
            "--check-published needs findings with an expectation",
            where=f"study {study.name}",
            fix="add findings: with twin: to the study file",
        )


def _show(result: "StudyResult", directory: "StudyDirectory", *, to_stderr: bool) -> None:
    from ridgeline.report.console import study  # noqa: PLC0415
    from ridgeline.report.load import report_of  # noqa: PLC0415

    show(study(report_of(result, directory, details=False)), to_stderr=to_stderr)


def _judge(result: "StudyResult", gates: list[str], *, check_published: bool) -> int:
    """1 when a gate or a published finding fails, else 0; each gate is said."""
    code = 0
    for name in gates:
        experiment = result.experiment(name)
        assert experiment is not None
        missed = _missed(experiment)
        seen = f"{len(experiment.valid)} of {len(experiment.planned)} planned repeats seen"
        if missed:
            say(f"gate failed: {name} misses {', '.join(missed)}; {seen}")
            code = GATE_FAILED
        else:
            say(f"gate passed: {name} meets every limit in each repeat; {seen}")
    for held in result.findings if check_published else ():
        if held.as_expected is False:
            mark = held.mark or f"not judged ({held.reason})"
            say(
                f"published finding {held.finding.id}: {mark}, the study file expects"
                f" {held.finding.expected}"
            )
            code = GATE_FAILED
    return code


def _missed(experiment: "ExperimentResult") -> list[str]:
    """The limits that a repeat misses, with the worst repeat's value: a mean would hide one."""
    summary = experiment.summary
    if summary is None or experiment.void:
        return ["every limit: no valid run"]
    misses = []
    for worst in summary.slo:
        if worst.met:
            continue
        of = [r.met for s in experiment.valid.values() for r in s.slo if r.words == worst.words]
        n = sum(met is not True for met in of)
        misses.append(f"{worst.words} in {n} of {len(of)} repeats ({_value(worst.value)})")
    return misses


def _tell_missing(result: "StudyResult", outcome: "Outcome") -> bool:
    """True when a planned run has no valid result; each experiment that lacks some is said."""
    missing = outcome.without_result
    for name in dict.fromkeys(entry.experiment for entry in missing):
        mine = [entry for entry in missing if entry.experiment == name]
        experiment = result.experiment(name)
        reasons = "; ".join(dict.fromkeys(e.reason or f"{e.state}, not run" for e in mine))
        if experiment is None or experiment.void or experiment.summary is None:
            say(f"no valid run of {name}: {reasons}")
        else:
            of = len(experiment.planned)
            say(f"{len(mine)} of {of} runs of {name} have no valid result: {reasons}")
    return bool(missing)


def _value(value: float | None) -> str:
    return "not known" if value is None else f"worst found {value:.4g}"
