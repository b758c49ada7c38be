"""One engine process under a guard: start it, follow its log, know at once when it ends."""

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ridgeline.engines.guard import AWAY, AWAY_GRACE_S, CLEANUP_S, ENVIRONMENT, MARK

# What a program on another host writes last, with its exit code: SSH itself stays as long as
# somebody holds a connection through it.
ENDED = "ridgeline: ended there with exit code"
_ENDED_LINE = re.compile(rf"^{ENDED} (\d+)\r?\n".encode(), re.MULTILINE)
ORPHAN_GRACE_S, ORPHAN_LIMIT_S = 2.0, 10.0


def listening_beside(port: int, root: int) -> tuple[int, ...]:
    """Processes that listen on a TCP port here and are not below `root`; -1: one of another user.

    Empty where the system does not tell.
    """
    import psutil  # noqa: PLC0415

    try:
        family = {root, *(p.pid for p in psutil.Process(root).children(recursive=True))}
        listening = {
            -1 if c.pid is None else c.pid
            for c in psutil.net_connections("tcp")
            if c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port
        }
    except (psutil.Error, RuntimeError, OSError, ValueError, LookupError):
        return ()
    return tuple(sorted(listening - family))


class EngineProcess:
    """A command that dies with us, with everything it started; its output goes to `log`.

    `environment` is added to ours; an empty value takes the variable away. `cleanup` is run after
    its end; with `holds_input` its standard input stays open until it is to end (see `guard`).

    Raises OSError when the command cannot be started at all (the guard reports a missing program
    as exit code 1 with the reason in the log).
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        *,
        cleanup: Sequence[str] = (),
        holds_input: bool = False,
    ) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._holds_input = holds_input
        self.left: tuple[int, ...] = ()  # after `stop`: what of it could not be ended
        self._looked_at = 0
        self._ended_code: int | None = None
        self._cleanup, self._mark = tuple(cleanup), secrets.token_hex(16)
        self._away_s = (CLEANUP_S if cleanup else 0.0) + (AWAY_GRACE_S if holds_input else 0.0)
        away = json.dumps({"cleanup": list(cleanup), "input": holds_input})
        read_end, self._write_end = os.pipe()
        os.set_inheritable(read_end, True)
        with log.open("ab") as out:
            # -P: a file named like a module in the current folder must not be imported instead
            self._guard = subprocess.Popen(  # noqa: S603  the user's own command
                [sys.executable, "-P", "-m", "ridgeline.engines.guard", str(read_end), *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                # The guard keeps our own environment: the engine's may have another PYTHONPATH.
                env={
                    **os.environ,
                    ENVIRONMENT: json.dumps(dict(environment or {})),
                    AWAY: away,
                    MARK: self._mark,
                },
                pass_fds=(read_end,),
                start_new_session=True,
            )
        os.close(read_end)
        self.started_s = time.monotonic()

    @property
    def pid(self) -> int:
        """The guard's process id; the engine is its only child."""
        return self._guard.pid

    def poll(self) -> int | None:
        """Exit code, None while it runs."""
        code = self._guard.poll()
        return self._ended_there() if code is None and self._holds_input else code

    def _ended_there(self) -> int | None:
        """The exit code that the far program wrote, wherever in the log it stands."""
        if self._ended_code is None:
            with self.log.open("rb") as file:
                file.seek(self._looked_at)
                new = file.read()
            found = _ENDED_LINE.search(new)
            if found is not None:
                self._ended_code = int(found[1])
            # the last line may not be whole yet; the next look begins with it
            self._looked_at += new.rfind(b"\n") + 1
        return self._ended_code

    def log_text(self) -> str:
        """Everything the engine wrote so far (undecodable bytes replaced)."""
        text = self.log.read_text(errors="replace")
        return re.sub(rf"\n?^{ENDED} \d+\n?", "", text, flags=re.M) if self._holds_input else text

    def log_size(self) -> int:
        """Bytes that the engine wrote so far."""
        return self.log.stat().st_size

    def log_since(self, start: int) -> str:
        """What the engine wrote from that byte on (undecodable bytes replaced)."""
        with self.log.open("rb") as file:
            file.seek(start)
            return file.read().decode(errors="replace")

    def stop(self, patience_s: float = 20.0) -> None:
        """End it and everything it started; returns when nothing of it is left.

        What cannot be ended (a process that hangs in a driver) is in `left` afterwards.
        """
        with contextlib.suppress(OSError):
            os.close(self._write_end)
        try:
            self._guard.wait(patience_s + self._away_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):  # the guard itself hangs
                os.killpg(self._guard.pid, signal.SIGKILL)
            self._guard.wait(5.0)
        if (self._guard.returncode or 0) < 0:  # by a signal: it could not do its work
            self._end_orphans()
        self.left = _marked(self._mark)

    def _end_orphans(self) -> None:
        """End what a killed guard left behind, and run its clean-up."""
        begun = time.monotonic()
        while left := _marked(self._mark):
            waited = time.monotonic() - begun
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGTERM if waited < ORPHAN_GRACE_S else signal.SIGKILL)
            if waited > ORPHAN_LIMIT_S:
                break
            time.sleep(0.1)
        if self._cleanup:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(  # noqa: S603  made by Ridgeline
                    self._cleanup, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL, timeout=CLEANUP_S, check=False,
                )  # fmt: skip


def _marked(mark: str) -> tuple[int, ...]:
    """Processes of ours whose environment bears the mark; none where the system does not tell."""
    import psutil  # noqa: PLC0415

    found = []
    try:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(MARK) == mark:
                    found.append(process.pid)
    except (psutil.Error, RuntimeError, OSError, ValueError, LookupError):
        return ()
    return tuple(found)
