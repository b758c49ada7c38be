"""Has the server stopped answering? A stepped load ends then, instead of going on to its next step.

A server that is only slow brings something for somebody now and then. One from which nothing came
for any request, for half of a step or for LONGEST_NS, while requests were on their way, stands.
"""

from collections.abc import Iterable

from ridgeline.domain.workload import Workload

LONGEST_NS = 30_000_000_000
LEAST_NS = 1_000_000_000  # no step is so short that less would tell


class StallWatch:
    """Looks at the steps of a load. Times are ns from the run's zero."""

    def __init__(self, workload: Workload) -> None:
        at_ns = round(workload.warmup_s * 1e9)
        self._ends: list[tuple[int, int]] = []  # (end of the step, silence that it can bear)
        for step in workload.arrivals.steps:
            length = round(step.for_s * 1e9)
            at_ns += length
            self._ends.append((at_ns, min(LONGEST_NS, max(LEAST_NS, length // 2))))

    def silent_ns(self, now_ns: int, last_ns: int, waiting_ns: Iterable[int]) -> int | None:
        """How long nothing has come, when that is too long; None otherwise.

        last_ns: when something came last, for whomever. waiting_ns: since when each request that is
        on its way waits.
        """
        limit = next((limit for end, limit in self._ends if now_ns < end), None)
        if limit is None or now_ns - last_ns <= limit:
            return None
        since = max(last_ns, min(waiting_ns, default=now_ns))
        return now_ns - since if now_ns - since > limit else None
