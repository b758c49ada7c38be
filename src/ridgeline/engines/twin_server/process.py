"""What the server asks of the operating system for its own process, and its end by signal."""

import contextlib
import os
import signal
from collections.abc import Callable
from types import FrameType

from ridgeline.domain.errors import RunFailed
from ridgeline.engines.twin_server.server import TwinServer
from ridgeline.load.scheduling import ask_for_short_slices


def ask_for_real_time() -> str | None:
    """Let this thread in before all ordinary ones; returns why not when that is refused.

    On a machine with more work than cores it is the only way to keep send times. It needs root,
    CAP_SYS_NICE or an RLIMIT_RTPRIO above 0.
    """
    if not hasattr(os, "sched_setscheduler"):
        return "this platform has no real-time scheduling"
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError as error:
        return error.strerror or str(error)
    return None


def raise_file_limit() -> None:
    """Lift the soft limit of open files to the hard one: one stream is one socket."""
    import resource  # noqa: PLC0415  (POSIX only)

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def serve_until_signal(
    server: TwinServer, ready: Callable[[str, str | None], None], *, real_time: bool = False
) -> int:
    """Open and run until SIGINT (returns 130) or SIGTERM (returns 0). Main thread only.

    `ready` gets the URL once connections are taken, and why real time was refused, if it was.
    """
    got = signal.SIGTERM

    def on_signal(number: int, _frame: FrameType | None) -> None:
        nonlocal got
        got = signal.Signals(number)
        server.stop()

    before = {s: signal.signal(s, on_signal) for s in (signal.SIGINT, signal.SIGTERM)}
    url = None
    try:
        url = server.open()
        raise_file_limit()
        ask_for_short_slices()
        ready(url, ask_for_real_time() if real_time else None)
        server.run()
    except OSError as error:
        raise RunFailed(f"the server broke down: {error}", where=url) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 130 if got == signal.SIGINT else 0
