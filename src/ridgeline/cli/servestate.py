"""`ridgeline serve` as a process: its state folder, its port, its signals, its page."""

import contextlib
import fcntl
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ridgeline.cli.output import say
from ridgeline.cli.serveapply import APPLY, LOCK, Request, handed_over
from ridgeline.cli.serveearlier import await_end, guards_of
from ridgeline.cli.servescreen import screen
from ridgeline.domain.errors import BadInput
from ridgeline.domain.secrets import mask

if TYPE_CHECKING:
    from ridgeline.serving.pool import PoolSpec, Settings
    from ridgeline.serving.service import Service


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the state folder; raises BadInput when another serve holds it. Our pid stands in it."""
    from ridgeline.store.files import make_folder  # noqa: PLC0415

    with (make_folder(folder) / LOCK).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(
                "another `ridgeline serve` runs with this folder", where=str(folder),
                fix="give --apply to change what it serves, or another --state",
            ) from None  # fmt: skip
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        # what was handed over to an earlier serve is not for this one
        (folder / APPLY).unlink(missing_ok=True)
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
    load: "Callable[[Request, Callable[[str], None]], Sequence[PoolSpec]]",
    *,
    gpus: Sequence[str],
    metrics_port: int | None,
) -> str | None:
    """Run until stopped; returns why it ended by itself, None when it was asked to."""
    from ridgeline.serving.events import EventLog  # noqa: PLC0415
    from ridgeline.serving.keys import without_key  # noqa: PLC0415
    from ridgeline.serving.service import Asked, Service  # noqa: PLC0415

    current, had_terminal = [asked], _has_terminal()

    def hide(text: str) -> str:
        return mask(without_key(text, settings.key))

    def take() -> Asked | None:
        name, request = handed_over(settings.folder) or (None, current[0])
        if name is None and had_terminal and not _has_terminal():
            events.tell("terminal-closed", "it serves on; `kill PID` ends it", pid=os.getpid())
            return None

        def keep() -> None:
            current[0] = request

        return Asked(name, lambda: load(request, partial(events.tell, "note")), keep)

    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(settings.folder))
        for spec in specs:
            if spec.own_url is None:
                stack.enter_context(port_held(spec.host, spec.port))
        before = guards_of(settings.folder)
        shown = stack.enter_context(screen(lambda: service.told))
        events = EventLog(settings.folder, shown.line, hide)
        service = Service(specs, settings, gpus, events, take)
        if metrics_port is not None:
            stack.callback(_exporter(metrics_port, service).close)
        stack.enter_context(_signals(service))
        for spec in specs:
            events.tell("url", f"requests go to {spec.url}/v1", pool=spec.name, url=spec.url)
        if before:
            await_end(before, events)
        service.run()
        return None if service.failure is None else hide(service.failure)


def _has_terminal() -> bool:
    """Whether a terminal is the one that controls this process."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


@contextlib.contextmanager
def port_held(host: str, port: int) -> Iterator[None]:
    """No other `ridgeline serve` of this machine takes the port, also not before the router does.

    Raises BadInput when one has it, or anything else listens there: now, not after minutes of
    starting.
    """
    with contextlib.ExitStack() as stack:
        if sys.platform == "linux":
            # a name that all users of the machine's network share, and that ends with us
            held = stack.enter_context(socket.socket(socket.AF_UNIX))
            try:
                held.bind(f"\0ridgeline-serve-{port}")
            except OSError:
                raise BadInput(
                    "another `ridgeline serve` of this machine has this port",
                    where=f"{host}:{port}", fix="give another --port",
                ) from None  # fmt: skip
        _refuse_taken(host, port)
        yield


def _refuse_taken(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise BadInput(
                f"cannot listen there: {error.strerror}", where=f"{host}:{port}",
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
