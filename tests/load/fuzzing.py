"""Fuzzed replies, and what a client may say of them at most: an oracle without the client's code.

The oracle reads HTTP with the standard library's http.client and server-sent events line by line.
What it does not call a good reply may be called a success by nobody; what it calls one has exactly
its chunks.
"""

import http.client
import io
import json
import random
import re
from dataclasses import dataclass

from ridgeline.load.clock import KernelClock
from ridgeline.load.http import BUSY, IDLE, Connection
from ridgeline.load.loop import READ
from ridgeline.load.request import InFlight
from ridgeline.load.traffic import Launch
from ridgeline.workload.schedule import PlannedRequest
from support.mock_server import DONE, delta, finish, http_chunk, http_head, role, text, usage


class FakeSocket:
    """Bytes for a parser, without a network."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, *_: object, **__: object) -> io.BytesIO:
        return io.BytesIO(self._data)


def oracle(data: bytes) -> int | None:
    """Content chunks of a whole good reply in these bytes; None when they are no such reply."""
    # empty lines before the status line are forgiven, as RFC 9112 (2.2) asks of servers
    data = data.lstrip(b"\r\n")
    if b"chunked" in data.partition(b"\r\n\r\n")[0]:
        # a chunk longer than any memory is one that never ends; http.client cannot count so far
        data = re.sub(rb"(?i)(\r\n0*)[0-9a-f]{14,}\r\n", rb"\1fffffff\r\n", data)
    reply = http.client.HTTPResponse(FakeSocket(data), method="POST")  # type: ignore[arg-type]
    whole = True
    try:
        reply.begin()
        body = reply.read()
    except http.client.IncompleteRead as error:
        whole, body = False, error.partial + getattr(error.__cause__, "partial", b"")
    except (http.client.HTTPException, ValueError, OverflowError, OSError):
        return None
    if reply.status != 200:
        return None
    return events_oracle(body, whole)


def events_oracle(body: bytes, whole: bool = True) -> int | None:
    """The same for the body. One that is not whole must have its end marker."""
    chunks, finished = 0, False
    lines = re.split(rb"\r\n|\n|\r", body.removeprefix(b"\xef\xbb\xbf"))
    pending: list[bytes] = []
    for line in [*lines, b""]:
        if line:
            if line.startswith(b"data:"):
                pending.append(line[5:].removeprefix(b" "))
            continue
        if not pending:
            continue
        payload, pending = b"\n".join(pending), []
        if payload.strip() == b"[DONE]":
            whole = True
            break
        try:
            value = json.loads(payload.decode("utf-8"))
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, dict) or value.get("error") or value.get("object") == "error":
            return None
        choices = value.get("choices")
        if not choices:
            continue
        if not isinstance(choices, list) or not isinstance(choices[0], dict):
            return None
        if isinstance(choices[0].get("finish_reason"), str):
            finished = True
            if choices[0]["finish_reason"] in ("abort", "error"):
                return None
        said = choices[0].get("delta")
        if isinstance(said, dict):
            keys = ("content", "reasoning", "reasoning_content", "tool_calls", "function_call",
                    "refusal")  # fmt: skip
            chunks += any(bool(said.get(key)) for key in keys)
        else:
            chunks += bool(choices[0].get("text"))
    return chunks if chunks and finished and whole else None


@dataclass
class Outcome:
    """What the client made of a reply."""

    failure: str | None
    chunks: int
    ends: int


class _Socket:
    """What a connection needs of a socket; its reads come from a list."""

    def __init__(self, reads: list[bytes]) -> None:
        self._reads = reads

    def recvmsg(self, *_: int) -> tuple[bytes, list[object], int, None]:
        return (self._reads.pop(0) if self._reads else b""), [], 0, None

    def send(self, data: bytes) -> int:
        return len(data)

    def getsockopt(self, *_: int) -> bytes:
        return b""  # no TCP, so it knows of no acknowledgements

    def close(self) -> None:
        pass


class _Loop:
    since_ns = 0

    def remove(self, fd: int) -> None:
        pass

    def change(self, fd: int, mask: int) -> None:
        pass


def feed(reads: list[bytes]) -> Outcome:
    """Let the client's own connection and request take these reads, then the server's closing."""
    ends: list[InFlight] = []
    connection = Connection.__new__(Connection)
    Connection.__init__(connection, _Loop(), KernelClock(), _Site(), _Owner())  # type: ignore[arg-type]
    connection._sock, connection._fd = _Socket([r for r in reads if r]), 3  # type: ignore[assignment]
    connection._ancillary_bytes, connection.state = 0, IDLE
    request = InFlight(
        0, 0, _launch(), [b"x"], again=ends.append, ended=lambda request, _: ends.append(request)
    )
    connection.send([b"x"], request)
    turns = len(reads) + 2
    while connection.state == BUSY:
        connection._on_event(READ)
        turns -= 1
        assert turns >= 0, "a connection that reads on after its end"
    (ended,) = ends
    return Outcome(ended.failure, len(ended.reply.stamps), len(ends))


class _Site:
    tls = None
    host = url = "fuzz"


class _Owner:
    reused = True

    def on_idle_closed(self, connection: Connection) -> None:
        pass


def _launch() -> Launch:
    planned = PlannedRequest(row=0, prompt_tokens=1, output_tokens=1)
    return Launch(None, planned, 0, 0)


def good_replies() -> list[bytes]:
    """Whole replies of several forms, each good."""
    plain = [role(), *[text(f" w{i}") for i in range(6)], finish("stop"), usage(3, 6), DONE]
    reasoning = [delta(reasoning_content="a"), delta(reasoning="b"), text("c"), finish(), DONE]
    odd = [text('say "x\\" and \u00fc'), text("\\"), text("\u2028{}"), finish("length"), DONE]
    comments = [b": ping\n\n", text("a"), b"event: x\nid: 3\n\n", text("b"), finish(), DONE]
    crlf = [e.replace(b"\n", b"\r\n") for e in plain]
    found = []
    for events in (plain, reasoning, odd, comments, crlf):
        body = b"".join(events)
        found.append(http_head() + b"".join(map(http_chunk, events)) + http_chunk(b""))
        found.append(http_head(length=len(body)) + body)
        found.append(http_head(length=-1) + body)
    return found


PIECES = (
    b"\r\n", b"\n\n", b"\r", b"data: ", b"data:", b"[DONE]", b"0\r\n\r\n", b"ffffffffffffffff\r\n",
    b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"Content-Length: 5\r\n", b"\x00",
    b"\xff\xfe", b"\xef\xbb\xbf", b'"', b"\\", b"}", b"{", b'"content":""', b'"error":{}', b"null",
    b"-1", b"1e999", b"Transfer-Encoding: chunked\r\n", b"finish_reason", b'"stop"', b": x\n",
)  # fmt: skip


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The same with one to four changes: bits, cuts, doublings, exchanges, foreign pieces."""
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((1, 1, 2, 5, 40, 200)))
        kind = rng.randrange(6)
        if kind == 0 and at < len(data):
            data = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        elif kind == 1:
            data = data[:at] + data[end:]
        elif kind == 2:
            data = data[:end] + data[at:end] + data[end:]
        elif kind == 3:
            data = data[:at] + rng.choice(PIECES) + data[at:]
        elif kind == 4:
            data = data[:at] + rng.choice(PIECES) + data[end:]
        else:
            data = data[:at]
    return data


def split(data: bytes, rng: random.Random) -> list[bytes]:
    """Cut at random places: in one, in few, or at every byte."""
    kind = rng.randrange(4)
    if kind == 0:
        return [data]
    if kind == 1:
        return [data[i : i + 1] for i in range(len(data))]
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randint(1, 12)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def check(data: bytes, reads: list[bytes]) -> str:
    """Feed a reply and hold the outcome against the oracle; "good", "bad" or "refused".

    Raises AssertionError for a wrong success. "refused": the client says failure where the oracle
    does not: allowed for what is broken in ways that the oracle forgives.
    """
    found, truth = feed(reads), oracle(data)
    if found.failure is None:
        assert truth is not None, (data, found)
        assert found.chunks == truth, (data, found, truth)
        return "good"
    return "bad" if truth is None else "refused"
