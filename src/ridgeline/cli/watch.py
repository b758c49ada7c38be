"""`ridgeline watch`: a live view of one or many replicas, with the findings as they appear."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli import sourceoptions
from ridgeline.cli.output import console, ensure_folder_target, say
from ridgeline.cli.sourceoptions import check_prometheus_options
from ridgeline.cli.watchpage import first_said, line, view
from ridgeline.cli.watchstate import State
from ridgeline.domain.errors import BadInput

if TYPE_CHECKING:
    from ridgeline.diagnosis.keeping import Limit
    from ridgeline.diagnosis.live import Price


def watch(
    urls: Annotated[
        list[str] | None, typer.Argument(metavar="URL...", help="Base URLs of running servers.")
    ] = None,
    *,
    prometheus: sourceoptions.Prometheus = None,
    prometheus_token_file: sourceoptions.TokenFile = None,
    prometheus_user_file: sourceoptions.UserFile = None,
    match: sourceoptions.Match = None,
    gpu_match: sourceoptions.GpuMatch = None,
    gpu_metrics: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="dcgm-exporter of the replicas' host. Repeat it."),
    ] = None,
    interval: Annotated[
        float, typer.Option(metavar="S", min=0.2, max=60, help="Seconds between readings.")
    ] = 1.0,
    seconds: Annotated[
        float | None,
        typer.Option("--for", metavar="S", min=1, help="Stop after S seconds [at Ctrl-C]."),
    ] = None,
    study: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The study file of what runs, for MBU, MFU and bound."),
    ] = None,
    winner: sourceoptions.Winner = None,
    model: sourceoptions.Model = None,
    gpu: sourceoptions.Gpu = None,
    gpus: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="GPUs of one replica [by its engine cores]."),
    ] = None,
    price_per_gpu_hour: Annotated[
        float | None,
        typer.Option(metavar="USD", min=0, help="Price, for cost per token and waste."),
    ] = None,
    slo: Annotated[
        str, typer.Option(metavar="LIMITS", help='Share of requests inside "ttft_p95_ms=2000".')
    ] = "",
    serve: Annotated[
        int | None,
        typer.Option(metavar="PORT", min=0, max=65535, help="Export the figures for Prometheus."),
    ] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep figures and pages there.")
    ] = None,
    record_limit: Annotated[
        str | None,
        typer.Option(
            metavar="LIMIT",
            help="Bound of that folder, a size or a time (2GB, 24h, none) [200MB]; the oldest goes"
            " first.",
        ),
    ] = None,
    write_rules: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write recording and alert rules for --serve's metrics, and a runbook of them.",
        ),
    ] = None,
    runbook_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where that runbook will be read: the alerts link it [no link; what to do stands"
            " in each alert].",
        ),
    ] = None,
) -> int:
    """Show throughput, latencies, queues, KV use, cost and findings of running servers, live.

    One that hangs or answers nonsense is shown as such and never holds up the others.
    """
    if write_rules is not None:
        from ridgeline.diagnosis import alertrules  # noqa: PLC0415

        link = None if runbook_url is None else alertrules.checked_runbook_url(runbook_url)
        for file in alertrules.write_rules(write_rules, link):
            say(f"written: {file}")
        if not urls and not prometheus:
            return 0
    elif runbook_url is not None:
        raise BadInput("is of the rules", where="--runbook-url", fix="give --write-rules DIR too")
    if bool(urls) == bool(prometheus):
        raise BadInput(
            "give the URLs of running servers, or --prometheus URL, or --write-rules DIR"
        )
    sourceoptions.check_urls(urls)
    check_prometheus_options(
        prometheus, match or gpu_match, prometheus_token_file or prometheus_user_file
    )
    limit = _limit(record, record_limit)
    from ridgeline.cli.knownoptions import known_from  # noqa: PLC0415
    from ridgeline.cli.prometheusoptions import source  # noqa: PLC0415
    from ridgeline.cli.winneroption import known_of, tuned_from  # noqa: PLC0415
    from ridgeline.diagnosis.live import Pool, Price  # noqa: PLC0415
    from ridgeline.diagnosis.storedpool import StoredPool  # noqa: PLC0415
    from ridgeline.domain.slo import parse_slo  # noqa: PLC0415
    from ridgeline.engines.probe import api_key_from_environment, auth_headers  # noqa: PLC0415
    from ridgeline.load.address import parse_address  # noqa: PLC0415

    known = known_from(study, model, gpu, [])
    tuned = None if winner is None else tuned_from(winner)
    if tuned is not None:
        known = known_of(known, tuned, given=known.configuration is not None)
    price, limits = Price(price_per_gpu_hour, gpus), parse_slo(slo)
    pool: Pool | StoredPool = (
        Pool(
            [parse_address(url) for url in urls or []],
            auth_headers(api_key_from_environment()),
            period_s=interval, known=known, price=price, slo=limits,
            gpu_addresses=[parse_address(u.removesuffix("/metrics")) for u in gpu_metrics or []],
        )
        if prometheus is None
        else StoredPool(
            source(prometheus, match, gpu_match, prometheus_token_file, prometheus_user_file),
            period_s=interval, known=known, price=price, slo=limits,
        )
    )  # fmt: skip
    with ExitStack() as stack:
        stack.enter_context(pool)
        state = State(pool, record, tuned, limit)
        stack.callback(state.close)
        if serve is not None:
            from ridgeline.diagnosis.exporter import Exporter, render  # noqa: PLC0415

            exporter = Exporter(serve, lambda: render(state.now, whole=state.whole))
            stack.callback(exporter.close)
            say(f"serving http://127.0.0.1:{exporter.port}/metrics")
        _loop(state, interval, seconds, price)
    return 0


def _limit(record: Path | None, text: str | None) -> "Limit | None":
    """The recording's bound, checked before anything is read; its folder, too."""
    if record is None:
        if text is not None:
            raise BadInput("is of a recording", where="--record-limit", fix="give --record DIR too")
        return None
    from ridgeline.diagnosis.keeping import DEFAULT, parse_limit  # noqa: PLC0415

    ensure_folder_target(record)
    return parse_limit(text or DEFAULT)


def _loop(state: State, interval: float, seconds: float | None, price: "Price") -> None:
    target = console()
    end = float("inf") if seconds is None else time.monotonic() + seconds
    if target.is_terminal:
        from rich.live import Live  # noqa: PLC0415

        with Live(console=target, auto_refresh=False, screen=seconds is None) as live:
            while (left := end - time.monotonic()) > 0:
                time.sleep(min(interval, left))
                state.look()
                live.update(view(state.now, target.width, price), refresh=True)
        return
    told: dict[str, str] = {}
    priced = price.per_gpu_hour is None
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(interval, left))
        state.look()
        first_page = next((r.evidence for r in state.now if r.evidence is not None), None)
        if not priced and first_page is not None:
            say(f"priced at {price.per_gpu_hour:g} USD per GPU and hour: {price.said(first_page)}")
            priced = True
        for row in state.now:  # where nobody looks: what has changed
            first = first_said(row)
            if told.get(row.name) != first:
                print(line(row), flush=True)
            told[row.name] = first
