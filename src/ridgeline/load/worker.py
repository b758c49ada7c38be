"""A worker process: drives its share of a run and sends home what comes of it.

Started by `crew.py` with one end of a socket pair. It ends when the line does: a parent that was
killed leaves no worker behind.
"""

import contextlib
import ctypes
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

from ridgeline.domain.errors import RidgelineError
from ridgeline.domain.records import RequestRecord, RunEvent, StepTable
from ridgeline.domain.rows import RequestRows
from ridgeline.domain.run import LiveFigures, SilentWatch
from ridgeline.load.driver import Driver
from ridgeline.load.job import Job
from ridgeline.load.line import Line, Message
from ridgeline.load.loop import READ, Loop
from ridgeline.load.traffic import WHOLE

PR_SET_PDEATHSIG = 1  # prctl(2)
FLUSH_NS = 50_000_000


class Home:
    """The parent, as the driver of a worker sees it. Implements RecordSink and Meeting."""

    def __init__(self, line: Line, *, counted: bool) -> None:
        self._line, self._counted = line, counted
        self.stop_asked = False

    # -- RecordSink

    def request(self, record: RequestRecord) -> None:
        """A load client ends many at once."""
        raise AssertionError("a load client hands in rows")

    def rows(self, rows: RequestRows) -> None:
        """Send ended requests home."""
        self._line.send("rows", rows)

    def event(self, event: RunEvent) -> None:
        """Take one event; the parent tells its watch too."""
        self._line.send("event", event)

    def steps(self, table: StepTable) -> None:
        """No twin runs in a worker."""
        raise AssertionError("a load client has no steps")

    # -- Meeting

    def zero(
        self, loop: Loop, open_window: Callable[[int], None], end: Callable[[int], None]
    ) -> int:
        """Say that all is connected, and wait for the time that all workers begin at."""
        self._loop, self._open, self._end = loop, open_window, end
        self._line.send("ready")
        self._line.flush()
        while True:
            message = self._line.wait()
            if message is None:
                leave()
            elif message[0] == "go":
                break
            self._take(message)
        loop.add(self._line.fileno(), self._hear, READ)
        self._beat()
        return int(message[1])

    def sent_inside(self, sent_ns: int) -> int | None:
        """Tell at once when the requests of the window are counted: the parent counts them all."""
        if self._counted:
            self._line.send("sent", sent_ns)
        return None

    def steady(self, elapsed_ns: int, chunks: int, in_flight: int) -> bool:
        """Tell the parent, who looks at all workers together and says when the window opens."""
        self._line.send("level", chunks, in_flight)
        return False

    def ended(self, stay_s: float) -> None:
        """The parent sees it by the rows."""

    def _hear(self, _: int) -> None:
        for message in self._line.receive():
            self._take(message)
        if self._line.closed:
            leave()

    def _take(self, message: Message) -> None:
        if message[0] == "stop":
            self.stop_asked = True
        elif message[0] == "open":
            self._open(message[1])
        elif message[0] == "end":
            self._end(message[1])

    def _beat(self) -> None:
        self._line.push()
        if self._line.closed:
            leave()
        self._loop.call_at(time.monotonic_ns() + FLUSH_NS, self._beat)

    def finish(self, *message: object) -> None:
        """Send the last message, and wait until the parent has it and all before it."""
        self._line.send(*message)
        self._line.flush()


class HomeWatch(SilentWatch):
    """The parent as a watch. Events reach it as the sink does, once."""

    def __init__(self, home: Home, line: Line) -> None:
        self._home, self._line = home, line

    def live(self, figures: LiveFigures) -> None:
        """Pass the figures on."""
        self._line.send("live", figures)

    def stop_asked(self) -> bool:
        """True once the parent has said so."""
        return self._home.stop_asked


def die_with_parent() -> None:
    """Where the kernel can (Linux): be ended with the parent, also while connecting."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def leave() -> NoReturn:
    """End at once: there is nobody left to work for."""
    os._exit(1)


def run(fd: int) -> None:
    """Do one job that comes over the socket `fd`."""
    # Ctrl-C goes to all processes of a terminal; what it means is the parent's to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    line = Line(socket.socket(fileno=fd))
    message = line.wait()
    if message is None:
        leave()
    job: Job = message[1]
    if message[2]:  # https: a context cannot be sent
        sites = [replace(site, tls=ssl.create_default_context()) for site in job.sites]
        job = replace(job, sites=sites)
    home = Home(line, counted=job.schedule.workload.requests is not None and job.share != WHOLE)
    try:
        drove = Driver(job, sink=home, watch=HomeWatch(home, line), meeting=home).run()
    except RidgelineError as error:
        home.finish("error", type(error), error.what, error.where, error.fix)
    else:
        home.finish("done", drove)


if __name__ == "__main__":
    run(int(sys.argv[1]))
