"""Whether the router lives: asked from a thread that does nothing else.

What else is asked of the router (to take a server in, which waits for that server's health) says
nothing about it: a router that answers here is alive, however long those take.
"""

import http.client
import threading
import time
from urllib.parse import urlsplit

from ridgeline.engines.process import listening_beside

PERIOD_S = 0.5
TIMEOUT_S = 2.0


class Liveness:
    """Asks the router at `url` until closed. `port` and `pid`: what should listen there, and below.

    `heard`: it has answered. `silent_s`: without an answer since the last one, or since the start;
    only time in which somebody asked counts (not that of a machine that slept). `stranger`: who
    answers in its place.
    """

    def __init__(self, url: str, port: int, pid: int) -> None:
        self._netloc, self._port, self._pid = urlsplit(url).netloc, port, pid
        self.heard = False
        self.silent_s = 0.0
        self.stranger: str | None = None
        self._over = threading.Event()
        threading.Thread(target=self._look, name=f"router-{port}", daemon=True).start()

    def close(self) -> None:
        """Look no more."""
        self._over.set()

    def _look(self) -> None:
        before = time.monotonic()
        while not self._over.wait(PERIOD_S if self.heard else PERIOD_S / 5):
            answered = self._asked()
            now = time.monotonic()
            if not answered:
                self.silent_s += min(now - before, PERIOD_S + TIMEOUT_S)
            elif self.heard or self._is_ours():
                self.heard, self.silent_s = True, 0.0
            before = now

    def _is_ours(self) -> bool:
        others = listening_beside(self._port, self._pid)
        if others:
            known = [f"process {pid}" for pid in others if pid > 0]
            self.stranger = " and ".join(known) or "a process of another user"
        return not others

    def _asked(self) -> bool:
        """True when it answers anything at all."""
        connection = http.client.HTTPConnection(self._netloc, timeout=TIMEOUT_S)
        try:
            connection.request("GET", "/list_workers")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        else:
            return True
        finally:
            connection.close()
