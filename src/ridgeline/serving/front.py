"""The router's process: started on the pool's one port, started again when it dies or hangs."""

import random
import re
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from ridgeline.domain.knobs import Router
from ridgeline.engines.process import EngineProcess
from ridgeline.engines.router import router_words
from ridgeline.engines.started import free_port
from ridgeline.serving.backoff import BackOff
from ridgeline.serving.liveness import Liveness
from ridgeline.serving.running import kill_below

SILENT_S = 10.0  # a router that cannot be asked for so long is started again
START_S = 30.0  # until it can be asked for the first time
GIVE_UP = 10
STABLE_S = 60.0
LAST_BYTES = 2**16  # of its log: its last line is looked for there
# how often it looks at its workers (vllm-router: 30 s by default, also for power_of_two's loads)
_LOOKS = ("--worker-startup-check-interval", "1")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Front:
    """The router before one pool's replicas, on `host` and `port`, asked at `url`.

    `tell(event, words)` is given what happens to it. `failure`: why it was given up. No method
    waits: what takes time (asking it, ending it) is done in threads.
    """

    def __init__(
        self, router: Router, host: str, port: int, *, url: str, logs: Path,
        tell: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        self._router = replace(router, arguments=(*_LOOKS, *router.arguments))
        self._host, self._port, self._log = host, port, logs / f"router-{port}.log"
        self._url, self._tell = url, tell
        self._metrics_port = free_port()
        self._process: EngineProcess | None = None
        self._liveness: Liveness | None = None
        self._ending: threading.Thread | None = None
        self._ending_pid: int | None = None  # of one that was asked to end
        self._back_off, self._stream = BackOff(first_s=0.2, cap_s=10.0), random.Random()
        self._in_a_row = 0
        self._due_s = self._started_s = 0.0
        self._was_up = False
        self.restarts = -1
        self.failure: str | None = None

    @property
    def metrics_url(self) -> str:
        """Its own page of metrics."""
        return f"http://127.0.0.1:{self._metrics_port}/metrics"

    @property
    def up(self) -> bool:
        """True while it runs and has answered; what answers on its port is then our process."""
        liveness = self._liveness
        return liveness is not None and liveness.heard

    def keep(self, urls: Collection[str]) -> None:
        """Start it, or start it again where it is due, before the replicas at `urls`."""
        now = time.monotonic()
        if self._process is None or self._liveness is None:
            over = self._ending is None or not self._ending.is_alive()
            if over and now >= self._due_s and self.failure is None:
                self._start(urls, now)
            return
        code, seen = self._process.poll(), self._liveness
        self._was_up = self._was_up or seen.heard
        if code is not None:
            self._lost(f"it ended with exit code {code}: {self._last_line()}", now)
        elif seen.stranger is not None:
            self._lost(f"port {self._port} is answered by {seen.stranger}, not by it", now)
        elif seen.silent_s > (SILENT_S if seen.heard else START_S):
            self._lost(f"it does not answer for {seen.silent_s:.0f} s", now)

    def end(self, *, kill: bool) -> bool:
        """End it; True once nothing of it is left. Asked again and again."""
        if self._process is not None:
            self._stop(kill=kill)
        elif kill and self._ending_pid is not None:
            kill_below(self._ending_pid)
            self._ending_pid = None
        return self._ending is None or not self._ending.is_alive()

    def _start(self, urls: Collection[str], now: float) -> None:
        self._metrics_port = free_port()  # the last one may have been taken meanwhile
        words = router_words(self._router, self._port, self._metrics_port, sorted(urls), self._host)
        try:
            self._process = EngineProcess(words, self._log)
        except OSError as error:
            self._lost(f"it cannot be started: {error}", now)
            return
        self._liveness = Liveness(self._url, self._port, self._process.pid)
        self._started_s = now
        self.restarts += 1
        self._tell("router-starting", f"{words[0]} on {self._host}:{self._port}")

    def _stop(self, *, kill: bool) -> None:
        process, self._process = self._process, None
        liveness, self._liveness = self._liveness, None
        if liveness is not None:
            liveness.close()
        if process is None:
            return
        self._ending_pid = None if kill else process.pid

        def work() -> None:
            if kill:
                kill_below(process.pid)
            process.stop()

        self._ending = threading.Thread(target=work, name="router-end", daemon=True)
        self._ending.start()

    def _lost(self, words: str, now: float) -> None:
        self._in_a_row = 1 if now - self._started_s > STABLE_S else self._in_a_row + 1
        self._stop(kill=True)  # one that does not answer does not heed a TERM either
        taken = not self._was_up and ("in use" in words or "is answered by" in words)
        if taken or self._in_a_row > GIVE_UP:
            often = "" if taken else f" after {self._in_a_row} failures"
            self.failure = f"the router was given up{often}: {words}"
            self._tell("router-given-up", self.failure)
            return
        wait_s = self._back_off.wait_s(self._in_a_row, self._stream)
        self._due_s = now + wait_s
        self._tell("router-lost", f"{words}; it is started again in {wait_s:.1f} s")

    def _last_line(self) -> str:
        assert self._process is not None
        text = self._process.log_since(max(0, self._process.log_size() - LAST_BYTES))
        lines = [line for line in _COLOUR.sub("", text).splitlines() if line.strip()]
        return lines[-1][:300] if lines else "it said nothing"
