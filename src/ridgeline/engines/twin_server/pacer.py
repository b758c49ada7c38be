"""When each token leaves: the port, and the pacer whose latencies are fixed.

`live.py` has the other implementation, the simulated engine.
"""

import heapq
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ridgeline.engines.twin_server.histogram import Histogram

# (key of the stream, planned time in monotonic ns, tokens that leave)
Send = Callable[[Hashable, int, int], None]


@dataclass(frozen=True, slots=True)
class EngineState:
    """What one engine's metrics say at this moment. None = this pacer has no such thing.

    Counters are totals since the start, in tokens where the name says so.
    """

    running: int
    waiting: int
    kv_usage: float | None = None
    prefix_queried_tokens: int | None = None
    prefix_hit_tokens: int | None = None
    preemptions: int | None = None
    iteration_tokens: Histogram | None = None


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """Engine-side times of a finished stream, monotonic ns. None = this pacer has no such thing."""

    scheduled_ns: int | None = None
    cached_tokens: int | None = None


class Pacer(Protocol):
    """Decides when the tokens of the open streams leave."""

    def add(
        self,
        key: Hashable,
        prompt: Sequence[object],
        output_tokens: int,
        arrival_ns: int,
        priority: int = 0,
    ) -> int:
        """Take a request in and return the number of the engine that has it.

        `prompt` is its tokens, `arrival_ns` when its last byte came. A smaller `priority` comes
        first, where the engine's policy looks at it.
        """

    def deliver(self, now_ns: int, send: Send) -> int | None:
        """Call `send` for everything planned up to `now_ns`; return the next planned time.

        `send` may call `cancel`. None = nothing is planned.
        """

    def cancel(self, key: Hashable) -> StreamTimes:
        """Forget a stream, finished or not; return what was known of it."""

    def state(self) -> list[EngineState]:
        """The engines' gauges and counters, one entry each."""


class _Fixed:
    """One stream: token k (from 0) leaves at first_ns + k * gap_ns."""

    __slots__ = ("first_ns", "key", "left", "sent")

    def __init__(self, key: Hashable, first_ns: int, tokens: int) -> None:
        self.key = key
        self.first_ns = first_ns
        self.left = tokens
        self.sent = 0


class FixedPacer:
    """Every stream gets the same first-token time and gap, whatever the load.

    Deadlines are absolute, so a late token never delays the ones after it.
    """

    def __init__(self, ttft_ns: int, itl_ns: int) -> None:
        self._ttft_ns = ttft_ns
        self._itl_ns = itl_ns
        self._heap: list[tuple[int, int, _Fixed]] = []  # (due, order of arrival, stream)
        self._open: dict[Hashable, _Fixed] = {}
        self._order = 0

    def add(
        self,
        key: Hashable,
        prompt: Sequence[object],
        output_tokens: int,
        arrival_ns: int,
        priority: int = 0,
    ) -> int:
        """See Pacer. There is no queue, so no priority."""
        stream = _Fixed(key, arrival_ns + self._ttft_ns, output_tokens)
        self._open[key] = stream
        self._order += 1
        heapq.heappush(self._heap, (stream.first_ns, self._order, stream))
        return 0

    def deliver(self, now_ns: int, send: Send) -> int | None:
        """See Pacer."""
        heap = self._heap
        while heap and heap[0][0] <= now_ns:
            due, order, stream = heap[0]
            if stream.left <= 0:  # cancelled
                heapq.heappop(heap)
                continue
            stream.left -= 1
            stream.sent += 1
            if stream.left:
                heapq.heapreplace(
                    heap, (stream.first_ns + stream.sent * self._itl_ns, order, stream)
                )
            else:
                heapq.heappop(heap)
            send(stream.key, due, 1)
        return heap[0][0] if heap else None

    def cancel(self, key: Hashable) -> StreamTimes:
        """See Pacer."""
        stream = self._open.pop(key, None)
        if stream is not None:
            stream.left = 0
        return StreamTimes()

    def state(self) -> list[EngineState]:
        """See Pacer. There is no queue and no cache."""
        return [EngineState(running=len(self._open), waiting=0)]
