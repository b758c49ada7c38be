"""What the server asks of the operating system for its own process, and its end by signal."""

import contextlib
import ctypes
import os
import platform
import signal
import struct
import sys
from collections.abc import Callable
from types import FrameType

from ridgeline.domain.errors import RunFailed
from ridgeline.engines.twin_server.server import TwinServer

# sched_setattr(2) has no wrapper in most C libraries; its number depends on the machine.
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_SLICE_NS = 100_000


def ask_for_short_slices() -> None:
    """Ask the scheduler to let this thread in quickly, in turn for short slices of time.

    On a machine whose cores are all busy a woken thread otherwise waits for the running slices to
    end, several milliseconds. Linux 6.12 and later take the wish from anybody (sched_setattr(2),
    sched_runtime of SCHED_OTHER) and it takes no share of time from others; older ones ignore it.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return
    with contextlib.suppress(OSError, AttributeError):
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        # struct sched_attr: its size, then the policy (0 is SCHED_OTHER), flags, nice, priority,
        # and three times in ns of which the first is the slice.
        attributes = struct.pack("=IIQiIQQQ", 48, 0, 0, nice, 0, _SLICE_NS, 0, 0)
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)


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
