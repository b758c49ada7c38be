"""All pools of one `ridgeline serve`: one loop that owns every supervisor."""

import os
import queue
import time
from collections.abc import Callable, Sequence

from ridgeline.domain.errors import RidgelineError
from ridgeline.serving.events import EventLog
from ridgeline.serving.places import Places
from ridgeline.serving.pool import Pool, PoolSpec, Settings

TURN_S = 0.1
STATE_S = 1.0  # the state file is written so often, and after each event


class Service:
    """Runs pools until they have ended; `ask_*` may be called from a signal's handler.

    `changed` is asked for the new pools when a change is wanted; what it refuses is told. `told` is
    each pool's status, as plain values.
    """

    def __init__(
        self, specs: Sequence[PoolSpec], settings: Settings, gpus: Sequence[str],
        events: EventLog, changed: Callable[[], Sequence[PoolSpec]],
    ) -> None:  # fmt: skip
        self._steps: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        places = Places(gpus)
        self.pools = [Pool(spec, settings, places, events, self._steps.put) for spec in specs]
        self._events, self._changed = events, changed
        self._stops = self._seen_stops = 0
        self._change_asked = False
        self._state_s = 0.0
        # what another thread may read: the last status, made by the one that owns the pools
        self.told: list[dict[str, object]] = []

    def ask_stop(self) -> None:
        """Stop; asked a second time: at once."""
        self._stops += 1

    def ask_change(self) -> None:
        """Read the configuration again."""
        self._change_asked = True

    @property
    def failure(self) -> str | None:
        """Why a pool has ended by itself; None when none has."""
        failures = [p.supervisor.failure for p in self.pools if p.supervisor.failure is not None]
        return failures[0] if failures else None

    def run(self, shown: Callable[[], None] = lambda: None) -> None:
        """Until every pool has ended. One that ends by itself ends the others too.

        `shown` is called each turn.
        """
        for pool in self.pools:
            pool.begin()
        ended = False
        while not ended:
            self._take_steps()
            self._heed()
            for pool in self.pools:
                pool.look()
            if self.failure is not None and self._stops == 0:
                self._stops = 1
            ended = sum(pool.ended() for pool in self.pools) == len(self.pools)
            self.told = [pool.status() for pool in self.pools]
            self._write_state(ended=ended)
            shown()

    def _take_steps(self) -> None:
        """Everything that was posted, or a turn's wait."""
        try:
            self._steps.get(timeout=TURN_S)()
            while True:
                self._steps.get_nowait()()
        except queue.Empty:
            return

    def _heed(self) -> None:
        """What was asked for since the last turn."""
        if self._stops > self._seen_stops:
            now = self._stops > 1
            self._seen_stops = self._stops
            for pool in self.pools:
                pool.stop(now=now)
        if self._change_asked and self._stops == 0:
            self._change_asked = False
            try:
                by_name = {spec.name: spec for spec in self._changed()}
                self._change(by_name)
            except RidgelineError as error:
                self._events.tell("refused", f"nothing was changed: {error}")

    def _change(self, by_name: dict[str, PoolSpec]) -> None:
        if set(by_name) != {pool.spec.name for pool in self.pools}:
            words = "pools are neither added nor taken away in a change: stop and start again"
            self._events.tell("refused", words)
            return
        for pool in self.pools:
            pool.change(by_name[pool.spec.name])

    def _write_state(self, *, ended: bool) -> None:
        now = time.monotonic()
        if now - self._state_s < STATE_S and not ended:
            return
        self._state_s = now
        self._events.state({"pid": None if ended else os.getpid(), "pools": self.told})
