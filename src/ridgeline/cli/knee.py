"""`ridgeline knee`: how much load a server, or a configuration on the twin, carries."""

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli import options
from ridgeline.cli.kneetarget import nothing_asked, refuse_beside_a_file, sweep_of_url
from ridgeline.cli.output import (
    GATE_FAILED,
    INTERRUPTED,
    NOT_COMPLETED,
    command_line,
    console,
    ensure_folder_target,
    ensure_json_target,
    say,
    show,
    write_json,
)
from ridgeline.cli.selftest import Calibrated
from ridgeline.domain.errors import BadInput

if TYPE_CHECKING:
    from ridgeline.domain.knee import KneeLevel, KneeResult
    from ridgeline.domain.run import Watch
    from ridgeline.domain.slo import Slo
    from ridgeline.engines.base import Engine
    from ridgeline.experiment.knee import Sweep
    from ridgeline.experiment.plan import PlannedRun
    from ridgeline.store.run_directory import StoredRun

LOADS = ("users", "rate")
WIDE = 110  # columns that a table with intervals needs
MOST_RATE = 100_000.0
LEAST_RATE = 0.01


def knee(
    target: Annotated[
        str, typer.Argument(metavar="URL|FILE", help="A server's base URL, or a study file.")
    ],
    *,
    load: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Sweep users (closed loop) or rate (open loop) [rate with --slo, else users].",
        ),
    ] = None,
    slo: Annotated[
        str,
        typer.Option(
            metavar="LIMITS",
            help='"ttft_p95_ms=500,itl_p95_ms=20": look for the capacity inside them too [the'
            " study file's].",
        ),
    ] = "",
    requests: Annotated[
        int | None,
        typer.Option(metavar="N", min=10, max=1_000_000, help="Requests a level must have."),
    ] = None,
    minutes: Annotated[
        float, typer.Option(metavar="M", help="Start no level that would exceed M minutes.")
    ] = 15.0,
    resolution: Annotated[
        float, typer.Option(metavar="R", help="Bisect until the bracket is this narrow.")
    ] = 0.1,
    start: Annotated[
        float | None, typer.Option(metavar="X", help="First load [1 user; a rate from a probe].")
    ] = None,
    most: Annotated[
        float | None, typer.Option(metavar="X", help="Highest load to try [4096 users, 10000/s].")
    ] = None,
    experiment: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Which experiment of FILE [its baseline]."),
    ] = None,
    model: options.Model = None,
    endpoint: options.Endpoint = options.EndpointKind.CHAT,
    process: options.Process = options.ArrivalLaw.POISSON,
    burstiness: options.Burstiness = 1.0,
    think_time: options.ThinkTime = 0.0,
    think_time_law: options.ThinkTimeLaw = options.PauseLaw.CONSTANT,
    turns: options.Turns = None,
    turn_think_time: options.TurnThinkTime = 0.0,
    prompt_tokens: options.PromptTokens = 256,
    output_tokens: options.OutputTokens = 128,
    spread: options.Spread = 0.0,
    ignore_eos: options.IgnoreEos = False,
    prompt_file: options.PromptFile = None,
    prompt_format: options.PromptFormat = None,
    history: options.History = None,
    unsalted: options.Unsalted = False,
    images: options.Images = "",
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    sampling_seed: options.SamplingSeed = None,
    stop: options.Stop = None,
    extra_body: options.ExtraBody = "",
    header: options.Header = None,
    seed: options.Seed = 0,
    gpu: options.Gpu = None,
    gpus: options.Gpus = 1,
    price_per_gpu_hour: options.PricePerGpuHour = None,
    connect_timeout: options.ConnectTimeout = 10.0,
    first_token_timeout: options.FirstTokenTimeout = 120.0,
    chunk_timeout: options.ChunkTimeout = 60.0,
    timeout: options.Timeout = 600.0,
    workers: options.Workers = "1",
    more_urls: options.MoreUrls = None,
    routing: options.Routing = "round-robin",
    json: options.JsonFile = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where results go [runs/knee-<time>].")
    ] = None,
    no_calibration: options.NoCalibration = False,
    quiet: options.Quiet = False,
) -> int:
    """Find the saturation knee, and with targets the highest load that meets them.

    Doubles the load until throughput rises no more (and the targets are missed), then bisects.
    Every level has fresh prompts and a verdict of its own; void levels count for nothing. The same
    --out goes on where a search was cut off. A FILE with engine: twin needs no GPU and seconds; it
    says the traffic and the client itself: the options from --model to --routing belong to a URL.
    """
    given = dict(locals())
    from ridgeline.engines.endpoint import EndpointEngine  # noqa: PLC0415  --help is quick
    from ridgeline.experiment.knee import search_knee  # noqa: PLC0415
    from ridgeline.store.study_directory import StudyDirectory  # noqa: PLC0415

    kind = _kind(load, slo, target)
    asked = {"resolution": resolution, "start": start, "most": most, "minutes": minutes}
    _check_numbers(asked, kind)
    folder = out or Path("runs") / f"knee-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    ensure_json_target(json, folder)
    ensure_folder_target(folder)
    if "://" in target:
        if experiment is not None:
            raise BadInput("--experiment belongs to a study file, not to a URL")
        sweep = sweep_of_url(target, slo, given)
        engine: Engine = EndpointEngine()
    else:
        refuse_beside_a_file(given, knee)
        sweep, engine = _of_file(Path(target), experiment, slo)
    sweep = _asked_for(sweep, kind or _default_kind(sweep), asked, requests)
    say(_plan_text(sweep, target))
    from ridgeline.cli.progress import display, stop_on_interrupt  # noqa: PLC0415

    with stop_on_interrupt() as halt, display(quiet=quiet) as shown:
        watch = _progress(shown, halt)
        result, stopped = search_knee(
            sweep,
            StudyDirectory(folder),
            engine,
            watch,
            command=command_line(),
            calibrate=None if no_calibration else Calibrated(shown.note),
        )
    write_json(json, result.to_json())
    if not quiet:
        _show(result, to_stderr=json == "-")
    say(f"results: {folder} (`ridgeline report {folder} --html FILE` for the page)")
    return INTERRUPTED if stopped else _exit_code(result)


def _kind(load: str | None, slo: str, target: str) -> str | None:
    if load is not None and load not in LOADS:
        raise BadInput(f"--load must be users or rate, not {load!r}")
    if load is None and (slo or "://" in target):
        return "rate" if slo else "users"
    return load


def _default_kind(sweep: "Sweep") -> str:
    """Of a study file: a rate where it has targets for single requests."""
    from ridgeline.domain.knee import attainment_target  # noqa: PLC0415

    return "users" if attainment_target(sweep.slo) is None else "rate"


def _check_numbers(asked: dict[str, float | None], kind: str | None) -> None:
    """Refuse what is no sensible number; typer takes nan and inf for numbers."""
    resolution, minutes = asked["resolution"], asked["minutes"]
    if not (resolution is not None and 0.01 <= resolution <= 1):
        raise BadInput(f"--resolution must be 0.01 to 1, not {resolution:g}")
    if not (minutes is not None and 0 < minutes <= 1440):
        raise BadInput(f"--minutes must be above 0 and at most 1440, not {minutes:g}")
    top = options.MOST_USERS if kind == "users" else MOST_RATE
    least = 1 if kind == "users" else LEAST_RATE
    for name in ("start", "most"):
        value = asked[name]
        if value is not None and not least <= value <= top:
            raise BadInput(f"--{name} must be {least:g} to {top:g}, not {value:g}")
    start, most = asked["start"], asked["most"]
    if start is not None and most is not None and start > most:
        raise BadInput(f"--start {start:g} is above --most {most:g}")


def _of_file(file: Path, experiment: str | None, slo: str) -> tuple["Sweep", "Engine"]:
    from ridgeline.domain.slo import parse_slo  # noqa: PLC0415
    from ridgeline.experiment.engines import check_startable, engine_named  # noqa: PLC0415
    from ridgeline.experiment.knee import Sweep  # noqa: PLC0415
    from ridgeline.workload.study import override  # noqa: PLC0415
    from ridgeline.workload.studyfile import load_study  # noqa: PLC0415

    study = load_study(file)
    spec = study.baseline if experiment is None else study.experiment(experiment)
    for note in check_startable(override(study, only=(spec.name,)), str(file)):
        say(f"note: {note}")
    limits = parse_slo(slo) if slo else study.slo
    sweep = Sweep(f"{study.name}: {spec.name}", spec.configuration, spec.workload,
                  nothing_asked(), limits)  # fmt: skip
    return sweep, engine_named(spec.configuration.engine)


def _asked_for(
    sweep: "Sweep", kind: str, asked: dict[str, float | None], requests: int | None
) -> "Sweep":
    from dataclasses import replace  # noqa: PLC0415

    from ridgeline.domain.knee import attainment_target, requests_wanted  # noqa: PLC0415
    from ridgeline.experiment.kneesearch import Asked  # noqa: PLC0415

    target = attainment_target(sweep.slo)
    minutes = asked["minutes"] or 0.0
    closed = kind == "users"
    wanted = Asked(
        "users" if closed else "rate",
        start=asked["start"] or (1.0 if closed else 0.0),
        least=1.0 if closed else LEAST_RATE,
        most=asked["most"] or (4096.0 if closed else 10_000.0),
        resolution=asked["resolution"] or 0.1,
        target=target,
        most_errors=sweep.slo.get("error_rate"),
    )
    return replace(
        sweep,
        asked=wanted,
        requests=max(requests or requests_wanted(target), _least_requests(sweep.slo)),
        longest_s=min(300.0, minutes * 60 / 4),
        budget_s=minutes * 60,
    )


def _least_requests(slo: "Slo") -> int:
    """What the targets' percentiles need; a level with fewer would be void."""
    from ridgeline.domain.percentile import needed  # noqa: PLC0415

    statistics = [limit.statistic or "" for limit in slo.limits]
    return max([needed(int(s[1:])) for s in statistics if s.startswith("p")], default=10)


def _plan_text(sweep: "Sweep", target: str) -> str:
    """What will be done and how long it may take, before it begins."""
    asked = sweep.asked
    closed = asked.load == "users"
    first = f"{asked.start:g}" if asked.start > 0 else "half of what 16 users get through"
    what = "users, closed loop," if closed else "requests/s, open loop,"
    goal = ""
    if asked.target is not None:
        limits = ", ".join(str(limit) for limit in sweep.slo.limits)
        goal = f" and at least {asked.target:.3g} of the requests are inside {limits}"
    time = (
        "the twin takes seconds"
        if sweep.configuration.engine == "twin"
        else f"about 10 to 14 levels; none starts that would exceed {(sweep.budget_s or 0) / 60:g}"
        " minutes"
    )
    return (
        f"plan: {target}: {what} from {first}, doubled until throughput rises by less than 5 %"
        f"{goal.replace(' and at least', ' and fewer than')}, then bisected to"
        f" {asked.resolution:.0%}; {sweep.requests} requests a level, fresh prompts in each; {time}"
    )


def _progress(shown: Any, stop: Any) -> Any:
    from ridgeline.cli.progress import StudyProgress  # noqa: PLC0415

    progress = StudyProgress(shown, stop)

    class Progress:
        """A study's progress that also says what each level means for the search."""

        def planned(self, runs: "list[PlannedRun]", kept: "list[StoredRun]") -> None:
            progress.planned(runs, kept)

        def started(self, run: "PlannedRun") -> "Watch":
            return progress.started(run)

        def ended(self, run: "StoredRun") -> None:
            progress.ended(run)

        def stop_asked(self) -> bool:
            return progress.stop_asked()

        def level(self, level: "KneeLevel") -> None:
            if level.state == "overloaded":
                shown.note(f"{level.run_id}: above the capacity: its queue grew")

    return Progress()


def _show(result: "KneeResult", *, to_stderr: bool) -> None:
    from ridgeline.report.kneetext import knee_console  # noqa: PLC0415

    wide = console(to_stderr=to_stderr).width >= WIDE
    show(knee_console(result, wide=wide), to_stderr=to_stderr)


def _exit_code(result: "KneeResult") -> int:
    """0: what was asked for was found. 1: not even the lowest load meets the targets. 3: it could
    not be told, and why is said.
    """
    code = 0
    for what, found in (("knee", result.knee), ("capacity", result.capacity)):
        if found is None or found.value is not None:
            continue
        say(f"ridgeline: no {what}: {found.reason}")
        below = what == "capacity" and found.high is not None
        code = max(code, GATE_FAILED if below else NOT_COMPLETED)
    return code
