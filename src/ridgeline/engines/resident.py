"""Engines that stay up between runs, so that runs can be interleaved without paying for starts.

A start costs a minute or two on a GPU. Engines that fit together are started side by side and stay
up; one of them is loaded at a time, the others idle. Where not all fit, they take turns in groups.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from ridgeline.domain.errors import RidgelineError, RunFailed
from ridgeline.domain.knobs import Configuration
from ridgeline.engines.base import Endpoint

MOST_STARTS = 3  # of one configuration: an engine that dies again and again is given up


class LivingEndpoint(Endpoint, Protocol):
    """An endpoint whose processes are ours. Implementations: StartedEndpoint."""

    def alive(self) -> bool:
        """True while every process runs."""


class Starter(Protocol):
    """An Engine whose starts can be given up. Implementations: ServerEngine."""

    name: str

    def start(self, configuration: Configuration) -> AbstractContextManager[LivingEndpoint]:
        """Start it; see Engine.start."""

    def log_to(self, folder: Path) -> None:
        """Write the logs of coming starts there."""

    def abandon(self) -> None:
        """Give up the starts that are going on in other threads."""

    @property
    def left_behind(self) -> tuple[str, ...]:
        """What engines that were stopped have left on this machine, a line each."""


@runtime_checkable
class KeepsEngines(Protocol):
    """An Engine that keeps what it started. Implementations: ResidentEngine."""

    def expect(
        self, groups: Sequence[Sequence[Configuration]], *, together: bool, logs: Path
    ) -> None:
        """Tell which configurations will be asked for and which of them are up side by side."""

    def fresh(self, configuration: Configuration) -> bool:
        """True when its engine has not been loaded since its start (or is yet to be started)."""

    def starts_due(self, configuration: Configuration) -> int:
        """How many engines asking for this one would start now."""

    def close(self) -> None:
        """Take every engine down."""

    @property
    def left_behind(self) -> tuple[str, ...]:
        """What engines that were stopped have left on this machine, a line each."""


@runtime_checkable
class GivesUp(Protocol):
    """An Engine whose starts can be ended from another thread. Implementations: ResidentEngine."""

    def abandon(self) -> None:
        """End the starts that are going on, and those to come; they fail."""


@dataclass(slots=True)
class _Slot:
    """One configuration: its running endpoint, or why there is none."""

    configuration: Configuration
    stack: ExitStack = field(default_factory=ExitStack)
    endpoint: LivingEndpoint | None = None
    error: RidgelineError | None = None
    loads: int = 0
    starts: int = 0

    @property
    def up(self) -> bool:
        """True when it can be loaded."""
        return self.endpoint is not None and self.endpoint.alive()


class ResidentEngine:
    """Keeps the engines of `starter` up; see the ports Engine and KeepsEngines.

    Without `expect` every configuration is alone: asking for one takes the other down. A start
    that failed is not tried again; an engine that died is started anew, MOST_STARTS times in all.
    """

    def __init__(self, starter: Starter) -> None:
        self.name = starter.name
        self._starter = starter
        self._groups: list[list[str]] = []
        self._slots: dict[str, _Slot] = {}
        self._together = True
        self._group: list[str] = []

    def expect(
        self, groups: Sequence[Sequence[Configuration]], *, together: bool, logs: Path
    ) -> None:
        """See KeepsEngines."""
        self._groups = [[self._key(c) for c in group] for group in groups]
        self._together = together
        self._starter.log_to(logs)

    def fresh(self, configuration: Configuration) -> bool:
        """See KeepsEngines."""
        slot = self._slots[self._key(configuration)]
        return slot.error is None and (not slot.up or slot.loads == 0)

    def starts_due(self, configuration: Configuration) -> int:
        """See KeepsEngines."""
        key = self._key(configuration)
        if self._slots[key].up or self._slots[key].error is not None:
            return 0
        group = self._group if key in self._group else self._group_of(key)
        return sum(not s.up and s.error is None for s in map(self._slots.__getitem__, group))

    def abandon(self) -> None:
        """See GivesUp."""
        self._starter.abandon()

    def up(self) -> tuple[Configuration, ...]:
        """The configurations whose engines run now, in the order in which they were asked for."""
        return tuple(slot.configuration for slot in self._slots.values() if slot.up)

    @contextlib.contextmanager
    def start(self, configuration: Configuration) -> Iterator[Endpoint]:
        """The configuration's endpoint, started now unless it is up; it stays up afterwards."""
        with self.visit(configuration) as endpoint:
            self._slots[self._key(configuration)].loads += 1
            yield endpoint

    @contextlib.contextmanager
    def visit(self, configuration: Configuration) -> Iterator[Endpoint]:
        """As `start`, but what is asked of it counts as no load; see `fresh`."""
        key = self._key(configuration)
        slot = self._slots[key]
        if not slot.up and slot.error is None:
            self._bring_up(key)
        if slot.endpoint is None or slot.error is not None:
            raise slot.error or RunFailed("the engine is not up", where="engine")
        yield slot.endpoint

    @property
    def left_behind(self) -> tuple[str, ...]:
        """See KeepsEngines."""
        return self._starter.left_behind

    def close(self) -> None:
        """Take every engine down, side by side: each may take seconds to let go of its GPU."""
        self._take_down(list(self._slots))

    def _group_of(self, key: str) -> list[str]:
        return next((g for g in self._groups if key in g), [key])

    def _key(self, configuration: Configuration) -> str:
        key = repr(configuration)  # holds mappings, so it has no hash
        self._slots.setdefault(key, _Slot(configuration))
        return key

    def _bring_up(self, key: str) -> None:
        """Start what is missing of the key's group, and take down what does not belong to it."""
        if key not in self._group:
            self._group = self._group_of(key)
        self._take_down([k for k in self._slots if k not in self._group])
        slots = [self._slots[k] for k in self._group]
        missing = [s for s in slots if not s.up and s.error is None]
        if not self._together or len(missing) < 2:
            for slot in missing:
                self._start_one(slot)
            return
        with ThreadPoolExecutor(len(missing), "engine-start") as pool:
            try:
                for future in [pool.submit(self._start_one, slot) for slot in missing]:
                    future.result()
            except BaseException:
                self._starter.abandon()  # or leaving the pool would wait for the starts
                raise

    def _start_one(self, slot: _Slot) -> None:
        """Start one engine; what goes wrong is kept in its slot."""
        slot.stack.close()  # of an engine that died
        slot.endpoint, slot.loads = None, 0
        if slot.starts >= MOST_STARTS:
            slot.error = RunFailed(f"the engine died {slot.starts} times, it is given up")
            return
        slot.starts += 1
        try:
            slot.endpoint = slot.stack.enter_context(self._starter.start(slot.configuration))
        except RidgelineError as error:
            slot.error = error

    def _take_down(self, keys: Sequence[str]) -> None:
        slots = [self._slots[k] for k in keys if self._slots[k].endpoint is not None]
        for slot in slots:
            slot.starts -= slot.up  # it makes room: a start that did not end in a death
        threads = [threading.Thread(target=slot.stack.close) for slot in slots]
        for thread in threads:
            thread.start()
        for slot, thread in zip(slots, threads, strict=True):
            thread.join()
            slot.endpoint = None
