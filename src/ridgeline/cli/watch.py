"""`ridgeline watch`: a live view of one or many replicas, with the findings as they appear."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.output import console, ensure_folder_target, say
from ridgeline.domain.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from ridgeline.diagnosis.drift import Tuned
    from ridgeline.diagnosis.live import Now, Pool, Replica
    from ridgeline.diagnosis.storedpool import StoredPool, StoredReplica

RECORD_EVERY_S = 10.0  # pages are kept so often
MANY = 24  # replicas, from which on the view shows only the worst of them


def watch(
    urls: Annotated[
        list[str] | None, typer.Argument(metavar="URL...", help="Base URLs of running servers.")
    ] = None,
    *,
    prometheus: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A Prometheus that scrapes the engines, instead of URLs."),
    ] = None,
    match: Annotated[
        str | None,
        typer.Option(metavar="SELECTOR", help="Its series to take, such as '{job=\"vllm\"}'."),
    ] = None,
    gpu_match: Annotated[
        str | None,
        typer.Option(
            metavar="SELECTOR", help="Its dcgm-exporter series [those of the engines' hosts]."
        ),
    ] = None,
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
        Path | None, typer.Option(metavar="FILE", help="The study file of what runs.")
    ] = None,
    winner: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="A winner.yaml or a past study: has the traffic left it?"
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="M", help="The model served.")] = None,
    gpu: Annotated[str | None, typer.Option(metavar="NAME", help="The GPU.")] = None,
    gpus: Annotated[int, typer.Option(metavar="N", min=1, help="GPUs of one replica.")] = 1,
    price_per_gpu_hour: Annotated[
        float | None, typer.Option(metavar="USD", min=0, help="For cost and waste.")
    ] = None,
    slo: Annotated[
        str, typer.Option(metavar="LIMITS", help='For attainment: "ttft_p95_ms=2000".')
    ] = "",
    serve: Annotated[
        int | None,
        typer.Option(metavar="PORT", min=0, max=65535, help="Export the figures for Prometheus."),
    ] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep figures and pages there.")
    ] = None,
    write_rules: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write recording and alert rules for --serve's metrics."),
    ] = None,
) -> int:
    """Show throughput, latencies, queues, KV use, cost and findings of running servers, live.

    One that hangs or answers nonsense is shown as such and never holds up the others.
    """
    if write_rules is not None:
        from ridgeline.diagnosis.exporter import write_rules as write  # noqa: PLC0415

        for file in write(write_rules):
            say(f"written: {file}")
        if not urls and not prometheus:
            return 0
    if bool(urls) == bool(prometheus):
        raise BadInput(
            "give the URLs of running servers, or --prometheus URL, or --write-rules DIR"
        )
    if (match or gpu_match) and not prometheus:
        raise BadInput("needs --prometheus URL", where="--match and --gpu-match")
    if record is not None:
        ensure_folder_target(record)
    from ridgeline.cli.doctor import known_from  # noqa: PLC0415
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
        else StoredPool(source(prometheus, match, gpu_match), period_s=interval, known=known,
                        price=price, slo=limits)
    )  # fmt: skip
    with ExitStack() as stack:
        stack.enter_context(pool)
        state = _State(pool, record, tuned)
        if serve is not None:
            from ridgeline.diagnosis.exporter import Exporter, render  # noqa: PLC0415

            exporter = Exporter(serve, lambda: render(state.now))
            stack.callback(exporter.close)
            say(f"serving http://127.0.0.1:{exporter.port}/metrics")
        _loop(state, interval, seconds)
    return 0


class _State:
    """The last figures, and where they are kept."""

    def __init__(
        self, pool: "Pool | StoredPool", record: Path | None, tuned: "Tuned | None" = None
    ) -> None:
        self._pool = pool
        self._tuned = tuned
        self._record = record
        self._kept = float("-inf")
        self.now: list[Now] = pool.now()

    def look(self) -> None:
        """Work the figures out anew, and keep them where that is asked for."""
        self.now = [self._held_against(row) for row in self._pool.now()]
        if self._record is not None:
            self._keep(self._record)

    def _held_against(self, row: "Now") -> "Now":
        """With what has become of the traffic, where a winner was given."""
        if self._tuned is None or row.evidence is None:
            return row
        from dataclasses import replace  # noqa: PLC0415

        from ridgeline.diagnosis.drift import drift  # noqa: PLC0415

        found = drift(row.evidence, self._tuned, ask_twin=False)
        return row if found is None else replace(row, findings=(*row.findings, found))

    def _keep(self, folder: Path) -> None:
        import json  # noqa: PLC0415

        from ridgeline.diagnosis.saved import stamped  # noqa: PLC0415
        from ridgeline.domain.secrets import mask  # noqa: PLC0415

        at = time.time()
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "figures.jsonl").open("a", encoding="utf-8") as file:
            for row in self.now:
                file.write(mask(json.dumps({"at": round(at, 3), **as_json(row)})) + "\n")
        if at - self._kept < RECORD_EVERY_S:
            return
        self._kept = at
        replicas: Sequence[Replica | StoredReplica] = self._pool.replicas
        for number, replica in enumerate(replicas):
            if replica.trouble is None and replica.last_text:
                own = folder / f"replica-{number:03d}"
                own.mkdir(exist_ok=True)
                page = stamped(replica.last_text, at)
                (own / f"metrics-{round(at)}.txt").write_text(page, "utf-8")


def as_json(row: "Now") -> dict[str, Any]:
    """One replica's figures as plain values."""
    e = row.evidence
    levels = {
        name: None if e is None or (level := getattr(e, name)) is None else level.last
        for name in ("running", "waiting", "kv_use")
    }
    found = {
        "replica": row.name, "up": row.up, "trouble": row.trouble, **levels,
        "output_tokens_per_s": row.output_tokens_per_s, "requests_per_s": row.requests_per_s,
        "preemptions_per_s": row.preemptions_per_s, "ttft_s": dict(row.ttft_s),
        "itl_s": dict(row.itl_s), "idle": row.idle, "share_of_bound": row.share_of_bound,
        "mbu": row.mbu, "mfu": row.mfu, "waste_usd_per_hour": row.waste_usd_per_hour,
        "usd_per_million_output_tokens": row.usd_per_million_output_tokens,
        "attainment": row.attainment,
        "findings": [f.id for f in row.findings if f.kind != "note" or f.id == "drift"],
    }  # fmt: skip
    return {k: v for k, v in found.items() if v is not None}


def _loop(state: _State, interval: float, seconds: float | None) -> None:
    target = console()
    end = float("inf") if seconds is None else time.monotonic() + seconds
    if target.is_terminal:
        from rich.live import Live  # noqa: PLC0415

        with Live(console=target, auto_refresh=False, screen=seconds is None) as live:
            while (left := end - time.monotonic()) > 0:
                time.sleep(min(interval, left))
                state.look()
                live.update(_table(state.now), refresh=True)
        return
    told: dict[str, str] = {}
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(interval, left))
        state.look()
        for row in state.now:  # where nobody looks: what has changed
            line = _line(row)
            if told.get(row.name) != line.partition(" | ")[0]:
                print(line, flush=True)
            told[row.name] = line.partition(" | ")[0]


def _line(row: "Now") -> str:
    return f"{row.name}: {_says(row)} | {_tokens(row)} output tokens/s"


def _says(row: "Now") -> str:
    if not row.up:
        return f"no answer for {row.silent_s:.0f} s ({row.trouble})"
    firm = [f for f in row.findings if f.kind != "note"]
    # drift is a note, and what was asked for with --winner
    moved = [f for f in row.findings if f.id == "drift" and f.tries]
    return "; ".join(f.title for f in (*firm[:1], *moved)) or "no finding"


def _tokens(row: "Now") -> str:
    return "-" if row.output_tokens_per_s is None else f"{row.output_tokens_per_s:,.0f}"


def _table(rows: "list[Now]") -> "Table":
    from rich.table import Table  # noqa: PLC0415

    table = Table(title=f"{sum(r.up for r in rows)} of {len(rows)} replicas answer", expand=True)
    for name in ("replica", "tok/s", "run", "wait", "KV", "hit", "TTFT p95", "ITL p95", "bound",
                 "$/Mtok", "finding"):  # fmt: skip
        table.add_column(name, overflow="ellipsis", no_wrap=name != "finding")
    shown = rows if len(rows) <= MANY else sorted(rows, key=_badness)[:MANY]
    for row in shown:
        e = row.evidence
        table.add_row(
            row.name.removeprefix("http://"), _tokens(row), _of(e, "running"), _of(e, "waiting"),
            _percent(None if e is None or e.kv_use is None else e.kv_use.last),
            _percent(None if e is None else e.hit_rate), _seconds(row.ttft_s.get("p95")),
            _seconds(row.itl_s.get("p95")), _percent(row.share_of_bound),
            "-" if row.usd_per_million_output_tokens is None
            else f"{row.usd_per_million_output_tokens:.3g}",
            _says(row),
        )  # fmt: skip
    return table


def _badness(row: "Now") -> tuple[int, float]:
    kinds = {f.kind for f in row.findings}
    rank = 0 if not row.up or "fault" in kinds else 1 if "limit" in kinds else 2
    return rank, -(row.output_tokens_per_s or 0.0)


def _of(e: Any, name: str) -> str:
    level = None if e is None else getattr(e, name)
    return "-" if level is None else f"{level.last:g}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"
