"""The bytes of a request."""

from collections.abc import Sequence
from typing import Protocol

from ridgeline.load.http import JOIN_BYTES
from ridgeline.workload.schedule import PlannedRequest


class MakesBodies(Protocol):
    """Makes the bodies of a run's requests."""

    def parts(self, planned: PlannedRequest, identity: int) -> list[bytes]:
        """One body in pieces."""


class RequestMaker:
    """Makes the requests of one run; a `job.MakeRequest`.

    `heads[target]` is a request's head up to the value of Content-Length. It can be pickled (with
    bodies that can), so that workers make their requests themselves.
    """

    def __init__(self, bodies: MakesBodies, heads: Sequence[bytes]) -> None:
        self._bodies, self._heads = bodies, heads

    def __call__(self, planned: PlannedRequest, identity: int, target: int) -> list[bytes]:
        """One request, in pieces when it is long."""
        body = self._bodies.parts(planned, identity)
        size = sum(map(len, body))
        head = b"%b%d\r\n\r\n" % (self._heads[target], size)
        return [b"".join((head, *body))] if size <= JOIN_BYTES else [head, *body]
