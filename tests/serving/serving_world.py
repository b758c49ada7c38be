"""A world for the supervisor in which time and processes are made up: a queue of events."""

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ridgeline.serving.places import Places
from ridgeline.serving.states import (
    Action,
    Drain,
    Enter,
    Hurry,
    Leave,
    Phase,
    Start,
    State,
    Stop,
    Tell,
    Wanted,
)
from ridgeline.serving.supervisor import Policy, Supervisor


@dataclass
class World:
    """Does what a supervisor asks, after made-up times.

    `fails(generation, number)`: a start of it fails. `drains_s`: how long requests still run.
    """

    count: int = 2
    gpus: Sequence[str] = ()
    gpus_each: int = 0
    policy: Policy = field(default_factory=Policy)
    starts_s: float = 10.0
    drains_s: float = 3.0
    stops_s: float = 2.0
    fails: Callable[[int, int], bool] = lambda generation, number: False
    now: float = 0.0

    def __post_init__(self) -> None:
        wanted = Wanted(0, self.count, self.gpus_each)
        places = Places(self.gpus)
        self.supervisor = Supervisor(self.policy, wanted, places, random.Random(1))
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[], list[Action]]]] = []
        self.told: list[tuple[float, Tell]] = []
        self.alive: dict[int, tuple[str, ...]] = {}  # processes, with the GPUs that they hold
        self.rotation: set[int] = set()
        self.wished: set[int] = set()
        self.fewest_up = 10**9
        self.most_alive = 0
        self.kills: list[int] = []
        self.hurried: list[int] = []

    def begin(self) -> None:
        self._do(self.supervisor.begin(self.now))

    def run(self, until: float) -> None:
        """Let the time pass, with a tick every tenth of a second."""
        while self.now < until:
            self.now = round(self.now + 0.1, 6)
            while self._events and self._events[0][0] <= self.now:
                self._do(heapq.heappop(self._events)[2]())
            self._do(self.supervisor.tick(self.now))
            self._check()

    def die(self, number: int, words: str = "it ended") -> None:
        """One replica's process ends by itself."""
        self._do(self.supervisor.lost(number, words, self.now))

    def do(self, actions: list[Action]) -> None:
        self._do(actions)

    def states(self) -> dict[int, State]:
        return {r.number: r.state for r in self.supervisor.replicas}

    def events(self, name: str) -> list[tuple[float, Tell]]:
        return [(at, tell) for at, tell in self.told if tell.event == name]

    def _later(self, after_s: float, step: Callable[[], list[Action]]) -> None:
        heapq.heappush(self._events, (self.now + after_s, next(self._order), step))

    def _do(self, actions: list[Action]) -> None:
        sup = self.supervisor
        for action in actions:
            match action:
                case Tell():
                    self.told.append((self.now, action))
                case Start(n, generation, gpus):
                    assert n not in self.alive, "started twice"
                    taken = [g for held in self.alive.values() for g in held]
                    assert not set(gpus) & set(taken), "two processes on one GPU"
                    self.alive[n] = gpus
                    if self.fails(generation, n):
                        self._later(1.0, lambda n=n: sup.lost(n, "out of memory", self.now))
                    else:
                        self._later(self.starts_s, lambda n=n: sup.ready(n, self.now))
                case Enter(n):
                    assert n in self.alive
                    self.wished.add(n)
                    self._later(0.2, lambda n=n: self._enter(n))
                case Leave(n):
                    self.wished.discard(n)
                    self.rotation.discard(n)
                    self._later(0.2, lambda n=n: sup.left(n, self.now))
                case Drain(n):
                    self._later(self.drains_s, lambda n=n: sup.idle(n, self.now))
                case Hurry(n):
                    assert n in self.alive
                    self.hurried.append(n)
                case Stop(n, kill):
                    assert n not in self.wished, "stopped in rotation"
                    if kill:
                        self.kills.append(n)
                    self._later(self.stops_s, lambda n=n: self._stopped(n))

    def _enter(self, number: int) -> list[Action]:
        if number not in self.wished:
            return []
        self.rotation.add(number)
        return self.supervisor.entered(number, self.now)

    def _stopped(self, number: int) -> list[Action]:
        del self.alive[number]
        return self.supervisor.stopped(number, self.now)

    def _check(self) -> None:
        up = {n for n, s in self.states().items() if s is State.UP}
        assert up <= self.rotation
        self.most_alive = max(self.most_alive, len(self.alive))
        if self.supervisor.phase in (Phase.SERVING, Phase.CHANGING):
            self.fewest_up = min(self.fewest_up, len(up))
