"""Engines that stay up: who is up when, what a failed or dead one does, and that all go down."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ridgeline.domain.errors import RunFailed
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.engines.resident import MOST_STARTS, KeepsEngines, ResidentEngine


def configuration(seqs: int) -> Configuration:
    return Configuration("m", Knobs(max_num_seqs=seqs), engine="fake")


@dataclass
class FakeServer:
    seqs: int
    living: bool = True

    def alive(self) -> bool:
        return self.living


@dataclass
class FakeStarter:
    """Notes every start and stop; `together` makes starts wait for each other."""

    name: str = "fake"
    fails: tuple[int, ...] = ()
    together: threading.Barrier | None = None
    events: list[str] = field(default_factory=list)
    up: dict[int, FakeServer] = field(default_factory=dict)
    abandoned: bool = False

    @contextlib.contextmanager
    def start(self, wanted: Configuration) -> Iterator[FakeServer]:
        seqs = wanted.knobs.max_num_seqs or 0
        self.events.append(f"start {seqs}")
        if self.together is not None:
            self.together.wait(10)
        if seqs in self.fails:
            raise RunFailed("CUDA out of memory")
        self.up[seqs] = FakeServer(seqs)
        try:
            yield self.up[seqs]
        finally:
            self.events.append(f"stop {seqs}")
            self.up.pop(seqs, None)

    def log_to(self, folder: Path) -> None:
        self.events.append(f"logs {folder.name}")

    left_behind: tuple[str, ...] = ()

    def abandon(self) -> None:
        self.abandoned = True


def kept(starter: FakeStarter, *groups: tuple[int, ...], together: bool = True) -> ResidentEngine:
    engine = ResidentEngine(starter)  # type: ignore[arg-type]
    assert isinstance(engine, KeepsEngines)
    made = [[configuration(seqs) for seqs in group] for group in groups]
    engine.expect(made, together=together, logs=Path("logs"))
    starter.events.clear()
    return engine


def load(engine: ResidentEngine, seqs: int) -> int:
    with engine.start(configuration(seqs)) as endpoint:
        return endpoint.seqs  # type: ignore[attr-defined, no-any-return]


def test_engines_that_fit_start_once_side_by_side_and_stay_up() -> None:
    # the barrier opens only when all three starts go on at the same time
    starter = FakeStarter(together=threading.Barrier(3))
    engine = kept(starter, (1, 2, 3))
    assert [load(engine, s) for s in (1, 2, 3, 3, 2, 1)] == [1, 2, 3, 3, 2, 1]
    assert sorted(starter.events) == ["start 1", "start 2", "start 3"]
    assert sorted(starter.up) == [1, 2, 3]
    engine.close()
    assert starter.up == {}


def test_engines_start_one_after_another_when_asked() -> None:
    starter = FakeStarter()
    engine = kept(starter, (1, 2), together=False)
    load(engine, 2)
    assert starter.events == ["start 1", "start 2"]


def test_what_two_groups_share_stays_up_and_the_rest_makes_room_first() -> None:
    starter = FakeStarter()
    engine = kept(starter, (1, 2), (1, 3))
    for seqs in (1, 2, 1, 3, 1):
        load(engine, seqs)
    assert sorted(starter.events[:2]) == ["start 1", "start 2"]
    assert starter.events[2:] == ["stop 2", "start 3"]


def test_without_groups_one_engine_is_up_at_a_time() -> None:
    starter = FakeStarter()
    engine = ResidentEngine(starter)  # type: ignore[arg-type]
    for seqs in (1, 1, 2, 1):
        load(engine, seqs)
    assert starter.events == ["start 1", "stop 1", "start 2", "stop 2", "start 1"]


def test_a_failed_start_is_told_every_time_and_tried_once() -> None:
    starter = FakeStarter(fails=(2,))
    engine = kept(starter, (1, 2))
    assert load(engine, 1) == 1
    for _ in range(3):
        with pytest.raises(RunFailed, match="CUDA out of memory"):
            load(engine, 2)
    assert starter.events.count("start 2") == 1
    assert not engine.fresh(configuration(2))
    assert load(engine, 1) == 1


def test_an_engine_is_fresh_until_its_first_load_and_again_after_it_died() -> None:
    starter = FakeStarter()
    engine = kept(starter, (1, 2))
    assert engine.fresh(configuration(1))
    load(engine, 1)
    assert not engine.fresh(configuration(1))
    assert engine.fresh(configuration(2)), "up, but not loaded yet"
    starter.up[1].living = False
    assert engine.fresh(configuration(1))
    load(engine, 1)
    assert not engine.fresh(configuration(1))
    assert starter.events.count("start 1") == 2
    assert starter.events.count("start 2") == 1


def test_an_engine_that_makes_room_for_others_again_and_again_has_not_died() -> None:
    starter = FakeStarter()
    engine = ResidentEngine(starter)  # type: ignore[arg-type]
    for _ in range(MOST_STARTS + 2):
        assert load(engine, 1) == 1
        assert load(engine, 2) == 2
    assert starter.events.count("start 1") == MOST_STARTS + 2


def test_asking_an_engine_beside_its_runs_is_no_load_of_it() -> None:
    starter = FakeStarter()
    engine = kept(starter, (1, 2))
    with engine.visit(configuration(1)) as endpoint:
        assert endpoint.seqs == 1  # type: ignore[attr-defined]
    assert engine.fresh(configuration(1)), "its cold run is still to come"
    load(engine, 1)
    assert not engine.fresh(configuration(1))
    assert starter.events.count("start 1") == 1


def test_an_engine_that_dies_again_and_again_is_given_up() -> None:
    starter = FakeStarter()
    engine = kept(starter, (1,))
    for _ in range(MOST_STARTS):
        load(engine, 1)
        starter.up[1].living = False
    with pytest.raises(RunFailed, match="given up"):
        load(engine, 1)
    assert starter.events.count("start 1") == MOST_STARTS


def test_an_interrupted_start_gives_up_the_others_and_leaves_nothing() -> None:
    class Interrupted(FakeStarter):
        @contextlib.contextmanager
        def start(self, wanted: Configuration) -> Iterator[FakeServer]:
            if wanted.knobs.max_num_seqs == 1:
                raise KeyboardInterrupt
            with super().start(wanted) as server:
                yield server

    starter = Interrupted()
    engine = kept(starter, (1, 2))
    with pytest.raises(KeyboardInterrupt):
        load(engine, 1)
    assert starter.abandoned
    engine.close()
    assert starter.up == {}
