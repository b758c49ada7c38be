"""The minutes of real GPUs that a study may use, engine starts included.

A start is planned in before it is known: as long as the longest that was seen in this study, at
first EXPECTED_START_S. One that takes longer than all that is left is given up when the minutes are
used up.
"""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from ridgeline.domain.knobs import Configuration
from ridgeline.engines.base import Endpoint, Engine
from ridgeline.experiment.engines import Engines
from ridgeline.experiment.plan import PlannedRun

EXPECTED_START_S = 120.0  # vLLM on an H200: 60 to 110 s with compiled graphs in the cache or not


@dataclass(slots=True)
class Budget:
    """What real GPUs may be used for: minutes (None = no limit), and tries after a void run."""

    minutes: float | None
    retries: int = 0
    used: float = 0.0
    longest_start_s: float | None = None
    given_up: bool = False
    timer: threading.Timer | None = None

    def refusal(self, run: PlannedRun, engines: Engines) -> str | None:
        """Why the run does not fit into what is left, None when it does."""
        if self.minutes is None or run.configuration.engine == "twin":
            return None
        start_s = self._start_s(run, engines.starts_due(run))
        cold = engines.cold_due(run)
        traffic_s = run.workload.warmup_s + run.workload.duration_s
        traffic_s += 0.0 if cold is None else cold.workload.duration_s
        needed = (start_s + traffic_s) / 60 * run.configuration.gpus
        if self.used + needed <= self.minutes:
            return None
        start = f", {start_s:.0f} s of engine start with it" if start_s else ""
        return f"not run: it would exceed {self.minutes:g} GPU minutes{start}"

    def _start_s(self, run: PlannedRun, starts: int) -> float:
        """Expected seconds of the starts, side by side unless the launch says otherwise."""
        launch = run.configuration.launch
        most = EXPECTED_START_S if launch is None else min(EXPECTED_START_S, launch.ready_s)
        one = most if self.longest_start_s is None else self.longest_start_s
        together = launch is None or launch.start_together
        return one * (min(starts, 1) if together else starts)

    def spend(self, run: PlannedRun, seconds: float, start_s: float | None = None) -> None:
        """Take what a run took; `start_s`: how long its engine took to start, where one did."""
        self.used += seconds / 60 * run.configuration.gpus
        if start_s is not None:
            self.longest_start_s = max(start_s, self.longest_start_s or 0.0)

    @contextlib.contextmanager
    def watching(self, run: PlannedRun, engines: Engines) -> Iterator[None]:
        """While a run with an engine start goes on: the start is given up at the budget's end.

        Traffic that goes on beyond it is followed to its end, and no start is said to be given up.
        """
        if self.minutes is None or not engines.starts_due(run):
            yield
            return
        left_s = max(self.minutes - self.used, 0.0) * 60 / max(run.configuration.gpus, 1)

        def end() -> None:
            self.given_up = True
            engines.give_up()

        timer = threading.Timer(left_s, end)
        timer.daemon = True
        timer.start()
        self.timer = timer
        try:
            yield
        finally:
            timer.cancel()

    def told(self, engine: Engine) -> Engine:
        """The engine, which tells that its start is over: from then on none is given up."""
        return _TellsStart(engine.name, engine, self)


@dataclass(slots=True)
class _TellsStart:
    """An Engine that stops the watch over its start once it has started."""

    name: str
    engine: Engine
    budget: Budget

    @contextlib.contextmanager
    def start(self, configuration: Configuration) -> Iterator[Endpoint]:
        with self.engine.start(configuration) as endpoint:
            if self.budget.timer is not None:
                self.budget.timer.cancel()
            yield endpoint
