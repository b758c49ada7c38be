"""What an earlier `ridgeline serve` of the same state folder left behind when it was killed.

Its guards end what it had started, which takes seconds. Until then its engines hold the GPUs.
"""

import contextlib
import json
import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from ridgeline.serving.events import STATE

if TYPE_CHECKING:
    from ridgeline.serving.events import EventLog

GUARD = "ridgeline.engines.guard"
WAIT_S = 30.0


def guards_of(folder: Path) -> list[psutil.Process]:
    """The guards that its last state names and that still run."""
    found = []
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        pools = json.loads((folder / STATE).read_text("utf-8"))["pools"]
        for row in [row for pool in pools for row in pool["replicas"]]:
            with contextlib.suppress(psutil.Error, OSError):
                process = psutil.Process(row["process"])
                if row["process"] and GUARD in process.cmdline():
                    found.append(process)
    return found


def await_end(guards: Collection[psutil.Process], events: "EventLog") -> None:
    """Wait until they have ended, with a line; half a minute at the most."""
    words = f"{len(guards)} engines of an earlier serve of this folder are still ending"
    events.tell("waiting", words)
    end = time.monotonic() + WAIT_S
    _, left = psutil.wait_procs(guards, timeout=max(0.0, end - time.monotonic()))
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        events.tell("left-behind", f"they have not ended: guards {pids}")
