"""What happens, a line each: for the person, and as JSON lines in the state folder."""

import contextlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ridgeline.domain.errors import StoreError
from ridgeline.store.files import make_folder, write_atomically

EVENTS, STATE = "events.jsonl", "serve.json"


class EventLog:
    """Writes events to `folder` and gives each as a line to `say`; safe from several threads.

    `hide` takes secrets out of a text. Times are UTC. `count`: how many were told.
    """

    def __init__(
        self, folder: Path, say: Callable[[str], None], hide: Callable[[str], str] = str
    ) -> None:
        self._folder = make_folder(folder)
        self._say, self._hide = say, hide
        self._lock = threading.Lock()
        self._told_disk = False
        self.count = 0

    def tell(
        self,
        event: str,
        words: str,
        *,
        pool: str | None = None,
        replica: int | None = None,
        **facts: object,
    ) -> None:
        """One event; what is None is left out."""
        at = time.time()
        stamp = (
            time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at * 1000) % 1000:03}Z"
        )
        row = {
            "at": stamp,
            "event": event,
            "pool": pool,
            "replica": replica,
            "words": words,
            **facts,
        }
        kept = {k: v for k, v in row.items() if v is not None}
        who = " ".join(
            part for part in (pool, None if replica is None else f"replica {replica}") if part
        )
        line = self._hide(f"{stamp} {who + ': ' if who else ''}{event}: {words}")
        text = self._hide(json.dumps(kept, ensure_ascii=False))
        with self._lock:
            self.count += 1
            self._tell_person(line)
            try:
                with (self._folder / EVENTS).open("a", encoding="utf-8") as file:
                    file.write(text + "\n")
            except OSError as error:
                self._cannot(error)

    def state(self, body: dict[str, object]) -> None:
        """Where everything stands now, for whoever looks from outside."""
        text = self._hide(json.dumps(body, indent=1, ensure_ascii=False))
        try:
            write_atomically(self._folder / STATE, (text + "\n").encode())
        except StoreError as error:
            self._cannot(error)

    def _cannot(self, error: Exception) -> None:
        """A full disk is no reason to serve no more; told once."""
        if not self._told_disk:
            self._told_disk = True
            self._tell_person(f"events and state are no longer kept: {error}")

    def _tell_person(self, line: str) -> None:
        """That nobody can read it any more is no reason to serve no more either."""
        with contextlib.suppress(OSError, ValueError):
            self._say(line)
