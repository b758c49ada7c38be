"""One kept-alive HTTP/1.1 connection: connect, send a request, read its reply, all non-blocking.

httptools (llhttp) parses; what a read brings is handed on as one block with one receive time.
"""

import errno
import os
import socket
import ssl
import struct
import sys
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any, Protocol

import httptools

from ridgeline.load.clock import ANCILLARY_BYTES, NEVER_NS, KernelClock, ask_for_stamps
from ridgeline.load.loop import READ, WRITE, Loop
from ridgeline.load.tls import Tls

READ_BYTES = 1 << 16  # the buffer is made anew for each read: a larger one costs more than it saves
JOIN_BYTES = (
    1 << 14
)  # pieces of a request below this are put together: one copy is cheaper than many parts
# A server that closes right after its reply while the next request lies unread resets. That says
# nothing of what was read, but it comes within one way there and back, which is what connecting
# took.
STALE_NS = 5_000_000
LONGEST_TRIP_NS = 250_000_000
ACKED = struct.Struct("@120xQ")  # tcpi_bytes_acked in Linux's tcp_info (tcp(7)); the SYN is one

# How a read ends whose last bytes are an event's: lines end with LF, in an HTTP chunk or not, or
# with CRLF in one (without one it would look as the end of a chunked body does).
_EVENT_ENDS = (b"\n\n\r\n", b"\n\n", b"\r\n\r\n\r\n")

_HEADER_LENGTHS = frozenset(map(len, ("content-type", "content-length", "transfer-encoding")))

CONNECTING, HANDSHAKE, IDLE, BUSY, CLOSED = range(5)


@dataclass(frozen=True, slots=True)
class Site:
    """Where requests go. `address` is resolved beforehand; `url` is for messages.

    `host` is the name that a certificate must bear; `tls` is None for plain HTTP.
    """

    family: int
    address: tuple[Any, ...]
    host: str
    url: str
    tls: ssl.SSLContext | None = None


class Answer(Protocol):
    """What takes a reply. `stamps`: the times of its content chunks so far."""

    @property
    def stamps(self) -> Sized:
        """One for each content chunk."""

    @property
    def content_last(self) -> bool:
        """Whether the last body byte of the last read was the end of a content chunk."""

    def head(self, status: int, content_type: str) -> None:
        """The reply's head has come."""

    def note_late(self, error_ns: int, *, first: bool, upload_ns: int) -> None:
        """The last read's chunks, with the first one or not, may have come that much earlier."""

    def body(self, block: bytes, stamp_ns: int, kernel: bool, pieces: Sequence[bytes]) -> int:
        """All body bytes of one read, also as HTTP cut them; how many content chunks they hold.

        Below 0 it is ~count: give up and close the connection.
        """


class Exchange(Protocol):
    """A request on its way, as its connection sees it. Times are monotonic ns.

    `parts` are its bytes; they are let go when the reply's head is there, because a long prompt
    need not live as long as its reply.
    """

    parts: Sequence[bytes]

    @property
    def reply(self) -> Answer:
        """What takes its reply."""

    def on_end(self, connection: "Connection", at_ns: int, problem: str | None) -> None:
        """The reply is complete (problem None), or nothing more will come, and why."""


class Owner(Protocol):
    """Who keeps the connections."""

    @property
    def reused(self) -> bool:
        """Whether any connection has served two requests."""

    def on_ready(self, connection: "Connection") -> None:
        """It is connected and idle."""

    def on_failed(self, connection: "Connection", detail: str) -> None:
        """It never got connected."""

    def on_idle_closed(self, connection: "Connection") -> None:
        """The server closed it between requests."""


class Connection:
    """A connection and the exchange on it. One exchange at a time.

    `connect_ns` is how long connecting took (with TLS: and the handshake); `served` counts
    complete replies; `answered` is true once a byte of the current reply has come; `reusable`
    tells after a reply whether another request may follow; `stale`, after an exchange that ended
    unanswered, that the server had closed before a byte of the request reached it; `dropped` that
    the server may have read it.
    """

    __slots__ = (
        "_ancillary_bytes", "_body_end", "_clock", "_complete", "_content_type", "_drained",
        "_exchange", "_fd", "_floor_ns", "_framed", "_loop", "_out", "_owner", "_parser", "_pieces",
        "_sent_before", "_sent_bytes", "_sent_ns", "_sock", "_status", "_surplus", "_tls",
        "_upload_late_ns", "answered", "connect_ns", "dropped", "on_body", "reusable", "served",
        "site", "stale", "started_ns", "state",
    )  # fmt: skip

    def __init__(self, loop: Loop, clock: KernelClock, site: Site, owner: Owner) -> None:
        self._loop, self._clock, self._owner, self.site = loop, clock, owner, site
        self._tls = Tls(site.tls, site.host) if site.tls is not None else None
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append  # called by the parser: no Python frame per HTTP chunk
        self._parser = httptools.HttpResponseParser(self)
        self._exchange: Exchange | None = None
        self._out = b""
        self._floor_ns = 0
        self._sent_bytes = self._sent_before = 0  # by now; when this request began
        self._upload_late_ns = 0  # how long bytes of the request waited for the client to go on
        self._drained = True  # the last read took all that was there
        self.state = CONNECTING
        self.connect_ns = 0
        self.served = 0
        self.answered = False
        self.stale = self.dropped = False
        self.reusable = True
        self._reset_reply()

    # -- connecting

    def start(self) -> None:
        """Begin to connect; the owner hears of the outcome, never within this call."""
        self.started_ns = monotonic_ns()
        try:
            self._sock = socket.socket(self.site.family, socket.SOCK_STREAM)
        except OSError as error:
            self.state = CLOSED
            self._loop.call_at(0, self._owner.on_failed, self, os.strerror(error.errno or 0))
            return
        self._sock.setblocking(False)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ancillary_bytes = ANCILLARY_BYTES if ask_for_stamps(self._sock) else 0
        code = self._sock.connect_ex(self.site.address)
        self._fd = self._sock.fileno()
        self._loop.add(self._fd, self._on_event, READ | WRITE)
        if code not in (0, errno.EINPROGRESS):
            self._loop.call_at(0, self._fail, os.strerror(code))

    def _fail(self, detail: str) -> None:
        if self.state in (CONNECTING, HANDSHAKE):
            self.close()
            self._owner.on_failed(self, detail)

    def _connected(self) -> None:
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._fail(os.strerror(code))
            return
        try:
            self._sock.getpeername()
        except OSError:  # not yet: a stale event of a reused descriptor
            return
        self._loop.change(self._fd, READ)
        if self._tls is None:
            self._ready()
        else:
            self.state = HANDSHAKE
            self._shake(b"")

    def _shake(self, data: bytes) -> None:
        assert self._tls is not None
        try:
            done, out = self._tls.handshake(data)
        except ssl.SSLError as error:
            self._fail(f"TLS: {error.reason or error}")
            return
        if out:
            self._write(out)
        if done and self.state == HANDSHAKE:
            self._ready()

    def _ready(self) -> None:
        self.connect_ns = monotonic_ns() - self.started_ns
        self.state = IDLE
        self._owner.on_ready(self)

    # -- sending

    def send(self, parts: Sequence[bytes], exchange: Exchange) -> int | None:
        """Send a request's bytes; returns when (monotonic ns), None if the connection is gone."""
        assert self.state == IDLE
        self._exchange, self.state = exchange, BUSY
        self._reset_reply()
        self.answered = self.stale = self.dropped = False
        self._upload_late_ns = 0
        if self._tls is not None:
            parts = [self._tls.encrypt(b"".join(parts))]
        size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        if size <= JOIN_BYTES and len(parts) > 1:
            parts = [b"".join(parts)]
        self._sent_before = self._sent_bytes
        self._floor_ns = self._sent_ns = sent_ns = monotonic_ns()
        try:
            gone = self._sock.send(parts[0]) if len(parts) == 1 else self._sock.sendmsg(parts)
        except BlockingIOError:
            gone = 0
        except OSError:
            self.close()
            return None
        self._sent_bytes += gone
        if gone < size:
            self._out = b"".join(parts)[gone:]
            self._loop.change(self._fd, READ | WRITE)
        return sent_ns

    def _write(self, data: bytes) -> None:
        """Send or queue bytes that belong to no request (TLS)."""
        self._out += data
        self._flush()

    def _flush(self) -> None:
        if self.state == BUSY:
            # a prompt larger than the socket's buffer: the server waits for the rest of it
            self._upload_late_ns += max(monotonic_ns() - self._loop.since_ns, 0)
        try:
            gone = self._sock.send(self._out)
        except BlockingIOError:
            gone = 0
        except OSError:
            self._out = b""  # the read side tells what happened
            gone = 0
        self._sent_bytes += gone
        self._out = self._out[gone:]
        self._loop.change(self._fd, READ | WRITE if self._out else READ)

    # -- receiving

    def _on_event(self, bits: int) -> None:
        if self.state == CONNECTING:
            self._connected()
            return
        if bits & WRITE:
            if self._out:
                self._flush()
            if not bits & ~WRITE:
                return
        try:
            data, ancillary, _, _ = self._sock.recvmsg(READ_BYTES, self._ancillary_bytes)
        except BlockingIOError:
            return
        except OSError as error:
            self._gone(os.strerror(error.errno or 0))
            return
        read_ns = monotonic_ns()
        if not data:
            self._gone("closed by the server")
            return
        floor_ns, drained = self._floor_ns, self._drained
        stamp_ns, kernel = self._clock.receive(ancillary, read_ns, floor_ns)
        self._floor_ns, self._drained = stamp_ns, len(data) < READ_BYTES
        if self._tls is not None:
            data = self._decrypted(data)
            if not data:
                return
        if self.state == BUSY:
            since_last_ns = stamp_ns - floor_ns if drained else NEVER_NS
            late_ns = read_ns - self._loop.since_ns
            self._clock.note_read(read_ns - stamp_ns, late_ns, kernel, since_last_ns)
            self._feed(data, stamp_ns, kernel)
        else:
            self._gone("unasked bytes from the server")

    def _decrypted(self, data: bytes) -> bytes:
        """What a read holds for HTTP; nothing while it belongs to TLS itself."""
        assert self._tls is not None
        if self.state == HANDSHAKE:
            self._shake(data)
            return b""
        try:
            data, out = self._tls.decrypt(data)
        except ssl.SSLError as error:
            self._gone(f"TLS: {error.reason or error}")
            return b""
        if out:
            self._write(out)
        return data

    def _feed(self, data: bytes, stamp_ns: int, kernel: bool) -> None:
        exchange = self._exchange
        assert exchange is not None
        self.answered = True
        problem = None
        had_head = self._status is not None
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            problem = f"not HTTP: {error}"
        if not had_head and self._status is not None:
            exchange.parts = ()
            exchange.reply.head(self._status, self._content_type)
        pieces = self._pieces
        if pieces:
            if self._body_end is not None:
                del pieces[self._body_end :]
            block = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            count = exchange.reply.body(block, stamp_ns, kernel, pieces)
            pieces.clear()
            if count:
                chunks = count if count > 0 else ~count
                reply = exchange.reply
                first = chunks == len(reply.stamps)
                last = chunks == 1 and reply.content_last and self._ends_read(data)
                upload_ns = self._upload_late_ns if first else 0
                error_ns = self._clock.note_chunks(chunks, first, last, upload_ns)
                if error_ns or upload_ns:
                    reply.note_late(error_ns, first=first, upload_ns=upload_ns)
                if count < 0 and not self._complete:
                    self._end(stamp_ns, "given up")
                    return
        if self._complete:
            self.served += 1
            # what follows a complete reply unasked cannot belong to the next one
            if self.reusable and not (problem or self._surplus or self._out):
                self._exchange, self.state = None, IDLE
                exchange.on_end(self, stamp_ns, None)
                return
            self.reusable = False
            self._end(stamp_ns, None)
        elif problem:
            self._end(stamp_ns, problem)

    def _ends_read(self, data: bytes) -> bool:
        """True when nothing came after the last event in a read (`data`: without TLS)."""
        if self._complete or not data.endswith(_EVENT_ENDS):
            return False
        return self._tls is None or self._tls.data_last

    def _gone(self, reason: str) -> None:
        """No more bytes will come."""
        if self.state == BUSY:
            # a body without a length ends with the connection
            whole = self._status is not None and not self._framed and reason.startswith("closed")
            self.reusable = False
            if not self.answered:
                self.stale = self._unread(reset=not reason.startswith("closed"))
                self.dropped = not self.stale
            self._end(monotonic_ns(), None if whole else reason)
        elif self.state == IDLE:
            self.close()
            self._owner.on_idle_closed(self)
        else:
            self._fail(reason)

    def _unread(self, *, reset: bool) -> bool:
        """True when nobody on the server's side can have read the request.

        A close acknowledges what its side has received: where that is no byte of this request, it
        was under way before. A reset acknowledges nothing; it is taken for the end of an unread
        connection only when it came at once and no byte was acknowledged by then. A server that
        has not yet let a connection be used twice may be one that never does and reads what comes
        only to throw it away. False where the system cannot say.
        """
        waited_ns = self._loop.since_ns - self._sent_ns
        at_once = waited_ns <= STALE_NS + min(self.connect_ns, LONGEST_TRIP_NS)
        if at_once and not self._owner.reused:
            return True
        if reset and not at_once:
            return False
        asked = getattr(socket, "TCP_INFO", None)
        if asked is None or not sys.platform.startswith("linux"):
            return False
        try:
            info = self._sock.getsockopt(socket.IPPROTO_TCP, asked, ACKED.size)
        except OSError:
            return False
        if len(info) < ACKED.size:  # Linux before 4.1
            return False
        (acked,) = ACKED.unpack(info)
        return bool(acked <= self._sent_before + 1)

    def _end(self, at_ns: int, problem: str | None) -> None:
        exchange, self._exchange = self._exchange, None
        assert exchange is not None
        if problem is not None or not self.reusable:
            self.close()
        else:
            self.state = IDLE
        exchange.on_end(self, at_ns, problem)

    def close(self) -> None:
        """Close it, whatever it is doing; the exchange on it is not told."""
        if self.state == CLOSED:
            return
        self.state = CLOSED
        self.reusable = False
        self._exchange = None
        self._loop.remove(self._fd)
        self._sock.close()
        # the parser refers to this object's methods: without this, garbage waits for the collector
        del self._parser, self.on_body

    # -- called by the parser

    def _reset_reply(self) -> None:
        self._status: int | None = None
        self._content_type = ""
        self._framed = False
        self._complete = False
        self._surplus = False
        self._body_end: int | None = None

    def on_message_begin(self) -> None:
        """A reply begins; a second one within the same request was not asked for."""
        if self._complete:
            self._surplus = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note the few headers that matter."""
        if len(name) not in _HEADER_LENGTHS or self._complete:
            return
        lower = name.lower()
        if lower == b"content-type":
            self._content_type = value.decode("latin-1")
        elif lower in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        """Take the status; interim replies (1xx) are none."""
        if self._complete:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self._framed, self._content_type = False, ""
            return
        self._status = status
        self.reusable = self._parser.should_keep_alive()

    def on_message_complete(self) -> None:
        """The reply is whole, unless it was an interim one."""
        if self._status is not None and not self._complete:
            self._complete = True
            self._body_end = len(self._pieces)
