"""`ridgeline serve` as a process, its events, and users that ask it."""

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil


def free_port() -> int:
    """One that is free with the next, below those that systems give out by themselves."""
    while True:
        port = random.randrange(20_000, 32_000, 2)
        with socket.socket() as first, socket.socket() as second:
            try:
                first.bind(("127.0.0.1", port))
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
        return port


def lives(process: psutil.Process) -> bool:
    """Whether it runs: one that has ended and was not waited for yet does not."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@dataclass
class Served:
    """A running serve. `family`: every process that was ever seen below it.

    `events` leaves out those before `forget`.
    """

    process: subprocess.Popen[str]
    folder: Path
    port: int
    family: dict[int, psutil.Process] = field(default_factory=dict)
    begin: int = 0
    ready: list[dict[str, Any]] = field(default_factory=list)
    command_lines: set[str] = field(default_factory=set)

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        file = self.folder / "events.jsonl"
        rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [row for row in rows[self.begin :] if name in (None, row["event"])]

    def forget(self) -> None:
        self.begin += len(self.events())

    def state(self) -> dict[str, Any]:
        pool: dict[str, Any] = json.loads((self.folder / "serve.json").read_text())["pools"][0]
        return pool

    def replica(self, number: int) -> dict[str, Any]:
        return next(r for r in self.state()["replicas"] if r["replica"] == number)

    def wait(self, what: Callable[[], object], limit_s: float = 30.0) -> float:
        """Until `what` is true; returns how long it took, in seconds."""
        begun = looked = time.monotonic()
        self.look()
        while (now := time.monotonic()) - begun < limit_s:
            if now - looked > 0.5:  # it goes through every process of the machine
                looked = now
                self.look()
            if what():
                return time.monotonic() - begun
            if self.process.poll() is not None and not what():
                break
            time.sleep(0.05)
        raise AssertionError(f"not within {limit_s:g} s; events:\n{self.told()}")

    def wait_for(self, event: str, count: int = 1, limit_s: float = 30.0) -> float:
        return self.wait(lambda: len(self.events(event)) >= count, limit_s)

    def told(self) -> str:
        return "\n".join(f"{e['at']} {e.get('replica', '')} {e['event']}: {e['words']}"
                         for e in self.events())  # fmt: skip

    def look(self) -> None:
        """Remember what runs below it now, with its command line."""
        found: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            found = psutil.Process(self.process.pid).children(recursive=True)
        for process in found:
            with suppress(psutil.Error):  # one that has just ended hides no other
                self.family.setdefault(process.pid, process)
                self.command_lines.add("\0".join(process.cmdline()))

    def below(self, url: str) -> list[psutil.Process]:
        """The processes of the replica at `url`, by the port in their words; its guard last."""
        port = url.rsplit(":", 1)[1]
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if port in process.cmdline():
                    found.append(process)
        return sorted(found, key=lambda p: -p.pid)

    def below_all(self, url: str) -> list[psutil.Process]:
        """Those with all their descendants, whose names need not hold the port."""
        return [p for guard in self.below(url)[-1:] for p in guard.children(recursive=True)]

    def change(self) -> None:
        """Ask it to read its file again."""
        self.process.send_signal(signal.SIGHUP)

    def left(self) -> list[int]:
        """Of everything that ever ran below it, what still does."""
        return [process.pid for process in self.family.values() if lives(process)]

    def wait_gone(self, limit_s: float = 20.0) -> None:
        """Until nothing that ever ran below it does."""
        end = time.monotonic() + limit_s
        while self.left():
            assert time.monotonic() < end, self.left()
            time.sleep(0.1)

    def stop(self, sig: int = signal.SIGINT, limit_s: float = 60.0) -> int:
        self.look()
        self.process.send_signal(sig)
        return self.process.wait(limit_s)


@contextmanager
def serving_of(
    file: Path, folder: Path, *options: str, environment: Mapping[str, str] | None = None,
    ready_s: float = 60.0,
) -> Iterator[Served]:  # fmt: skip
    """Start it on a free port and wait until it serves; end it, whatever happens."""
    port = free_port()
    words = [sys.executable, "-P", "-m", "ridgeline.cli.main", "serve", str(file),
             "--port", str(port), "--state", str(folder), *options]  # fmt: skip
    with (folder.parent / f"{folder.name}.out").open("w") as out:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **(environment or {})}, start_new_session=True,
        )  # fmt: skip
    served = Served(process, folder, port)
    try:
        if ready_s:
            served.wait_for("serving", limit_s=ready_s)
        yield served
    finally:
        if process.poll() is None:
            served.look()
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def ask(
    port: int, tokens: int = 4, *, model: str = "m", prompt: str = "a", key: str | None = None,
    timeout_s: float = 60.0, extra: Mapping[str, Any] | None = None,
) -> tuple[int, dict[str, Any]]:  # fmt: skip
    """One completion, not through Ridgeline's client: status and answer; (0, {}) for none.

    A stream (`extra`: stream) without its last word is none; its answer is its last event.
    """
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    headers = {"Content-Type": "application/json"}
    headers |= {} if key is None else {"Authorization": f"Bearer {key}"}
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, **(extra or {})}
    try:
        link.request("POST", "/v1/completions", json.dumps(body), headers)
        reply = link.getresponse()
        text = reply.read()
        if reply.status == 200 and body.get("stream"):
            events = [line[6:] for line in text.splitlines() if line.startswith(b"data: ")]
            whole = len(events) > 1 and events[-1] == b"[DONE]"
            return (200, json.loads(events[-2])) if whole else (0, {"said": "broken off"})
        return reply.status, json.loads(text) if reply.status == 200 else {"said": text.decode()}
    except (OSError, http.client.HTTPException, ValueError) as error:
        return 0, {"said": f"{type(error).__name__}: {error}"}
    finally:
        link.close()


@dataclass
class Users:
    """A closed loop of users. `answers`: (sent, ended, status, answer) on the monotonic clock."""

    port: int
    count: int
    tokens: int = 4
    model: str = "m"
    key: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    pause_s: float = 0.0
    answers: list[tuple[float, float, int, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._loop, args=(i,)) for i in range(self.count)]

    def __enter__(self) -> "Users":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def statuses(self, sent_after: float = 0.0) -> Counter[int]:
        return Counter(status for sent, _, status, _ in list(self.answers) if sent >= sent_after)

    def wait_for(self, count: int, limit_s: float = 60.0) -> None:
        """Until so many have been answered."""
        end = time.monotonic() + limit_s
        while len(self.answers) < count:
            assert time.monotonic() < end, f"{len(self.answers)} of {count} answers in {limit_s} s"
            time.sleep(0.05)

    def _loop(self, number: int) -> None:
        turn = 0
        while not self._over.is_set():
            sent = time.monotonic()
            turn += 1
            status, answer = ask(
                self.port, self.tokens, model=self.model, prompt=f"{number} {turn}",
                key=self.key, extra=self.extra,
            )  # fmt: skip
            self.answers.append((sent, time.monotonic(), status, answer))
            self._over.wait(self.pause_s if status == 200 else max(0.05, self.pause_s))
