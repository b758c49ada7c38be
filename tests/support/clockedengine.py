"""A tuning on engines whose starts and runs take their time on a clock of the test's own.

What measures time in a tuning is given that clock (`clocked`), so half an hour of GPU time passes
in seconds, and every second that was used can be held against every second that was booked.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ridgeline.domain.knobs import Configuration
from ridgeline.domain.records import RecordSink
from ridgeline.domain.run import RunFacts, Watch
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.resident import ResidentEngine
from ridgeline.experiment import runner
from ridgeline.tuning import dueling, gate, measuring, session, soaking, watching
from ridgeline.tuning.port import Ask
from ridgeline.tuning.trial import Candidate, History
from support.tunedengine import TunedEndpoint, TunedEngine

SIDE_BY_SIDE_S = 0.02  # real time in which starts of one group have all begun
OVERHEAD_S = 1.5


@dataclass
class Clock:
    """Seconds that have passed."""

    now: float = 1000.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def monotonic(self) -> float:
        return self.now

    def until(self, moment: float) -> None:
        with self.lock:
            self.now = max(self.now, moment)


def clocked(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that everything in a tuning goes by."""
    clock = Clock()
    told = SimpleNamespace(monotonic=clock.monotonic, time=time.time, strftime=time.strftime)
    for module in (dueling, gate, measuring, session, soaking, watching, runner):
        monkeypatch.setattr(module, "time", told)
    return clock


@dataclass
class ClockedEndpoint(TunedEndpoint):
    clock: Clock = field(default_factory=Clock)
    longer: Callable[[int], float] = lambda seed: 0.0

    def alive(self) -> bool:
        return True

    def drive(self, plan: DrivePlan, sink: RecordSink, watch: Watch) -> RunFacts:
        load = plan.schedule.workload
        took_s = load.warmup_s + load.duration_s + OVERHEAD_S + self.longer(load.seed)
        self.clock.until(self.clock.now + took_s)
        return super().drive(plan, sink, watch)


@dataclass
class ClockedStarter:
    """Starts take `start_s`; `longer`: how much longer a run takes, by its seed. `events`: starts
    and stops by max_num_seqs.
    """

    clock: Clock
    start_s: float = 60.0
    longer: Callable[[int], float] = lambda seed: 0.0
    name: str = "fake"
    engine: TunedEngine = field(default_factory=TunedEngine)
    events: list[tuple[str, int | None]] = field(default_factory=list)
    left_behind: tuple[str, ...] = ()

    @contextlib.contextmanager
    def start(self, configuration: Configuration) -> Iterator[Any]:
        begun, seqs = self.clock.now, configuration.knobs.max_num_seqs
        self.events.append(("start", seqs))
        time.sleep(SIDE_BY_SIDE_S)
        self.clock.until(begun + self.start_s)
        with self.engine.start(configuration):
            yield ClockedEndpoint(self.engine, configuration, clock=self.clock, longer=self.longer)
        self.events.append(("stop", seqs))

    def log_to(self, folder: Path) -> None: ...

    def abandon(self) -> None: ...

    def resident(self) -> ResidentEngine:
        return ResidentEngine(self)


@dataclass
class Greedy:
    """A policy that asks as long as the ground says that the budget holds the question."""

    ground: Any = None
    window_s: float = 10.0
    seqs: Sequence[int] = tuple(range(64, 256, 4))

    def ask(self, history: History, left_s: float) -> Ask | None:
        done = len(history.trials)
        every = [Candidate(), *(Candidate({"max_num_seqs": n}) for n in self.seqs)]
        todo = tuple(every[done : done + 2])
        if not todo or self.ground.cost_s(todo, self.window_s) > left_s:
            return None
        return Ask(todo, self.window_s, ("greedy",) * len(todo))
