"""`ridgeline bench`: measure a server that runs already."""

import datetime
import enum
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.clientoptions import LONGEST_TIME_S, client_of, routing_of
from ridgeline.cli.loadoptions import LoadOptions, arrivals_of, classes_of, images_of
from ridgeline.cli.output import (
    GATE_FAILED,
    INTERRUPTED,
    NOT_COMPLETED,
    command_line,
    ensure_folder_target,
    ensure_json_target,
    one_line,
    say,
    show,
    write_json,
)
from ridgeline.domain.errors import BadInput

if TYPE_CHECKING:
    from ridgeline.domain.summary import Summary
    from ridgeline.domain.workload import (
        Arrivals,
        Outputs,
        Prompts,
        Sessions,
        TrafficClass,
        Workload,
    )
    from ridgeline.engines.base import Engine
    from ridgeline.experiment.plan import Plan
    from ridgeline.store.run_directory import StoredRun

NAME = "bench"
DEFAULT_DURATION_S = 30.0
LONGEST_S = 3600.0  # a run of --requests that has not ended by then ends with what it has
# The upper ends of a study file hold here too.
MOST_USERS, MOST_REQUESTS, MOST_TOKENS, MOST_GPUS = 100_000, 100_000_000, 10_000_000, 4096
LEAST_BURSTINESS, MOST_BURSTINESS = 0.01, 1000.0
HIGHEST_PRICE = 1e6
LEAST_AUTO_S = 8.0  # a shorter window is too short to tell a steady state in
AUTO = "auto"


class EndpointKind(enum.StrEnum):
    """Which part of the API is asked."""

    CHAT = "chat"
    COMPLETIONS = "completions"


class Law(enum.StrEnum):
    """Law of a pause."""

    CONSTANT = "constant"
    EXPONENTIAL = "exponential"


class TraceFormat(enum.StrEnum):
    """How a trace is written."""

    MOONCAKE = "mooncake"
    AZURE = "azure"
    BURSTGPT = "burstgpt"
    RECORDS = "records"


class PromptFormat(enum.StrEnum):
    """How a file of prompts is written."""

    TEXT = "text"
    JSONL = "jsonl"
    SHAREGPT = "sharegpt"


class Process(enum.StrEnum):
    """Law of the arrivals of an open loop."""

    POISSON = "poisson"
    CONSTANT = "constant"
    GAMMA = "gamma"


def bench(
    url: Annotated[str, typer.Argument(metavar="URL", help="Base URL, with or without /v1.")],
    *,
    model: Annotated[
        str | None, typer.Option(metavar="M", help="Model name [the first one served].")
    ] = None,
    endpoint: Annotated[EndpointKind, typer.Option(help="API to use.")] = EndpointKind.CHAT,
    users: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=MOST_USERS,
            help="Closed loop: N users, one request at a time each.",
        ),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(metavar="R", help="Open loop: R requests per second.")
    ] = None,
    process: Annotated[Process, typer.Option(help="Arrivals of --rate.")] = Process.POISSON,
    burstiness: Annotated[
        float, typer.Option(metavar="B", help="Shape of --process gamma; smaller is burstier.")
    ] = 1.0,
    user_steps: Annotated[
        str, typer.Option(metavar="N:S,...", help="N users for S seconds, and so on.")
    ] = "",
    rate_steps: Annotated[
        str, typer.Option(metavar="R:S,...", help="R requests/s for S seconds, and so on.")
    ] = "",
    think_time: Annotated[
        float, typer.Option(metavar="S", help="A user's pause before the next request.")
    ] = 0.0,
    think_time_law: Annotated[
        Law, typer.Option(help="Always so long, or on average.")
    ] = Law.CONSTANT,
    ramp: Annotated[
        float | None,
        typer.Option(metavar="S", help="Users begin over S seconds [5, at most half the warm-up]."),
    ] = None,
    max_concurrency: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=MOST_USERS, help="At most N in flight at a rate."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Replay a trace (or the requests of a run's folder)."),
    ] = None,
    trace_format: Annotated[
        TraceFormat | None, typer.Option(help="How it is read [told by its first line].")
    ] = None,
    trace_speed: Annotated[float, typer.Option(metavar="X", help="Replay X times as fast.")] = 1.0,
    trace_from: Annotated[
        float, typer.Option(metavar="S", help="Begin S seconds into the trace.")
    ] = 0.0,
    trace_to: Annotated[
        float | None, typer.Option(metavar="S", help="End S seconds into the trace.")
    ] = None,
    turns: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=10_000, help="Sessions of N turns with the talk so far."
        ),
    ] = None,
    turn_think_time: Annotated[
        float, typer.Option(metavar="S", help="Pause between the turns of a session.")
    ] = 0.0,
    classes: Annotated[
        list[str] | None,
        typer.Option(
            "--class",
            metavar="NAME:KEY=VALUE,...",
            help="A class of requests: share, prompt_tokens, output_tokens, shared_prefix_tokens,"
            " priority, SLO keys. Repeat it.",
        ),
    ] = None,
    duration: Annotated[
        float | None, typer.Option(metavar="S", help="Measure for S seconds [30].")
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=MOST_REQUESTS, help="Measure N requests instead."),
    ] = None,
    warmup: Annotated[
        str | None,
        typer.Option(
            metavar="S",
            help="Warm-up of S seconds, or auto: until the run is steady"
            f" [auto; a fifth of a --duration below {LEAST_AUTO_S:g}].",
        ),
    ] = None,
    warmup_limit: Annotated[
        float | None,
        typer.Option(metavar="S", help="The most that --warmup auto may take [60]."),
    ] = None,
    prompt_tokens: Annotated[
        int, typer.Option(metavar="N", min=1, max=MOST_TOKENS, help="Tokens a prompt.")
    ] = 256,
    output_tokens: Annotated[
        int, typer.Option(metavar="N", min=1, max=MOST_TOKENS, help="Most tokens a reply.")
    ] = 128,
    spread: Annotated[
        float,
        typer.Option(min=0, max=1, help="Lengths vary evenly by this share of them, both ways."),
    ] = 0.0,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Ask for exactly as many output tokens.")
    ] = False,
    prompt_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Prompts from lines, JSONL or ShareGPT conversations."),
    ] = None,
    prompt_format: Annotated[
        PromptFormat | None, typer.Option(help="How it is read [told by its beginning].")
    ] = None,
    unsalted: Annotated[
        bool, typer.Option("--unsalted", help="Send the texts of --prompt-file as they are.")
    ] = False,
    images: Annotated[
        str, typer.Option(metavar="N:WxH", help="N images of W x H pixels in each prompt (chat).")
    ] = "",
    temperature: Annotated[
        float | None, typer.Option(metavar="T", help="Sampling parameter, as the API has it.")
    ] = None,
    top_p: Annotated[float | None, typer.Option(metavar="P", help="Sampling parameter.")] = None,
    top_k: Annotated[int | None, typer.Option(metavar="K", help="Sampling parameter.")] = None,
    sampling_seed: Annotated[
        int | None, typer.Option(metavar="N", help="The server's own seed, sent as `seed`.")
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Text that ends a reply. Repeat it.")
    ] = None,
    extra_body: Annotated[
        str, typer.Option(metavar="JSON", help="More fields of every request's body.")
    ] = "",
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V", help="A header of every request; no secrets. Repeat it."),
    ] = None,
    salt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The same prompts again [fresh in each run].")
    ] = None,
    token_ids: Annotated[
        bool, typer.Option("--token-ids", help="Send completions token ids, exactly as planned.")
    ] = False,
    seed: Annotated[
        int,
        typer.Option(metavar="N", min=0, max=(1 << 63) - 1, help="Seed of arrivals, lengths."),
    ] = 0,
    slo: Annotated[
        str,
        typer.Option(metavar="LIMITS", help='"ttft_p95_ms=2000,itl_p95_ms=20"; exit 1 if missed.'),
    ] = "",
    gpu: Annotated[str | None, typer.Option(metavar="NAME", help="GPU behind the URL.")] = None,
    gpus: Annotated[
        int, typer.Option(metavar="N", min=1, max=MOST_GPUS, help="How many of them.")
    ] = 1,
    price_per_gpu_hour: Annotated[
        float | None, typer.Option(metavar="USD", min=0, help="Price, for the cost per token.")
    ] = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the summary as JSON; - is stdout.")
    ] = None,
    export_vllm: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the run as vllm bench serve --save-detailed does."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where results go [runs/bench-<time>].")
    ] = None,
    grace: Annotated[
        float,
        typer.Option(metavar="S", help="Follow requests for S seconds after the window."),
    ] = 60.0,
    connect_timeout: Annotated[
        float, typer.Option(metavar="S", help="Longest time to connect.")
    ] = 10.0,
    first_token_timeout: Annotated[
        float, typer.Option(metavar="S", help="Longest time to the first token; 0: no limit.")
    ] = 120.0,
    chunk_timeout: Annotated[
        float, typer.Option(metavar="S", help="Longest time between chunks; 0: no limit.")
    ] = 60.0,
    timeout: Annotated[
        float, typer.Option(metavar="S", help="Longest time of a whole request; 0: no limit.")
    ] = 600.0,
    workers: Annotated[
        str,
        typer.Option(
            metavar="N", help="Client processes, one event loop each; auto: one core left free."
        ),
    ] = "1",
    more_urls: Annotated[
        list[str] | None,
        typer.Option("--url", metavar="URL", help="Another replica of URL; repeat for more."),
    ] = None,
    routing: Annotated[
        str,
        typer.Option(
            metavar="RULE",
            help="How replicas share requests: round-robin, least-loaded, prefix-aware.",
        ),
    ] = "round-robin",
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Plain lines instead of a live bar, no table.")
    ] = False,
) -> int:
    """Measure the OpenAI-compatible server at URL under a load of users or of a rate.

    The API key comes from RIDGELINE_API_KEY or OPENAI_API_KEY. Ctrl-C keeps what was measured.
    """
    from ridgeline.domain.knobs import Configuration, Knobs  # noqa: PLC0415  --help is quick
    from ridgeline.domain.slo import parse_slo  # noqa: PLC0415
    from ridgeline.domain.workload import (  # noqa: PLC0415
        Lengths,
        Outputs,
        Prompts,
        RequestOptions,
        Sessions,
    )
    from ridgeline.engines.endpoint import EndpointEngine, HttpEndpoint  # noqa: PLC0415
    from ridgeline.experiment.plan import Plan, PlannedExperiment  # noqa: PLC0415
    from ridgeline.load.limits import ensure_open_files  # noqa: PLC0415
    from ridgeline.workload.promptfiles import open_prompts  # noqa: PLC0415
    from ridgeline.workload.requestoptions import (  # noqa: PLC0415
        check_sampling,
        parse_extra_body,
        parse_headers,
    )

    limits = parse_slo(slo)
    times = {
        "--duration": duration, "--warmup": _seconds(warmup), "--warmup-limit": warmup_limit,
        "--turn-think-time": turn_think_time,
    }  # fmt: skip
    client = client_of(
        workers,
        connect=connect_timeout,
        first_token=first_token_timeout,
        chunk=chunk_timeout,
        whole=timeout,
        grace=grace,
    )
    urls = (url, *(more_urls or ()))
    rule = routing_of(routing, len(urls))
    _check_numbers(times, spread=spread, burstiness=burstiness, price=price_per_gpu_hour)
    load = LoadOptions(
        users, rate, user_steps, rate_steps, process, burstiness, think_time, think_time_law,
        ramp, max_concurrency, trace, trace_format, trace_speed, trace_from, trace_to,
    )  # fmt: skip
    arrivals = arrivals_of(load)
    _check(arrivals, duration, requests)
    folder = out or Path("runs") / f"bench-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    ensure_json_target(json, folder)
    if export_vllm is not None:
        ensure_json_target(str(export_vllm), folder, option="--export-vllm")
    ensure_folder_target(folder)
    ensure_open_files(arrivals.peak_users or 0)  # before a schedule of so many users is drawn
    prompts = Prompts(Lengths(prompt_tokens, spread), images=images_of(images))
    if prompt_file is not None:
        file = open_prompts(prompt_file.resolve(), prompt_format, salted=not unsalted)
        prompts = replace(prompts, file=file)
    if (prompts.images or prompts.file) and turns is not None:
        raise BadInput("--turns goes with neither --prompt-file nor --images")
    outputs = Outputs(Lengths(output_tokens, spread), ignore_eos)
    workload = _workload(
        arrivals,
        prompts,
        outputs,
        classes=classes_of(classes or [], prompts, outputs),
        sessions=None if turns is None else Sessions(Lengths(turns), turn_think_time),
        duration=duration,
        warmup=(warmup, warmup_limit),
        requests=requests,
        seed=seed,
    )
    sampling = {"temperature": temperature, "top_p": top_p, "top_k": top_k,
                "seed": sampling_seed, "stop": stop or None}  # fmt: skip
    options = RequestOptions(
        check_sampling({k: v for k, v in sampling.items() if v is not None}, "bench"),
        parse_extra_body(extra_body or "{}", "--extra-body"),
        parse_headers(header or [], "--header"),
    )
    if token_ids and (endpoint is not EndpointKind.COMPLETIONS or turns is not None):
        raise BadInput("--token-ids goes with --endpoint completions, and not with --turns")
    workload = replace(
        workload, client=client, options=options, salt=salt or None, token_ids=token_ids
    )
    info = HttpEndpoint(urls, model=model).info()
    configuration = Configuration(
        model=info.model,
        knobs=Knobs(max_model_len=info.max_model_len),
        engine="endpoint",
        engine_version=info.version,
        gpu=_known(gpu),
        gpus=gpus,
        price_per_gpu_hour=price_per_gpu_hour,
        url=url,
        more_urls=urls[1:],
        routing=rule,
    )
    experiment = PlannedExperiment(NAME, configuration, workload, "")
    plan = Plan(NAME, "bench", None, (experiment,), limits, 1, endpoint)
    return _measure(plan, folder, (json, export_vllm), EndpointEngine(), quiet=quiet)


def _check(arrivals: "Arrivals", duration: float | None, requests: int | None) -> None:
    if duration is not None and requests is not None:
        raise BadInput("give --duration or --requests, not both")
    if arrivals.steps and (duration is not None or requests is not None):
        raise BadInput("the steps decide how long the run is: leave out --duration and --requests")
    if duration == 0:
        raise BadInput("--duration must be above 0 seconds")


def _check_numbers(
    times: Mapping[str, float | None],
    *,
    spread: float,
    burstiness: float,
    price: float | None,
) -> None:
    """Refuse what is no sensible number; typer takes nan and inf for numbers within any bounds."""
    for name, seconds in times.items():
        if seconds is not None and not 0 <= seconds <= LONGEST_TIME_S:
            raise BadInput(f"{name} must be 0 to {LONGEST_TIME_S:g} seconds, not {seconds:g}")
    if times["--warmup-limit"] == 0:
        raise BadInput("--warmup-limit must be above 0 seconds", fix="--warmup 0 for none")
    if not 0 <= spread <= 1:
        raise BadInput(f"--spread must be 0 to 1, not {spread:g}")
    if not LEAST_BURSTINESS <= burstiness <= MOST_BURSTINESS:
        raise BadInput(
            f"--burstiness must be {LEAST_BURSTINESS:g} to {MOST_BURSTINESS:g}, not {burstiness:g}"
        )
    if price is not None and not 0 <= price <= HIGHEST_PRICE:
        raise BadInput(f"--price-per-gpu-hour must be 0 to {HIGHEST_PRICE:g}, not {price:g}")


def _known(gpu: str | None) -> str | None:
    """The catalogue's name of a GPU; raises BadInput for an unknown one."""
    from ridgeline.domain import hardware  # noqa: PLC0415

    try:
        return None if gpu is None else hardware.gpu(gpu).name
    except BadInput as error:
        raise BadInput(error.what, where="--gpu", fix=error.fix) from None


def _workload(
    arrivals: "Arrivals",
    prompts: "Prompts",
    outputs: "Outputs",
    *,
    classes: "tuple[TrafficClass, ...]",
    sessions: "Sessions | None",
    duration: float | None,
    warmup: tuple[str | None, float | None],
    requests: int | None,
    seed: int,
) -> "Workload":
    """The traffic; `warmup` is its length and its limit as asked for."""
    from ridgeline.domain.workload import (  # noqa: PLC0415
        LONGEST_FIXED_WARMUP_S,
        WARMUP_LIMIT_S,
        WARMUP_SHARE,
        Workload,
    )

    measured = duration or (LONGEST_S if requests else DEFAULT_DURATION_S)
    if arrivals.steps:
        measured = sum(step.for_s for step in arrivals.steps)
    asked, limit = warmup
    if arrivals.trace is not None and duration is None:
        measured = arrivals.trace.seconds
    short = measured < LEAST_AUTO_S and limit is None
    timed = bool(arrivals.steps) or arrivals.trace is not None
    if asked is None and (short or timed):
        asked = str(min(WARMUP_SHARE * measured, LONGEST_FIXED_WARMUP_S))
    fixed = _seconds(asked)
    if fixed is not None and limit is not None:
        raise BadInput("--warmup-limit belongs to --warmup auto", fix="leave one of them out")
    if fixed is None and timed:
        raise BadInput("--warmup auto goes with neither steps nor a trace: their times are fixed")
    if arrivals.trace is not None and duration is None:
        from ridgeline.workload.traces import trace_window_s  # noqa: PLC0415

        measured = trace_window_s(arrivals.trace, fixed or 0.0)
    seconds = fixed if fixed is not None else limit or WARMUP_LIMIT_S
    automatic = fixed is None
    return Workload(
        arrivals, prompts, outputs, measured, seconds, requests, seed, automatic, classes, sessions
    )


def _seconds(warmup: str | None) -> float | None:
    """A fixed warm-up as a number, None for an automatic one."""
    if warmup in (None, AUTO):
        return None
    try:
        return float(warmup or "")
    except ValueError:
        raise BadInput(f"--warmup must be a number of seconds or {AUTO}, not {warmup!r}") from None


def _measure(
    plan: "Plan",
    folder: Path,
    targets: tuple[str | None, Path | None],
    engine: "Engine",
    *,
    quiet: bool,
) -> int:
    """Measure and show; `targets` are the files of --json and --export-vllm."""
    from ridgeline.cli.progress import StudyProgress, display, stop_on_interrupt  # noqa: PLC0415
    from ridgeline.experiment.runner import run_plan  # noqa: PLC0415
    from ridgeline.store.run_directory import read_run  # noqa: PLC0415
    from ridgeline.store.study_directory import StudyDirectory  # noqa: PLC0415

    directory = StudyDirectory(folder)
    with stop_on_interrupt() as stop, display(quiet=quiet) as shown:
        outcome = run_plan(
            plan,
            directory,
            lambda _: engine,
            StudyProgress(shown, stop),
            command=command_line(),
            keep=False,
        )
    run = read_run(directory.run_folder(outcome.index.order[0]))
    if run.summary is not None:
        json, export = targets
        write_json(json, run.summary.to_json())
        if export is not None:
            from ridgeline.report.vllmbench import write_vllm_bench  # noqa: PLC0415

            write_vllm_bench(run, export)
        if not quiet:
            _show(folder, to_stderr=json == "-")
        _say_failures(run.summary)
    say(f"results: {folder} (`ridgeline report {folder} --html FILE` for the page)")
    return INTERRUPTED if outcome.interrupted else _exit_code(run)


def _show(folder: Path, *, to_stderr: bool) -> None:
    from ridgeline.report.console import single_run  # noqa: PLC0415
    from ridgeline.report.load import load_report  # noqa: PLC0415

    show(single_run(load_report(folder, details=False)), to_stderr=to_stderr)


def _say_failures(summary: "Summary") -> None:
    """Failures are the server's answer, so they leave the exit code alone; nobody may miss them."""
    counts = summary.requests
    if counts.failed and counts.ok:
        share = counts.failed / (counts.failed + counts.ok)
        say(
            f"ridgeline: WARNING: {share:.1%} of the requests failed"
            f" ({counts.failed} of {counts.failed + counts.ok}:"
            f" {', '.join(f'{name} {n}' for name, n in counts.failures.items())})"
        )


def _exit_code(run: "StoredRun") -> int:
    """0, 1 for a missed limit, 2 for a request that was refused before it was sent, 3 for a run
    that is void or failed; the reason is said.
    """
    if run.failure is not None:
        say(f"ridgeline: {one_line(run.failure.text)}")
        return 2 if run.failure.kind == "refused" else NOT_COMPLETED
    if run.summary is None or not run.summary.verdict.valid:
        reasons = run.summary.verdict.reasons if run.summary else ("nothing was measured",)
        say(f"ridgeline: the run is void: {'; '.join(reasons)}")
        return NOT_COMPLETED
    missed = [r for r in run.summary.slo if not r.met]
    for result in missed:
        found = "is not known" if result.value is None else f"found {result.value:.4g}"
        say(f"ridgeline: limit missed: {result.words}, {found}")
    return GATE_FAILED if missed else 0
