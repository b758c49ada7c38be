"""Going before all ordinary work of the machine, where that is allowed (as to root)."""

import contextlib
import os
from collections.abc import Iterator


def realtime_allowed() -> bool:
    """Whether this process may ask for real-time scheduling."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    except PermissionError:
        return False
    return True


@contextlib.contextmanager
def realtime(*others: int | None, wanted: bool = True) -> Iterator[None]:
    """This process and `others` (by id, for good) are scheduled first while inside."""
    if not (wanted and realtime_allowed()):
        yield
        return
    for process in (*others, 0):
        os.sched_setscheduler(process or 0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
