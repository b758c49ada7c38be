"""Several workers drive one run: one process and one event loop each, one schedule for all.

The schedule is drawn once and dealt out by number (`traffic.Share`), so the arrivals are the same
however many workers send them. All share the run's zero: the monotonic clock is the machine's.
"""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import replace

from ridgeline.domain.errors import RunFailed
from ridgeline.domain.records import RecordSink
from ridgeline.domain.rows import MISSING, RequestRows
from ridgeline.domain.run import LiveFigures, Watch
from ridgeline.domain.steadystate import onset_of
from ridgeline.load.driver import drive
from ridgeline.load.job import Job
from ridgeline.load.line import Line, Message
from ridgeline.load.outcome import DriveResult, Drove, result_of, steady_event
from ridgeline.load.traffic import Share

LOOK_S = 0.05  # how often the user's wish to stop is looked for
LIVE_S = 0.5
LEAD_NS = 50_000_000  # from the word to the run's zero: every worker must have heard it by then
STOP_S = 5.0  # after a stop a worker that has not ended by then is ended
# A worker says something every half a second. One that is silent for so long hangs (stopped,
# frozen, waiting for a disk), and will not come back in time to offer its part of the load.
SILENT_S = 10.0
START_S = 60.0  # to start and to prepare its part, beside the time that connecting may take


def drive_with(workers: int, job: Job, sink: RecordSink, watch: Watch) -> DriveResult:
    """Drive a job with that many workers; with one, in this process. Raises as `Driver` does.

    A worker that dies takes its part of the load with it: the others end, and the result says so.
    There are no more of them than users, or than slots under a cap on the requests in flight: one
    without a user would have nothing to do, and every one takes a slot at least.
    """
    schedule = job.schedule
    workers = workers_for(workers, schedule.users, schedule.workload.arrivals.max_concurrency)
    if workers == 1:
        return drive(job, sink, watch)
    with Crew(workers, job, sink, watch) as crew:
        return crew.run()


class _Member:
    """One worker as its parent knows it."""

    def __init__(self, index: int, job: Job) -> None:
        ours, theirs = socket.socketpair()
        path = os.pathsep.join(entry for entry in sys.path if entry)
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603  this program itself
                [sys.executable, "-m", "ridgeline.load.worker", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
            )
        self.index = index
        self.line = Line(ours)
        self.ready = False
        self.live: LiveFigures | None = None
        self.level: tuple[int, int] | None = None  # chunks until now, requests in flight
        self.drove: Drove | None = None
        self.silent_s = 0.0  # for how long nothing has come, while the parent looked
        self.hung = False
        secure = any(site.tls is not None for site in job.sites)
        plain = [replace(site, tls=None) for site in job.sites]
        self.line.send("job", replace(job, sites=plain), secure)
        self.line.flush()

    @property
    def died(self) -> bool:
        """True when it is gone without a result."""
        return self.line.closed and self.drove is None

    def end(self) -> int:
        """See it end, or end it; its exit status, below 0 the signal."""
        self.line.close()
        if not self.hung:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.process.wait(timeout=0.5)
        self.process.kill()
        try:
            return self.process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:  # waiting inside the kernel: it ends when it wakes
            return -signal.SIGKILL


class Crew:
    """The workers of one run. A context manager: none is left when it is over."""

    def __init__(self, workers: int, job: Job, sink: RecordSink, watch: Watch) -> None:
        self._job, self._sink, self._watch = job, sink, watch
        self._wanted = job.schedule.workload.requests
        self._sent = array("q")
        self._over = False
        self._stopped = False
        self._faults: list[str] = []
        self._zero_ns = 0
        self._members: list[_Member] = []
        self._onset = onset_of(job.schedule.workload, job.schedule.user_start_ns)
        try:
            for index in range(workers):
                part = replace(job, share=Share(index, workers))
                self._members.append(_Member(index, part))
        except BaseException:
            self._end_all()
            raise

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        self._end_all()

    def _end_all(self) -> None:
        for member in self._members:
            member.line.close()
        for member in self._members:
            member.end()

    def run(self) -> DriveResult:
        """Begin together, pass on what comes, and end together."""
        with selectors.DefaultSelector() as selector:
            for member in self._members:
                selector.register(member.line, selectors.EVENT_READ, member)
            self._follow(selector, lambda: all(m.ready or m.died for m in self._members))
            self._refuse_dead()
            self._zero_ns = time.monotonic_ns() + LEAD_NS
            self._tell_all("go", self._zero_ns)
            self._follow(selector, lambda: all(m.drove or m.died for m in self._members))
        parts = [m.drove for m in self._members if m.drove is not None]
        if not parts:
            raise RunFailed(f"nothing is left of the load client: {'; '.join(self._faults)}")
        result = result_of(parts, tuple(self._faults))
        if self._wanted is not None and len(self._sent) >= self._wanted and not result.interrupted:
            # told one after another they may have ended a moment apart: the count decides
            end_ns = sorted(self._sent)[self._wanted - 1] + 1 - self._zero_ns
            result = replace(result, window=replace(result.window, end_ns=end_ns))
        return result

    def _refuse_dead(self) -> None:
        dead = [member for member in self._members if member.died]
        if dead:
            status = dead[0].end()
            raise RunFailed(
                f"worker {dead[0].index + 1} of {len(self._members)} did not start"
                f" ({_how(status)})",
                fix="use fewer --workers, and look for its words above",
            )

    # -- following

    def _follow(self, selector: selectors.BaseSelector, done: Callable[[], bool]) -> None:
        """Take messages until `done()`."""
        shown = time.monotonic()
        late: float | None = None
        looked = time.monotonic()
        while not done():
            for key, _ in selector.select(LOOK_S):
                member: _Member = key.data
                member.silent_s = 0.0
                for message in member.line.receive():
                    self._take(member, message)
                if member.line.closed:
                    selector.unregister(member.line)
                    self._mourn(member)
            now = time.monotonic()
            # a pause of the parent's own, as when all are stopped together, is nobody's silence
            self._end_silent(selector, min(now - looked, 2 * LOOK_S))
            looked = now
            if not self._stopped and self._watch.stop_asked():
                self._stopped = True
                self._tell_all("stop")
                late = now + STOP_S
            if late is not None and now > late:
                self._kill()
            if now - shown >= LIVE_S:
                shown = now
                self._show()

    def _end_silent(self, selector: selectors.BaseSelector, passed_s: float) -> None:
        """End the workers from which nothing has come for too long."""
        connect_s = self._job.limits.connect_ns / 1e9
        limit_s = SILENT_S if self._zero_ns else START_S + connect_s
        for member in self._members:
            if member.line.closed or (member.ready and not self._zero_ns):
                continue  # what is ready waits for the others
            member.silent_s += passed_s
            if member.silent_s > limit_s and member.drove is None:
                member.hung = True
                selector.unregister(member.line)
                member.line.close()
                self._mourn(member)

    def _kill(self) -> None:
        for member in self._members:
            if member.drove is None:
                member.process.kill()

    def _mourn(self, member: _Member) -> None:
        """A worker's line is closed: in order when it had said its last word."""
        if member.drove is not None or not self._zero_ns:
            return
        how = _how(member.end())
        text = f"worker {member.index + 1} of {len(self._members)} "
        if member.hung:
            text += f"hung (no word for {SILENT_S:g} s) and was ended"
        else:
            text += f"died ({how})"
        self._faults.append(f"{text}: its part of the load was not offered")
        self._end(time.monotonic_ns())

    def _end(self, at_ns: int) -> None:
        """The window is over for all."""
        if not self._over:
            self._over = True
            self._tell_all("end", at_ns)

    def _tell_all(self, *message: object) -> None:
        for member in self._members:
            if not member.line.closed:
                member.line.send(*message)

    def _take(self, member: _Member, message: Message) -> None:
        kind = message[0]
        if kind == "rows":
            self._take_rows(message[1])
        elif kind == "sent":
            self._sent.append(message[1])
            if len(self._sent) == self._wanted:
                self._end(message[1] + 1)
        elif kind == "level":
            member.level = message[1], message[2]
            self._look()
        elif kind == "live":
            member.live = message[1]
        elif kind == "event":
            self._sink.event(message[1])
            self._watch.event(message[1])
        elif kind == "ready":
            member.ready = True
        elif kind == "error":
            _, error, what, where, fix = message
            raise error(what, where=where, fix=fix)
        elif kind == "done":
            member.drove = message[1]
            if member.drove.faults:  # the server is gone: the others need not find out, too
                self._end(member.drove.zero_ns + member.drove.window.end_ns)

    def _take_rows(self, rows: RequestRows) -> None:
        if self._onset is not None:
            sent, end = rows.column("sent_ns"), rows.column("end_ns")
            for stay_ns in (end - sent)[(sent != MISSING) & (end != MISSING)].tolist():
                self._onset.ended(stay_ns / 1e9)
        self._sink.rows(rows)

    def _look(self) -> None:
        """Open the window for all once they are steady together."""
        onset, elapsed_ns = self._onset, time.monotonic_ns() - self._zero_ns
        levels = [member.level for member in self._members if member.level is not None]
        if onset is None or elapsed_ns < onset.next_s * 1e9 or len(levels) < len(self._members):
            return
        if onset.look(sum(chunks for chunks, _ in levels), sum(n for _, n in levels)):
            self._onset = None
            start_ns = elapsed_ns + LEAD_NS
            self._tell_all("open", start_ns)
            event = steady_event(start_ns)
            self._sink.event(event)
            self._watch.event(event)

    def _show(self) -> None:
        figures = [member.live for member in self._members if member.live is not None]
        if figures:
            self._watch.live(together(figures))


def together(figures: list[LiveFigures]) -> LiveFigures:
    """What several workers show, as one. The p95 is the worst one's, which is near enough."""
    rates = [f.output_tokens_per_s for f in figures if f.output_tokens_per_s is not None]
    waits = [f.ttft_p95_s for f in figures if f.ttft_p95_s is not None]
    known = [f.chunks for f in figures if f.chunks is not None]
    first = min(figures, key=lambda f: f.elapsed_s)
    return replace(
        first,
        output_tokens_per_s=sum(rates) if rates else None,
        ttft_p95_s=max(waits, default=None),
        sent=sum(f.sent for f in figures),
        failed=sum(f.failed for f in figures),
        in_flight=sum(f.in_flight for f in figures),
        chunks=sum(known) if len(known) == len(figures) else None,
    )


def _how(status: int) -> str:
    """An exit status in words."""
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def usable_cores() -> int:
    """Cores that this process may use."""
    with contextlib.suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def workers_for(wanted: int | str, users: int | None = None, slots: int | None = None) -> int:
    """A number of workers, at most as many as there are users (or slots under a cap, if any).

    "auto" leaves one of the cores to everything else.
    """
    number = max(1, usable_cores() - 1) if wanted == "auto" else int(wanted)
    most = users or slots
    return number if most is None else min(number, most)
