"""The event loop of the load client: one thread, sockets by epoll, timers in a heap.

It exists because asyncio's streams cannot hand over the kernel's receive time and cost several
times the work per chunk.
"""

import heapq
import itertools
import select
import selectors
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

READ, WRITE = 1, 4  # the values of EPOLLIN and EPOLLOUT
BATCH = 64  # events taken per turn: timers run between batches, so reads cannot starve sends

Handler = Callable[[int], None]


class Poller(Protocol):
    """Waits for sockets. `poll` returns (fd, READ | WRITE bits) pairs; errors count as READ.

    `slept`: the last poll found nothing at first and waited.
    """

    slept: bool

    def register(self, fd: int, mask: int) -> None:
        """Watch a new fd."""

    def modify(self, fd: int, mask: int) -> None:
        """Change what is waited for."""

    def unregister(self, fd: int) -> None:
        """Forget an fd."""

    def poll(self, timeout_s: float | None) -> list[tuple[int, int]]:
        """Wait up to timeout_s (None: without end) for at most BATCH events."""


class EpollPoller:
    """epoll, with waits exact to about 0.1 ms.

    Python rounds epoll's own timeout up to whole milliseconds, which would make every send late.
    An epoll descriptor can itself be waited for, and select() takes microseconds.
    """

    def __init__(self) -> None:
        self.slept = False
        self._epoll = select.epoll()
        # select() takes descriptors below FD_SETSIZE only
        self._exact = self._epoll.fileno() < 1024

    def register(self, fd: int, mask: int) -> None:
        """Watch a new fd."""
        self._epoll.register(fd, mask)

    def modify(self, fd: int, mask: int) -> None:
        """Change what is waited for."""
        self._epoll.modify(fd, mask)

    def unregister(self, fd: int) -> None:
        """Forget an fd."""
        self._epoll.unregister(fd)

    def poll(self, timeout_s: float | None) -> list[tuple[int, int]]:
        """Wait up to timeout_s (None: without end) for at most BATCH events."""
        events = self._epoll.poll(0, BATCH)
        self.slept = not events and timeout_s != 0
        if not self.slept:
            return events
        if not self._exact:
            return self._epoll.poll(timeout_s, BATCH)
        select.select([self._epoll], [], [], timeout_s)
        return self._epoll.poll(0, BATCH)

    def close(self) -> None:
        """Release the descriptor."""
        self._epoll.close()


class SelectorPoller:
    """The same where there is no epoll."""

    def __init__(self) -> None:
        self.slept = True
        self._selector = selectors.DefaultSelector()

    @staticmethod
    def _events(mask: int) -> int:
        return (selectors.EVENT_READ if mask & READ else 0) | (
            selectors.EVENT_WRITE if mask & WRITE else 0
        )

    def register(self, fd: int, mask: int) -> None:
        """Watch a new fd."""
        self._selector.register(fd, self._events(mask))

    def modify(self, fd: int, mask: int) -> None:
        """Change what is waited for."""
        self._selector.modify(fd, self._events(mask))

    def unregister(self, fd: int) -> None:
        """Forget an fd."""
        self._selector.unregister(fd)

    def poll(self, timeout_s: float | None) -> list[tuple[int, int]]:
        """Wait up to timeout_s (None: without end) for events."""
        return [
            (
                key.fd,
                (READ if events & selectors.EVENT_READ else 0)
                | (WRITE if events & selectors.EVENT_WRITE else 0),
            )
            for key, events in self._selector.select(timeout_s)
        ]

    def close(self) -> None:
        """Release the descriptor."""
        self._selector.close()


def new_poller() -> EpollPoller | SelectorPoller:
    """The best poller of this platform."""
    return EpollPoller() if sys.platform.startswith("linux") else SelectorPoller()


class Loop:
    """Runs handlers of sockets and timers until stopped. Not thread-safe; `now_ns` is monotonic.

    `before_turn(now_ns)` is called once a turn, after the wait and before any handler.
    `since_ns`: what this turn hands out came after this time, or was waited for and handed out at
    once. The distance to now is how long bytes may have lain unread because the loop was busy, or
    because its process did not run.
    """

    def __init__(self, before_turn: Callable[[int], None] | None = None) -> None:
        self._poller = new_poller()
        self._handlers: dict[int, Handler] = {}
        self._timers: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = itertools.count()
        self._before_turn = before_turn
        self._running = False
        self.since_ns = self._looked_ns = time.monotonic_ns()

    def add(self, fd: int, handler: Handler, mask: int) -> None:
        """Call `handler(bits)` when fd is ready."""
        self._handlers[fd] = handler
        self._poller.register(fd, mask)

    def change(self, fd: int, mask: int) -> None:
        """Change what fd is waited for."""
        self._poller.modify(fd, mask)

    def remove(self, fd: int) -> None:
        """Forget fd; call before closing it."""
        del self._handlers[fd]
        self._poller.unregister(fd)

    def call_at(self, when_ns: int, callback: Callable[..., None], *args: Any) -> None:
        """Run a callback at a monotonic time; at once, next turn, when that is past."""
        heapq.heappush(self._timers, (when_ns, next(self._sequence), callback, args))

    def stop(self) -> None:
        """Leave `run` after the current batch."""
        self._running = False

    def run(self) -> None:
        """Handle sockets and timers until `stop`."""
        self._running = True
        handlers, timers, poll = self._handlers, self._timers, self._poller.poll
        self._looked_ns = time.monotonic_ns()
        while self._running:
            wait_s = None
            called_ns = time.monotonic_ns()
            if timers:
                wait_s = max(0, timers[0][0] - called_ns) / 1e9
            events = poll(wait_s)
            woke_ns = time.monotonic_ns()
            if not self._poller.slept:
                self.since_ns = self._looked_ns
            else:  # asleep, it is woken at once, or by the timer: later than that, it did not run
                due_ns = woke_ns if wait_s is None else max(called_ns, timers[0][0])
                self.since_ns = min(woke_ns, due_ns)
            if len(events) < BATCH:  # else some may be left for the next turn
                self._looked_ns = woke_ns if self._poller.slept else called_ns
            if self._before_turn is not None:
                self._before_turn(woke_ns)
            for fd, bits in events:
                handler = handlers.get(fd)
                if handler is not None:  # an earlier handler of this batch may have removed it
                    handler(bits)
            self._run_due_timers()

    def _run_due_timers(self) -> None:
        timers = self._timers
        if not timers:
            return
        now = time.monotonic_ns()
        while timers and timers[0][0] <= now and self._running:
            _, _, callback, args = heapq.heappop(timers)
            callback(*args)

    def close(self) -> None:
        """Release the poller; the handlers' sockets belong to their owners."""
        self._handlers.clear()
        self._timers.clear()
        self._poller.close()
