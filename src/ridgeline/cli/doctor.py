"""`ridgeline doctor`: what binds a running server, the next knob, and which would not help."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli import sourceoptions
from ridgeline.cli.knownoptions import known_from, router_of, text_of
from ridgeline.cli.output import console, ensure_json_target, say, show, write_json
from ridgeline.domain.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ridgeline.diagnosis.drift import Tuned
    from ridgeline.diagnosis.evidence import Evidence, Known, ProbeResult
    from ridgeline.diagnosis.finding import Finding
    from ridgeline.diagnosis.gathering import Snapshot
    from ridgeline.load.address import Address
    from ridgeline.telemetry.prometheus import Scrape

NOBODY = 3


def doctor(
    urls: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="URL...", help="Base URL of a running server; several are its replicas."
        ),
    ] = None,
    *,
    saved: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="PATH",
            help="A saved /metrics page (repeat it), or a folder of them, instead.",
        ),
    ] = None,
    prometheus: sourceoptions.Prometheus = None,
    prometheus_token_file: sourceoptions.TokenFile = None,
    prometheus_user_file: sourceoptions.UserFile = None,
    match: sourceoptions.Match = None,
    gpu_match: sourceoptions.GpuMatch = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            min=1,
            max=86400,
            help="How long to look [30]; with --from: time between; with --prometheus: how far"
            " back [300].",
        ),
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="The engine's start-up log, or a router's. Repeat it."),
    ] = None,
    gpu_metrics: Annotated[
        str | None, typer.Option(metavar="URL|FILE", help="A page of dcgm-exporter.")
    ] = None,
    study: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The study file of what runs: its knobs, model, GPU."),
    ] = None,
    winner: sourceoptions.Winner = None,
    model: sourceoptions.Model = None,
    gpu: sourceoptions.Gpu = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Send five small requests, to see what is in between.")
    ] = False,
    gains: Annotated[
        bool, typer.Option(help="Ask the twin what a change would give, where it can.")
    ] = True,
    save: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the pages, secrets masked, for a ticket."),
    ] = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the findings as JSON; - is stdout.")
    ] = None,
) -> int:
    """Say what binds a running server, with numbers, what to turn next, and what will not help.

    Reads /metrics about once a second and adds no traffic, unless --probe is given. vLLM from 0.9
    on; SGLang, TensorRT-LLM, llama.cpp and TGI as far as they tell.
    """
    sourceoptions.check_urls(urls)
    _check_source(urls, saved, prometheus)
    sourceoptions.check_prometheus_options(
        prometheus, match or gpu_match, prometheus_token_file or prometheus_user_file
    )
    if saved and (probe or save):
        raise BadInput("--probe and --save need a running server", where="--from")
    if prometheus and (probe or gpu_metrics):
        raise BadInput("--probe and --gpu-metrics need the server's URL", where="--prometheus")
    from ridgeline.cli.doctor_page import page  # noqa: PLC0415
    from ridgeline.diagnosis.ranking import diagnose  # noqa: PLC0415

    if save is not None:
        _made(save)
    ensure_json_target(json, Path())
    known = known_from(study, model, gpu, log or [])
    tuned = None
    if winner is not None:
        from ridgeline.cli.winneroption import known_of, tuned_from  # noqa: PLC0415

        tuned = tuned_from(winner)
        known = known_of(known, tuned, given=known.configuration is not None)
    if prometheus:
        from ridgeline.cli.prometheusoptions import evidence_of, source  # noqa: PLC0415

        evidence, urls = evidence_of(
            source(prometheus, match, gpu_match, prometheus_token_file, prometheus_user_file),
            seconds,
            known,
            save,
        )
        trouble = None
    else:
        evidence, trouble = (
            _from_files(saved, seconds, known, gpu_metrics) if saved
            else _from_servers(urls or [], seconds or 30.0, known, gpu_metrics, save, probe=probe)
        )  # fmt: skip
    evidence = replace(evidence, router=router_of(log or []))
    findings = diagnose(evidence)
    if gains and any(f.kind in ("limit", "fault") for f in findings):
        from ridgeline.diagnosis.asking import with_gains  # noqa: PLC0415

        known_both = known.configuration is not None
        with (
            _working("asking the twin what the changes would give") if known_both else nullcontext()
        ):
            findings = with_gains(evidence, findings)
    if gains and any(f.id == "mixed-classes" for f in findings):
        from ridgeline.diagnosis.pools import with_pools  # noqa: PLC0415

        with _working("asking the twin what two pools or priorities would give"):
            findings = with_pools(evidence, findings)
    if tuned is not None:
        findings = (*findings, *_drift(evidence, tuned, gains=gains))
    body: dict[str, Any] = {
        "schema": 1,
        "source": "twin" if evidence.twin else "measured",
        "server": evidence.server,
        "span_s": round(evidence.span_s, 3),
        "readings": evidence.scrapes,
        "findings": [f.to_json() for f in findings],
    }
    if evidence.probe is not None:
        body["probe"] = evidence.probe.to_json()
    write_json(json, body)
    show(*page(evidence, findings, urls or [str(f) for f in saved or []]), to_stderr=json == "-")
    if not evidence.scrapes:
        nowhere = "; ".join(f"{url} {why}" for url, why in evidence.closed.items())
        say(nowhere or f"no page of metrics could be read: {trouble}")
        return NOBODY
    return 0


def _drift(evidence: "Evidence", tuned: "Tuned", *, gains: bool) -> "tuple[Finding, ...]":
    from ridgeline.diagnosis.drift import LEAST_REQUESTS, drift  # noqa: PLC0415
    from ridgeline.diagnosis.retuning import retune  # noqa: PLC0415

    with _working("asking the twin whether a re-tune pays") if gains else nullcontext():
        found = drift(evidence, tuned, retune=retune if gains else None)
    if found is None:
        say(f"--winner: fewer than {LEAST_REQUESTS} requests ended in the time that was looked at,"
            " too few to hold against its traffic; look longer with --seconds")  # fmt: skip
    return () if found is None else (found,)


def _check_source(urls: list[str] | None, saved: list[Path] | None, prometheus: str | None) -> None:
    """Raises BadInput unless there is just one source."""
    if sum(map(bool, (urls, saved, prometheus))) != 1:
        raise BadInput(
            "give the URL of a running server, or saved pages with --from FILE, or --prometheus URL"
        )


def _made(folder: Path) -> None:
    """The folder for what is kept, before there is anything to keep. Raises BadInput."""
    if folder.exists() and not folder.is_dir():
        raise BadInput("is a file, and a folder is needed", where=str(folder), fix="give a folder")
    if any(folder.glob("metrics-*.txt")) or any(folder.glob("replica-*/metrics-*.txt")):
        raise BadInput("holds pages of an earlier look, and these would be taken for one with them",
                       where=str(folder), fix="give an empty folder")  # fmt: skip
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise BadInput(
            f"cannot be made ({why})", where=str(folder), fix="give another folder"
        ) from None


def _from_files(
    saved: list[Path], seconds: float | None, known: "Known", gpu_metrics: str | None
) -> "tuple[Evidence, str | None]":
    from ridgeline.diagnosis.gathering import gather  # noqa: PLC0415
    from ridgeline.diagnosis.saved import read_saved, series_of  # noqa: PLC0415
    from ridgeline.diagnosis.stored import side_by_side  # noqa: PLC0415

    pages = []
    if gpu_metrics is not None:
        found = _gpu_reader(gpu_metrics)()
        pages = [] if found is None else [found]
    cut: list[Path] | None = [] if any(path.is_dir() for path in saved) else None
    read = [read_saved(files, seconds, cut) for files in series_of(saved)]
    if cut:
        say(f"{', '.join(map(str, cut[:3]))}: {len(cut)} pages hold no metrics (cut off?) and are"
            " left out")  # fmt: skip
    return gather(side_by_side(read), known, pages), None


def _from_servers(
    urls: list[str], seconds: float, known: "Known", gpu_metrics: str | None, save: Path | None,
    *, probe: bool,
) -> "tuple[Evidence, str | None]":  # fmt: skip
    from ridgeline.diagnosis.gathering import gather, learn  # noqa: PLC0415
    from ridgeline.diagnosis.watching import watch  # noqa: PLC0415
    from ridgeline.engines.probe import api_key_from_environment, auth_headers  # noqa: PLC0415
    from ridgeline.load.address import parse_address  # noqa: PLC0415

    addresses = [parse_address(url) for url in urls]
    headers = auth_headers(api_key_from_environment())
    reader = None if gpu_metrics is None else _gpu_reader(gpu_metrics)
    with _working(f"looking at {', '.join(a.url for a in addresses)} for {seconds:g} s"):
        seen = watch(addresses, headers, seconds, gpu=reader)
    _one_model(seen.snapshots, [a.url for a in addresses])
    known = learn(known, {"max_model_len": _length(addresses[0], headers)}, "/v1/models")
    known = learn(known, {"api_servers": seen.api_servers}, "its processes")
    evidence = gather(seen.snapshots, known, seen.gpu_pages)
    evidence = replace(
        evidence,
        gpu_page=gpu_metrics is not None,
        servers=len(addresses),
        unread=seen.unread,
        sick=seen.sick,
        closed=seen.closed,
        host_idle=seen.host_idle,
        cores={**evidence.cores, **seen.cores},
    )
    if save is not None:
        _keep(seen.texts, save, alone=len(addresses) == 1)
    if probe and evidence.scrapes:
        from ridgeline.diagnosis.probing import probe as ask  # noqa: PLC0415

        with _working("sending five small requests"):
            evidence = _probed(evidence, addresses, lambda address: ask(address, headers))
    return evidence, seen.trouble


def _one_model(snapshots: "Sequence[Snapshot]", urls: list[str]) -> None:
    """Raises BadInput where the servers are none of one model's replicas."""
    from ridgeline.cli.prometheusoptions import one_model  # noqa: PLC0415

    page = next((s.page for s in reversed(snapshots) if s.page is not None), None)
    served: dict[str, set[str]] = {}
    for series in () if page is None else (s for rows in page.samples.values() for s in rows):
        model, target = series.labels.get("model_name"), series.labels.get("target")
        if model and target is not None:
            served.setdefault(model, set()).add(urls[int(target)])
    one_model([(m, sorted(at)) for m, at in sorted(served.items())], ", ".join(urls), urls=True)


def _probed(
    evidence: "Evidence", addresses: "Sequence[Address]", ask: "Callable[[Address], ProbeResult]"
) -> "Evidence":
    """With the probe's result: of several servers each is asked, at the same time.

    `probe` is then the one that answered least.
    """
    if len(addresses) == 1:
        return replace(evidence, probe=replace(ask(addresses[0]), server=addresses[0].url))
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    there = [(n, a) for n, a in enumerate(addresses) if a.url not in evidence.unread]
    with ThreadPoolExecutor(len(there)) as pool:
        told = list(pool.map(lambda row: ask(row[1]), there))
    probes = tuple(
        replace(result, server=address.url, target=str(place))
        for (place, address), result in zip(there, told, strict=True)
    )
    worst = min(probes, key=lambda p: (not p.silent, p.ok))
    return replace(evidence, probe=worst, probes=probes)


def _keep(texts: "Mapping[int, Sequence[str]]", folder: Path, *, alone: bool) -> None:
    """The pages, those of each of several replicas in a folder of its own, as --from reads them."""
    for place, pages in texts.items():
        own = folder if alone else folder / f"replica-{place:03d}"
        own.mkdir(parents=True, exist_ok=True)
        for number, text in enumerate(pages):
            (own / f"metrics-{number:03d}.txt").write_text(text, "utf-8")
    count = sum(map(len, texts.values()))
    say(f"kept: {count} pages in {folder} (secrets in labels masked)")


def _length(address: "Address", headers: dict[str, str]) -> int | None:
    """max_model_len as the server says it; None when it does not."""
    from ridgeline.domain.errors import RidgelineError  # noqa: PLC0415
    from ridgeline.engines.probe import probe  # noqa: PLC0415

    key = headers.get("Authorization", "").removeprefix("Bearer ") or None
    try:
        return probe(address, None, key).max_model_len
    except RidgelineError:
        return None


def _gpu_reader(source: str) -> "Callable[[], Scrape | None]":
    """Reads a page of GPU counters: a file once and for all, a URL each time."""
    from ridgeline.diagnosis.saved import parsed  # noqa: PLC0415

    if Path(source).is_file():
        page = parsed(text_of(Path(source)), source)
        return lambda: page
    if "://" not in source and ":" not in source:
        raise BadInput("no such file, and no URL", where="--gpu-metrics")
    from ridgeline.diagnosis.watching import Server  # noqa: PLC0415
    from ridgeline.load.address import parse_address  # noqa: PLC0415

    server = Server(parse_address(source.removesuffix("/metrics")), {})

    def read() -> "Scrape | None":
        text = server.read()
        return None if text is None else parsed(text, source)

    if server.read() is None:
        raise BadInput(f"cannot be read ({server.trouble})", where="--gpu-metrics")
    return read


def _working(what: str) -> Any:
    """A line that says what takes so long."""
    target = console(to_stderr=True)
    if target.is_terminal:
        return target.status(what)
    say(what)
    return nullcontext()
