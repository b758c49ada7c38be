"""`ridgeline serve --apply`: another file for a serve that runs, and what becomes of it."""

import contextlib
import fcntl
import json
import os
import secrets
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ridgeline.cli.output import NOT_COMPLETED, say
from ridgeline.domain.errors import BadInput

LOCK, APPLY, APPLIER = "lock", "apply.json", "apply.lock"
DONE = ("changed", "unchanged")
NOT_DONE = ("rolled-back", "refused", "ignored", "failed", "ended")
LOOKED_S = 1.0  # how often it is asked whether the serve is still there
STATE_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be served: a file, one of its experiments, perhaps another engine."""

    file: Path
    experiment: str | None = None
    engine: str | None = None


def hand_over(asked: Request, folder: Path) -> int:
    """Give the running serve another file, and wait for what becomes of it: the exit code.

    Raises BadInput when none runs, or another --apply waits for its answer.
    """
    from ridgeline.serving.events import EVENTS  # noqa: PLC0415
    from ridgeline.store.files import write_json  # noqa: PLC0415

    if not folder.is_dir():
        raise BadInput(
            "there is no such state folder", where=str(folder),
            fix="start it without --apply, or give its --state",
        )  # fmt: skip
    with _alone(folder):
        pid = _running(folder)
        pools = _pools(folder, pid)
        events, name = folder / EVENTS, secrets.token_hex(8)
        begin = events.stat().st_size if events.exists() else 0
        write_json(folder / APPLY, {
            "name": name, "file": str(asked.file.absolute()), "experiment": asked.experiment,
            "engine": asked.engine,
        })  # fmt: skip
        try:
            os.kill(pid, signal.SIGHUP)
            return _Answer(folder, events, begin, name, pools).wait()
        except (ProcessLookupError, PermissionError):
            raise BadInput("the serve cannot be told", where=f"process {pid}") from None
        finally:
            (folder / APPLY).unlink(missing_ok=True)


def handed_over(folder: Path) -> tuple[str, Request] | None:
    """What `--apply` left, once, with the name of its answer."""
    path = folder / APPLY
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        body = json.loads(path.read_text("utf-8"))
        path.unlink()
        return body["name"], Request(Path(body["file"]), body["experiment"], body["engine"])
    return None


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / APPLIER).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(
                "another --apply waits for its answer", where=str(folder), fix="wait for its end"
            ) from None
        yield


def _running(folder: Path) -> int:
    """The process that holds the folder; raises BadInput when none does."""
    fix = "start it without --apply, or give its --state"
    with contextlib.suppress(FileNotFoundError), (folder / LOCK).open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = file.read().strip()
            if text.isdigit():
                return int(text)
            raise BadInput(
                "its lock names no process", where=str(folder), fix="try again"
            ) from None
    what = "no `ridgeline serve` runs with this state folder"
    raise BadInput(what, where=str(folder), fix=fix)


def _pools(folder: Path, pid: int) -> set[str]:
    """The names of the pools of that process, once it has written them."""
    from ridgeline.serving.events import STATE  # noqa: PLC0415

    end = time.monotonic() + STATE_LIMIT_S
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            status = json.loads((folder / STATE).read_text("utf-8"))
            if status["pid"] == pid:
                return {pool["pool"] for pool in status["pools"]}
        time.sleep(0.1)
    raise BadInput("it has told no state yet", where=str(folder), fix="try again")


@dataclass(slots=True)
class _Answer:
    """The events that bear `name`, from byte `begin` on, until each pool has said how it ended."""

    folder: Path
    events: Path
    begin: int
    name: str
    waiting: set[str]
    good: bool = True

    def wait(self) -> int:
        """The exit code."""
        looked_s = time.monotonic()
        while self.waiting:
            if self._read() or not self.waiting:
                continue
            time.sleep(0.1)
            if time.monotonic() - looked_s < LOOKED_S:
                continue
            looked_s = time.monotonic()
            if not self._is_there() and not self._read():
                say(f"{self.folder}: the serve has ended before it answered")
                return NOT_COMPLETED
        return 0 if self.good else NOT_COMPLETED

    def _is_there(self) -> bool:
        try:
            _running(self.folder)
        except BadInput:
            return False
        return True

    def _read(self) -> bool:
        """Read the lines that have come; False when none had."""
        with contextlib.suppress(FileNotFoundError), self.events.open("rb") as file:
            file.seek(self.begin)
            text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self.begin += len(whole)
            for line in whole.splitlines():
                self._heed(json.loads(line))
            return bool(whole)
        return False

    def _heed(self, row: dict[str, str]) -> None:
        if row.get("request") != self.name:
            return
        pool = row.get("pool")
        say(f"{row['at']} {pool or ''} {row['event']}: {row['words']}")
        if row["event"] in (*DONE, *NOT_DONE) and row.get("replica") is None:
            self.waiting = set() if pool is None else self.waiting - {pool}
            self.good = self.good and row["event"] in DONE
