"""An engine that holds requests and takes no step, while its /health still says 200."""

import time
from collections.abc import Callable, Iterable

from ridgeline.telemetry.sampling import COUNTERS, Probe, Reading

STALLED_S = 30.0  # the longest step seen on a GPU took a tenth of that


class StallProbe:
    """Passes another probe's readings on, and sees when the engine stands still.

    `stalled` is how, in words, once requests ran or waited for `limit_s` (STALLED_S unless
    given) while no counter of steps and tokens moved; None until then. A page that does not count
    steps says nothing.
    """

    def __init__(
        self,
        probe: Probe,
        limit_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._probe = probe
        self._limit_s = STALLED_S if limit_s is None else limit_s
        self._clock = clock
        self._counts: tuple[tuple[str, float], ...] = ()
        self._moved_s: float | None = None
        self.stalled: str | None = None

    def read(self) -> Iterable[Reading]:
        """What the probe says now."""
        readings = list(self._probe.read())
        self._look({reading.metric: reading.value for reading in readings})
        return readings

    def close(self) -> None:
        """Close the probe."""
        self._probe.close()

    def _look(self, now: dict[str, float]) -> None:
        if not now:
            return  # the page could not be had: nothing is known
        counted = "steps" in now  # llama.cpp counts tokens only once a request has ended
        # a long prompt takes steps without output, which are not counted: its KV cache grows
        names = (*COUNTERS.values(), "kv_use")
        counts = tuple((name, now[name]) for name in names if name in now)
        running, waiting = now.get("running", 0.0), now.get("waiting", 0.0)
        at = self._clock()
        if not counted or counts != self._counts or running + waiting == 0:
            self._counts, self._moved_s = counts, at
        elif self._moved_s is not None and at - self._moved_s >= self._limit_s:
            self.stalled = (
                f"no step and no token for {at - self._moved_s:.0f} s with {running:.0f} requests"
                f" running and {waiting:.0f} waiting"
            )
