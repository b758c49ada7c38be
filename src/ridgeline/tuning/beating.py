"""The heartbeat of a tuning: until when a process that was killed has held its GPUs.

What a process uses it books when it is over, and `kill -9` leaves no time for that. So while
engines may be up the time is written beside the journal twice a second; whoever goes on charges
what lies between the last line that accounts for something and the last beat.
"""

import contextlib
import os
import threading
import time
from pathlib import Path

from ridgeline.store.files import clear_errors

BEAT = "tune.beat"
EVERY_S = 0.5  # a beat is at most a second old, also on a busy host
_WIDTH = 20


class Beat:
    """Writes it into a folder; `last`: the beat of the process before, seconds since the epoch.

    The time is in the file and not its own: a folder that was copied keeps it. It is not forced to
    the disk, which would disturb what is measured: when the host itself is lost, so are seconds.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / BEAT
        self.last = _read(self.path)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Beat from now on, in a thread of its own; raises StoreError."""
        if self._thread is not None:
            return
        with clear_errors(self.path):
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o644)
        self._over.clear()
        self._thread = threading.Thread(target=self._run, args=(file,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Beat no more."""
        if self._thread is not None:
            self._over.set()
            self._thread.join()
            self._thread = None

    def _run(self, file: int) -> None:
        try:
            while True:
                with contextlib.suppress(OSError):  # a full disk is told by who measures
                    os.pwrite(file, f"{time.time():{_WIDTH}.3f}".encode(), 0)
                if self._over.wait(EVERY_S):
                    return
        finally:
            os.close(file)


def _read(path: Path) -> float | None:
    """The last beat; None without one that can be read."""
    try:
        return float(path.read_text("ascii"))
    except (OSError, ValueError):
        return None
