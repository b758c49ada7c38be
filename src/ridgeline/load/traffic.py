"""When requests start: users who go on after each reply, or arrivals that wait for nobody."""

import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Protocol

from ridgeline.load.loop import Loop
from ridgeline.workload.schedule import Heard, PlannedRequest, Schedule

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
    """One request to start. `identity` is unique in the run; `intended_ns` is monotonic.

    number: of its item (request or session) in the schedule. ready_ns: when it got the slot that
    it had waited for under a cap on the requests in flight; None where there is no cap.
    """

    user: int | None
    planned: PlannedRequest
    identity: int
    intended_ns: int
    number: int = 0
    ready_ns: int | None = None


NOTHING = Heard()


class Traffic(Protocol):
    """A shape of load. `connections`: to open beforehand; `spare`: idle ones to keep ready."""

    connections: int
    spare: int

    @property
    def waiting(self) -> Collection[Launch]:
        """Requests whose time has come and for which there is no slot."""

    def start(self, loop: Loop, zero_ns: int, launch: Callable[[Launch], None]) -> None:
        """Put the first requests into the loop's timers."""

    def ended(
        self, launch: Launch, end_ns: int, not_before_ns: int, heard: Heard | None = NOTHING
    ) -> None:
        """A request has ended; what follows may begin, not before `not_before_ns`.

        heard: what came back, for the next turn of its session; None: it failed, and the session
        with it.
        """

    def close(self) -> None:
        """Begin nothing new; what waits for a slot may still get one."""

    def stop(self) -> None:
        """Start nothing more, not even what waits."""


class _Loop:
    """What the shapes share: beginning an item, and going on with a session."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._stopped = False
        self.waiting: Collection[Launch] = ()

    def close(self) -> None:
        """Begin nothing new."""
        self._stopped = True

    def stop(self) -> None:
        """Start nothing more."""
        self._stopped = True

    def _begin(self, user: int | None, number: int, intended_ns: int) -> Launch:
        schedule = self._schedule
        if schedule.sessions is None:  # then its number is its identity, too
            return Launch(user, schedule.planned(number), number, intended_ns, number)
        return Launch(user, schedule.begin(number), schedule.identity(number), intended_ns, number)

    def _next_turn(self, before: Launch, heard: Heard | None, intended_ns: int) -> Launch | None:
        if heard is None:
            return None
        planned = self._schedule.follow(before.planned, before.identity, heard)
        if planned is None:
            return None
        identity = self._schedule.identity(before.number, planned.turn)
        return Launch(before.user, planned, identity, intended_ns, before.number)


class ClosedLoop(_Loop):
    """A number of users, each with one request at a time and a pause after the reply."""

    def __init__(self, schedule: Schedule, share: Share = WHOLE) -> None:
        super().__init__(schedule)
        assert schedule.users is not None
        assert schedule.user_start_ns is not None
        self._users = schedule.users
        self._starts = {u: int(schedule.user_start_ns[u]) for u in share.rows(schedule.users)}
        self._items = dict.fromkeys(self._starts, 0)
        self.connections = len(self._starts)
        self.spare = 0
        waits = schedule.pauses or schedule.presence is not None or schedule.sessions is not None
        self._no_pause = not waits

    def start(self, loop: Loop, zero_ns: int, launch: Callable[[Launch], None]) -> None:
        """Let every user begin at its own time."""
        self._loop, self._launch, self._zero_ns = loop, launch, zero_ns
        for user, start_ns in self._starts.items():
            loop.call_at(zero_ns + start_ns, self._go, user, zero_ns + start_ns)

    def _go(self, user: int, intended_ns: int) -> None:
        item = self._items[user]
        self._items[user] = item + 1
        self._launch(self._begin(user, user + item * self._users, intended_ns))

    def ended(
        self, launch: Launch, end_ns: int, not_before_ns: int, heard: Heard | None = NOTHING
    ) -> None:
        """The user pauses, then goes on; a user that a step of the load took away waits."""
        user = launch.user
        assert user is not None
        if self._stopped:
            return
        if self._no_pause and not not_before_ns and end_ns <= time.monotonic_ns():
            self._go(user, end_ns)
            return
        intended_ns = max(end_ns + launch.planned.think_ns, not_before_ns)
        found = self._schedule.goes_on_ns(user, intended_ns - self._zero_ns)
        if found is None:
            return
        intended_ns = found + self._zero_ns
        follows = self._next_turn(launch, heard, intended_ns)
        if follows is None:
            self._loop.call_at(intended_ns, self._go, user, intended_ns)
        else:
            self._loop.call_at(intended_ns, self._launch, follows)


class OpenLoop(_Loop):
    """Arrivals at drawn times. A late one starts at once; the schedule is never shifted."""

    def __init__(self, schedule: Schedule, share: Share = WHOLE) -> None:
        super().__init__(schedule)
        assert schedule.intended_ns is not None
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
        if self._next < len(self._times) and not self._stopped:
            self._loop.call_at(self._zero_ns + int(self._times[self._next]), self._due)

    def _due(self) -> None:
        """Start every arrival whose time has come."""
        now = time.monotonic_ns() - self._zero_ns
        while self._next < len(self._times) and self._times[self._next] <= now:
            number = self._next
            self._next += self._step
            intended_ns = self._zero_ns + int(self._times[number])
            self._launch(self._begin(None, number, intended_ns))
        self._arm()

    def ended(
        self, launch: Launch, end_ns: int, not_before_ns: int, heard: Heard | None = NOTHING
    ) -> None:
        """Arrivals wait for nobody; only the turns of a session wait for each other."""
        intended_ns = max(end_ns + launch.planned.think_ns, not_before_ns)
        follows = self._next_turn(launch, heard, intended_ns)
        if follows is not None and not self._stopped:
            self._loop.call_at(intended_ns, self._launch, follows)


class Capped:
    """An open loop with at most so many requests in flight; the others wait, first come first.

    They keep their intended time, so the wait is seen in every figure that counts from it.
    """

    def __init__(self, inner: OpenLoop, slots: int) -> None:
        self._inner, self._slots = inner, slots
        self._busy = 0
        self.waiting: deque[Launch] = deque()
        self.connections = min(inner.connections, slots)
        self.spare = min(inner.spare, slots)

    def start(self, loop: Loop, zero_ns: int, launch: Callable[[Launch], None]) -> None:
        """Begin, with the cap between the arrivals and the client."""
        self._launch = launch
        self._inner.start(loop, zero_ns, self._due)

    def _due(self, launch: Launch) -> None:
        if self._busy < self._slots:
            self._busy += 1
            self._launch(replace(launch, ready_ns=launch.intended_ns))
        else:
            self.waiting.append(launch)

    def ended(
        self, launch: Launch, end_ns: int, not_before_ns: int, heard: Heard | None = NOTHING
    ) -> None:
        """The slot goes to the request that has waited longest."""
        self._busy -= 1
        self._inner.ended(launch, end_ns, not_before_ns, heard)
        if self.waiting:
            self._busy += 1
            following = self.waiting.popleft()
            self._launch(replace(following, ready_ns=max(end_ns, following.intended_ns)))

    def close(self) -> None:
        """Begin nothing new; what waits is sent as slots become free."""
        self._inner.close()

    def stop(self) -> None:
        """Start nothing more; what waits is not sent."""
        self._inner.stop()
        self.waiting.clear()


def traffic_of(schedule: Schedule, share: Share = WHOLE) -> Traffic:
    """The load of a schedule, or one worker's share of it.

    A cap on the requests in flight is shared out too, each worker at least one.
    """
    if schedule.users is not None:
        return ClosedLoop(schedule, share)
    cap = schedule.workload.arrivals.max_concurrency
    inner = OpenLoop(schedule, share)
    return inner if cap is None else Capped(inner, max(1, len(share.rows(cap))))
