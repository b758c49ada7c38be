"""`ridgeline serve`: run a configuration on this host, watched, behind one URL."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.output import say
from ridgeline.domain.errors import BadInput, RunFailed

if TYPE_CHECKING:
    from ridgeline.cli.serveapply import Request
    from ridgeline.domain.knobs import Configuration, Router
    from ridgeline.engines.started import Dialect
    from ridgeline.serving.pool import PoolSpec

LAST_PORT = 65535
POOL = "all"  # the name of the one pool of a study that has none of its own


def serve(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A study file, or a winner.yaml.")],
    *,
    experiment: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which experiment [the baseline].")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="E", help="Serve with this engine instead of the file's.")
    ] = None,
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Where the URL listens; elsewhere a key is needed."),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=65535, help="Its port; further pools get the next."),
    ] = 8000,
    router: Annotated[
        str | None,
        typer.Option(
            metavar="PROGRAM",
            help="The balancer: a vllm-router program [the file's, or vllm-router], or none for"
            " one replica that has the URL itself.",
        ),
    ] = None,
    router_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="A balancer that you run; the replicas' URLs are printed for it."
        ),
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The variable with the API key [VLLM_API_KEY]."),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file with the API key, nothing else.")
    ] = None,
    allow_no_key: Annotated[
        bool, typer.Option("--allow-no-key", help="Let other machines in without a key.")
    ] = False,
    allow_open_router: Annotated[
        bool,
        typer.Option(
            "--allow-open-router",
            help="Let other machines reach vllm-router's own interface, which asks for no key.",
        ),
    ] = False,
    gpus: Annotated[
        str | None, typer.Option(metavar="LIST", help="GPUs to use, as 0,1 [all that are seen].")
    ] = None,
    drain_seconds: Annotated[
        float,
        typer.Option(metavar="S", min=0, help="How long running requests are waited for."),
    ] = 60.0,
    hung_seconds: Annotated[
        float,
        typer.Option(
            metavar="S", min=2,
            help="Without a completion or a step for so long a replica is ended and started again.",
        ),
    ] = 10.0,
    give_up: Annotated[
        int, typer.Option(metavar="N", min=0, help="Restarts in a row until one is given up.")
    ] = 5,
    beside: Annotated[
        bool,
        typer.Option(
            "--beside/--no-beside",
            help="In a change, start the new replica beside the old one where GPUs are free.",
        ),
    ] = True,
    metrics_port: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=65535, help="Export the states for Prometheus."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where events, state and logs go [runs/serve/<name>]."),
    ] = None,
    apply: Annotated[
        bool,
        typer.Option(
            "--apply", help="Hand FILE to the serve that runs with this state folder, and wait."
        ),
    ] = False,
) -> int:  # fmt: skip
    """Start FILE's replicas, put one URL in front, keep them up until Ctrl-C.

    A dead or hung replica is taken out and started again. SIGHUP (or --apply) changes to what the
    file then says, one replica at a time. Ctrl-C lets running requests end, a second one does not.
    """
    from ridgeline.cli import serveapply, servestate  # noqa: PLC0415
    from ridgeline.serving.keys import check_host, is_loopback, key_of  # noqa: PLC0415
    from ridgeline.serving.pool import Settings  # noqa: PLC0415
    from ridgeline.serving.pulse import Limits  # noqa: PLC0415
    from ridgeline.serving.supervisor import Policy  # noqa: PLC0415

    asked = serveapply.Request(file, experiment, engine)
    folder = state or Path("runs") / "serve" / _study_name(file)
    if apply:
        _refuse_beside_apply(context)
        return serveapply.hand_over(asked, folder)
    key = key_of(api_key_env, api_key_file)
    check_host(host, key, allow_no_key=allow_no_key)
    if router_url is not None and router is not None:
        raise BadInput("give one of --router and --router-url", where="--router-url")

    first = Before(host, port, router, router_url)
    wanted = pools_of(asked, first, lambda line: say(f"note: {line}"))
    ours = any(spec.router is not None for spec in wanted)
    if ours and not is_loopback(host) and not allow_open_router:
        raise BadInput(
            "vllm-router asks nobody for a key before it adds or removes servers: who reaches the"
            " port can have requests, and their keys, sent elsewhere", where=f"--host {host}",
            fix="put a proxy of yours before it, give --router none or --router-url, or"
            " --allow-open-router",
        )  # fmt: skip
    direct = not ours and router_url is None
    # what stands before the replicas stays as it is, also when their number changes
    if metrics_port and metrics_port in {spec.port for spec in wanted if spec.own_url is None}:
        raise BadInput("is the port of a pool too", where=f"--metrics-port {metrics_port}")
    later = replace(first, router="none" if direct else router, chosen=False)
    settings = Settings(
        folder, _dialect, key, Limits.within(hung_seconds),
        Policy(give_up=give_up, drain_s=drain_seconds, beside=beside and not direct),
    )  # fmt: skip
    failure = servestate.serve_until_ended(
        wanted, settings, asked, lambda request, note: pools_of(request, later, note),
        gpus=servestate.gpus_of(wanted, gpus), metrics_port=metrics_port,
    )  # fmt: skip
    if failure is not None:
        raise RunFailed(failure, where=str(folder), fix="see events.jsonl and logs/ there")
    return 0


@dataclass(frozen=True, slots=True)
class Before:
    """What stands before the replicas, as it was given; `chosen`: what was not given is chosen."""

    host: str
    port: int
    router: str | None = None
    router_url: str | None = None
    chosen: bool = True


def pools_of(asked: "Request", before: Before, note: Callable[[str], None]) -> "list[PoolSpec]":
    """What the file asks for, checked; raises BadInput. `note`: what is worth a line."""
    from ridgeline.domain.knobs import Launch  # noqa: PLC0415
    from ridgeline.experiment.engines import check_startable, dialect_of  # noqa: PLC0415
    from ridgeline.serving.pool import PoolSpec  # noqa: PLC0415
    from ridgeline.workload.study import override  # noqa: PLC0415
    from ridgeline.workload.studyfile import load_study  # noqa: PLC0415

    study = override(load_study(asked.file), engine=asked.engine)
    spec = study.baseline if asked.experiment is None else study.experiment(asked.experiment)
    configuration = spec.configuration
    if dialect_of(configuration.engine) is None:
        raise BadInput(
            f"engine {configuration.engine!r} is none that Ridgeline can start",
            where=f"{asked.file}: {spec.name}",
            fix="write `engine: vllm` there in place of `engine: twin`, or give --engine vllm"
            if configuration.engine == "twin"
            else "see `ridgeline watch`",
        )
    launch = configuration.launch or Launch()
    if launch.host is not None:
        raise BadInput(
            "serve starts replicas on this host", where=f"{asked.file}: launch.host",
            fix=f"run it on {launch.host}",
        )  # fmt: skip
    chosen = _router(launch.router, before.router, before.router_url)
    named = before.router is not None or launch.router is not None or before.router_url is not None
    if before.chosen and not named and _is_single(configuration):
        chosen = None
        note("one replica and no router named: it has the URL itself, as with --router none")
    if chosen is None and before.router_url is None:
        _refuse_many(configuration)
    ready = replace(configuration, launch=replace(launch, router=chosen))
    parts = tuple(replace(spec, configuration=part) for part in ready.parts)
    checked = replace(study, experiments=parts)
    for line in check_startable(checked, str(asked.file)):
        note(line)
    if ready.knobs.load_format == "dummy" or "dummy" in launch.arguments:
        note("random weights are served (load_format dummy): the answers mean nothing")
    names = [pool.name for pool in ready.pools] or [POOL]
    if before.router_url is None and before.port + len(names) - 1 > LAST_PORT:
        raise BadInput(
            f"{len(names)} pools need as many ports, the last one is {LAST_PORT}",
            where=f"--port {before.port}", fix="give a lower one",
        )  # fmt: skip
    return [
        PoolSpec(name, part, before.host, before.port + i, chosen, before.router_url)
        for i, (name, part) in enumerate(zip(names, ready.parts, strict=True))
    ]


def _refuse_beside_apply(context: typer.Context) -> None:
    """What the running serve was started with does not change by it."""

    for name in context.params:
        source = context.get_parameter_source(name)
        given = source is not None and source.name == "COMMANDLINE"
        if given and name not in {"file", "experiment", "engine", "state", "apply"}:
            raise BadInput(
                "the serve that runs keeps what it was started with",
                where=f"--{name.replace('_', '-')}", fix="leave it out beside --apply",
            )  # fmt: skip


def _is_single(configuration: "Configuration") -> bool:
    return all((part.knobs.data_parallel_size or 1) == 1 for part in configuration.parts)


def _refuse_many(configuration: "Configuration") -> None:
    """With nothing before them, a URL has one replica."""
    most = max(part.knobs.data_parallel_size or 1 for part in configuration.parts)
    if most > 1:
        raise BadInput(
            f"{most} replicas need something before them", where="--router none",
            fix="leave it out, or give --router-url",
        )  # fmt: skip


def _router(given: "Router | None", asked: str | None, url: str | None) -> "Router | None":
    """The router to start, None for none."""
    from ridgeline.domain.knobs import Router  # noqa: PLC0415

    if url is not None or asked == "none":
        return None
    found = given or Router()
    return found if asked is None else replace(found, command=(asked,))


def _dialect(engine: str) -> "Dialect":
    from ridgeline.experiment.engines import dialect_of  # noqa: PLC0415

    found = dialect_of(engine)
    assert found is not None  # `pools_of` has refused the others
    return found


def _study_name(file: Path) -> str:
    from ridgeline.workload.studyfile import load_study  # noqa: PLC0415

    return load_study(file).name
