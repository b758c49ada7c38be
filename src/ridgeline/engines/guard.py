"""A small process between Ridgeline and an engine, so that no engine outlives its Ridgeline.

Run as `python -m ridgeline.engines.guard FD CMD...`: starts CMD in a session of its own and waits
for the first of two things. When the command ends, the guard ends with its exit code. When the
pipe FD closes, which the kernel does for a parent that dies in any way, `kill -9` included, the
guard stops the command's whole process group: TERM, a grace time, KILL.

What runs elsewhere (in a container, on another host) is no descendant. For such a command the
variable RIDGELINE_ENGINE_AWAY holds JSON: `cleanup`, a command to be run after the end, and
`input`: its standard input stays open and is closed first, which the far side takes as the end.

PR_SET_PDEATHSIG alone would not do: it reaches the direct child only. It is set all the same, for a
guard that is killed itself; what else such a guard leaves behind bears RIDGELINE_ENGINE_MARK in its
environment, by which `process.EngineProcess` finds it. As a "child subreaper" the guard also
inherits grandchildren that have left the process group, so it can find them; nothing else on the
machine is ever touched.

The command is scheduled in the ordinary way, whatever Ridgeline was given (`chrt`, a negative
nice): real-time priority for the client is so that it sends and reads in time, and engines that had
it, too, would take its core, and not be what a server is that runs by itself. A command that is to
have it says so itself (`chrt -r 1 vllm serve`).
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from types import FrameType

import psutil

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
GRACE_S = 10.0
AWAY_GRACE_S = 14.0  # for the far side's own TERM, grace time and KILL
CLEANUP_S = 30.0
ENVIRONMENT = "RIDGELINE_ENGINE_ENVIRONMENT"  # what the command's environment adds, as JSON
AWAY = "RIDGELINE_ENGINE_AWAY"
MARK = "RIDGELINE_ENGINE_MARK"  # stays in the environment of the command and of what it starts


class Guard:
    """Runs one command until it ends or until `pipe` (a file descriptor) is closed by the parent.

    The exit code is the command's own, or 128 + signal when a signal ended it.
    """

    def __init__(self, pipe: int, command: list[str]) -> None:
        self._pipe = pipe
        self._asked = False
        # Ctrl-C in a terminal reaches the guard too; only Ridgeline decides when an engine stops.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._on_term)
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        _be_ordinary()  # the command inherits it
        away = json.loads(os.environ.get(AWAY, "{}"))
        self._cleanup: list[str] = away.get("cleanup", [])
        self._child = subprocess.Popen(  # noqa: S603  the user's own command
            command,
            start_new_session=True,
            env=_environment(),
            stdin=subprocess.PIPE if away.get("input") else None,
            # this thread, the only one, lives as long as the guard
            preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),  # noqa: PLW1509
        )

    def _on_term(self, _signal: int, _frame: FrameType | None) -> None:
        self._asked = True

    def run(self) -> int:
        """Wait, clean up, and return the exit code."""
        while self._child.poll() is None and not self._asked:
            ready, _, _ = select.select([self._pipe], [], [], 0.05)
            if ready and not os.read(self._pipe, 1):
                break
        self._end_input()
        self.stop()
        self._clean_up()
        code = self._child.returncode
        return 1 if code is None else code if code >= 0 else 128 - code

    def _end_input(self) -> None:
        """Tell the far side, and give it the time to end before the way to it is cut."""
        if self._child.stdin is None:
            return
        with contextlib.suppress(OSError):
            self._child.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(AWAY_GRACE_S)

    def _clean_up(self) -> None:
        if not self._cleanup:
            return
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(  # noqa: S603  made by Ridgeline
                self._cleanup, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, env=_environment(), timeout=CLEANUP_S, check=False,
            )  # fmt: skip

    def stop(self, grace_s: float = GRACE_S) -> None:
        """End the command's group and every other descendant: TERM, wait, KILL."""
        for sig, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
            left = self._living()
            if not left and self._child.returncode is not None:
                return
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, sig)
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(sig)
            deadline = time.monotonic() + patience_s
            while time.monotonic() < deadline:
                if not self._living() and self._child.returncode is not None:
                    return
                time.sleep(0.02)

    def _living(self) -> list[psutil.Process]:
        """Descendants that have not ended; collects those that have, adopted ones too."""
        self._child.poll()
        living = []
        for process in _descendants():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE:
                    living.append(process)
                elif process.ppid() == os.getpid() and process.pid != self._child.pid:
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(process.pid, os.WNOHANG)
        return living


def _be_ordinary() -> None:
    """Give up real-time scheduling and a negative nice; a positive one is a wish for all of it.

    The kernel's own rule for a fork under SCHED_RESET_ON_FORK, sched(7). Giving up is always
    allowed, but for the policy of a process that has that flag and may not take it away.
    """
    ordinary = getattr(os, "SCHED_OTHER", None)
    if ordinary is None:
        return
    with contextlib.suppress(OSError):
        flag = os.sched_getscheduler(0) & os.SCHED_RESET_ON_FORK
        if os.sched_getscheduler(0) & ~flag in (os.SCHED_FIFO, os.SCHED_RR):
            os.sched_setscheduler(0, ordinary | flag, os.sched_param(0))
    if os.getpriority(os.PRIO_PROCESS, 0) < 0:
        os.setpriority(os.PRIO_PROCESS, 0, 0)


def _descendants() -> list[psutil.Process]:
    """Every process below this one; none where /proc is not like Linux's (a sandbox's may be not).

    The command's own process group is stopped in any case.
    """
    try:
        return psutil.Process().children(recursive=True)
    except (psutil.Error, RuntimeError, OSError, ValueError, LookupError):
        return []


def _environment() -> dict[str, str]:
    """Ours with what was asked for; a variable with an empty value is taken away."""
    added = json.loads(os.environ.get(ENVIRONMENT, "{}"))
    merged = {**os.environ, **added}
    ours = (ENVIRONMENT, AWAY)
    return {k: v for k, v in merged.items() if k not in ours and (v or k not in added)}


if __name__ == "__main__":
    sys.exit(Guard(int(sys.argv[1]), sys.argv[2:]).run())
