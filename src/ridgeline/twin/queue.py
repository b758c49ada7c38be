"""The waiting queue under the priority policy."""

from bisect import insort

from ridgeline.twin.request import Request


def rank(request: Request) -> tuple[int, int, int]:
    """Who comes first: the smaller priority value, then the earlier arrival."""
    return request.priority, request.sent_ns, request.number


class PriorityQueue(list[Request]):
    """Sorted by `rank`, with the names of the plain queue; the front is no place of its own."""

    def append(self, request: Request) -> None:
        """Insert at its rank."""
        insort(self, request, key=rank)

    def appendleft(self, request: Request) -> None:
        """Insert at its rank: a preempted request gets no better place than its priority's."""
        insort(self, request, key=rank)

    def popleft(self) -> Request:
        """Take the first out."""
        return self.pop(0)
