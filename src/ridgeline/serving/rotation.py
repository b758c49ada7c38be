"""What stands before the replicas, and how it is told which of them may be sent requests.

vllm-router is told over its own HTTP interface (`/add_worker`, `/remove_worker`, `/list_workers`):
a worker that is removed gets nothing new and ends what it has. Who is in rotation is held against
the router's own list all the time, so that a router that was started again learns it anew, and a
worker that somebody else has added does not stay.
"""

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Collection, Mapping
from typing import Protocol
from urllib.parse import quote, urlsplit

TIMEOUT_S = 5.0
ENTER_S = 1.0  # a look waits so long at the most for servers that the router takes in


class Rotation(Protocol):
    """Who is sent requests. Implementations: RouterRotation, NoRotation."""

    def settle(self, wished: Collection[str]) -> tuple[frozenset[str], tuple[str, ...]]:
        """Bring it to `wished` (base URLs): what is in rotation now, and strangers taken out.

        Raises OSError when it cannot be asked.
        """


class NoRotation:
    """Nothing of ours stands before the replicas: they are in rotation as soon as they run."""

    def settle(self, wished: Collection[str]) -> tuple[frozenset[str], tuple[str, ...]]:
        """See Rotation."""
        return frozenset(wished), ()


class RouterRotation:
    """vllm-router at `url`, with the client's key where its workers want one.

    `known`: every URL that was ever ours; another one in the router's list is a stranger.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self._netloc = urlsplit(url).netloc
        self._headers = dict(headers or {})
        self._ours: set[str] = set()
        self._adding: dict[str, threading.Thread] = {}

    def settle(self, wished: Collection[str]) -> tuple[frozenset[str], tuple[str, ...]]:
        """See Rotation. A server that the router waits for keeps no other one out."""
        self._ours |= set(wished)
        there = self._list()
        strangers = tuple(sorted(there - self._ours))
        for url in sorted(there - set(wished)):
            self._ask("POST", f"/remove_worker?url={quote(url, safe=':/')}")
        end = time.monotonic() + ENTER_S
        for url in sorted(set(wished) - there):
            self._add(url)
        for thread in list(self._adding.values()):
            thread.join(max(0.0, end - time.monotonic()))
        return (self._list() if there != set(wished) else frozenset(there)), strangers

    def _add(self, url: str) -> None:
        """In a thread of its own: the router answers only once the server's /health has."""
        under_way = self._adding.get(url)
        if under_way is not None and under_way.is_alive():
            return

        def work() -> None:
            # whether it is in is read in the router's list
            with contextlib.suppress(OSError):
                self._ask("POST", f"/add_worker?url={quote(url, safe=':/')}")

        self._adding[url] = threading.Thread(target=work, name="router-add", daemon=True)
        self._adding[url].start()

    def _list(self) -> frozenset[str]:
        status, body = self._ask("GET", "/list_workers")
        if status != 200:
            raise OSError(f"the router answers /list_workers with {status}")
        try:
            return frozenset(json.loads(body)["urls"])
        except (ValueError, KeyError, TypeError):
            raise OSError("the router's /list_workers is no list of URLs") from None

    def _ask(self, method: str, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._netloc, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, headers=self._headers)
            reply = connection.getresponse()
            return reply.status, reply.read()
        except http.client.HTTPException as error:
            raise OSError(f"{type(error).__name__} from the router") from error
        finally:
            connection.close()
