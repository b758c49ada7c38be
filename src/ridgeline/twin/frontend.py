"""The API server in front of the engine cores: one event loop that reads and writes.

It shapes arrivals and deliveries. Requests that come in while the loop is busy are read together
and reach the engine together, which keeps users in step that are in step; a step's outputs cost
something per step and per chunk. Without it a client would see the engine's own, shorter times.
"""

from collections import deque
from collections.abc import Callable

from ridgeline.twin.constants import Constants
from ridgeline.twin.request import Request

At = Callable[[int, Callable[[int], None]], None]


class ApiServer:
    """One event loop. `at(time, call)` calls later; `forward(request, now)` takes what was read."""

    def __init__(
        self, constants: Constants, at: At, forward: Callable[[Request, int], None]
    ) -> None:
        self.busy_ns = 0
        self.prefill_tokens = 0  # prompts passed on whose first token has not come back
        self._constants = constants
        self._at = at
        self._forward = forward
        self._free = 0
        self._inbox: deque[Request] = deque()
        self._reading = False
        self._send_ns = int(constants.send_step_ns)
        self._send_ns_each = int(constants.send_ns_per_chunk)
        self._detokenise_ns_each = int(constants.detokenise_ns_per_chunk)
        self._network_ns = int(constants.network_ns)

    def receive(self, now: int, request: Request) -> None:
        """A request's bytes arrive."""
        self._inbox.append(request)
        if not self._reading:
            self._reading = True
            self._at(max(now, self._free), self._read)

    def send(self, now: int, chunks: int) -> int:
        """A step's outputs arrive; when the client has them (the mean over its chunks).

        All chunks are detokenised first, then written one after another.
        """
        sending = chunks * self._send_ns_each
        cost = self._send_ns + chunks * self._detokenise_ns_each + sending
        self.busy_ns += cost
        self._free = done = (self._free if self._free > now else now) + cost
        return done - sending // 2 + self._network_ns

    def _read(self, now: int) -> None:
        """Read what has come in, unless outputs have taken the loop meanwhile."""
        if self._free > now:
            self._at(self._free, self._read)
            return
        c, inbox = self._constants, self._inbox
        batch = [inbox.popleft() for _ in range(min(len(inbox), c.receive_batch))]
        tokens = sum(request.prompt for request in batch)
        cost = int(len(batch) * c.receive_ns + tokens * c.receive_ns_per_token)
        self.busy_ns += cost
        self._free = done = now + cost

        def pass_on(when: int) -> None:
            for request in batch:
                self._forward(request, when)
            self._reading = bool(inbox)
            if inbox:
                self._at(max(when, self._free), self._read)

        self._at(done, pass_on)
