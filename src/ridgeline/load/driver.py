"""A whole run against one address: warm-up, window, following to the end, records."""

import contextlib
import gc
import time
from collections.abc import Iterator
from dataclasses import replace

from ridgeline.domain.errors import EndpointError
from ridgeline.domain.records import RecordSink, RunEvent
from ridgeline.domain.rows import ROW_BYTES, RowsBuilder
from ridgeline.domain.run import STALLED, Warmup, Watch, Window
from ridgeline.load.check import SelfCheck
from ridgeline.load.clock import KernelClock
from ridgeline.load.http import Connection
from ridgeline.load.job import Job
from ridgeline.load.limits import ensure_open_files
from ridgeline.load.live import LiveView
from ridgeline.load.loop import Loop
from ridgeline.load.meeting import Alone, Meeting
from ridgeline.load.outcome import DriveResult, Drove, result_of, steady_event
from ridgeline.load.pool import Pool
from ridgeline.load.request import InFlight
from ridgeline.load.scheduling import short_slices
from ridgeline.load.stall import StallWatch
from ridgeline.load.targets import Targets
from ridgeline.load.traffic import NOTHING, Launch, traffic_of

SWEEP_NS = 50_000_000
LIVE_NS = 500_000_000
FAILED_PAUSE_NS = 100_000_000  # a user whose request failed begins the next no sooner than this
RARE_COLLECTIONS = 20_000  # new objects until the collector looks: the client makes no cycles
DEAD_NS = 10_000_000_000  # no connection for so long, and none in use: the server is gone
MOST_ROWS = 1024  # ended requests that are handed in at once, without waiting for the sweep


class Driver:
    """Drives one job once: `Driver(...).run()`.

    Raises EndpointError when a site takes not one connection, BadInput when the file limit is too
    low; what the sink raises passes.
    """

    def __init__(
        self, job: Job, *, sink: RecordSink, watch: Watch, meeting: Meeting | None = None
    ) -> None:
        schedule, sites, limits, share = job.schedule, job.sites, job.limits, job.share
        self._schedule, self._make_request, self._limits = schedule, job.make_request, limits
        self._sink, self._watch, self._hide = sink, watch, job.hide
        self._meeting = meeting or Alone(schedule)
        self._clock = KernelClock()
        self._loop = Loop(self._clock.sample)
        self._check = SelfCheck(self._loop, self._clock)
        self._pools = [
            Pool(self._loop, self._clock, site, limits.connect_ns, self._on_sent) for site in sites
        ]
        self._targets = Targets(job.routing, len(sites), job.sites_of)
        self._traffic = traffic_of(schedule, share)
        workload = schedule.workload
        self._start_ns = round(workload.warmup_s * 1e9)  # of the window, from zero
        self._end_ns = self._start_ns + round(workload.duration_s * 1e9)
        self._live = LiveView((self._start_ns + (self._end_ns - self._start_ns)) / 1e9)
        self._opened = False
        self._stall = StallWatch(workload) if workload.arrivals.steps else None
        self._zero_ns = 0
        self._offering = True
        self._interrupted = False
        self._notes: list[str] = []
        self._faults: list[str] = []
        self._in_flight: dict[int, InFlight] = {}
        self._rows = RowsBuilder()
        self._full = MOST_ROWS * ROW_BYTES
        self._names = [kind.name for kind in workload.classes]
        self._counted = workload.requests is not None
        self._looking = workload.warmup_auto
        self._talks = schedule.sessions is not None
        self._index, self._step = share.index, share.of  # no two workers give the same number
        self._deadline_ns = 0
        self._last_good_ns = 0

    def run(self) -> Drove:
        """Offer the whole schedule and follow it to its end."""
        ensure_open_files(self._traffic.connections)
        try:
            with _calm_collector(), short_slices():
                self._connect()
                self._begin()
                self._loop.run()
                self._check.finish()
            self._hand_in()
        except BaseException:
            with contextlib.suppress(Exception):  # what is measured is kept, if it can be
                self._hand_in()
            raise
        finally:
            for pool in self._pools:
                pool.close()
            self._loop.close()
        if self._clock.steps:
            self._notes.append(
                f"the wall clock stepped {self._clock.steps} times;"
                " chunks near a step carry the time of their read"
            )
        return Drove(
            self._zero_ns,
            Window(self._start_ns, self._end_ns),
            self._check.figures(sum(pool.peak for pool in self._pools)),
            self._interrupted,
            tuple(self._notes),
            tuple(self._faults),
            self._warmup(),
        )

    def _warmup(self) -> Warmup | None:
        workload = self._schedule.workload
        if not workload.warmup_auto:
            return None
        offered = Window(self._start_ns, self._end_ns)
        found = self._opened and self._start_ns < round(workload.warmup_s * 1e9)
        return Warmup(offered, workload.warmup_s, found)

    # -- phases

    def _connect(self) -> None:
        """Open the connections before the first request, so that no TTFT contains a handshake."""
        wanted = -(-self._traffic.connections // len(self._pools))
        for pool in self._pools:
            pool.open(wanted)
        self._wait_for_connections()
        self._loop.run()
        for pool in self._pools:
            if pool.idle == 0:
                raise EndpointError(
                    f"no connection: {pool.last_detail}",
                    where=pool.site.url,
                    fix="is the server running, and is this its address?",
                )
            if pool.idle < wanted:
                text = f"only {pool.idle} of {wanted} connections could be opened beforehand"
                self._notes.append(f"{text}: {pool.last_detail}")
            pool.spare = self._traffic.spare
            if len(self._pools) > 1:  # taking turns is not quite even
                pool.spare = max(pool.spare, 2 + wanted // 8)

    def _wait_for_connections(self) -> None:
        now = time.monotonic_ns()
        for pool in self._pools:
            pool.sweep(now)
        if any(pool.opening for pool in self._pools):
            self._loop.call_at(now + 2_000_000, self._wait_for_connections)
        else:
            self._loop.stop()

    def _begin(self) -> None:
        """Set zero and put everything that has a fixed time into the timers."""
        self._zero_ns = self._last_good_ns = self._rows.zero_ns = self._meeting.zero(
            self._loop, self._move_window, self._over
        )
        self._loop.call_at(self._zero_ns + self._start_ns, self._open_window)
        self._loop.call_at(self._zero_ns + self._end_ns, self._close_window)
        self._loop.call_at(self._zero_ns + SWEEP_NS, self._sweep)
        self._loop.call_at(self._zero_ns, self._tick)
        self._traffic.start(self._loop, self._zero_ns, self._launch)

    def _open_window(self) -> None:
        if self._offering and not self._opened:
            self._opened = True
            self._check.begin()

    def _look(self, elapsed_ns: int) -> None:
        """Open the window once the run is steady; the traffic goes on as it is."""
        if not self._schedule.workload.warmup_auto or self._opened or not self._offering:
            return
        chunks = sum(len(request.reply.stamps) for request in self._in_flight.values())
        chunks += self._live.chunks_ended
        if self._meeting.steady(elapsed_ns, chunks, len(self._in_flight)):
            self._move_window(elapsed_ns)
            self._tell(steady_event(elapsed_ns))

    def _move_window(self, start_ns: int) -> None:
        """Let the window begin at `start_ns` (from zero), now or soon, as long as planned."""
        if self._opened or not self._offering:
            return
        length_ns = self._end_ns - self._start_ns
        self._start_ns, self._end_ns = start_ns, start_ns + length_ns
        self._live.total_s = self._end_ns / 1e9
        self._loop.call_at(self._zero_ns + self._start_ns, self._open_window)
        self._loop.call_at(self._zero_ns + self._end_ns, self._close_window)

    def _close_window(self) -> None:
        """Offer nothing more; what is on its way is followed to its end."""
        if not self._offering or time.monotonic_ns() < self._zero_ns + self._end_ns:
            return  # closed already, or that was the end of a window which has begun later
        self._offering = False
        self._traffic.close()
        self._check.close_window()
        self._deadline_ns = time.monotonic_ns() + self._limits.grace_ns
        if not self._in_flight and not self._traffic.waiting:
            self._loop.stop()

    def _over(self, at_ns: int) -> None:
        """The window ends at `at_ns`, and what was not sent by now never is."""
        if not self._offering:
            return
        for request in list(self._in_flight.values()):
            if request.sent_ns is None and self._pools[request.target].forget(request):
                del self._in_flight[request.index]
                self._targets.ended(request.target)
        self._end_early(at_ns)

    def _end_early(self, at_ns: int) -> None:
        """Let the window end at `at_ns` (monotonic)."""
        self._traffic.stop()
        self._end_ns = max(at_ns - self._zero_ns, 0)
        self._start_ns = min(self._start_ns, self._end_ns)
        self._close_window()

    def _cancel_all(self, failure: str, detail: str, *, drop_unsent: bool) -> None:
        now = time.monotonic_ns()
        late = list(self._traffic.waiting)
        self._traffic.stop()
        for launch in late:  # these waited for a slot until the end: they count as given up
            self._start(replace(launch, ready_ns=now), send=False)
        for request in list(self._in_flight.values()):
            waits = self._pools[request.target].forget(request)
            if waits and drop_unsent and request.sent_ns is None:
                del self._in_flight[request.index]
            else:
                request.give_up(now, failure, detail)
        self._loop.stop()

    # -- requests

    def _launch(self, launch: Launch) -> None:
        """Start one request; what waited for a slot goes out after the window too."""
        if self._offering or (launch.ready_ns is not None and launch.ready_ns > launch.intended_ns):
            self._start(launch)

    def _start(self, launch: Launch, *, send: bool = True) -> None:
        target = self._targets.choose(launch.planned)
        pool, index = self._pools[target], self._index
        parts = self._make_request(launch.planned, launch.identity, target)
        request = InFlight(index, target, launch, parts, ended=self._ended, again=pool.retry)
        self._index = index + self._step
        self._in_flight[index] = request
        if send:
            pool.dispatch(request)

    def _on_sent(self, request: InFlight) -> None:
        sent_ns = request.sent_ns
        assert sent_ns is not None
        if request.retries:
            return  # counted when it was sent first
        self._live.sent += 1
        if not self._offering or sent_ns < self._zero_ns + self._start_ns:
            return
        launch = request.launch
        ready_ns = launch.ready_ns
        self._check.sent(sent_ns - (launch.intended_ns if ready_ns is None else ready_ns))
        if self._counted:
            over_ns = self._meeting.sent_inside(sent_ns)
            if over_ns is not None:
                self._over(over_ns)

    def _ended(self, request: InFlight, connection: Connection | None) -> None:
        """Note what it was, free the connection, let the user go on."""
        end_ns, failed = request.end_ns, request.failure is not None
        assert end_ns is not None
        del self._in_flight[request.index]
        self._targets.ended(request.target)
        kind = request.launch.planned.traffic_class
        name = None if kind is None else self._names[kind]
        rows = self._rows
        request.write(rows, self._hide, several=self._targets.several, name=name)
        if self._looking and not self._opened and request.sent_ns is not None:
            self._meeting.ended((end_ns - request.sent_ns) / 1e9)
        if connection is not None:
            self._pools[request.target].release(connection)
        if request.failure != "connect":
            self._last_good_ns = end_ns
        not_before_ns = 0
        if failed:
            began_ns = request.sent_ns if request.sent_ns is not None else end_ns
            not_before_ns = began_ns + FAILED_PAUSE_NS
        heard = request.heard() if self._talks else NOTHING
        self._traffic.ended(request.launch, end_ns, not_before_ns, heard)
        if len(rows.numbers) >= self._full:
            self._hand_in()
        if not self._offering and not self._in_flight and not self._traffic.waiting:
            self._loop.stop()

    def _hand_in(self) -> None:
        """Give the ended requests to the sink and to the live view."""
        if len(self._rows):
            rows = self._rows.take()
            self._live.ended(rows)
            self._sink.rows(rows)

    # -- twenty times and twice a second

    def _sweep(self) -> None:
        now = time.monotonic_ns()
        self._hand_in()
        self._check.fold()
        self._look(now - self._zero_ns)
        for pool in self._pools:
            pool.sweep(now)
        limits = self._limits
        for request in list(self._in_flight.values()):
            if request.connection is not None:
                request.overdue(now, limits.first_ns, limits.gap_ns, limits.total_ns)
        if self._offering and self._watch.stop_asked():
            self._interrupted = True
            self._end_early(now)
            self._cancel_all("stopped", "stopped by the user", drop_unsent=True)
        elif self._offering and (silent_ns := self._silent_ns(now)) is not None:
            text = f"{STALLED}: nothing came for {silent_ns / 1e9:.3g} s"
            text += f" while {len(self._in_flight)} requests waited"
            self._tell(RunEvent(now - self._zero_ns, "stalled", text))
            self._faults.append(text)
            self._end_early(now)
            self._cancel_all("timeout_total", STALLED, drop_unsent=True)
        elif self._offering and now - self._last_good_ns > DEAD_NS and self._gone():
            details = {pool.last_detail for pool in self._pools if pool.last_detail}
            text = f"no connection for {DEAD_NS / 1e9:g} s: {', '.join(sorted(details))}"
            self._tell(RunEvent(now - self._zero_ns, "server_error", text))
            self._faults.append(f"the server is gone: {text}")
            self._end_early(now)
            self._cancel_all("connect", "the server is gone", drop_unsent=False)
        elif not self._offering and self._in_flight and self._watch.stop_asked():
            self._interrupted = True
            self._cancel_all("stopped", "stopped by the user", drop_unsent=False)
        elif not self._offering and now > self._deadline_ns:
            grace_s = self._limits.grace_ns / 1e9
            text = f"not finished {grace_s:g} s after the window, when the client gave up"
            self._cancel_all("cancelled", text, drop_unsent=False)
        self._loop.call_at(now + SWEEP_NS, self._sweep)

    def _silent_ns(self, now: int) -> int | None:
        """How long a server has stood still under a stepped load; None: it has not."""
        if self._stall is None:
            return None
        requests = self._in_flight.values()
        last = max((r.reply.event_ns or 0 for r in requests), default=0)
        waiting = (r.sent_ns - self._zero_ns for r in requests if r.sent_ns is not None)
        last = max(last, self._last_good_ns) - self._zero_ns
        return self._stall.silent_ns(now - self._zero_ns, last, waiting)

    def _gone(self) -> bool:
        """True when requests only fail to connect."""
        return any(pool.failed_connects for pool in self._pools) and all(
            request.connection is None for request in self._in_flight.values()
        )

    def _tell(self, event: RunEvent) -> None:
        self._sink.event(event)
        self._watch.event(event)

    def _tick(self) -> None:
        now = time.monotonic_ns()
        self._hand_in()
        elapsed_ns = now - self._zero_ns
        phase = "draining"
        if self._offering:
            phase = "measuring" if elapsed_ns >= self._start_ns else "warm-up"
        chunks = sum(len(request.reply.stamps) for request in self._in_flight.values())
        self._watch.live(self._live.figures(elapsed_ns, phase, chunks, len(self._in_flight)))
        self._loop.call_at(now + LIVE_NS, self._tick)


def drive(job: Job, sink: RecordSink, watch: Watch) -> DriveResult:
    """Drive a job in this process; see `Driver`."""
    return result_of([Driver(job, sink=sink, watch=watch).run()])


@contextlib.contextmanager
def _calm_collector() -> Iterator[None]:
    """Keep what exists already out of the garbage collector's way during a run."""
    gc.collect()
    gc.freeze()
    before = gc.get_threshold()
    gc.set_threshold(RARE_COLLECTIONS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
