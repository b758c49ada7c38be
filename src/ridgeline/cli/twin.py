"""`ridgeline twin`: serve the twin over HTTP, or show its steps beside a real engine's."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.output import say
from ridgeline.domain.errors import BadInput

if TYPE_CHECKING:
    from ridgeline.workload.study import ExperimentSpec

LOOPBACK = ("127.0.0.1", "::1", "localhost")
LONGEST_MS = 3_600_000.0


def twin(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="A study file. Without one, fixed latencies must be given.",
            show_default=False,
        ),
    ] = None,
    *,
    port: Annotated[
        int,
        typer.Option(metavar="N", min=0, max=65535, help="Port to listen on; 0 takes a free one."),
    ] = 0,
    host: Annotated[str, typer.Option(metavar="A", help="Address to listen on.")] = "127.0.0.1",
    experiment: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Serve this experiment instead of the baseline."),
    ] = None,
    fixed_ttft_ms: Annotated[
        float | None,
        typer.Option(metavar="T", help="First token T ms after each request, whatever the load."),
    ] = None,
    fixed_itl_ms: Annotated[
        float | None,
        typer.Option(metavar="I", help="Then a token every I ms. Both options go together."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="M", help="Serve under this model name.")
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option(metavar="N", min=2, help="Longest request in tokens, with fixed latencies."),
    ] = None,
    log_sends: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write when each token was planned and sent: JSON lines, monotonic ns.",
        ),
    ] = None,
    realtime: Annotated[
        bool,
        typer.Option(
            "--realtime",
            help="Ask for real-time scheduling, so that a busy machine does not delay tokens.",
        ),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT",
            help="Do not serve: simulate FILE's load at once and write every step, as JSON lines.",
        ),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            metavar="LOG",
            help="Do not serve: give the twin the arrivals of a real engine's step log (see"
            " docs/twin.md) and show the first step that differs (exit code 1). With --trace the"
            " twin's steps are written.",
        ),
    ] = None,
) -> int:
    """Serve the digital twin as an OpenAI-compatible server, in real time.

    It answers as vLLM would under FILE's configuration: /v1/chat/completions, /v1/completions,
    /v1/models, /tokenize, /metrics and /health. One token is one word. Ctrl-C ends it.
    """
    if replay is not None or trace is not None:
        return _steps(file, experiment, trace, replay)
    from ridgeline.engines.twin_scope import scope_notes  # noqa: PLC0415
    from ridgeline.engines.twin_server import launch  # noqa: PLC0415  --help must be quick
    from ridgeline.engines.twin_server.process import serve_until_signal  # noqa: PLC0415

    latency = _fixed(fixed_ttft_ms, fixed_itl_ms)
    spec = None
    notes: tuple[str, ...] = ()
    if file is not None:
        spec = _spec(file, experiment)
    elif experiment is not None:
        raise BadInput("needs a study file", where="--experiment")
    listen = launch.Listen(host, port, log_sends)
    if latency is not None:
        server = launch.fixed_server(
            listen, launch.FixedLatency(*latency), spec, model=model, max_model_len=max_model_len
        )
        what = f"fixed {fixed_ttft_ms:g} ms to the first token, then {fixed_itl_ms:g} ms"
    elif spec is None:
        raise BadInput(
            "nothing to serve",
            where="ridgeline twin",
            fix="give a study file, or --fixed-ttft-ms and --fixed-itl-ms",
        )
    elif max_model_len is not None:
        raise BadInput("goes with fixed latencies; else the study says it", where="--max-model-len")
    else:
        server = launch.twin_server(listen, spec, model=model)
        notes = scope_notes(spec.configuration)
        what = f"{spec.configuration.model} on {spec.configuration.gpu}, experiment {spec.name}"

    def ready(url: str, refused: str | None) -> None:
        if refused is not None:
            say(f"ridgeline: no real-time scheduling ({refused}); tokens may be late on a busy CPU")
        if host not in LOOPBACK:
            say(f"ridgeline: {host} can be reached from other machines; the twin asks for no key")
        for note in notes:
            say(f"ridgeline: note: {note}")
        say(f"ridgeline twin: serving {url} ({what}); Ctrl-C ends it")

    return serve_until_signal(server, ready, real_time=realtime)


def _steps(
    file: Path | None, experiment: str | None, trace: Path | None, replay: Path | None
) -> int:
    """Write the twin's steps, or hold them against an engine's; 1 when they differ."""
    from ridgeline.engines.twin_steps import compare, record  # noqa: PLC0415  --help must be quick

    if replay is not None:
        if file is not None:
            raise BadInput(
                "the log says which settings it was made with",
                where="--replay",
                fix="leave FILE out",
            )
        found = compare(replay, trace)
        say(f"{found.logs} engine runs, {found.steps} steps: {found.words()}")
        return 1 if found.differences else 0
    if file is None:
        raise BadInput(
            "needs a study file", where="--trace", fix="or an engine's log: --replay LOG"
        )
    assert trace is not None
    spec = _spec(file, experiment)
    steps = record(spec.configuration, spec.workload, trace)
    say(f"{steps} steps of experiment {spec.name} written to {trace}")
    return 0


def _spec(file: Path, experiment: str | None) -> "ExperimentSpec":
    """The experiment as the twin's, with the study's calibration."""
    from ridgeline.workload.study import on_twin  # noqa: PLC0415
    from ridgeline.workload.studyfile import load_study  # noqa: PLC0415

    study = load_study(file)
    spec = study.experiment(experiment) if experiment is not None else study.baseline
    if spec.configuration.pools:
        raise BadInput(
            f"one port serves one pool, and {spec.name} is divided into several",
            where=f"{file}: pools", fix="run a twin for each pool, from a file of its own",
        )  # fmt: skip
    return replace(spec, configuration=on_twin(spec.configuration, study.calibration))


def _fixed(ttft_ms: float | None, itl_ms: float | None) -> tuple[int, int] | None:
    """Both fixed latencies in ns, None when neither is given. Raises BadInput."""
    if ttft_ms is None and itl_ms is None:
        return None
    found = []
    for name, value in (("--fixed-ttft-ms", ttft_ms), ("--fixed-itl-ms", itl_ms)):
        if value is None:
            raise BadInput("--fixed-ttft-ms and --fixed-itl-ms go together", where=name)
        if not 0 <= value <= LONGEST_MS:
            raise BadInput(f"must be 0 to {LONGEST_MS:g} ms, not {value:g}", where=name)
        found.append(round(value * 1e6))
    return found[0], found[1]
