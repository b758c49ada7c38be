"""An engine that holds requests and takes no step, while its /health still says 200."""

import time
from collections.abc import Callable, Iterable

from ridgeline.telemetry.sampling import COUNTERS, Probe, Reading

STALLED_S = 30.0  # the longest step seen on a GPU took a tenth of that
# A CPU computes a prompt of thousands of tokens in one step of minutes, or compiles in it.
STALLED_CPU_S = 300.0


class Quiet:
    """How long the client has been waiting without a single chunk.

    Feed it chunks until now (None: not known) and requests in flight; see `seconds`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._chunks: int | None = None
        self._since_s: float | None = None
        self.in_flight = 0

    def look(self, chunks: int | None, in_flight: int) -> None:
        """Take the client's figures."""
        moved = chunks is None or chunks != self._chunks or 0 in (in_flight, self.in_flight)
        if moved or self._since_s is None:
            self._since_s = self._clock()
        self._chunks, self.in_flight = chunks, in_flight

    @property
    def seconds(self) -> float:
        """Seconds since the last chunk came or nothing was in flight; 0 where it is not known."""
        known = self._since_s is not None and self._chunks is not None and self.in_flight > 0
        return self._clock() - self._since_s if known and self._since_s is not None else 0.0


class StallProbe:
    """Passes another probe's readings on, and sees when the engine stands still.

    `stalled` is how, in words; None until then. It stands still once, for `limit_s` (STALLED_S
    unless given), requests ran or waited while no counter of steps and tokens moved, or once its
    page, which was there before, has been silent as long while the client (`quiet`) got no chunk.
    A page that does not count steps says nothing.
    """

    def __init__(
        self,
        probe: Probe,
        limit_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        quiet: Quiet | None = None,
    ) -> None:
        self._probe = probe
        self._limit_s = STALLED_S if limit_s is None else limit_s
        self._clock = clock
        self._quiet = quiet
        self._counts: tuple[tuple[str, float], ...] = ()
        self._moved_s: float | None = None
        self._told_s: float | None = None
        self.stalled: str | None = None
        self.now: dict[str, float] = {}

    def read(self) -> Iterable[Reading]:
        """What the probe says now; `now` keeps it by metric."""
        readings = list(self._probe.read())
        self.now = {reading.metric: reading.value for reading in readings}
        self._look(self.now)
        return readings

    def close(self) -> None:
        """Close the probe."""
        self._probe.close()

    def _look(self, now: dict[str, float]) -> None:
        if not now:
            self._look_at_silence()
            return
        self._told_s = self._clock()
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

    def _look_at_silence(self) -> None:
        """The page could not be had: a busy server's may be late, but then chunks come."""
        if self._told_s is None or self._quiet is None:
            return
        silent_s, quiet_s = self._clock() - self._told_s, self._quiet.seconds
        if min(silent_s, quiet_s) >= self._limit_s:
            self.stalled = (
                f"its page of counters has been silent for {silent_s:.0f} s, and no chunk came for"
                f" {quiet_s:.0f} s with {self._quiet.in_flight} requests in flight"
            )
