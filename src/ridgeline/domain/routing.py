"""Which replica gets the next request: the rules of a router in front of several engines.

A router sees what it has sent and what has come back, and nothing of the engines' insides. The
client follows the same rules when it balances over several servers itself.
"""

from collections import OrderedDict
from collections.abc import Hashable

ROUTINGS = ("round-robin", "least-loaded", "prefix-aware")
# A prefix-aware router leaves a replica that knows the prefix only when it has this many requests
# more, and this many times as many, as the one with the fewest: the two limits of cache-aware
# routers. The first keeps a small fleet from hopping, the second a large one.
AHEAD = 16
TIMES = 1.5
REMEMBERED = 65_536  # prefixes; the longest unused one is forgotten


class Router:
    """Chooses among `replicas` by a rule of ROUTINGS. Deterministic.

    round-robin: each in turn. least-loaded: the fewest requests on their way; among equals the next
    in turn. prefix-aware: the least loaded of those that were sent this prefix before, unless that
    one is far ahead of the least loaded of all; requests without a shared prefix go there, too.
    """

    def __init__(self, rule: str, replicas: int) -> None:
        assert rule in ROUTINGS
        self._rule = rule
        self._replicas = replicas
        self._next = 0
        self.in_flight = [0] * replicas
        self._knows: OrderedDict[Hashable, list[int]] = OrderedDict()

    def choose(self, prefix: Hashable | None = None) -> int:
        """The replica of the next request, which counts as on its way there until `ended`."""
        if self._replicas == 1 or self._rule == "round-robin":
            chosen = self._next
        elif self._rule == "least-loaded" or prefix is None:
            chosen = self._least(range(self._replicas))
        else:
            chosen = self._by_prefix(prefix)
        self._next = (chosen + 1) % self._replicas
        self.in_flight[chosen] += 1
        return chosen

    def ended(self, replica: int) -> None:
        """A request that was sent there has come back, or was given up."""
        self.in_flight[replica] -= 1

    def _least(self, among: range | list[int]) -> int:
        """The least loaded; among equals the first from the next in turn on."""
        return min(among, key=lambda r: (self.in_flight[r], (r - self._next) % self._replicas))

    def _by_prefix(self, prefix: Hashable) -> int:
        least = self._least(range(self._replicas))
        known = self._knows.get(prefix)
        if known is None:
            self._knows[prefix] = [least]
            if len(self._knows) > REMEMBERED:
                self._knows.popitem(last=False)
            return least
        self._knows.move_to_end(prefix)
        chosen = self._least(known)
        load, fewest = self.in_flight[chosen], self.in_flight[least]
        if load - fewest >= AHEAD and load >= TIMES * fewest:
            known.append(least)
            return least
        return chosen
