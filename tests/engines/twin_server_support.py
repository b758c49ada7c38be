"""A client of the plainest kind, independent of Ridgeline's own, and the server in a process."""

import contextlib
import json
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

RIDGELINE = (sys.executable, "-m", "ridgeline.cli.main")
CLI = (*RIDGELINE, "twin")


@dataclass
class Server:
    """A running `ridgeline twin`."""

    process: subprocess.Popen[str]
    url: str
    log: Path

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port

    def connect(self) -> HTTPConnection:
        return HTTPConnection(*self.address, timeout=20)

    def get(self, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        connection = self.connect()
        try:
            connection.request(method, path)
            reply = connection.getresponse()
            return reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read()
        finally:
            connection.close()

    def post(self, path: str, body: Any) -> tuple[int, dict[str, str], bytes]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = self.connect()
        try:
            connection.request("POST", path, data, {"content-type": "application/json"})
            reply = connection.getresponse()
            return reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read()
        finally:
            connection.close()

    def metric(self, name: str, **labels: str) -> float | None:
        """Sum of the samples of that name with those labels; None when there is none."""
        _status, _headers, page = self.get("/metrics")
        values = [
            sample.value
            for family in text_string_to_metric_families(page.decode())
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        return sum(values) if values else None

    def wait_for(self, name: str, value: float, **labels: str) -> None:
        """Until the metric has the value; fails after 5 s."""
        end = time.monotonic() + 5
        while (seen := self.metric(name, **labels)) != value:
            assert time.monotonic() < end, f"{name} is {seen}, not {value}"
            time.sleep(0.02)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
        """Exit code and the seconds that it took."""
        start = time.monotonic()
        self.process.send_signal(number)
        return self.process.wait(10), time.monotonic() - start

    def sends(self) -> list[dict[str, Any]]:
        """The log of sends; complete once the server has ended."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@contextlib.contextmanager
def running(folder: Path, *arguments: str) -> Iterator[Server]:
    """`ridgeline twin` on a free loopback port, ended at the end."""
    log = folder / "sends.jsonl"
    process = subprocess.Popen(
        [*CLI, *arguments, "--port", "0", "--log-sends", str(log)],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        said, words = "", []
        while not words:
            line = process.stderr.readline()
            said += line
            assert line, f"no URL in {said!r}"
            words = [word for word in line.split() if word.startswith("http://")]
        yield Server(process, words[0], log)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(10)
        process.stderr.close()


def chat(output: int, prompt: str = "a b c", **more: Any) -> dict[str, Any]:
    return {
        "model": "double",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": output,
        **more,
    }


def raw_post(body: Any, path: str = "/v1/chat/completions", extra: str = "") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n{extra}\r\n"
    return head.encode() + data


def read_until(sock: socket.socket, end: bytes, times: int = 1) -> bytes:
    """Bytes up to the given number of occurrences of `end`, or to the close."""
    got = b""
    while got.count(end) < times:
        data = sock.recv(65536)
        if not data:
            break
        got += data
    return got


def events(body: bytes) -> list[Any]:
    """The data of each event of a body that is an event stream; [DONE] as text."""
    assert body.endswith(b"\n\n")
    found = []
    for event in body[:-2].split(b"\n\n"):
        assert event.startswith(b"data: ")
        data = event[6:].decode()
        found.append(data if data == "[DONE]" else json.loads(data))
    return found


def unchunk(data: bytes) -> list[bytes]:
    """The HTTP chunks of a chunked body."""
    chunks = []
    while True:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        assert data[length : length + 2] == b"\r\n"
        if not length:
            return chunks
        chunks.append(data[:length])
        data = data[length + 2 :]


@dataclass
class Crowd:
    """Many raw streams at once, read by one poll loop."""

    sockets: list[socket.socket] = field(default_factory=list)
    sending_ns: list[tuple[int, int]] = field(default_factory=list)  # before and after each send

    def start(self, address: tuple[str, int], requests: Sequence[bytes], pause_s: float) -> None:
        self.sockets = [socket.create_connection(address) for _ in requests]
        for sock, data in zip(self.sockets, requests, strict=True):
            before = time.monotonic_ns()
            sock.sendall(data)
            self.sending_ns.append((before, time.monotonic_ns()))
            if pause_s:
                time.sleep(pause_s)

    def finish(self, timeout_s: float = 20) -> list[bytes]:
        """Everything that came, per stream, once all have ended."""
        poll = select.poll()
        got = {sock.fileno(): b"" for sock in self.sockets}
        by_fd = {sock.fileno(): sock for sock in self.sockets}
        for fd in got:
            poll.register(fd, select.POLLIN)
        left, end = len(got), time.monotonic() + timeout_s
        while left:
            assert time.monotonic() < end, f"{left} streams have not ended"
            for fd, _flags in poll.poll(1000):
                data = by_fd[fd].recv(65536)
                got[fd] += data
                if not data or got[fd].endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
                    poll.unregister(fd)
                    left -= 1
        for sock in self.sockets:
            sock.close()
        return list(got.values())
