"""`ridgeline tune`: the best configuration within a budget, with the proof."""

import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli import options
from ridgeline.cli.output import (
    INTERRUPTED,
    NOT_COMPLETED,
    command_line,
    ensure_folder_target,
    ensure_json_target,
    say,
    show,
    write_json,
)
from ridgeline.cli.selftest import Calibrated
from ridgeline.domain.errors import BadInput

if TYPE_CHECKING:
    from ridgeline.cli.tuneprogress import TuneProgress
    from ridgeline.tuning.budgeting import Limits
    from ridgeline.tuning.outcome import TuneResult
    from ridgeline.workload.study import Study

USUAL_MINUTES = 30.0
TARGETS_MISSED = 1  # as of a benchmark that missed its targets


def tune(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The study file (YAML).")],
    *,
    engine: Annotated[
        str | None, typer.Option(metavar="E", help="Serve with this engine instead of the file's.")
    ] = None,
    gpu_minutes: Annotated[
        float | None,
        typer.Option(
            metavar="M",
            min=0,
            help="GPU minutes (GPUs in use, at least the baseline's, times wall time) for"
            " everything: starts, search, duel, soak"
            f" [{USUAL_MINUTES:g} unless another budget is given].",
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Trials of the search; duel and soak come on top."),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            metavar="W",
            min=0,
            help="The most minutes of wall time for everything: as many GPU minutes for each GPU of"
            " the baseline.",
        ),
    ] = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the result as JSON; - is stdout.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where results go [runs/<name>-tune].")
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Seed of the search's own draws.")
    ] = 0,
    no_calibration: options.NoCalibration = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Plain lines instead of live bars, no table.")
    ] = False,
) -> int:
    """Search for the best configuration of FILE's engine for FILE's traffic inside FILE's targets.

    On a host with several GPUs (hardware.count) candidates are measured side by side. The same
    command goes on where an earlier one ended. Ctrl-C keeps what was measured. Exit code 1: no
    configuration was shown to meet the targets.
    """
    from ridgeline.cli.progress import display, stop_on_interrupt  # noqa: PLC0415
    from ridgeline.cli.tuneprogress import TuneProgress  # noqa: PLC0415
    from ridgeline.report.tunetext import tune_console  # noqa: PLC0415
    from ridgeline.tuning.outcome import NOT_SOAKED, to_json  # noqa: PLC0415
    from ridgeline.tuning.setting import setting_of  # noqa: PLC0415
    from ridgeline.workload.study import override  # noqa: PLC0415
    from ridgeline.workload.studyfile import load_study  # noqa: PLC0415

    study = override(load_study(file), engine=engine)
    if study.baseline.configuration.pools:
        raise BadInput(
            "a tuning searches one configuration, and the baseline is divided into pools",
            where=f"{file}: pools", fix="tune each pool with its own class, then join them",
        )  # fmt: skip
    folder = out or Path("runs") / f"{study.name}-tune"
    ensure_folder_target(folder)
    ensure_json_target(json, folder)
    limits = _limits(study, gpu_minutes, trials, minutes)
    _check(study, file)
    with stop_on_interrupt() as stop, display(quiet=quiet) as shown:
        watch = TuneProgress(shown, stop, setting_of(study).goal)
        calibrate = None if no_calibration else Calibrated(shown.note)
        result = _run(study, file, folder, limits, watch, calibrate=calibrate, seed=seed)
    if result is None:
        say(f"stopped; go on with the same command (results so far: {folder})")
        return INTERRUPTED if stop.asked else NOT_COMPLETED
    write_json(json, to_json(result))
    if not quiet:
        show(tune_console(result), to_stderr=json == "-")
    if not result.trials:
        say("nothing was measured: the budget does not hold one trial; give more --gpu-minutes")
        return NOT_COMPLETED
    page = f"`ridgeline report {folder} --html FILE` for the page"
    say(f"results: {folder} ({_kept(result)}; {page})")
    if result.soak and result.soak[-1].state == NOT_SOAKED:
        say(f"{result.soak[-1].reason}; give more --gpu-minutes to the same command")
        return NOT_COMPLETED
    if not any(t.value is not None for t in result.trials):
        return NOT_COMPLETED
    return 0 if result.nearest is None else TARGETS_MISSED


def _kept(result: "TuneResult") -> str:
    """What was written for the user to take away."""
    if result.nearest is not None:
        none = "nothing was shown to meet the targets, so no winner.yaml"
        return f"{none}; nearest.yaml came nearest" if result.nearest.side.change else none
    if not result.recommended:
        return "no recommendation, so no winner.yaml"
    if not result.winner.change:
        return "the baseline stays, so no winner.yaml"
    return "winner.yaml, serve.sh; `ridgeline export` makes files for Kubernetes and others of it"


def _limits(
    study: "Study", gpu_minutes: float | None, trials: int | None, minutes: float | None
) -> "Limits":
    """The budget in GPU seconds: a minute of wall time is one of every GPU of the baseline, which
    are held whatever a candidate uses of them.
    """
    from ridgeline.tuning.budgeting import Limits  # noqa: PLC0415

    for name, given_m in (("--gpu-minutes", gpu_minutes), ("--minutes", minutes)):
        if given_m is not None and not math.isfinite(given_m):
            raise BadInput(
                "a budget is a number of minutes", where=name, fix="give a finite one, or --trials"
            )
        if given_m == 0:
            raise BadInput(
                "a budget of 0 minutes measures nothing", where=name, fix="give more than 0"
            )
    if gpu_minutes is None and trials is None and minutes is None:
        gpu_minutes = USUAL_MINUTES
    gpus = study.baseline.configuration.gpus
    given = [m for m in (gpu_minutes, None if minutes is None else minutes * gpus) if m is not None]
    return Limits(min(given) * 60 if given else None, trials)


def _check(study: "Study", file: Path) -> None:
    """Refuse what cannot be tuned, and an engine that cannot be started, before the first run."""
    from ridgeline.experiment.engines import check_startable  # noqa: PLC0415

    base = study.baseline.configuration
    if base.engine == "endpoint":
        raise BadInput(
            "a server that runs already cannot be tuned: its options are set at its start",
            where=f"{file}: engine",
            fix="use an engine that Ridgeline starts (vllm, llamacpp) or the twin",
        )
    if study.tune.objective == "goodput" and not study.slo.limits:
        raise BadInput("goodput needs targets", where=str(file), fix="add slo: to the study file")
    for note in check_startable(replace(study, experiments=(study.baseline,)), str(file)):
        say(f"note: {note}")


def _run(
    study: "Study",
    file: Path,
    folder: Path,
    limits: "Limits",
    watch: "TuneProgress",
    *,
    calibrate: Calibrated | None,
    seed: int,
) -> "TuneResult | None":
    """The tuning; None when the user stopped it."""
    from ridgeline.experiment.engines import engine_named  # noqa: PLC0415
    from ridgeline.tuning.afterwards import ablate  # noqa: PLC0415
    from ridgeline.tuning.assembling import assembled, concluded, plan_words  # noqa: PLC0415
    from ridgeline.tuning.expecting import Oracle  # noqa: PLC0415
    from ridgeline.tuning.journal import TuneJournal  # noqa: PLC0415
    from ridgeline.tuning.lasting import LastingEngines  # noqa: PLC0415
    from ridgeline.tuning.outcome import write_result  # noqa: PLC0415
    from ridgeline.tuning.setting import setting_of  # noqa: PLC0415
    from ridgeline.tuning.trial import Candidate  # noqa: PLC0415
    from ridgeline.tuning.winning import (  # noqa: PLC0415
        remove_winner,
        write_nearest,
        write_winner,
    )

    setting = setting_of(study)
    with TuneJournal(folder) as journal, closing(Oracle(setting, folder)) as oracle:
        with LastingEngines(engine_named, setting.places, setting.configuration) as engines:
            session = assembled(
                setting, folder, engines, journal, watch, oracle=oracle, limits=limits,
                command=command_line(), study_text=study.text, calibrate=calibrate, seed=seed,
            )  # fmt: skip
            for line in plan_words(session):
                say(line)
            found = session.run()
            ablation = ablate(session, found) if found.complete else ()
        journal.down()
        if not found.complete:
            return None
        say("the engines are down; the rest is worked out on the twin")
        result = concluded(session, found, ablation)
        write_result(folder, result)
        said = result.verdict
        if found.recommended and found.winner.change:
            write_winner(folder, study, file, setting, found.winner, said=said)
            return result
        remove_winner(folder)
        if result.nearest is not None and result.nearest.side.change:
            near = Candidate(result.nearest.side.change)
            write_nearest(folder, study, file, setting, near, said=said)
        return result
