"""Pools of replicas side by side on one clock: the class of a request says which pool has it."""

from collections.abc import Callable, Sequence

from ridgeline.twin.fleet import Fleet, Listener, Twin
from ridgeline.twin.replica import Replica
from ridgeline.twin.request import Request


class PooledFleet:
    """A fleet for each of `twins`; `pool_of[k]` is the place of the one that has class k.

    Its replicas are numbered through: those of the first pool, then those of the next. Pools share
    nothing but the clock: each has its own router, API servers and limits on what it takes.
    """

    def __init__(
        self,
        twins: Sequence[Twin],
        pool_of: Sequence[int],
        listener: Listener,
        *,
        routing: str = "round-robin",
    ) -> None:
        self.routing = routing
        self.pools: list[Fleet] = []
        for twin in twins:
            first = sum(len(pool.replicas) for pool in self.pools)
            lead = self.pools[0] if self.pools else None
            self.pools.append(Fleet(twin, listener, routing=routing, beside=lead, first=first))
        self.twin = twins[0]
        self.replicas: list[Replica] = [r for pool in self.pools for r in pool.replicas]
        self.servers = [s for pool in self.pools for s in pool.servers]
        self._pool_of = tuple(pool_of)
        self._lead = self.pools[0]

    @property
    def now(self) -> int:
        """The simulation's time."""
        return self._lead.now

    @property
    def next_ns(self) -> int | None:
        """Time of the next event, None when nothing is left to happen."""
        return self._lead.next_ns

    def at(self, time: int, call: Callable[[int], None]) -> None:
        """Call `call(time)` when the simulation gets there."""
        self._lead.at(time, call)

    def run_until(self, end: int | None) -> None:
        """Handle all events before `end` (all there are when it is None)."""
        self._lead.run_until(end)

    def submit(self, request: Request, now: int) -> None:
        """A client sends a request now; its class has its pool, whose router has its replica."""
        self.pools[self._pool_of[request.kind]].submit(request, now)


AnyFleet = Fleet | PooledFleet


def fleet_of(
    twins: Sequence[Twin], pool_of: Sequence[int], listener: Listener, routing: str = "round-robin"
) -> AnyFleet:
    """One twin is a fleet for everybody; several are pools by class."""
    if len(twins) == 1:
        return Fleet(twins[0], listener, routing=routing)
    return PooledFleet(twins, pool_of, listener, routing=routing)


def fleets_in(fleet: AnyFleet) -> Sequence[Fleet]:
    """The pools of a fleet; one without pools is its own."""
    return fleet.pools if isinstance(fleet, PooledFleet) else (fleet,)
