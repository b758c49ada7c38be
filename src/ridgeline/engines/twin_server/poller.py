"""Waiting for sockets and for a point in time, exact to the timer of the kernel.

epoll_wait counts in whole milliseconds, and event loops built on it round a timer up to the next
one: up to 1 ms late by design. A timerfd armed with an absolute time wakes the same epoll_wait
with the kernel's high-resolution timer, without drift and without spinning.
"""

import ctypes
import os
import select
import selectors
import sys
import time
from typing import Protocol

READ = 1
WRITE = 2

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK_CLOEXEC = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
_TFD_TIMER_ABSTIME = 1

# A core that has slept for long takes up to a millisecond to wake (deep idle states; a virtual
# machine's host has given it away). So a long wait ends early and goes on in short hops, which
# keep the core at hand; they cost below 2 % of it.
_LEAD_NS = 3_000_000
_HOP_NS = 500_000


class Poller(Protocol):
    """Sockets to watch, and one deadline."""

    def watch(self, fd: int, interest: int) -> None:
        """Watch `fd` for READ, WRITE or both; 0 stops watching it."""

    def wait(self, until_ns: int | None) -> list[tuple[int, int]]:
        """Return ready (fd, READ | WRITE) pairs, or nothing once monotonic time is `until_ns`.

        None waits for sockets only. A hang-up or an error of a socket is reported as READ.
        """

    def close(self) -> None:
        """Give the kernel's objects back."""


def make_poller() -> Poller:
    """The most exact poller of this platform."""
    # The timerfd call below passes 64-bit time fields.
    if sys.platform == "linux" and ctypes.sizeof(ctypes.c_long) == 8:
        return TimerPoller()
    return SelectorPoller()


class TimerPoller:
    """epoll with a timerfd (Linux)."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._interest: dict[int, int] = {}
        libc = ctypes.CDLL(None, use_errno=True)
        self._settime = libc.timerfd_settime
        self._settime.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
        self._timer = libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK_CLOEXEC)
        if self._timer < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        # struct itimerspec: interval (s, ns), first expiry (s, ns); all zero disarms.
        self._spec = (ctypes.c_int64 * 4)(0, 0, 0, 0)
        self._epoll.register(self._timer, select.EPOLLIN)

    def watch(self, fd: int, interest: int) -> None:
        """See Poller."""
        mask = (select.EPOLLIN if interest & READ else 0) | (
            select.EPOLLOUT if interest & WRITE else 0
        )
        known = self._interest.get(fd, 0)
        if interest == known:
            return
        if not interest:
            self._epoll.unregister(fd)
            del self._interest[fd]
            return
        if known:
            self._epoll.modify(fd, mask)
        else:
            self._epoll.register(fd, mask)
        self._interest[fd] = interest

    def wait(self, until_ns: int | None) -> list[tuple[int, int]]:
        """See Poller."""
        while True:
            self._arm(_next_hop(until_ns))
            ready = []
            for fd, mask in self._epoll.poll(-1):
                if fd != self._timer:
                    flags = READ if mask & ~select.EPOLLOUT else 0
                    ready.append((fd, flags | (WRITE if mask & select.EPOLLOUT else 0)))
            if ready or (until_ns is not None and time.monotonic_ns() >= until_ns):
                return ready

    def _arm(self, until_ns: int | None) -> None:
        # Arming an expired timer again also clears its readiness: it need not be read.
        # A time in the past expires at once; zero would disarm, so the earliest is 1 ns.
        seconds, nanos = divmod(max(1, until_ns), 1_000_000_000) if until_ns is not None else (0, 0)
        self._spec[2], self._spec[3] = seconds, nanos
        if self._settime(self._timer, _TFD_TIMER_ABSTIME, self._spec, None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def close(self) -> None:
        """See Poller."""
        os.close(self._timer)
        self._epoll.close()


def _next_hop(until_ns: int | None) -> int | None:
    """When to wake next on the way to `until_ns`."""
    if until_ns is None:
        return None
    now = time.monotonic_ns()
    if until_ns - now > _LEAD_NS + _HOP_NS:
        return until_ns - _LEAD_NS
    return min(until_ns, now + _HOP_NS)


class SelectorPoller:
    """The standard library's selector, for platforms without timerfd (kqueue takes nanoseconds)."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._interest: dict[int, int] = {}

    def watch(self, fd: int, interest: int) -> None:
        """See Poller."""
        known = self._interest.pop(fd, 0)
        if known:
            self._selector.unregister(fd)
        if interest:
            self._selector.register(fd, interest)  # READ and WRITE are the selector's own bits
            self._interest[fd] = interest

    def wait(self, until_ns: int | None) -> list[tuple[int, int]]:
        """See Poller."""
        timeout = None if until_ns is None else max(0, until_ns - time.monotonic_ns()) / 1e9
        return [(key.fd, flags) for key, flags in self._selector.select(timeout)]

    def close(self) -> None:
        """See Poller."""
        self._selector.close()
