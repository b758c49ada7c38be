"""Which site a request goes to: of those that its class has, a router chooses one."""

from collections.abc import Sequence

from ridgeline.domain.routing import Router
from ridgeline.workload.schedule import PlannedRequest


class Targets:
    """The sites 0 to `sites` - 1, of which class k has `sites_of[k]`; () = all have all.

    Classes with the same sites share a router, which counts what is on its way to them.
    """

    def __init__(self, routing: str, sites: int, sites_of: Sequence[tuple[int, ...]] = ()) -> None:
        self.several = sites > 1
        pools = dict.fromkeys(sites_of) or {tuple(range(sites)): None}
        self._routers = {pool: Router(routing, len(pool)) for pool in pools}
        self._pool_of = list(sites_of) or list(pools)
        self._router_of = {site: (self._routers[p], p.index(site)) for p in pools for site in p}

    def choose(self, planned: PlannedRequest) -> int:
        """The site of a request, which is on its way there until `ended`."""
        if not self.several:
            return 0
        pool = self._pool_of[(planned.traffic_class or 0) if len(self._pool_of) > 1 else 0]
        prefix = planned.prefix
        return pool[self._routers[pool].choose(prefix[0].key if prefix else None)]

    def ended(self, site: int) -> None:
        """A request that was sent there has come back, or was given up."""
        if self.several:
            router, place = self._router_of[site]
            router.ended(place)
