"""Runs a program on one core of its own: usage: one_core.py FOLDER PROGRAM ARGUMENT...

Programs that are started one after another take the cores in turn, by locks in FOLDER that they
hold until they end. Where it may, it goes before ordinary work: the machine has other users.
"""

import fcntl
import os
import sys
from contextlib import suppress
from pathlib import Path

NICE = -15


def claim(folder: Path) -> int:
    """The least taken core that is free; the lock stays with this process."""
    cores = sorted(os.sched_getaffinity(0))
    for place in range(1000):
        core = cores[place % len(cores)]
        held = os.open(folder / f"place-{place}", os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(held)
            continue
        os.set_inheritable(held, True)
        return core
    raise SystemExit("no place left")


def main() -> None:
    folder, *command = sys.argv[1:]
    os.sched_setaffinity(0, {claim(Path(folder))})
    with suppress(OSError):
        os.nice(NICE)
        os.setsid()  # where the kernel groups by session, only the group's own counts
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(NICE))
    os.execvp(command[0], command)


main()
