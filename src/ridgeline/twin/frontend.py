"""The API server in front of the engine cores: one event loop, first come first served.

It shapes arrivals (tokenising takes its time, one request after another) and deliveries (a cost
per step and per chunk). Without it a client would see the engine's latencies, which are shorter.
"""

from ridgeline.twin.constants import Constants


class ApiServer:
    """When work that reaches the event loop at a time is done. Calls must come in time order."""

    __slots__ = ("_constants", "_free", "busy_ns")

    def __init__(self, constants: Constants) -> None:
        self._constants = constants
        self._free = 0
        self.busy_ns = 0

    def receive(self, at: int, prompt_tokens: int) -> int:
        """A request comes in; when the engine core has it."""
        c = self._constants
        return self._work(at, int(c.receive_ns + prompt_tokens * c.receive_ns_per_token))

    def send(self, at: int, chunks: int) -> int:
        """A step's outputs come in; when the client has them (the mean over its chunks).

        All chunks are detokenised first, then written one after another.
        """
        c = self._constants
        sending = int(chunks * c.send_ns_per_chunk)
        done = self._work(at, int(c.send_step_ns + chunks * c.detokenise_ns_per_chunk) + sending)
        return done - sending // 2 + int(c.network_ns)

    def _work(self, at: int, cost: int) -> int:
        self._free = max(self._free, at) + cost
        self.busy_ns += cost
        return self._free
