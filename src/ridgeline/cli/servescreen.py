"""What `ridgeline serve` prints: from a thread of its own, because a terminal may stand still.

A terminal that nobody reads (Ctrl-S, a stalled connection) blocks whoever writes to it, and one
that was closed fails him. Neither may stop the supervision.
"""

import contextlib
import io
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ridgeline.cli.output import console
from ridgeline.domain.secrets import mask

if TYPE_CHECKING:
    from rich.table import Table

SHOWN_S = 0.5
WAITING = 1000  # lines that wait for a terminal; further ones stand in events.jsonl only
LAST_S = 1.0  # at the end, for what still waits


class _Straight(io.TextIOBase):
    """Standard error without Python's buffer: a thread that waits would hold its lock at exit."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, text: str) -> int:
        rest = text.encode("utf-8", "replace")
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        return len(text)

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)


class Screen:
    """Prints lines, and on a terminal the table of `rows` below them. No method waits.

    `unread` is True for good once a line could not be written.
    """

    def __init__(self, rows: Callable[[], Sequence[dict[str, Any]]], descriptor: int) -> None:
        self._rows = rows
        self._file = _Straight(descriptor)
        self._lines: queue.Queue[str | None] = queue.Queue(WAITING)
        self._left_out = 0
        self.unread = False
        self._thread = threading.Thread(target=self._work, name="screen", daemon=True)
        self._thread.start()

    def line(self, text: str) -> None:
        """One event."""
        try:
            self._lines.put_nowait(text)
        except queue.Full:
            self._left_out += 1

    def close(self) -> None:
        """Print what still waits, as far as somebody reads it."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(LAST_S)

    def _work(self) -> None:
        try:
            if self._file.isatty():
                self._on_terminal()
            else:
                self._follow(lambda text: self._file.write(mask(text) + "\n"), lambda: None)
        except (OSError, ValueError):
            self.unread = True

    def _on_terminal(self) -> None:
        from rich.console import Console  # noqa: PLC0415
        from rich.live import Live  # noqa: PLC0415

        width = console(to_stderr=True).width
        target = Console(file=self._file, width=width, no_color="NO_COLOR" in os.environ)  # type: ignore[arg-type]
        with Live(console=target, auto_refresh=False, redirect_stdout=False,
                  redirect_stderr=False) as live:  # fmt: skip
            self._follow(
                lambda text: target.print(mask(text), markup=False, highlight=False),
                lambda: live.update(table(self._rows()), refresh=True),
            )

    def _follow(self, write: Callable[[str], object], draw: Callable[[], None]) -> None:
        drawn_s = 0.0
        while True:
            with contextlib.suppress(queue.Empty):
                text = self._lines.get(timeout=SHOWN_S)
                if text is None:
                    return
                write(text)
            if self._left_out and self._lines.empty():
                count, self._left_out = self._left_out, 0
                write(f"{count} lines were not printed: nobody read them; see events.jsonl")
            if time.monotonic() - drawn_s >= SHOWN_S:
                drawn_s = time.monotonic()
                draw()


@contextlib.contextmanager
def screen(rows: Callable[[], Sequence[dict[str, Any]]]) -> Iterator[Screen]:
    """On standard error, until the block ends."""
    found = Screen(rows, sys.stderr.fileno())
    try:
        yield found
    finally:
        found.close()


def table(status: Sequence[dict[str, Any]]) -> "Table":
    """How the replicas stand."""
    from rich.table import Table  # noqa: PLC0415

    found = Table("pool", "replica", "state", "restarts", "requests", "probe", "server")
    for pool in status:
        for row in pool["replicas"]:
            probe = "" if row["answer_s"] is None else f"{1000 * row['answer_s']:.0f} ms"
            running = "" if row["running"] is None else f"{row['running']:.0f}"
            found.add_row(
                pool["pool"], str(row["replica"]), row["state"], str(row["restarts"]), running,
                probe, (row["url"] or "").removeprefix("http://"),
            )  # fmt: skip
    return found
