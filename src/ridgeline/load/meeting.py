"""Where those that drive one run together agree on its zero, its window and its end."""

import time
from collections.abc import Callable
from typing import Protocol

from ridgeline.domain.steadystate import onset_of
from ridgeline.load.loop import Loop
from ridgeline.workload.schedule import Schedule


class Meeting(Protocol):
    """Where those that drive one run together agree. Implementations: `Alone`; a worker's line."""

    def zero(
        self, loop: Loop, open_window: Callable[[int], None], end: Callable[[int], None]
    ) -> int:
        """All are connected: the run's zero (monotonic ns), the same for all.

        Later, in the loop, `open_window(at_ns)` may be called with the time from zero at which the
        window begins, and `end(at_ns)` with the (monotonic) time at which it was over.
        """

    def sent_inside(self, sent_ns: int) -> int | None:
        """A request of the window was sent; the window's end when that was the last one wanted."""

    def steady(self, elapsed_ns: int, chunks: int, in_flight: int) -> bool:
        """True when the run is steady now; asked while an automatic warm-up goes on.

        chunks: that have come since zero. False also where another decides it.
        """

    def ended(self, stay_s: float) -> None:
        """A request of the warm-up has ended, after so long."""


class Alone:
    """The meeting of one, who counts and looks for itself."""

    def __init__(self, schedule: Schedule) -> None:
        self._left = schedule.workload.requests
        self._onset = onset_of(schedule.workload, schedule.user_start_ns)

    def zero(
        self, loop: Loop, open_window: Callable[[int], None], end: Callable[[int], None]
    ) -> int:
        """Now, nearly."""
        return time.monotonic_ns() + 1_000_000

    def steady(self, elapsed_ns: int, chunks: int, in_flight: int) -> bool:
        """What the onset says, as often as it wants to look."""
        onset = self._onset
        if onset is None or elapsed_ns < onset.next_s * 1e9:
            return False
        return onset.look(chunks, in_flight)

    def ended(self, stay_s: float) -> None:
        """Tell the onset."""
        if self._onset is not None:
            self._onset.ended(stay_s)

    def sent_inside(self, sent_ns: int) -> int | None:
        """Count it."""
        if self._left is None:
            return None
        self._left -= 1
        return sent_ns + 1 if self._left == 0 else None
