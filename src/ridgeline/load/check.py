"""Did the client itself keep up? Loop lag, lateness of sends, reading backlog, CPU."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.domain.run import ClientCheck
from ridgeline.load.clock import KernelClock
from ridgeline.load.digest import Digest
from ridgeline.load.loop import Loop

BEAT_NS = 10_000_000
SHORT_NS = 100_000_000
KERNEL_SHARE = 0.99  # of the reads, for a run to call its receive clock "kernel"


@dataclass(slots=True)
class CheckFigures:
    """What one worker's self-check has counted (ns); those of several can be pooled."""

    lag: Digest
    lateness: Digest
    backlog: Digest
    errors: Digest
    firsts: Digest
    unstamped: int
    cpu_share: float | None
    connections: int


def pooled(parts: Sequence[CheckFigures], faults: tuple[str, ...] = ()) -> ClientCheck:
    """The check of a client of one or several workers.

    Lateness, backlog and stamp errors are those of all requests and chunks together. A lag or a
    full core harms whatever its worker drives, so those are the worst worker's.
    """
    lateness, backlog, errors, firsts = (
        _merged([getattr(part, name) for part in parts])
        for name in ("lateness", "backlog", "errors", "firsts")
    )
    reads = len(backlog) + sum(part.unstamped for part in parts)
    kernel = len(backlog) > 0 and len(backlog) >= KERNEL_SHARE * reads
    shares = [part.cpu_share for part in parts if part.cpu_share is not None]
    return ClientCheck(
        receive_clock="kernel" if kernel else "read",
        loop_lag_p99_s=_worst([part.lag.percentile_ns(99) for part in parts]),
        loop_lag_max_s=_worst([part.lag.max_ns for part in parts]),
        send_lateness_p50_s=_seconds(lateness.percentile_ns(50)),
        send_lateness_p99_s=_seconds(lateness.percentile_ns(99)),
        send_lateness_max_s=_seconds(lateness.max_ns),
        backlog_p99_s=_seconds(backlog.percentile_ns(99)) if kernel else None,
        cpu_share=max(shares, default=None),
        connections=sum(part.connections for part in parts),
        stamp_error_p95_s=_seconds(errors.percentile_ns(95)),
        stamp_error_p99_s=_seconds(errors.percentile_ns(99)),
        stamp_error_p999_s=_seconds(errors.percentile_ns(99.9)),
        stamp_error_max_s=_seconds(errors.max_ns),
        first_error_p95_s=_seconds(firsts.percentile_ns(95)),
        first_error_p99_s=_seconds(firsts.percentile_ns(99)),
        first_error_max_s=_seconds(firsts.max_ns),
        workers=len(parts),
        host_load=_host_load(),
        host_cores=_host_cores(),
        faults=faults,
    )


def _host_load() -> float | None:
    """The machine's load average over a minute; None where it has none."""
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None


def _host_cores() -> int | None:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _merged(digests: Sequence[Digest]) -> Digest:
    whole = Digest()
    for digest in digests:
        whole.merge(digest)
    return whole


def _worst(values: Sequence[float | None]) -> float | None:
    return _seconds(max((v for v in values if v is not None), default=None))


class SelfCheck:
    """Watches the client: `begin` when the window opens, `close_window`, `finish` at the very end.

    Lag and backlog count until the end, because requests of the window are followed until then;
    the CPU share is that of the window.

    Loop lag is what an event met that came at a random moment: a beat is due every 10 ms, and
    every beat counts with its own lateness, those that one long stall swallowed too.
    """

    def __init__(self, loop: Loop, clock: KernelClock) -> None:
        self._loop, self._clock = loop, clock
        self._lag = Digest()
        self._lateness = Digest()
        self._due_ns = 0
        self._began: tuple[int, int] | None = None
        self._cpu_share: float | None = None

    def begin(self) -> None:
        """Start to count; what the warm-up left is forgotten."""
        now = time.monotonic_ns()
        self._began = now, time.process_time_ns()
        self._clock.forget()
        self._due_ns = now + BEAT_NS
        self._loop.call_at(self._due_ns, self._beat)

    def _beat(self) -> None:
        if self._began is None:
            return
        now = time.monotonic_ns()
        while self._due_ns <= now:
            self._lag.add(now - self._due_ns)
            self._due_ns += BEAT_NS
        self._loop.call_at(self._due_ns, self._beat)

    def sent(self, late_ns: int) -> None:
        """Note how late a request of the window went out."""
        self._lateness.fresh.append(late_ns)

    def fold(self) -> None:
        """Put away what was noted; now and then."""
        self._lateness.fold()
        self._clock.fold()

    def close_window(self) -> None:
        """Note the CPU share, unless the window was too short to tell."""
        if self._began is None:
            return
        wall_ns = time.monotonic_ns() - self._began[0]
        if wall_ns >= SHORT_NS:
            self._cpu_share = (time.process_time_ns() - self._began[1]) / wall_ns

    def finish(self) -> None:
        """Stop to count."""
        if self._began is None:
            return
        now = time.monotonic_ns()
        while self._due_ns <= now:  # beats that the last turn swallowed
            self._lag.add(now - self._due_ns)
            self._due_ns += BEAT_NS
        if self._cpu_share is None:
            self.close_window()
        self._began = None

    def figures(self, connections: int) -> CheckFigures:
        """What was counted."""
        clock = self._clock
        return CheckFigures(
            self._lag,
            self._lateness,
            clock.backlog,
            clock.errors,
            clock.firsts,
            clock.unstamped,
            self._cpu_share,
            connections,
        )


def _seconds(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e9
