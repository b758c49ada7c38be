"""Asking the operating system to let this thread in quickly."""

import contextlib
import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

# sched_setattr(2) has no wrapper in most C libraries; its number depends on the machine.
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_SLICE_NS = 100_000
_RESET_ON_FORK = 1


def ask_for_short_slices(slice_ns: int = _SLICE_NS, thread: int = 0) -> None:
    """Ask the scheduler to let a thread (0: this one) in quickly, in turn for short slices of time;
    a slice of 0 undoes it.

    On a machine whose cores are all busy a woken thread otherwise waits for the running slices to
    end, several milliseconds. Linux 6.12 and later take the wish from anybody (sched_setattr(2),
    sched_runtime of SCHED_OTHER) and it takes no share of time from others; older ones ignore it.
    Processes that this one starts do not inherit it. A thread under another policy than the
    ordinary one (`chrt`) keeps that: it is let in before all of these anyway.
    """
    if not _ordinary(thread):
        return
    number = _SCHED_SETATTR.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return
    with contextlib.suppress(OSError, AttributeError):
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        # struct sched_attr: its size, then the policy (0 is SCHED_OTHER), flags, nice, priority,
        # and three times in ns of which the first is the slice.
        attributes = struct.pack("=IIQiIQQQ", 48, 0, _RESET_ON_FORK, nice, 0, slice_ns, 0, 0)
        ctypes.CDLL(None).syscall(number, thread, attributes, 0)


@contextlib.contextmanager
def short_slices() -> Iterator[None]:
    """Short slices for all threads of this process while inside.

    All, because a thread that is put aside while it holds the interpreter's lock keeps the others
    out. A process under another policy than the ordinary one keeps it.
    """
    if not _ordinary(0):
        yield
        return
    threads = _threads()
    for thread in threads:
        ask_for_short_slices(_SLICE_NS, thread)
    try:
        yield
    finally:
        for thread in threads:
            ask_for_short_slices(0, thread)


def _ordinary(thread: int) -> bool:
    """Whether a thread is under the ordinary policy; False where the system does not tell."""
    if not hasattr(os, "sched_getscheduler"):
        return False
    try:
        return os.sched_getscheduler(thread) & ~os.SCHED_RESET_ON_FORK == os.SCHED_OTHER
    except OSError:  # it has ended
        return False


def _threads() -> list[int]:
    """The ids of this process's threads; only this one where they cannot be listed."""
    try:
        return [int(folder.name) for folder in Path("/proc/self/task").iterdir()]
    except OSError:
        return [0]
