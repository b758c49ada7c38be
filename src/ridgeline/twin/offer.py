"""The client of a simulated run: users one request after another, or arrivals at given times."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from ridgeline.domain.model import ModelShape
from ridgeline.domain.vision import image_tokens
from ridgeline.twin.pools import AnyFleet
from ridgeline.twin.replica import Replica
from ridgeline.twin.request import Request
from ridgeline.twin.scheduler import Decision
from ridgeline.workload.schedule import PlannedRequest, Schedule


class Offer:
    """Offers a schedule to a fleet from 0 to the window's end. It is the fleet's listener.

    With an automatic warm-up the window is opened by `open_window`, or at the warm-up's limit.

    `open` are the requests on their way, in sending order; those that ended are handed out by
    `take_ended`, so that a run of any length holds no more than these. A twin has no
    end-of-sequence token, so an answer has exactly the planned length, with and without
    ignore_eos. Of a session's past it knows lengths, not texts; what a real server would find in
    its prefix cache it finds too.
    """

    def __init__(self, schedule: Schedule) -> None:
        workload = schedule.workload
        self.schedule = schedule
        self.sent = 0
        self.open: dict[int, Request] = {}  # by number
        self.failed = 0  # of those that ended
        self.window_start = round(workload.warmup_s * 1e9)
        self.window_end = self.window_start + round(workload.duration_s * 1e9)
        self._limit = workload.requests
        self._in_window = 0
        self._cap = workload.arrivals.max_concurrency
        self._busy = 0  # slots taken, where there is a cap
        self._waiting: deque[tuple[Item, int]] = deque()  # with the time they were meant for
        self._ended: list[tuple[Request, Item]] = []
        self._items: dict[int, Item] = {}  # of the open ones
        self._pictured: tuple[int, ...] = ()  # tokens of images in each prompt, by class
        self._fleet: AnyFleet | None = None

    @property
    def in_flight(self) -> int:
        """Requests sent and not ended."""
        return len(self.open)

    def take_ended(self) -> list[tuple[Request, "Item"]]:
        """What has ended since the last call, with what it was sent for, in the order of ending."""
        taken, self._ended = self._ended, []
        return taken

    def take_open(self) -> list[tuple[Request, "Item"]]:
        """At the end of a run: what is still on its way."""
        return [(request, self._items[number]) for number, request in self.open.items()]

    def begin(self, fleet: AnyFleet) -> None:
        """Put the first sends into the fleet's future."""
        self._fleet = fleet
        schedule = self.schedule
        self._pictured = _pictured(schedule, fleet.twin.shape)
        if schedule.users is not None:
            assert schedule.user_start_ns is not None
            for user, start in enumerate(schedule.user_start_ns.tolist()):
                fleet.at(start, self._user_begins(user, 0))
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
        self._waiting.clear()

    def delivered(self, replica: Replica, decision: Decision, at_ns: int) -> None:
        """Nothing to note: records keep step numbers, and each step's delivery time is kept."""

    def finished(self, request: Request) -> None:
        """A request ended; what its user or its session does next begins."""
        del self.open[request.number]
        item = self._items.pop(request.number)
        self._ended.append((request, item))
        if request.failure is not None:
            self.failed += 1
        assert request.last_ns is not None
        if item.user is not None or item.planned.session is not None:
            self._go_on(item, request.last_ns, failed=request.failure is not None)
        if self._cap is not None:  # the client has it a little later than the engine lets it go
            assert self._fleet is not None
            self._fleet.at(request.last_ns, self._slot_is_free)

    def _go_on(self, item: "Item", ended: int, *, failed: bool) -> None:
        """The next turn of the session, or the next item of the user, after the pause."""
        assert self._fleet is not None
        again: int | None = ended + item.planned.think_ns
        if item.user is not None:
            again = self.schedule.goes_on_ns(item.user, ended + item.planned.think_ns)
        if again is None or again >= self.window_end:
            return
        identity = self.schedule.identity(item.number, item.planned.turn)
        follows = None if failed else self.schedule.follow(item.planned, identity)
        if follows is not None:
            self._fleet.at(again, self._sender(replace(item, planned=follows)))
        elif item.user is not None:
            self._fleet.at(again, self._user_begins(item.user, item.turn + 1))

    def _user_begins(self, user: int, turn: int) -> Callable[[int], None]:
        assert self.schedule.users is not None
        number = user + turn * self.schedule.users

        def send(now: int) -> None:
            self._send(Item(number, self.schedule.begin(number), user, turn), now)

        return send

    def _sender(self, item: "Item") -> Callable[[int], None]:
        return lambda now: self._offer(item, now)

    def _next_arrival(self, index: int) -> None:
        times = self.schedule.intended_ns
        assert times is not None
        assert self._fleet is not None

        def send(now: int) -> None:
            self._offer(Item(index, self.schedule.begin(index)), now)
            if index + 1 < len(times):
                self._next_arrival(index + 1)

        self._fleet.at(int(times[index]), send)

    # -- the cap on requests in flight

    def _offer(self, item: "Item", now: int) -> None:
        """Send it, or let it wait for a slot."""
        if self._cap is None or self._busy < self._cap:
            self._send(item, now)
        elif now < self.window_end:
            self._waiting.append((item, now))

    def _slot_is_free(self, now: int) -> None:
        self._busy -= 1
        if self._waiting:
            item, intended = self._waiting.popleft()
            self._send(item, now, intended)

    def _send(self, item: "Item", now: int, intended: int | None = None) -> None:
        # Users of one step end at the same time: the limit may be reached with some still to send.
        if intended is None and now >= self.window_end:
            return
        if self._limit is not None and self._in_window >= self._limit:
            return
        assert self._fleet is not None
        self._busy += 1
        request = self._request(item.planned, item.number, now)
        if self._cap is not None:
            request.intended_ns = now if intended is None else intended
            request.cap_wait_ns = now - request.intended_ns
        request.row, request.user = item.planned.row, item.user
        request.turn = item.turn
        self._items[request.number] = item
        self.open[request.number] = request
        self.sent += 1
        if self.window_start <= now < self.window_end:
            self._in_window += 1
            if self._limit is not None and self._in_window >= self._limit:
                self.window_end = now + 1
                self._waiting.clear()
        self._fleet.submit(request, now)

    def _request(self, planned: PlannedRequest, number: int, now: int) -> Request:
        kind = planned.traffic_class
        priority = None if kind is None else self.schedule.workload.classes[kind].priority
        return Request(
            self.sent,
            planned.prompt_tokens + self._pictured[kind or 0],
            planned.output_tokens,
            chain=_chain(planned, self.schedule.identity(number, planned.turn)),
            sent_ns=now,
            priority=priority or 0,
            kind=kind or 0,
        )


@dataclass(slots=True)  # one a request: frozen ones take longer to make
class Item:
    """What is sent: the number of its item in the schedule, and whose how manieth it is."""

    number: int
    planned: PlannedRequest
    user: int | None = None
    turn: int = 0


def _pictured(schedule: Schedule, shape: ModelShape) -> tuple[int, ...]:
    """Tokens that images add to a prompt of each class. Raises BadInput where that is not known."""
    pictures = (kind.prompts.images for kind in schedule.workload.kinds)
    return tuple(
        0 if images is None else image_tokens(images, shape.image_grid, shape.name)
        for images in pictures
    )


def _chain(planned: PlannedRequest, identity: int) -> tuple[tuple[int, int], ...] | None:
    """What others may share: the prefix, and in a session every turn with its reply.

    Keys of prefixes are 0 or above; each request of a session has two below. The reply is part of
    the chain because the next turn begins with it.
    """
    end, chain = 0, []
    for segment in planned.prefix:
        end += segment.tokens
        chain.append((end, segment.key))
    if planned.session is None:
        return tuple(chain) or None
    done = 0
    for turn in planned.past:
        done += turn.own_tokens
        chain.append((done, -1 - 2 * turn.identity))
        done += turn.output_tokens
        chain.append((done, -2 - 2 * turn.identity))
    chain.append((planned.prompt_tokens, -1 - 2 * identity))
    chain.append((planned.prompt_tokens + planned.output_tokens, -2 - 2 * identity))
    return tuple(chain)
