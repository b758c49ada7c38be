"""The kept-alive connections of a run. There is no cap: a request without one gets a new one."""

import time
from collections import deque
from collections.abc import Callable

from ridgeline.load.clock import KernelClock
from ridgeline.load.http import IDLE, Connection, Site
from ridgeline.load.loop import Loop
from ridgeline.load.request import InFlight

STALE = 5


class Pool:
    """Hands connections to requests and opens what is missing. Implements `http.Owner`.

    `reused`: whether a connection has served two requests. `spare`: how many idle connections are
    kept ready. `on_sent(request)` is called when a request's bytes went to the kernel. A request
    whose kept connection turns out to have been closed before it was used is sent once more, on a
    new one; its time still counts from the first sending. A server that does this to STALE
    requests, or drops them, and never lets a connection be used twice gets a new one for each.
    """

    def __init__(
        self,
        loop: Loop,
        clock: KernelClock,
        site: Site,
        connect_ns: int,
        on_sent: Callable[[InFlight], None],
    ) -> None:
        self._loop, self._clock, self.site = loop, clock, site
        self._connect_ns = connect_ns
        self._on_sent = on_sent
        self.spare = 0
        self.peak = 0
        self.failed_connects = 0
        self.last_detail: str | None = None
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._opening: dict[Connection, int] = {}  # -> deadline
        self._waiting: deque[InFlight] = deque()
        self._again: deque[InFlight] = deque()  # these wait for a new connection, not for any
        self._stale = 0
        self._reuse = True
        self.reused = False

    @property
    def idle(self) -> int:
        """Connections ready for a request."""
        return len(self._idle)

    @property
    def opening(self) -> int:
        """Connections not connected yet."""
        return len(self._opening)

    def open(self, count: int) -> None:
        """Begin to open `count` connections."""
        for _ in range(count):
            connection = Connection(self._loop, self._clock, self.site, self)
            self._opening[connection] = time.monotonic_ns() + self._connect_ns
            self._all.add(connection)
            connection.start()
        self.peak = max(self.peak, len(self._all))

    def dispatch(self, request: InFlight) -> None:
        """Send the request now, or as soon as a connection for it is there."""
        while self._idle:
            connection = self._idle.pop()
            if connection.state == IDLE and self._send(connection, request, kept=True):
                break
        else:
            self._wait(request)
        if self.spare > len(self._idle) + len(self._opening):
            self.open(1)

    def _wait(self, request: InFlight) -> None:
        self._waiting.append(request)
        if len(self._opening) < len(self._waiting) + len(self._again):
            self.open(1)

    def _send(self, connection: Connection, request: InFlight, *, kept: bool) -> bool:
        """True when the bytes went out; False when the connection is gone."""
        first_use = connection.served == 0
        sent_ns = connection.send(request.parts, request)
        if sent_ns is None:
            self._all.discard(connection)
            return False
        request.connection, request.kept = connection, kept
        request.connect_ns = connection.connect_ns if first_use else 0
        if request.sent_ns is None:
            request.sent_ns = sent_ns
        self._on_sent(request)
        return True

    def retry(self, request: InFlight) -> None:
        """Send again on a new connection what a closed one left unanswered."""
        request.retries += 1
        self._again.append(request)
        self.open(1)
        self._note_unusable()

    def _note_unusable(self) -> None:
        self._stale += 1
        if self._stale >= STALE and not self.reused:
            self._reuse = False

    def release(self, connection: Connection) -> None:
        """Take a connection back after a reply, or after its end."""
        if connection.served > 1:
            self.reused = True
        if connection.state == IDLE and self._reuse and not self._waiting and not self._again:
            self._idle.append(connection)
            return
        if connection.state == IDLE and connection.served and not self._reuse:
            connection.close()
            self.open(1)
        if connection.state != IDLE:
            if connection.dropped and connection.served:
                self._note_unusable()
            self._all.discard(connection)
            return
        queue = self._again if self._again and not connection.served else self._waiting
        if not queue:
            self._idle.append(connection)
            return
        request = queue.popleft()
        if not self._send(connection, request, kept=connection.served > 0):
            queue.appendleft(request)
            self._refused("closed by the server right after connecting")

    def _refused(self, detail: str) -> None:
        """A connection meant for waiting requests was not to be had."""
        self.failed_connects += 1
        self.last_detail = detail
        if len(self._waiting) + len(self._again) > len(self._opening):
            queue = self._again or self._waiting
            queue.popleft().give_up(time.monotonic_ns(), "connect", detail)

    def forget(self, request: InFlight) -> bool:
        """Drop a request that still waits for a connection; False when it does not."""
        for queue in (self._waiting, self._again):
            if request in queue:
                queue.remove(request)
                return True
        return False

    def sweep(self, now_ns: int) -> None:
        """Give up connecting where it took longer than the limit."""
        for connection, deadline in list(self._opening.items()):
            if now_ns > deadline:
                connection.close()
                self.on_failed(connection, f"no connection in {self._connect_ns / 1e9:g} s")

    def close(self) -> None:
        """Close every connection."""
        for connection in self._all:
            connection.close()
        self._all.clear()
        self._idle.clear()
        self._opening.clear()

    # -- http.Owner

    def on_ready(self, connection: Connection) -> None:
        """A connection is there."""
        self._opening.pop(connection, None)
        self.release(connection)

    def on_failed(self, connection: Connection, detail: str) -> None:
        """A connection could not be made: the request that waits longest has failed."""
        if self._opening.pop(connection, None) is None:
            return
        self._all.discard(connection)
        self._refused(detail)

    def on_idle_closed(self, connection: Connection) -> None:
        """The server closed an idle connection: keep another one ready for the next request.

        Only when it had served one: a server that closes unused connections would go on so.
        """
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if connection.served and self.spare > len(self._idle) + len(self._opening):
            self.open(1)
