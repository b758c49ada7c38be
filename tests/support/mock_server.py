"""A scriptable mock of an OpenAI-compatible server on raw sockets, which stamps what it sends.

    with MockServer([stream([(0, role()), (50, text("Hi")), (60, finish()), (60, DONE)])]) as mock:
        drive(mock.url)
        mock.served[0].sent_ns   # monotonic ns just before each write

Scripts are used in the order of the requests' arrival; the last one repeats. `MockServer` answers
from a thread of this process, `MockProcess` from a forked process (for measurements).
"""

import contextlib
import dataclasses
import heapq
import itertools
import json
import multiprocessing
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Script:
    """One reply: (ms after the request was complete, raw bytes) in order, then what happens.

    after: "keep" the connection, "close" it, or "reset" it; "closed" sends the close with the last
    bytes, so that whoever has read them has been told already.
    """

    parts: tuple[tuple[float, bytes], ...]
    after: str = "keep"


@dataclass
class Served:
    """One request as the server saw it. Times: monotonic ns."""

    connection: int
    path: str
    head: bytes
    body: bytes
    received_ns: int
    sent_ns: list[int] = field(default_factory=list)  # just before each write
    done_ns: list[int] = field(default_factory=list)  # just after it
    left: bool = False  # the client closed before the script was over

    def json(self) -> Any:
        return json.loads(self.body)

    def miss_ns(self, part: int, at_ns: int) -> int:
        """How far a time lies outside the write of a part: below 0 before it, above 0 after it."""
        return min(at_ns - self.sent_ns[part], 0) + max(at_ns - self.done_ns[part], 0)

    @property
    def identity(self) -> int:
        """What `driving.drive` put into the X-Identity header."""
        return int(self.head.split(b"X-Identity: ")[1].split(b"\r\n")[0])


# -- bytes of replies


def http_head(
    status: int = 200,
    content_type: str | None = "text/event-stream",
    *,
    length: int | None = None,
    extra: Sequence[str] = (),
) -> bytes:
    """A reply's head; chunked without a length (`length=-1`: neither)."""
    lines = [f"HTTP/1.1 {status} Mock"]
    if content_type:
        lines.append(f"Content-Type: {content_type}")
    if length is None:
        lines.append("Transfer-Encoding: chunked")
    elif length >= 0:
        lines.append(f"Content-Length: {length}")
    return "\r\n".join([*lines, *extra, "", ""]).encode()


def http_chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; of b"" the last one."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(value: Any) -> bytes:
    """An SSE event of a JSON value."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk_value(choices: list[Any], **more: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "mock",
        "choices": choices,
        **more,
    }


def delta(finish_reason: str | None = None, **fields: Any) -> bytes:
    """A chat chunk with the given delta."""
    return event(chunk_value([{"index": 0, "delta": fields, "finish_reason": finish_reason}]))


def role() -> bytes:
    return delta(role="assistant", content="")


def text(content: str = "a") -> bytes:
    return delta(content=content)


def finish(reason: str = "stop") -> bytes:
    return delta(finish_reason=reason)


def usage(prompt: int, completion: int, cached: int | None = None) -> bytes:
    counts: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": completion}
    if cached is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    return event(chunk_value([], usage=counts))


def stream(
    events: Sequence[tuple[float, bytes]], *, head_ms: float = 0.0, after: str = "keep"
) -> Script:
    """A whole chunked reply, one write an event."""
    parts = [(head_ms, http_head())]
    parts += [(ms, http_chunk(data)) for ms, data in events]
    last = parts[-1]
    parts[-1] = (last[0], last[1] + http_chunk(b""))
    return Script(tuple(parts), after)


def plain_stream(
    chunks: int,
    *,
    first_ms: float = 0.0,
    gap_ms: float = 0.0,
    prompt: int = 10,
    closing_ms: float = 0.0,
) -> Script:
    """`chunks` chunks of one token each; closing_ms after the last a finish, usage, end marker."""
    events = [(first_ms + i * gap_ms, text()) for i in range(chunks)]
    end = first_ms + (chunks - 1) * gap_ms + closing_ms
    return stream([*events, (end, finish("length") + usage(prompt, chunks) + DONE)])


def at_once(script: Script, ms: float = 0.0) -> Script:
    """The same reply in one write."""
    return Script(((ms, b"".join(data for _, data in script.parts)),), script.after)


def page(status: int, content_type: str, body: bytes, *, extra: Sequence[str] = ()) -> Script:
    """A reply that is no stream."""
    head = http_head(status, content_type, length=len(body), extra=extra)
    return Script(((0.0, head + body),))


def models_page(*names: str, max_model_len: int | None = None) -> Script:
    models = [{"id": n, "object": "model", "max_model_len": max_model_len} for n in names]
    return page(200, "application/json", json.dumps({"object": "list", "data": models}).encode())


# -- the server


class _Peer:
    """A client's connection."""

    def __init__(self, sock: socket.socket, number: int) -> None:
        self.sock, self.number = sock, number
        self.data = b""
        self.busy = False
        self.served: Served | None = None


Answer = Callable[[Served, int], Script]
Pages = dict[str, Script | Callable[[Served], Script]]


class _Engine:
    """The event loop behind both servers."""

    def __init__(
        self, answer: Answer, pages: Pages, listener: socket.socket, keep_bodies: bool
    ) -> None:
        self.answer, self.pages, self.listener = answer, pages, listener
        self.keep_bodies = keep_bodies
        self.served: list[Served] = []
        self.other: list[Served] = []  # requests answered from `pages`
        self.peak_busy = 0
        self.accepted = 0
        self._busy = 0
        self._peers: dict[int, _Peer] = {}
        self._timers: list[tuple[int, int, _Peer, Script, int]] = []
        self._sequence = itertools.count()
        self._epoll = select.epoll()

    def run(self, stop_fd: int) -> None:
        self.listener.setblocking(False)
        self._epoll.register(self.listener, select.EPOLLIN)
        self._epoll.register(stop_fd, select.EPOLLIN)
        while True:
            wait = None
            if self._timers:
                wait = max(0.0, (self._timers[0][0] - time.monotonic_ns()) / 1e9)
            events = self._epoll.poll(0, 256)
            if not events and wait != 0:
                select.select([self._epoll], [], [], wait)
                events = self._epoll.poll(0, 256)
            for fd, _ in events:
                if fd == stop_fd:
                    self._close()
                    return
                if fd == self.listener.fileno():
                    self._accept()
                elif fd in self._peers:
                    self._read(self._peers[fd])
            while self._timers and self._timers[0][0] <= time.monotonic_ns():
                _, _, peer, script, part = heapq.heappop(self._timers)
                self._play(peer, script, part)

    def _close(self) -> None:
        for peer in list(self._peers.values()):
            peer.sock.close()
        self._epoll.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers[sock.fileno()] = _Peer(sock, self.accepted)
            self.accepted += 1
            self._epoll.register(sock, select.EPOLLIN)

    def _drop(self, peer: _Peer, *, reset: bool = False) -> None:
        self._epoll.unregister(peer.sock)
        del self._peers[peer.sock.fileno()]
        if reset:
            peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.sock.close()
        if peer.busy:
            self._busy -= 1
            peer.busy = False

    def _read(self, peer: _Peer) -> None:
        try:
            data = peer.sock.recv(1 << 20)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            if peer.busy and peer.served is not None:
                peer.served.left = True
            self._drop(peer)
            return
        peer.data += data
        self._next_request(peer)

    def _next_request(self, peer: _Peer) -> None:
        end = peer.data.find(b"\r\n\r\n")
        if end < 0 or peer.busy:
            return
        head = peer.data[: end + 4]
        at = head.lower().find(b"content-length:")
        length = int(head[at + 15 : head.index(b"\r", at)]) if at >= 0 else 0
        if len(peer.data) < len(head) + length:
            return
        body = peer.data[len(head) : len(head) + length]
        peer.data = peer.data[len(head) + length :]
        path = head.split(b" ", 2)[1].decode()
        served = Served(
            peer.number, path, head, body if self.keep_bodies else b"", time.monotonic_ns()
        )
        peer.served, peer.busy = served, True
        self._busy += 1
        if path in self.pages:
            self.other.append(served)
            found = self.pages[path]
            script = found(served) if callable(found) else found
        elif head.startswith(b"GET") or not path.endswith("completions"):
            self.other.append(served)
            script = page(404, "application/json", b'{"detail":"Not Found"}')
        else:
            self.served.append(served)
            self.peak_busy = max(self.peak_busy, self._busy)
            script = self.answer(served, len(self.served) - 1)
        self._play(peer, script, 0)

    def _play(self, peer: _Peer, script: Script, part: int) -> None:
        """Write what is due, then wait for the next part."""
        served = peer.served
        if served is None or served.left or not peer.busy:
            return
        while part < len(script.parts):
            ms, data = script.parts[part]
            due = served.received_ns + round(ms * 1e6)
            if ms > 0 and due > time.monotonic_ns():
                heapq.heappush(self._timers, (due, next(self._sequence), peer, script, part))
                return
            served.sent_ns.append(time.monotonic_ns())
            with_more = script.after == "closed" and part + 1 == len(script.parts)
            if not self._write(peer, data, socket.MSG_MORE if with_more else 0):
                served.left = True
                self._drop(peer)
                return
            served.done_ns.append(time.monotonic_ns())
            part += 1
        if script.after == "keep":
            peer.busy = False
            self._busy -= 1
            self._next_request(peer)
        elif script.after != "hold":
            self._drop(peer, reset=script.after == "reset")

    @staticmethod
    def _write(peer: _Peer, data: bytes, flags: int = 0) -> bool:
        try:
            while data:
                try:
                    data = data[peer.sock.send(data, flags) :]
                except BlockingIOError:
                    select.select([], [peer.sock], [], 5)
        except OSError:
            return False
        return True


def _listen() -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 0))
    listener.listen(4096)
    return listener


def _answer_of(scripts: Sequence[Script] | Answer) -> Answer:
    if callable(scripts):
        return scripts
    return lambda _, number: scripts[min(number, len(scripts) - 1)]


class MockServer:
    """The mock in a thread of this process: simple to look into while it runs."""

    def __init__(
        self,
        scripts: Sequence[Script] | Answer,
        pages: Pages | None = None,
        keep_bodies: bool = True,
    ) -> None:
        self._listener = _listen()
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._engine = _Engine(_answer_of(scripts), pages or {}, self._listener, keep_bodies)
        self._stop = os.pipe()

    @property
    def served(self) -> list[Served]:
        """The POSTs, in order of arrival."""
        return self._engine.served

    @property
    def other(self) -> list[Served]:
        """Requests answered from `pages`, and other GETs."""
        return self._engine.other

    @property
    def peak_busy(self) -> int:
        """The most requests that were open at once."""
        return self._engine.peak_busy

    @property
    def accepted(self) -> int:
        """Connections accepted."""
        return self._engine.accepted

    def __enter__(self) -> "MockServer":
        self._thread = threading.Thread(target=self._engine.run, args=(self._stop[0],))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Close everything; a second call does nothing."""
        if not self._thread.is_alive():
            return
        os.write(self._stop[1], b"x")
        self._thread.join()
        self._listener.close()
        for fd in self._stop:
            os.close(fd)


class MockProcess:
    """The mock in a process of its own; what it saw is here after `stop` (or the `with` block)."""

    def __init__(
        self,
        scripts: Sequence[Script] | Answer,
        pages: Pages | None = None,
        keep_bodies: bool = False,
    ) -> None:
        self._listener = _listen()
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._engine = _Engine(_answer_of(scripts), pages or {}, self._listener, keep_bodies)
        self.served: list[Served] = []
        self.peak_busy = 0

    def _main(self, stop_fd: int, results: Any) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            self._engine.run(stop_fd)
        served = [dataclasses.asdict(s) for s in self._engine.served]
        results.send((served, self._engine.peak_busy))
        results.close()

    def __enter__(self) -> "MockProcess":
        context = multiprocessing.get_context("fork")
        self._results, theirs = context.Pipe(duplex=False)
        self._stop = os.pipe()
        self._process = context.Process(target=self._main, args=(self._stop[0], theirs))
        self._process.start()
        theirs.close()
        self._listener.close()
        return self

    def stop(self) -> None:
        """End it and take over what it saw."""
        if not self._process.is_alive():
            return
        os.write(self._stop[1], b"x")
        served, self.peak_busy = self._results.recv()
        self.served = [Served(**fields) for fields in served]
        self._process.join()

    def __exit__(self, *_: object) -> None:
        self.stop()
        for fd in self._stop:
            os.close(fd)
