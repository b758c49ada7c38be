"""What one drive has to do: a schedule, where it goes, and the limits of a request."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ridgeline.load.http import Site
from ridgeline.load.traffic import WHOLE, Share
from ridgeline.workload.schedule import PlannedRequest, Schedule

# (request of the schedule, a number that no other request of the run has, index of the site)
# -> the bytes of the HTTP request, in pieces
MakeRequest = Callable[[PlannedRequest, int, int], list[bytes]]


@dataclass(frozen=True, slots=True)
class Limits:
    """Time-outs in ns; None = no limit. grace: how long requests are followed after the window."""

    connect_ns: int
    first_ns: int | None
    gap_ns: int | None
    total_ns: int | None
    grace_ns: int


@dataclass(frozen=True, slots=True)
class Job:
    """What to drive: a schedule (`share` of it), where to, and within which limits.

    With several sites the requests are spread over them by `routing`; several workers each see
    their own. `sites_of[k]`: those that serve class k alone, () = every class goes to all. `hide`
    is a secret that must not appear in failure details.
    """

    schedule: Schedule
    sites: Sequence[Site]
    make_request: MakeRequest
    limits: Limits
    hide: str | None = None
    share: Share = WHOLE
    routing: str = "round-robin"
    sites_of: tuple[tuple[int, ...], ...] = ()
