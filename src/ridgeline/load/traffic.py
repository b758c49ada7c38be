"""When requests start: users who go on after each reply, or arrivals that wait for nobody."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ridgeline.load.loop import Loop
from ridgeline.workload.schedule import PlannedRequest, Schedule

SPARE_SECONDS = 0.25  # open loop: idle connections for the arrivals of so long are kept ready
FIRST_SECONDS = 2.0  # open loop: connections opened before the first arrival


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a schedule that one worker drives; the schedule itself is drawn once, for all.

    Arrival i is driven by worker i % of, user u by worker u % of. What belongs together (a user, a
    session with its turns) stays with one worker.
    """

    index: int = 0
    of: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.of:
            raise ValueError(f"there is no worker {self.index} among {self.of}")

    def has(self, number: int) -> bool:
        """True when arrival, user or session `number` is this worker's."""
        return number % self.of == self.index

    def rows(self, count: int) -> range:
        """This worker's numbers among the first `count`, ascending."""
        return range(self.index, count, self.of)


WHOLE = Share()


@dataclass(slots=True)  # one a request: frozen ones take longer to make
class Launch:
    """One request to start. `identity` is unique in the run; `intended_ns` is monotonic."""

    user: int | None
    planned: PlannedRequest
    identity: int
    intended_ns: int


class Traffic(Protocol):
    """A shape of load. `connections`: to open beforehand; `spare`: idle ones to keep ready."""

    connections: int
    spare: int

    def start(self, loop: Loop, zero_ns: int, launch: Callable[[Launch], None]) -> None:
        """Put the first requests into the loop's timers."""

    def ended(self, user: int | None, end_ns: int, not_before_ns: int) -> None:
        """A request has ended; a user's next one may begin, not before `not_before_ns`."""


class ClosedLoop:
    """A number of users, each with one request at a time and a pause after the reply."""

    def __init__(self, schedule: Schedule, share: Share = WHOLE) -> None:
        assert schedule.users is not None
        assert schedule.user_start_ns is not None
        self._schedule = schedule
        self._users = schedule.users
        self._starts = {u: int(schedule.user_start_ns[u]) for u in share.rows(schedule.users)}
        self._think_ns = round(schedule.workload.arrivals.think_time_s * 1e9)
        self._turn = dict.fromkeys(self._starts, 0)
        self.connections = len(self._starts)
        self.spare = 0

    def start(self, loop: Loop, zero_ns: int, launch: Callable[[Launch], None]) -> None:
        """Let every user begin at its own time."""
        self._loop, self._launch = loop, launch
        for user, start_ns in self._starts.items():
            loop.call_at(zero_ns + start_ns, self._go, user, zero_ns + start_ns)

    def _go(self, user: int, intended_ns: int) -> None:
        turn = self._turn[user]
        self._turn[user] += 1
        planned = self._schedule.closed(user, turn)
        self._launch(Launch(user, planned, user + turn * self._users, intended_ns))

    def ended(self, user: int | None, end_ns: int, not_before_ns: int) -> None:
        """The user pauses, then goes on."""
        assert user is not None
        intended_ns = max(end_ns + self._think_ns, not_before_ns)
        self._loop.call_at(intended_ns, self._go, user, intended_ns)


class OpenLoop:
    """Arrivals at drawn times. A late one starts at once; the schedule is never shifted."""

    def __init__(self, schedule: Schedule, share: Share = WHOLE) -> None:
        assert schedule.intended_ns is not None
        self._schedule = schedule
        self._times = schedule.intended_ns
        self._next, self._step = share.index, share.of
        total_s = schedule.workload.warmup_s + schedule.workload.duration_s
        own = len(share.rows(len(self._times)))
        rate = own / total_s if total_s > 0 else 0.0
        self.spare = max(4, round(rate * SPARE_SECONDS))
        self.connections = max(self.spare, min(round(rate * FIRST_SECONDS), 1024))

    def start(self, loop: Loop, zero_ns: int, launch: Callable[[Launch], None]) -> None:
        """Wait for the first arrival."""
        self._loop, self._zero_ns, self._launch = loop, zero_ns, launch
        self._arm()

    def _arm(self) -> None:
        if self._next < len(self._times):
            self._loop.call_at(self._zero_ns + int(self._times[self._next]), self._due)

    def _due(self) -> None:
        """Start every arrival whose time has come."""
        now = time.monotonic_ns() - self._zero_ns
        while self._next < len(self._times) and self._times[self._next] <= now:
            row = self._next
            self._next += self._step
            intended_ns = self._zero_ns + int(self._times[row])
            self._launch(Launch(None, self._schedule.planned(row), row, intended_ns))
        self._arm()

    def ended(self, user: int | None, end_ns: int, not_before_ns: int) -> None:
        """Arrivals wait for nobody."""


def traffic_of(schedule: Schedule, share: Share = WHOLE) -> Traffic:
    """The load of a schedule, or one worker's share of it."""
    if schedule.users is None:
        return OpenLoop(schedule, share)
    return ClosedLoop(schedule, share)
