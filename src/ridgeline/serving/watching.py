"""Looks at one replica from threads of its own: its pages, and real completions."""

import http.client
import threading
import time
from urllib.parse import urlsplit

from ridgeline.engines.readiness import Answers
from ridgeline.serving.pulse import Limits, Pulse
from ridgeline.telemetry.sampling import EngineProbe


class Watcher:
    """Watches the server at `url` until closed; ask `trouble` and `seen`."""

    def __init__(self, url: str, model: str, key: str | None, limits: Limits) -> None:
        self._url, self._model, self._key, self._limits = url, model, key, limits
        self._pulse = Pulse(limits, time.monotonic())
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._own = 0  # completions of ours that are under way
        self._threads = [
            threading.Thread(target=work, name=f"watch-{urlsplit(url).port}", daemon=True)
            for work in (self._pages, self._completions)
        ]
        for thread in self._threads:
            thread.start()

    def trouble(self) -> str | None:
        """What is wrong with it, None while nothing is."""
        with self._lock:
            return self._pulse.trouble(time.monotonic())

    def running(self) -> float | None:
        """Requests in it that are not ours; None where it does not tell."""
        with self._lock:
            return self._pulse.running

    def answer_s(self) -> float | None:
        """How long the last completion took."""
        with self._lock:
            return self._pulse.answer_s

    def wait_for_idle(self) -> None:
        """From now on count the pages on which it is empty."""
        with self._lock:
            self._pulse.empty_pages = 0

    def idle(self) -> bool:
        """True after two pages in a row on which nothing ran.

        Two, because a request that was on its way when the router was told may not have been
        counted on the first.
        """
        with self._lock:
            return self._pulse.empty_pages >= 2

    def close(self) -> None:
        """Look no more."""
        self._over.set()

    def _pages(self) -> None:
        probe = EngineProbe(self._url, "replica")
        try:
            while not self._over.wait(self._limits.page_s):
                health = _health(self._url)
                readings = {reading.metric: reading.value for reading in probe.read()}
                with self._lock:
                    self._pulse.page(time.monotonic(), readings, self._own)
                    if health != LATE:
                        self._pulse.health(health)
                        self._pulse.well(time.monotonic())
        finally:
            probe.close()

    def _completions(self) -> None:
        answers = Answers(self._url, self._model, self._key)
        while not self._over.wait(self._limits.probe_s):
            begun = time.monotonic()
            end = begun + self._limits.hung_s
            with self._lock:
                self._own = 1
            came = answers.ask(lambda: not self._over.is_set() and time.monotonic() < end)  # noqa: B023
            now = time.monotonic()
            with self._lock:
                self._own = 0
                if came:
                    self._pulse.answered(now, now - begun)
                elif now < end:
                    self._pulse.refused(answers.last)


LATE = 0  # of /health: no answer in time, which a busy server may owe


def _health(url: str) -> int | None:
    """The status of /health; None: nobody listens; LATE."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=2.0)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    except ConnectionError:
        return None
    except (OSError, http.client.HTTPException):
        return LATE
    finally:
        connection.close()
