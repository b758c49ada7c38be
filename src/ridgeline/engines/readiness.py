"""Whether a server that is starting answers: its /health, and a real completion of one token.

/health alone says little: a hung engine answers it with 200 too. A completion is waited for in
short slices, so that whoever waits can give up at any time.
"""

import contextlib
import http.client
import json
import select
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from ridgeline.domain.secrets import mask

SLICE_S = 0.1
REFUSED_S = 3.0  # a router may answer 404 for a moment, until it knows its replicas
_PASSING = (408, 425, 429)  # of the 4xx, those that mean "not now"
_SHOWN = 300  # characters of an answer


def get_status(url: str, path: str) -> int | None:
    """Status of a GET, None when nothing answers."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


class Answers:
    """Asks a server for completions, and keeps what it said instead.

    `api_key` None: that of the environment.
    `last`: its last answer that was none, status and words. `refused`: it has said a 4xx for
    REFUSED_S, which no waiting changes.
    """

    def __init__(self, url: str, model: str, api_key: str | None = None) -> None:
        from ridgeline.engines.probe import (  # noqa: PLC0415  heavy
            api_key_from_environment,
            auth_headers,
        )

        self._netloc = urlsplit(url).netloc
        self._body = json.dumps({"model": model, "prompt": "ready?", "max_tokens": 1})
        self._headers = {
            "Content-Type": "application/json",
            **auth_headers(api_key or api_key_from_environment()),
        }
        self._since_s: float | None = None
        self._status = 0
        self.last: str | None = None

    @property
    def refused(self) -> bool:
        """True when asking again is of no use."""
        return self._since_s is not None and time.monotonic() - self._since_s >= REFUSED_S

    @property
    def fix(self) -> str:
        """What to do about a refusal."""
        if self._status in (401, 403):
            return "set RIDGELINE_API_KEY to the key that the server wants"
        return "see its words and its log"

    def ask(self, waiting: Callable[[], bool]) -> bool:
        """True when one real token came back.

        `waiting` is asked every SLICE_S; False, or what it raises, ends the wait.
        """
        connection = http.client.HTTPConnection(self._netloc, timeout=5)
        try:
            connection.request("POST", "/v1/completions", self._body, self._headers)
            poll = select.poll()  # select.select knows 1,024 descriptors only
            poll.register(connection.sock, select.POLLIN)
            while not poll.poll(SLICE_S * 1000):
                if not waiting():
                    return False
            response = connection.getresponse()
            if response.status == 200:
                return True
            self._keep(response)
        except (OSError, http.client.HTTPException):
            self._since_s = None
        finally:
            connection.close()
        return False

    def _keep(self, response: http.client.HTTPResponse) -> None:
        words = b""
        with contextlib.suppress(OSError, http.client.HTTPException):
            words = response.read(4096)
        status = response.status
        text = " ".join(mask(words.decode(errors="replace")).split())[:_SHOWN]
        self.last = f"{status} {response.reason}" + (f": {text}" if text else "")
        if not 400 <= status < 500 or status in _PASSING:
            self._since_s = None
        elif self._since_s is None or status != self._status:
            self._since_s = time.monotonic()
        self._status = status
