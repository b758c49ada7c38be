"""`ridgeline serve` as a process: its state folder, its signals, its terminal, its page."""

import contextlib
import fcntl
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ridgeline.cli.output import NOT_COMPLETED, console, say
from ridgeline.domain.errors import BadInput
from ridgeline.domain.secrets import mask

if TYPE_CHECKING:
    from rich.table import Table

    from ridgeline.serving.pool import PoolSpec, Settings
    from ridgeline.serving.service import Service

LOCK, APPLY = "lock", "apply.json"
DONE = ("changed", "unchanged")
NOT_DONE = ("rolled-back", "refused", "ignored", "failed", "ended")
APPLY_LIMIT_S = 24 * 3600.0
SHOWN_S = 0.5


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be served: a file, one of its experiments, perhaps another engine."""

    file: Path
    experiment: str | None = None
    engine: str | None = None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the state folder; raises BadInput when another serve holds it."""
    from ridgeline.store.files import make_folder  # noqa: PLC0415

    with (make_folder(folder) / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(
                "another `ridgeline serve` runs with this folder", where=str(folder),
                fix="give --apply to change what it serves, or another --state",
            ) from None  # fmt: skip
        yield


def gpus_of(specs: "Sequence[PoolSpec]", given: str | None) -> list[str]:
    """The GPUs to use, by the names that CUDA_VISIBLE_DEVICES takes. Raises BadInput."""
    needed = sum(w.count * w.gpus_each for w in (spec.wanted(0) for spec in specs))
    if not needed:
        return []
    listed = given if given is not None else os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed:
        names = [name.strip() for name in listed.split(",") if name.strip()]
    else:
        from ridgeline.telemetry.gpu import open_nvml  # noqa: PLC0415

        sampler = open_nvml()
        names = [] if sampler is None else [str(s.index) for s in sampler.sample()]
    if len(set(names)) != len(names):
        raise BadInput("names a GPU twice", where="--gpus")
    if len(names) < needed:
        raise BadInput(
            f"the configuration needs {needed} GPUs, {len(names)} are to be used", where="--gpus",
            fix="lower data_parallel_size or tensor_parallel_size",
        )  # fmt: skip
    return names


def serve_until_ended(
    specs: "Sequence[PoolSpec]",
    settings: "Settings",
    asked: Request,
    load: "Callable[[Request], Sequence[PoolSpec]]",
    *,
    gpus: Sequence[str],
    metrics_port: int | None,
) -> str | None:
    """Run until stopped; returns why it ended by itself, None when it was asked to."""
    from ridgeline.serving.events import EventLog  # noqa: PLC0415
    from ridgeline.serving.keys import without_key  # noqa: PLC0415
    from ridgeline.serving.service import Service  # noqa: PLC0415

    current = [asked]

    def hide(text: str) -> str:
        return mask(without_key(text, settings.key))

    def changed() -> "Sequence[PoolSpec]":
        request = _handed_over(settings.folder) or current[0]
        found = load(request)
        current[0] = request
        return found

    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(settings.folder))
        _refuse_taken(specs)
        display = stack.enter_context(_display())
        events = EventLog(settings.folder, display.line, hide)
        service = Service(specs, settings, gpus, events, changed)
        if metrics_port is not None:
            stack.callback(_exporter(metrics_port, service).close)
        stack.enter_context(_signals(service))
        for spec in specs:
            events.tell("url", f"requests go to {spec.url}/v1", pool=spec.name, url=spec.url)
        service.run(lambda: display.show(service))
        return None if service.failure is None else hide(service.failure)


def hand_over(asked: Request, folder: Path) -> int:
    """Give the running serve another file, and wait for what becomes of it."""
    from ridgeline.serving.events import EVENTS, STATE  # noqa: PLC0415
    from ridgeline.store.files import write_json  # noqa: PLC0415

    where = str(folder)
    fix = "start it without --apply, or give its --state"
    if not folder.is_dir():
        raise BadInput("there is no such state folder", where=where, fix=fix)
    if not _is_held(folder):
        what = "no `ridgeline serve` runs with this state folder"
        raise BadInput(what, where=where, fix=fix)
    try:
        status = json.loads((folder / STATE).read_text("utf-8"))
        pid, pools = int(status["pid"]), {pool["pool"] for pool in status["pools"]}
    except (OSError, ValueError, KeyError, TypeError):
        raise BadInput("its state cannot be read", where=where, fix="try again") from None
    events = folder / EVENTS
    begin = events.stat().st_size if events.exists() else 0
    write_json(folder / APPLY, {
        "file": str(asked.file.absolute()), "experiment": asked.experiment, "engine": asked.engine,
    })  # fmt: skip
    os.kill(pid, signal.SIGHUP)
    return _follow(events, begin, pools)


def _is_held(folder: Path) -> bool:
    try:
        with locked(folder):
            return False
    except BadInput:
        return True


def _follow(events: Path, begin: int, pools: set[str]) -> int:
    """Print the events of a change until each pool has said how it ended."""
    waiting, good = set(pools), True
    end = time.monotonic() + APPLY_LIMIT_S
    with events.open(encoding="utf-8") as file:
        file.seek(begin)
        while waiting and time.monotonic() < end:
            line = file.readline()
            if not line.endswith("\n"):
                file.seek(begin)
                time.sleep(0.1)
                continue
            begin = file.tell()
            row = json.loads(line)
            pool = row.get("pool")
            say(f"{row['at']} {pool or ''} {row['event']}: {row['words']}")
            if row["event"] in (*DONE, *NOT_DONE) and row.get("replica") is None:
                waiting = set() if pool is None else waiting - {pool}
                good = good and row["event"] in DONE
    return 0 if good and not waiting else NOT_COMPLETED


def _handed_over(folder: Path) -> Request | None:
    """What `--apply` left, once."""
    path = folder / APPLY
    try:
        body = json.loads(path.read_text("utf-8"))
        path.unlink()
        return Request(Path(body["file"]), body["experiment"], body["engine"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise BadInput("cannot be read", where=str(path)) from None


def _refuse_taken(specs: "Sequence[PoolSpec]") -> None:
    """A port that is taken is told now, not after minutes of starting."""
    for spec in specs:
        if spec.own_url is not None:
            continue
        family = socket.AF_INET6 if ":" in spec.host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((spec.host, spec.port))
            except OSError as error:
                raise BadInput(
                    f"cannot listen there: {error.strerror}", where=f"{spec.host}:{spec.port}",
                    fix="give another --port or --host",
                ) from None  # fmt: skip


def _exporter(port: int, service: "Service") -> Any:
    from ridgeline.diagnosis.exporter import Exporter  # noqa: PLC0415
    from ridgeline.serving.page import render  # noqa: PLC0415

    exporter = Exporter(port, lambda: render(service.told))
    say(f"states for Prometheus: http://127.0.0.1:{exporter.port}/metrics")
    return exporter


@contextlib.contextmanager
def _signals(service: "Service") -> Iterator[None]:
    """Ctrl-C and TERM stop, HUP reads the file again, until the block ends."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        service.ask_stop()

    def change(_signal: int, _frame: FrameType | None) -> None:
        service.ask_change()

    wanted = {signal.SIGINT: stop, signal.SIGTERM: stop, signal.SIGHUP: change}
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Lines:
    """Where nobody looks: the events."""

    def line(self, text: str) -> None:
        """One event."""
        say(text)

    def show(self, service: "Service") -> None:
        """Nothing between events."""


class _Live(_Lines):
    """On a terminal: the events, and below them how every replica stands."""

    def __init__(self, live: Any) -> None:
        self._live = live
        self._shown_s = 0.0

    def line(self, text: str) -> None:
        """One event, above the table."""
        self._live.console.print(text, markup=False, highlight=False)

    def show(self, service: "Service") -> None:
        """The table, now and then."""
        now = time.monotonic()
        if now - self._shown_s >= SHOWN_S:
            self._shown_s = now
            self._live.update(table(service.told), refresh=True)


@contextlib.contextmanager
def _display() -> Iterator[_Lines]:
    target = console(to_stderr=True)
    if not target.is_terminal:
        yield _Lines()
        return
    from rich.live import Live  # noqa: PLC0415

    with Live(console=target, auto_refresh=False, redirect_stderr=False) as live:
        yield _Live(live)


def table(status: Sequence[dict[str, Any]]) -> "Table":
    """How the replicas stand."""
    from rich.table import Table  # noqa: PLC0415

    found = Table("pool", "replica", "state", "restarts", "requests", "probe", "server")
    for pool in status:
        for row in pool["replicas"]:
            probe = "" if row["answer_s"] is None else f"{1000 * row['answer_s']:.0f} ms"
            running = "" if row["running"] is None else f"{row['running']:.0f}"
            found.add_row(
                pool["pool"], str(row["replica"]), row["state"], str(row["restarts"]), running,
                probe, (row["url"] or "").removeprefix("http://"),
            )  # fmt: skip
    return found
