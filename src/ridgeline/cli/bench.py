"""`ridgeline bench`: measure a server that runs already."""

import datetime
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.cli import options
from ridgeline.cli.benchtraffic import (
    check_lengths,
    check_numbers,
    known_gpu,
    prompts_asked,
    request_options_of,
    seconds_of,
    sessions_asked,
    workload_of,
)
from ridgeline.cli.classurls import class_pools, class_urls
from ridgeline.cli.clientoptions import client_of, routing_of
from ridgeline.cli.loadoptions import LoadOptions, arrivals_of, classes_of
from ridgeline.cli.output import (
    GATE_FAILED,
    INTERRUPTED,
    NOT_COMPLETED,
    command_line,
    ensure_folder_target,
    ensure_json_target,
    one_line,
    same_console,
    say,
    show,
    write_json,
)
from ridgeline.cli.selftest import Calibrated, calibrate_at_length
from ridgeline.domain.errors import BadInput
from ridgeline.domain.slo import parse_slo

if TYPE_CHECKING:
    from ridgeline.domain.summary import SloResult, Summary
    from ridgeline.engines.base import Engine
    from ridgeline.experiment.plan import Plan
    from ridgeline.experiment.protocol import Calibrate
    from ridgeline.store.run_directory import StoredRun

NAME = "bench"


def bench(
    url: options.Url = None,
    *,
    model: options.Model = None,
    endpoint: options.Endpoint = options.EndpointKind.CHAT,
    users: options.Users = None,
    rate: options.Rate = None,
    process: options.Process = options.ArrivalLaw.POISSON,
    burstiness: options.Burstiness = 1.0,
    user_steps: options.UserSteps = "",
    rate_steps: options.RateSteps = "",
    think_time: options.ThinkTime = 0.0,
    think_time_law: options.ThinkTimeLaw = options.PauseLaw.CONSTANT,
    ramp: options.Ramp = None,
    max_concurrency: options.MaxConcurrency = None,
    trace: options.Trace = None,
    trace_format: options.TraceFormat = None,
    trace_speed: options.TraceSpeed = 1.0,
    trace_from: options.TraceFrom = 0.0,
    trace_to: options.TraceTo = None,
    turns: options.Turns = None,
    turn_think_time: options.TurnThinkTime = 0.0,
    classes: options.Classes = None,
    duration: options.Duration = None,
    requests: options.Requests = None,
    warmup: options.Warmup = None,
    warmup_limit: options.WarmupLimit = None,
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
    salt: options.Salt = None,
    token_ids: options.TokenIds = False,
    seed: options.Seed = 0,
    slo: options.Slo = "",
    gpu: options.Gpu = None,
    gpus: options.Gpus = 1,
    price_per_gpu_hour: options.PricePerGpuHour = None,
    json: options.JsonFile = None,
    export_vllm: options.ExportVllm = None,
    out: options.Out = None,
    grace: options.Grace = 60.0,
    connect_timeout: options.ConnectTimeout = 10.0,
    first_token_timeout: options.FirstTokenTimeout = 120.0,
    chunk_timeout: options.ChunkTimeout = 60.0,
    timeout: options.Timeout = 600.0,
    workers: options.Workers = "1",
    more_urls: options.MoreUrls = None,
    routing: options.Routing = "round-robin",
    calibrate: options.Calibrate = False,
    no_calibration: options.NoCalibration = False,
    quiet: options.Quiet = False,
) -> int:
    """Measure the OpenAI-compatible server at URL under a load of users or of a rate.

    Give one load: --users, --rate, --user-steps, --rate-steps or --trace.
    The API key comes from RIDGELINE_API_KEY or OPENAI_API_KEY. Ctrl-C keeps what was measured.
    Before the run the client is tried against null servers on this host (plain HTTP, up to 200
    streams; no TLS, no sessions). A run that asked more of it than it timed right there is void if
    that was its own limit, and warned of if something else was.
    """
    from ridgeline.domain.knobs import Configuration, Knobs  # noqa: PLC0415  --help is quick
    from ridgeline.domain.slo import parse_slo  # noqa: PLC0415
    from ridgeline.domain.workload import (  # noqa: PLC0415
        Lengths,
        Outputs,
    )
    from ridgeline.engines.endpoint import EndpointEngine, HttpEndpoint  # noqa: PLC0415
    from ridgeline.experiment.plan import Plan, PlannedExperiment  # noqa: PLC0415
    from ridgeline.load.limits import ensure_open_files  # noqa: PLC0415

    limits = parse_slo(slo)
    times = {
        "--duration": duration, "--warmup": seconds_of(warmup), "--warmup-limit": warmup_limit,
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
    if calibrate and no_calibration:
        raise BadInput("--calibrate and --no-calibration exclude each other")
    if url is None:
        if not calibrate:
            raise BadInput("give the URL of a server", fix="ridgeline bench http://HOST:PORT ...")
        calibrate_at_length(users or rate or 0, client.workers, json, quiet=quiet)
        return 0
    urls = (url, *(more_urls or ()))
    rule = routing_of(routing, len(urls))
    check_numbers(times, spread=spread, burstiness=burstiness, price=price_per_gpu_hour)
    load = LoadOptions(
        users, rate, user_steps, rate_steps, process, burstiness, think_time, think_time_law,
        ramp, max_concurrency, trace, trace_format, trace_speed, trace_from, trace_to,
    )  # fmt: skip
    arrivals = arrivals_of(load)
    check_lengths(arrivals, duration, requests)
    folder = out or Path("runs") / f"bench-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    ensure_json_target(json, folder)
    if export_vllm is not None:
        ensure_json_target(str(export_vllm), folder, option="--export-vllm")
    ensure_folder_target(folder)
    ensure_open_files(arrivals.peak_users or 0)  # before a schedule of so many users is drawn
    prompts = prompts_asked(
        Lengths(prompt_tokens, spread), images, prompt_file, prompt_format, history,
        salted=not unsalted,
    )  # fmt: skip
    sessions = sessions_asked(prompts, turns, turn_think_time, classes or ())
    outputs = Outputs(Lengths(output_tokens, spread), ignore_eos)
    class_texts, own_urls = class_urls(classes or [])
    workload = workload_of(
        arrivals,
        prompts,
        outputs,
        classes=classes_of(class_texts, prompts, outputs),
        sessions=sessions,
        duration=duration,
        warmup=(warmup, warmup_limit),
        requests=requests,
        seed=seed,
    )
    sampling = {"temperature": temperature, "top_p": top_p, "top_k": top_k,
                "seed": sampling_seed, "stop": stop or None}  # fmt: skip
    if token_ids and (endpoint is not options.EndpointKind.COMPLETIONS or sessions is not None):
        raise BadInput("--token-ids goes with --endpoint completions, and not with --turns")
    workload = replace(
        workload,
        client=client,
        options=request_options_of(sampling, extra_body, header or []),
        salt=salt or None,
        token_ids=token_ids,
    )
    info = HttpEndpoint(urls, model=model).info()
    able = None
    if calibrate:
        able = calibrate_at_length(arrivals.peak, client.workers, None, quiet=quiet)
    knobs = Knobs(max_model_len=info.max_model_len)
    configuration = Configuration(
        model=info.model,
        knobs=knobs,
        engine="endpoint",
        engine_version=info.version,
        gpu=known_gpu(gpu),
        gpus=gpus,
        price_per_gpu_hour=price_per_gpu_hour,
        url=url,
        more_urls=urls[1:],
        routing=rule,
        pools=class_pools(own_urls, [kind.name for kind in workload.classes], urls, knobs),
    )
    experiment = PlannedExperiment(NAME, configuration, workload, "")
    plan = Plan(NAME, "bench", None, (experiment,), limits, 1, endpoint)
    tried = None if no_calibration else Calibrated(say, able, shown_later=not quiet)
    return _measure(plan, folder, (json, export_vllm), EndpointEngine(), tried, quiet=quiet)


def _measure(
    plan: "Plan",
    folder: Path,
    targets: tuple[str | None, Path | None],
    engine: "Engine",
    calibrate: "Calibrate | None",
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
            StudyProgress(shown, stop, reasons=False),
            command=command_line(),
            keep=False,
            calibrate=calibrate,
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
    told = not quiet and run.summary is not None and same_console()
    return INTERRUPTED if outcome.interrupted else _exit_code(run, told=told)


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


def _exit_code(run: "StoredRun", *, told: bool) -> int:
    """0, 1 for a missed limit, 2 for a request that was refused before it was sent, 3 for a run
    that is void or failed; the reason is said, unless the table just above has `told` it.
    """
    if run.failure is not None:
        say(f"ridgeline: {one_line(run.failure.text)}")
        return 2 if run.failure.kind == "refused" else NOT_COMPLETED
    if run.summary is None or not run.summary.verdict.valid:
        reasons = run.summary.verdict.reasons if run.summary else ("nothing was measured",)
        say("ridgeline: the run is void" + ("" if told else f": {'; '.join(reasons)}"))
        return NOT_COMPLETED
    missed = [r for r in run.summary.slo if r.met is False]
    unjudged = [r for r in run.summary.slo if r.met is None]
    for result in missed:
        found = "" if result.value is None else f", found {result.value:.4g}"
        say(f"ridgeline: limit missed: {result.words}{found}")
    open_loop = not run.meta.workload.arrivals.closed_loop
    for result in unjudged:
        why = _why_unjudged(run.summary, result, open_loop=open_loop)
        say(f"ridgeline: limit not judged: {result.words}: {why}")
    return GATE_FAILED if missed else NOT_COMPLETED if unjudged else 0


def _why_unjudged(summary: "Summary", result: "SloResult", *, open_loop: bool) -> str:
    """Why a limit of a valid run is neither met nor missed."""
    from ridgeline.domain.attainment import column_of  # noqa: PLC0415  --help is quick

    (limit,) = parse_slo(result.limit).limits
    path = "goodput.attainment"
    if limit.statistic is not None:
        path = f"{column_of(limit.metric, open_loop=open_loop)}.{limit.statistic}"
    found = summary.intervals.get(path)
    if result.traffic_class is None and found is not None and found.reason:
        return found.reason
    return "the run cannot tell its figure; the warnings say why"
