"""The client of a simulated run: users one request after another, or arrivals at given times."""

from collections.abc import Callable

from ridgeline.twin.fleet import Fleet
from ridgeline.twin.replica import Replica
from ridgeline.twin.request import Request
from ridgeline.twin.scheduler import Decision
from ridgeline.workload.schedule import PlannedRequest, Schedule


class Offer:
    """Offers a schedule to a fleet from 0 to the window's end. It is the fleet's listener.

    With an automatic warm-up the window is opened by `open_window`, or at the warm-up's limit.

    `requests` are all that were sent, in sending order. A twin has no end-of-sequence token, so
    an answer has exactly the planned length, with and without ignore_eos.
    """

    def __init__(self, schedule: Schedule) -> None:
        workload = schedule.workload
        self.schedule = schedule
        self.requests: list[Request] = []
        self.done: list[Request] = []
        self.failed = 0  # of those that are done
        self.window_start = round(workload.warmup_s * 1e9)
        self.window_end = self.window_start + round(workload.duration_s * 1e9)
        self._think = round(workload.arrivals.think_time_s * 1e9)
        prefix = workload.prompts.shared_prefix
        self._shared_tokens = prefix.tokens if prefix is not None else 0
        self._limit = workload.requests
        self._in_window = 0
        self._fleet: Fleet | None = None

    @property
    def in_flight(self) -> int:
        """Requests sent and not ended."""
        return len(self.requests) - len(self.done)

    def begin(self, fleet: Fleet) -> None:
        """Put the first sends into the fleet's future."""
        self._fleet = fleet
        schedule = self.schedule
        if schedule.users is not None:
            assert schedule.user_start_ns is not None
            for user, start in enumerate(schedule.user_start_ns.tolist()):
                fleet.at(start, self._send_of(user, 0))
        else:
            assert schedule.intended_ns is not None
            if len(schedule.intended_ns):
                self._next_arrival(0)

    def open_window(self, now: int) -> None:
        """The warm-up ends here; the window keeps its length."""
        self.window_end += now - self.window_start
        self.window_start = now

    def stop(self, now: int) -> None:
        """Send nothing more; the window ends here."""
        self.window_end = min(self.window_end, max(now, self.window_start))

    def delivered(self, replica: Replica, decision: Decision, at_ns: int) -> None:
        """Nothing to note: records keep step numbers, and each step's delivery time is kept."""

    def finished(self, request: Request) -> None:
        """A request ended; its user thinks and sends the next one."""
        self.done.append(request)
        if request.failure is not None:
            self.failed += 1
        if request.user is None:
            return
        assert self._fleet is not None
        assert request.last_ns is not None
        again = request.last_ns + self._think
        if again < self.window_end:
            self._fleet.at(again, self._send_of(request.user, request.turn + 1))

    def _send_of(self, user: int, turn: int) -> Callable[[int], None]:
        def send(now: int) -> None:
            planned = self.schedule.closed(user, turn)
            request = self._send(planned, now)
            if request is not None:
                request.user, request.turn = user, turn

        return send

    def _next_arrival(self, index: int) -> None:
        times = self.schedule.intended_ns
        assert times is not None
        assert self._fleet is not None

        def send(now: int) -> None:
            self._send(self.schedule.planned(index), now)
            if index + 1 < len(times):
                self._next_arrival(index + 1)

        self._fleet.at(int(times[index]), send)

    def _send(self, planned: PlannedRequest, now: int) -> Request | None:
        # Users of one step end at the same time: the limit may be reached with some still to send.
        if now >= self.window_end or (self._limit is not None and self._in_window >= self._limit):
            return None
        assert self._fleet is not None
        request = Request(
            len(self.requests),
            planned.prompt_tokens,
            planned.output_tokens,
            group=planned.prefix_group,
            shared_tokens=self._shared_tokens,
            sent_ns=now,
        )
        request.row = planned.row
        self.requests.append(request)
        if now >= self.window_start:
            self._in_window += 1
            if self._limit is not None and self._in_window >= self._limit:
                self.window_end = now + 1
        self._fleet.submit(request, now)
        return request
