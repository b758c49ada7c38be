"""One HTTP/1.1 connection: bytes in, whole requests out, replies back with backpressure."""

import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus

import httptools

MAX_BODY = 64 << 20
MAX_HEAD = 64 << 10
HIGH_WATER = 1 << 20
MAX_UNSENT = 16 << 20  # a reader that lags this far behind is cut off
_READ = 256 << 10

# Linux's SO_TIMESTAMPNS (64-bit struct timespec), which Python's socket module does not name.
SO_TIMESTAMPNS = 35
_STAMPED = sys.platform == "linux" and struct.calcsize("l") == 8
_STAMP_SPACE = socket.CMSG_SPACE(16) if _STAMPED else 0
# An older stamp is a stepped clock, not a late reader.
_MAX_STAMP_AGE_NS = 1_000_000_000


@dataclass(slots=True)
class HttpRequest:
    """One request as it came. `arrival_ns`: monotonic time at which its last byte arrived."""

    method: str = ""
    path: str = ""
    http_11: bool = True
    keep_alive: bool = True
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    arrival_ns: int = 0
    refused: int | None = None  # the status that the transport itself answers with


def stamp_arrivals(sock: socket.socket) -> None:
    """Ask the kernel to stamp what arrives; sockets accepted from a listener inherit it."""
    if _STAMPED:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)


class Connection:
    """Parses what arrives into `requests`; the server takes them one after the other.

    Requests that were pipelined wait here until the reply before them is complete.
    """

    def __init__(self, sock: socket.socket, wants_write: Callable[[int, bool], None]) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.requests: deque[HttpRequest] = deque()
        self.busy = False  # a reply is going on
        self.closed = False
        self.close_when_sent = False
        self.free_since_ns = 0  # monotonic time at which the last generation's reply ended
        self.stream: object = None  # the server's stream of the reply that is going on
        self._wants_write = wants_write
        self._unsent = bytearray()
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._arrival_ns = 0
        self._reset()

    # -- reading ---------------------------------------------------------------------------------

    def _reset(self) -> None:
        self._request = HttpRequest()
        self._url = bytearray()
        self._body: list[bytes] = []
        self._head_bytes = 0
        self._body_bytes = 0

    def read(self) -> bool:
        """Take in what is there; False when the peer has closed or the connection is broken."""
        try:
            if _STAMPED:
                data, extra, _, _ = self.sock.recvmsg(_READ, _STAMP_SPACE)
                self._arrival_ns = _arrival_ns(extra)
            else:
                data = self.sock.recv(_READ)
                self._arrival_ns = time.monotonic_ns()
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        if not data:
            return False
        if self._parser is None:  # refused earlier; the rest is not listened to
            return True
        self._parse(data)
        return True

    def _parse(self, data: bytes) -> None:
        while data and self._parser is not None:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = self._decline_upgrade(data[upgrade.args[0] :])
                continue
            except httptools.HttpParserError:
                self._refuse(400)
            return

    def _decline_upgrade(self, rest: bytes) -> bytes:
        """What to parse instead of a request that offers another protocol, and the rest after it.

        Some clients offer HTTP/2 with every first request. The parser stops there, body unread; the
        request begins anew without the offer, so that it is answered in HTTP/1.1.
        """
        request = self._request
        if self._parser is None or request.method == "CONNECT":
            self._refuse(400)
            return b""
        hop = ("upgrade", "connection", "http2-settings")
        headers = [f"{k}: {v}\r\n" for k, v in request.headers.items() if k not in hop]
        start = f"{request.method} {self._url.decode('latin-1')} HTTP/1.1\r\n"
        self._parser = httptools.HttpRequestParser(self)
        self._reset()
        return (start + "".join(headers) + "\r\n").encode("latin-1") + rest

    def _refuse(self, status: int) -> None:
        """Answer with `status` after what was asked before, then close."""
        if self._parser is not None:
            self._parser = None
            self.requests.append(
                HttpRequest(keep_alive=False, arrival_ns=self._arrival_ns, refused=status)
            )

    # httptools calls these by their names.

    def on_url(self, url: bytes) -> None:
        """Take a piece of the request target."""
        self._url += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header."""
        self._request.headers[name.decode("latin-1").lower()] = value.decode("latin-1")
        self._count_head(len(name) + len(value))

    def on_headers_complete(self) -> None:
        """Note the method and whether the connection stays open."""
        assert self._parser is not None
        request = self._request
        request.method = self._parser.get_method().decode("latin-1")
        request.http_11 = self._parser.get_http_version() == "1.1"
        request.keep_alive = self._parser.should_keep_alive()
        if request.headers.get("expect", "").lower() == "100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._body_bytes += len(body)
        if self._body_bytes > MAX_BODY:
            self._refuse(413)
        if self._parser is not None:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """One request is whole."""
        if self._parser is None or self._parser.should_upgrade():
            return
        request = self._request
        request.path = self._url.decode("latin-1").partition("?")[0]
        request.body = b"".join(self._body)
        request.arrival_ns = self._arrival_ns
        self.requests.append(request)
        self._reset()

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD:
            self._refuse(431)

    # -- writing ---------------------------------------------------------------------------------

    def write(self, data: bytes) -> bool:
        """Send now what the kernel takes and keep the rest; False when the connection is gone."""
        if self.closed:
            return False
        if self._unsent:
            self._unsent += data
            return len(self._unsent) <= MAX_UNSENT
        try:
            sent = self.sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            return False
        if sent < len(data):
            self._unsent += data[sent:]
            self._wants_write(self.fd, True)
        return True

    def flush(self) -> bool:
        """Send what was kept; False when the connection is gone."""
        try:
            sent = self.sock.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        del self._unsent[:sent]
        if not self._unsent:
            self._wants_write(self.fd, False)
        return True

    @property
    def drained(self) -> bool:
        """True when everything written has gone to the kernel."""
        return not self._unsent

    @property
    def takes_more(self) -> bool:
        """False while the reader lags: its next pipelined request waits then."""
        return len(self._unsent) < HIGH_WATER

    def close(self) -> None:
        """Close the socket and break the cycle with the parser."""
        self.closed = True
        self._parser = None
        self.sock.close()


def _arrival_ns(extra: list[tuple[int, int, bytes]]) -> int:
    """The kernel's receive time as monotonic ns, else now.

    Kernel stamps are on the realtime clock; the difference of the two clocks is taken at the read.
    """
    now, realtime = _clocks()
    for level, kind, data in extra:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) >= 16:
            seconds, nanos = struct.unpack_from("qq", data)
            age: int = realtime - (seconds * 1_000_000_000 + nanos)
            if 0 <= age < _MAX_STAMP_AGE_NS:
                return now - age
    return now


def _clocks() -> tuple[int, int]:
    """Monotonic and realtime ns of one moment; read again when something came in between."""
    for _ in range(4):
        before = time.monotonic_ns()
        realtime = time.time_ns()
        if time.monotonic_ns() - before < 20_000:
            break
    return before, realtime


def response(
    status: int,
    body: bytes,
    *,
    kind: str = "application/json",
    keep_alive: bool = True,
    head_only: bool = False,
    allow: str | None = None,
) -> bytes:
    """A complete reply with its length."""
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        "server: ridgeline-twin",
        f"content-type: {kind}",
        f"content-length: {len(body)}",
    ]
    if allow:
        lines.append(f"allow: {allow}")
    if not keep_alive:
        lines.append("connection: close")
    head = "\r\n".join(lines).encode() + b"\r\n\r\n"
    return head if head_only else head + body


def stream_head(*, http_11: bool, keep_alive: bool) -> bytes:
    """The head of an event stream. HTTP/1.0 knows no chunks: there the close ends it."""
    close = "" if keep_alive and http_11 else "connection: close\r\n"
    framing = "transfer-encoding: chunked\r\n" if http_11 else ""
    return (
        "HTTP/1.1 200 OK\r\nserver: ridgeline-twin\r\n"
        f"content-type: text/event-stream; charset=utf-8\r\n{close}{framing}\r\n"
    ).encode()


def framed(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)
