"""The router's process: started on the pool's one port, started again when it dies or hangs."""

import random
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from ridgeline.domain.knobs import Router
from ridgeline.engines.process import EngineProcess
from ridgeline.engines.router import router_words
from ridgeline.engines.started import free_port
from ridgeline.serving.backoff import BackOff

SILENT_S = 10.0  # a router that cannot be asked for so long is started again
START_S = 30.0  # until it can be asked for the first time
GIVE_UP = 10
STABLE_S = 60.0
# how often it looks at its workers (vllm-router: 30 s by default, also for power_of_two's loads)
_LOOKS = ("--worker-startup-check-interval", "1")


class Front:
    """The router before one pool's replicas, on `host` and `port`.

    `tell(event, words)` is given what happens to it. `failure`: why it was given up.
    """

    def __init__(
        self, router: Router, host: str, port: int, logs: Path, tell: Callable[[str, str], None]
    ) -> None:
        self._router = replace(router, arguments=(*_LOOKS, *router.arguments))
        self._host, self._port, self._log = host, port, logs / f"router-{port}.log"
        self._tell = tell
        self._metrics_port = free_port()
        self._process: EngineProcess | None = None
        self._back_off, self._stream = BackOff(first_s=0.2, cap_s=10.0), random.Random()
        self._in_a_row = 0
        self._due_s = self._heard_s = self._started_s = 0.0
        self._heard = False
        self.restarts = -1
        self.failure: str | None = None

    @property
    def metrics_url(self) -> str:
        """Its own page of metrics."""
        return f"http://127.0.0.1:{self._metrics_port}/metrics"

    @property
    def up(self) -> bool:
        """True while it runs and answers."""
        return self._process is not None and self._heard

    def heard(self) -> None:
        """It has answered."""
        self._heard_s, self._heard = time.monotonic(), True

    def keep(self, urls: Collection[str]) -> None:
        """Start it, or start it again where it is due, before the replicas at `urls`."""
        now = time.monotonic()
        if self._process is None:
            if now >= self._due_s and self.failure is None:
                self._start(urls, now)
            return
        code = self._process.poll()
        silent_s = now - max(self._heard_s, self._started_s)
        if code is not None:
            self._lost(f"it ended with exit code {code}: {self._last_line()}", now)
        elif silent_s > (SILENT_S if self._heard else START_S):
            self._lost(f"it does not answer for {silent_s:.0f} s", now)

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def _start(self, urls: Collection[str], now: float) -> None:
        words = router_words(self._router, self._port, self._metrics_port, sorted(urls), self._host)
        self._process = EngineProcess(words, self._log)
        self._started_s, self._heard = now, False
        self.restarts += 1
        self._tell("router-starting", f"{words[0]} on {self._host}:{self._port}")

    def _lost(self, words: str, now: float) -> None:
        self._in_a_row = 1 if now - self._started_s > STABLE_S else self._in_a_row + 1
        self.stop()
        if self._in_a_row > GIVE_UP:
            self.failure = f"the router was given up after {self._in_a_row} failures: {words}"
            self._tell("router-given-up", self.failure)
            return
        wait_s = self._back_off.wait_s(self._in_a_row, self._stream)
        self._due_s = now + wait_s
        self._tell("router-lost", f"{words}; it is started again in {wait_s:.1f} s")

    def _last_line(self) -> str:
        assert self._process is not None
        lines = [line for line in self._process.log_text().splitlines() if line.strip()]
        return lines[-1][:300] if lines else "it said nothing"
