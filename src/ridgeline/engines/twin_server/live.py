"""The pacer that is the twin: requests go through the simulated engine as real time passes.

The simulation's clock is the monotonic clock from the pacer's start. Events are handled when their
time has come; what a step delivers is sent at the time at which the simulated client gets it.
"""

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Hashable, Sequence
from itertools import count

from ridgeline.engines.twin_server.histogram import Histogram
from ridgeline.engines.twin_server.pacer import EngineState, Send, StreamTimes
from ridgeline.twin.fleet import Fleet, Twin
from ridgeline.twin.live import abort
from ridgeline.twin.replica import Replica
from ridgeline.twin.request import Request
from ridgeline.twin.scheduler import Decision

ITERATION_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_MOST_GROUPS = 4096


class TwinPacer:
    """Paces streams by a `Fleet`. Not for more than one thread."""

    def __init__(
        self, twin: Twin, origin_ns: int | None = None, routing: str = "round-robin"
    ) -> None:
        """`origin_ns` is the monotonic time of the simulation's zero, by default now."""
        self._fleet = Fleet(twin, self, routing=routing, trace=True)
        self._origin_ns = time.monotonic_ns() if origin_ns is None else origin_ns
        self._numbers = count()
        self._prefixes = Prefixes(twin.knobs.block_size) if twin.knobs.prefix_caching else None
        self._requests: dict[Hashable, Request] = {}
        self._keys: dict[int, Hashable] = {}  # request number -> key, of open streams
        # Per replica, because deliveries of one replica are in time order.
        self._due: list[deque[tuple[int, list[int]]]] = [deque() for _ in self._fleet.replicas]
        self._steps = [Histogram(ITERATION_TOKENS) for _ in self._fleet.replicas]

    # -- Pacer -----------------------------------------------------------------------------------

    def add(
        self,
        key: Hashable,
        prompt: Sequence[object],
        output_tokens: int,
        arrival_ns: int,
        priority: int = 0,
    ) -> int:
        """See Pacer."""
        # The simulation may have gone past the arrival by the time that reading it took.
        now = max(self._fleet.now, arrival_ns - self._origin_ns)
        self._fleet.run_until(now)
        group, shared = self._prefixes.find(prompt) if self._prefixes is not None else (None, 0)
        request = Request(
            next(self._numbers),
            len(prompt),
            output_tokens,
            group=group,
            shared_tokens=shared,
            sent_ns=now,
            priority=priority,
        )
        self._requests[key] = request
        self._keys[request.number] = key
        self._fleet.submit(request, now)
        return request.replica

    def deliver(self, now_ns: int, send: Send) -> int | None:
        """See Pacer."""
        origin = self._origin_ns
        self._fleet.run_until(now_ns - origin + 1)
        for queue in self._due:
            while queue and queue[0][0] + origin <= now_ns:
                at, numbers = queue.popleft()
                tokens = Counter(numbers)
                while queue and queue[0][0] == at:  # merged by the API server: one chunk a request
                    tokens.update(queue.popleft()[1])
                for number, chunk in tokens.items():
                    key = self._keys.get(number)
                    if key is not None:  # None: the client left meanwhile
                        send(key, at + origin, chunk)
        times = [queue[0][0] for queue in self._due if queue]
        if self._fleet.next_ns is not None:
            times.append(self._fleet.next_ns)
        return min(times) + origin if times else None

    def cancel(self, key: Hashable) -> StreamTimes:
        """See Pacer."""
        request = self._requests.pop(key, None)
        if request is None:
            return StreamTimes()
        del self._keys[request.number]
        if request.last_ns is None:
            abort(self._fleet, request)
        scheduled = request.scheduled_ns
        return StreamTimes(
            scheduled_ns=None if scheduled is None else scheduled + self._origin_ns,
            cached_tokens=request.cached,
        )

    def state(self) -> list[EngineState]:
        """See Pacer."""
        states = []
        for replica, steps in zip(self._fleet.replicas, self._steps, strict=True):
            scheduler = replica.scheduler
            states.append(
                EngineState(
                    running=len(scheduler.running),
                    waiting=len(scheduler.waiting),
                    kv_usage=scheduler.pool.used / scheduler.pool.capacity,
                    prefix_queried_tokens=scheduler.queried_tokens,
                    prefix_hit_tokens=scheduler.hit_tokens,
                    preemptions=scheduler.preemptions,
                    iteration_tokens=steps,
                )
            )
        return states

    # -- Listener --------------------------------------------------------------------------------

    def delivered(self, replica: Replica, decision: Decision, at_ns: int) -> None:
        """A step's chunks will reach their clients at `at_ns`."""
        assert decision.trace is not None
        if decision.outputs:  # the front end is not told of others
            new = (r for r in decision.firsts if r.first_ns == at_ns)  # others were preempted
            prompts = sum(r.prompt - r.cached for r in new)
            self._steps[replica.number].observe(prompts + decision.outputs)
        ended = {request.number for request in decision.firsts}
        unfinished = {r.number for r, _, _ in decision.prefills} - ended
        numbers = [number for number in decision.trace if number not in unfinished]
        if numbers:
            self._due[replica.number].append((at_ns, numbers))
        # A server may run for days: steps are kept as long as the replica itself looks at them.
        replica.rows.clear()
        del replica.delivered[:-1]

    def finished(self, request: Request) -> None:
        """Nothing to do: the last chunk is among those delivered."""


class Prefixes:
    """Which group of shared prefixes a prompt belongs to, and how much of it is shared.

    The simulated cache knows groups, not texts. A prompt belongs to the group of the prompts that
    begin with the same block, and shares with it what it has in common with the group's reference:
    the first prompt seen, or a later one that continues it (a conversation's next turn). Two
    prompts that have more in common with each other than with the reference are credited with
    less than a real cache would find. The groups used last are remembered.
    """

    def __init__(self, block_size: int) -> None:
        self._block = block_size
        self._groups: OrderedDict[tuple[object, ...], tuple[int, Sequence[object]]] = OrderedDict()
        self._ids = count()

    def find(self, prompt: Sequence[object]) -> tuple[int | None, int]:
        """(group, shared tokens); no group for a prompt that does not fill a block."""
        if len(prompt) < self._block:
            return None, 0
        head = tuple(prompt[: self._block])
        known = self._groups.pop(head, None)
        group, reference = known if known is not None else (next(self._ids), prompt)
        shared = _common(reference, prompt)
        if shared == len(reference):
            reference, shared = prompt, len(prompt)
        self._groups[head] = (group, reference)
        if len(self._groups) > _MOST_GROUPS:
            self._groups.popitem(last=False)
        return group, shared


def _common(one: Sequence[object], other: Sequence[object]) -> int:
    """Length of the common beginning, by halving: comparing slices is fast, words are not."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
