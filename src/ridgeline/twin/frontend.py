"""The API server in front of the engine cores: one event loop that reads and writes.

It shapes arrivals and deliveries. Requests that come in while the loop is busy are read together
and reach the engine together, which keeps users in step that are in step; a step's outputs cost
something per step and per chunk. Without it a client would see the engine's own, shorter times.

A loop that is late merges: vLLM takes all outputs that wait for it, adds those of one request
together, and writes them as one chunk. That is what bounds its cost under load, and it makes the
gaps that a client sees longer than the engine's steps.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ridgeline.twin.constants import Constants
from ridgeline.twin.request import Request
from ridgeline.twin.scheduler import Decision

At = Callable[[int, Callable[[int], None]], None]

# Of a step with more outputs than this vLLM processes so many at a time, and lets what they woke
# run in between: such steps are not merged (VLLM_V1_OUTPUT_PROC_CHUNK_SIZE).
OUTPUTS_AT_ONCE = 128


class Outputs(NamedTuple):
    """What one step of a replica hands to its API server: outputs of so many requests.

    chunks: that are written; fewer than outputs where only every N-th token leaves.
    """

    replica: int
    step: Decision
    chunks: int
    outputs: int


Deliver = Callable[[Outputs, int], None]


class ApiServer:
    """One event loop. `at(time, call)` calls later; `forward(request, now)` takes what was read.

    `deliver(outputs, when)` takes a step's outputs as soon as it is known when the client has them,
    in the order in which they came.

    It works in turns. A turn writes all outputs that wait and takes what is being read one slice
    further: reading a request (parse, template, tokenise, hand to the engine) gives the loop back
    `receive_hops` times, so that a busy loop delays new requests by as many of its turns. Where
    nothing is to be written, reading goes on alone.
    """

    def __init__(
        self,
        constants: Constants,
        at: At,
        forward: Callable[[Request, int], None],
        deliver: Deliver,
    ) -> None:
        self.busy_ns = 0
        self.prefill_tokens = 0  # prompts passed on whose first token has not come back
        self._constants = constants
        self._at = at
        self._forward = forward
        self._deliver = deliver
        self._outbox: list[Outputs] = []
        self._inbox: deque[Request] = deque()
        self._batch: list[Request] = []  # being read
        self._left_ns = 0  # that the batch still needs
        self._free = 0  # end of what the loop is at
        self._turns = 0  # planned so far; the last one is the one to come
        self._planned = False
        self._alone_since: int | None = None  # nothing but reading since then
        self._slice_ns = 1
        self._send_ns = int(constants.send_step_ns)
        self._send_ns_each = int(constants.send_ns_per_chunk)
        self._detokenise_ns_each = int(constants.detokenise_ns_per_chunk)
        self._network_ns = int(constants.network_ns)

    def receive(self, now: int, request: Request) -> None:
        """A request's bytes arrive."""
        self._inbox.append(request)
        if not self._planned:
            self._plan(max(now, self._free))

    def send(self, now: int, outputs: Outputs) -> None:
        """A step's outputs arrive: they leave at once, or with all that wait for the loop."""
        if self._outbox:
            self._outbox.append(outputs)
        elif not outputs.chunks:
            self._deliver(outputs, now)
        elif self._free <= now and not self._planned:
            self._free = now + self._write([outputs], now)
        else:
            self._outbox.append(outputs)
            if self._alone_since is not None:
                self._cut(now)
            elif not self._planned:
                self._plan(self._free)

    def _plan(self, when: int) -> None:
        self._turns += 1
        number = self._turns
        self._planned = True

        def turn(now: int) -> None:
            if number == self._turns:  # else it was cut
                self._planned = False
                self._turn(now)

        self._at(when, turn)

    def _turn(self, now: int) -> None:
        if self._batch and not self._left_ns:
            for request in self._batch:
                self._forward(request, now)
            self._batch = []
        self._begin_reading()
        waiting = self._due_outputs()
        # Nothing to write: all of it in one go, unless outputs come.
        reads = min(self._left_ns, self._slice_ns) if waiting else self._left_ns
        self._alone_since = now if reads and not waiting else None
        self._left_ns -= reads
        self.busy_ns += reads
        self._free = now + reads
        if waiting:
            self._free += self._write(waiting, now + reads)
        if self._batch or self._inbox or self._outbox:
            self._plan(self._free)

    def _due_outputs(self) -> list[Outputs]:
        """What is written in this turn: all that waits, up to the first that takes several goes."""
        outbox = self._outbox
        for place, outputs in enumerate(outbox, 1):
            if outputs.outputs > OUTPUTS_AT_ONCE:
                self._outbox = outbox[place:]
                return outbox[:place]
        self._outbox = []
        return outbox

    def _begin_reading(self) -> None:
        if self._batch or not self._inbox:
            return
        c, inbox = self._constants, self._inbox
        self._batch = [inbox.popleft() for _ in range(min(len(inbox), c.receive_batch))]
        tokens = sum(request.prompt for request in self._batch)
        self._left_ns = int(len(self._batch) * c.receive_ns + tokens * c.receive_ns_per_token)
        self._slice_ns = max(1, int(self._left_ns / c.receive_hops))

    def _cut(self, now: int) -> None:
        """Outputs have come while the loop was only reading: it writes them after this slice."""
        assert self._alone_since is not None
        slices = -(-(now - self._alone_since) // self._slice_ns)
        when = min(self._alone_since + slices * self._slice_ns, self._free)
        self._left_ns = left = self._free - when
        self.busy_ns -= left
        self._free, self._alone_since = when, None
        self._plan(when)

    def _write(self, waiting: list[Outputs], begin: int) -> int:
        """Detokenise every token, then write one chunk a request, one after another.

        The client has them at the mean over the chunks. Returns what it costs (ns).
        """
        if len(waiting) == 1:  # nearly always
            _, _, chunks, tokens = waiting[0]
        else:
            tokens, chunks = sum(outputs.outputs for outputs in waiting), _merged(waiting)
        sending = self._send_ns_each * chunks
        cost = len(waiting) * self._send_ns + tokens * self._detokenise_ns_each + sending
        self.busy_ns += cost
        when = begin + cost - sending // 2 + self._network_ns
        for outputs in waiting:
            self._deliver(outputs, when)
        return cost


def _merged(waiting: list[Outputs]) -> int:
    """Chunks that steps' outputs make when those of one request are put together.

    Where only every N-th token leaves, steps that follow each other write for different requests.
    Otherwise, of a replica's steps each has the requests of the one before it, without those that
    ended there; what a preemption takes out is not looked at.
    """
    chunks = sum(outputs.chunks for outputs in waiting)
    if chunks < sum(outputs.outputs for outputs in waiting):
        return chunks
    most: dict[int, int] = {}
    ended: dict[int, int] = {}
    for replica, step, chunks, _ in waiting:
        gone = ended.get(replica, 0)
        most[replica] = max(most.get(replica, 0), gone + chunks)
        ended[replica] = gone + len(step.finished)
    return sum(most.values())
