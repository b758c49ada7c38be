"""All pools of one `ridgeline serve`: one loop that owns every supervisor."""

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ridgeline.domain.errors import BadInput, RidgelineError, RunFailed
from ridgeline.serving.events import EventLog
from ridgeline.serving.places import Places
from ridgeline.serving.pool import Pool, PoolSpec, Settings

DONE = ("changed", "unchanged")  # how a change comes out well
TURN_S = 0.1
STATE_S = 1.0  # the state file is written so often, and after each event


@dataclass(frozen=True, slots=True)
class Asked:
    """A change that somebody wants. `name`: what its events bear, None where nobody waits for them.

    `load` reads the pools and may take minutes; `keep`: it was carried out.
    """

    name: str | None
    load: Callable[[], Sequence[PoolSpec]]
    keep: Callable[[], None]


class Service:
    """Runs pools until they have ended; `ask_*` may be called from a signal's handler.

    `take` is asked what is wanted when a change is; None: nothing. What its `load` refuses is told.
    `told` is each pool's status, as plain values. Nothing in the loop waits for anything: what may
    take time has a thread of its own and posts what came of it.
    """

    def __init__(
        self, specs: Sequence[PoolSpec], settings: Settings, gpus: Sequence[str],
        events: EventLog, take: Callable[[], Asked | None],
    ) -> None:  # fmt: skip
        self._steps: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        places = Places(gpus)
        self.pools = [Pool(spec, settings, places, events, self._steps.put) for spec in specs]
        self._events, self._take, self._gpus = events, take, len(gpus)
        self._reading = False
        self._under_way: Asked | None = None
        self._stops = self._seen_stops = 0
        self._change_asked = False
        self._state_s, self._told = 0.0, 0
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
            self._conclude()
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
        if self._change_asked and self._stops == 0 and not self._reading:
            self._change_asked = False
            asked = self._take()
            if asked is not None:
                self._reading = True
                work = partial(self._read, asked)
                threading.Thread(target=work, name="change", daemon=True).start()

    def _read(self, asked: Asked) -> None:
        """In a thread: to check options may take minutes (a vLLM is imported for it)."""
        words, specs = "", None
        try:
            specs = list(asked.load())
        except RidgelineError as error:
            words = str(error)
        except Exception as error:  # told; what runs is not to end by it
            words = f"{type(error).__name__}: {error}"
        self._steps.put(partial(self._change, asked, specs, words))

    def _change(self, asked: Asked, specs: Sequence[PoolSpec] | None, words: str) -> None:
        self._reading = False
        if self._stops:
            words = words or "it is being stopped"
        try:
            if words or specs is None:
                raise RunFailed(words)
            by_name = {spec.name: spec for spec in specs}
            self._check(by_name)
        except RidgelineError as error:
            self._events.tell("refused", f"nothing was changed: {error}", request=asked.name)
            return
        for pool in self.pools:
            pool.change(by_name[pool.spec.name], asked.name)
        self._under_way = asked

    def _check(self, by_name: dict[str, PoolSpec]) -> None:
        """Raises what forbids the change, before anything of what runs is touched."""
        if set(by_name) != {pool.spec.name for pool in self.pools}:
            raise BadInput(
                "pools are neither added nor taken away in a change", where=", ".join(by_name),
                fix="stop and start again",
            )  # fmt: skip
        needed = sum(w.count * w.gpus_each for w in (spec.wanted(0) for spec in by_name.values()))
        if needed > self._gpus:
            raise BadInput(
                f"the configuration needs {needed} GPUs, {self._gpus} are to be used",
                where="GPUs", fix="lower data_parallel_size or tensor_parallel_size",
            )  # fmt: skip
        for pool in self.pools:
            pool.check(by_name[pool.spec.name])

    def _conclude(self) -> None:
        """A change that came out well is what a later one is read from."""
        outcomes = [pool.outcome for pool in self.pools]
        if self._under_way is None or None in outcomes:
            return
        asked, self._under_way = self._under_way, None
        if all(outcome in DONE for outcome in outcomes):
            asked.keep()

    def _write_state(self, *, ended: bool) -> None:
        now = time.monotonic()
        told = self._events.count
        if now - self._state_s < STATE_S and told == self._told and not ended:
            return
        self._state_s, self._told = now, told
        self._events.state({"pid": None if ended else os.getpid(), "pools": self.told})
