"""Engines that stay up from one question of the tuner to the next, as long as there is room.

A study knows all its configurations before the first start; a tuner learns the next ones from what
it measured. Starts are what costs most, so nothing is taken down before its place is needed.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, runtime_checkable

from ridgeline.domain.knobs import Configuration
from ridgeline.engines.base import Endpoint, Engine
from ridgeline.engines.resident import GivesUp, KeepsEngines


@runtime_checkable
class Resident(KeepsEngines, Protocol):
    """What keeps engines up and tells which are. Implementations: ResidentEngine."""

    name: str

    def start(self, configuration: Configuration) -> AbstractContextManager[Endpoint]:
        """See Engine.start."""

    def visit(self, configuration: Configuration) -> AbstractContextManager[Endpoint]:
        """As `start`, but it counts as no load."""

    def up(self) -> tuple[Configuration, ...]:
        """The configurations whose engines run now."""

    def abandon(self) -> None:
        """See GivesUp."""


class LastingEngine:
    """An Engine (and KeepsEngines) that outlives the plans in which it is used; close with `end`.

    `places`: how many engines may be up side by side. `first`: stays before any other.
    """

    def __init__(self, inner: Resident, places: int, first: Configuration) -> None:
        self.name = inner.name
        self._inner, self._places, self._first = inner, places, first

    def expect(
        self, groups: Sequence[Sequence[Configuration]], *, together: bool, logs: Path
    ) -> None:
        """See KeepsEngines; what is up joins the coming group where places are left."""
        if len(groups) == 1:
            groups = [self._joined(groups[0])]
        self._inner.expect(groups, together=together, logs=logs)

    def fresh(self, configuration: Configuration) -> bool:
        """See KeepsEngines."""
        return self._inner.fresh(configuration)

    def starts_due(self, configuration: Configuration) -> int:
        """See KeepsEngines."""
        return self._inner.starts_due(configuration)

    def close(self) -> None:
        """The end of a plan is no end of its engines; see `end`."""

    @property
    def left_behind(self) -> tuple[str, ...]:
        """See KeepsEngines."""
        return self._inner.left_behind

    def abandon(self) -> None:
        """See GivesUp."""
        self._inner.abandon()

    def end(self) -> None:
        """Take every engine down."""
        self._inner.close()

    def is_up(self, configuration: Configuration) -> bool:
        """Whether its engine runs now."""
        return configuration in self._inner.up()

    @contextlib.contextmanager
    def start(self, configuration: Configuration) -> Iterator[Endpoint]:
        """See Engine.start."""
        with self._inner.start(configuration) as endpoint:
            yield endpoint

    @contextlib.contextmanager
    def visit(self, configuration: Configuration) -> Iterator[Endpoint]:
        """As `start`, but it counts as no load: the first of a fresh engine is still to come."""
        with self._inner.visit(configuration) as endpoint:
            yield endpoint

    def _joined(self, group: Sequence[Configuration]) -> list[Configuration]:
        """The group with those that are up, as far as places and the GPU's memory go."""
        found = list(group)
        others = [c for c in reversed(self._inner.up()) if c not in found]
        for other in sorted(others, key=lambda c: c != self._first):
            shares = [c.knobs.gpu_memory_utilization or 0.0 for c in (*found, other)]
            if len(found) < self._places and sum(shares) <= 1.0 + 1e-9:
                found.append(other)
        return found


class _Kept(KeepsEngines, GivesUp, Engine, Protocol):
    """All that the runner asks of an engine that is kept."""


def _lasting(engine: _Kept) -> _Kept:
    """The engine, held to the ports when types are checked: the runner asks for them at run time,
    and one member less made it start every engine anew, without a word.
    """
    return engine


class LastingEngines:
    """The engines of one tuning by name; each is made once. A context: it ends them all."""

    def __init__(
        self, engine_for: Callable[[str], Engine], places: int, first: Configuration
    ) -> None:
        self._engine_for, self._places, self._first = engine_for, places, first
        self._made: dict[str, Engine] = {}

    def __call__(self, name: str) -> Engine:
        """The engine of that name."""
        if name not in self._made:
            made = self._engine_for(name)
            if isinstance(made, Resident):
                made = _lasting(LastingEngine(made, self._places, self._first))
            self._made[name] = made
        return self._made[name]

    def is_up(self, configuration: Configuration) -> bool:
        """Whether its engine runs now; what needs no start always does."""
        engine = self(configuration.engine)
        return not isinstance(engine, LastingEngine) or engine.is_up(configuration)

    @property
    def engine_for(self) -> Callable[[str], Engine]:
        """What makes them."""
        return self._engine_for

    def release(self) -> None:
        """Take every engine down: others need the GPUs. They start again when they are asked."""
        for engine in self._made.values():
            if isinstance(engine, LastingEngine):
                engine.end()

    def abandon(self) -> None:
        """Give up the starts that are going on."""
        for engine in self._made.values():
            if isinstance(engine, LastingEngine):
                engine.abandon()

    def __enter__(self) -> "LastingEngines":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
