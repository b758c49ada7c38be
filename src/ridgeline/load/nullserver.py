"""A server on loopback that does nothing but send, and stamps what it sends.

The client's calibration drives it; it is a process of its own, so that what it costs is not the
client's:

    python -m ridgeline.load.nullserver [CHUNKS [GAP_MS]]

It prints its port and ends with its standard input. A reply has CHUNKS content chunks of one token,
one every GAP_MS from the request's arrival on (0: all of them in one write, at once), unless the
request itself says otherwise: `X-Pace: IDENTITY CHUNKS GAP_NS`.

`GET /stamps` gives what became of the requests since the last such call, as 64-bit integers of this
machine: identity, when the request had come (the kernel's stamp of its last byte), the number of
writes with content, and for each the time before it and after it. All in monotonic ns. A reply that
is still going on is told as far as it went, and again in whole later.
"""

import heapq
import itertools
import os
import select
import socket
import sys
import time
from array import array

from ridgeline.load.nullreplies import HEAD, closing, page, pages, role, text
from ridgeline.load.scheduling import short_slices

STAMPS = 35  # SO_TIMESTAMPNS, which Python does not name (see clock.py)
TURN = 64  # writes between two looks for requests
PACE = b"x-pace: "
NO_IDENTITY = -1


class _Peer:
    """A connection and the reply that it is getting."""

    __slots__ = ("chunks", "data", "done", "due_ns", "fd", "gap_ns", "identity", "log", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.fd = sock, sock.fileno()
        self.data = b""
        self.identity, self.chunks, self.gap_ns, self.done = NO_IDENTITY, 0, 0, 0
        self.due_ns = 0
        self.log = array("q")  # received, then before and after each write


class NullServer:
    """One thread, one epoll; a peer that leaves in the middle is logged as far as it got."""

    def __init__(self, chunks: int = 1, gap_ns: int = 0) -> None:
        self._default = NO_IDENTITY, chunks, gap_ns
        self._pages = pages()
        self._first, self._text = HEAD + role() + text(), text()
        self._last: dict[int, bytes] = {}
        self._whole: dict[int, bytes] = {}
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._epoll = select.epoll()
        self._peers: dict[int, _Peer] = {}
        self._timers: list[tuple[int, int, _Peer]] = []
        self._sequence = itertools.count()
        self._log = array("q")

    def run(self, stop_fd: int) -> None:
        """Serve until `stop_fd` can be read."""
        for fd in (self._listener.fileno(), stop_fd):
            self._epoll.register(fd, select.EPOLLIN)
        while True:
            wait_s = None
            if self._timers:
                wait_s = max(0.0, (self._timers[0][0] - time.monotonic_ns()) / 1e9)
            # epoll's own time-out is rounded up to whole milliseconds, that of select is not
            if wait_s == 0 or select.select([self._epoll], [], [], wait_s)[0]:
                for fd, _ in self._epoll.poll(0, TURN):
                    if fd == stop_fd:
                        return
                    self._on_event(fd)
            self._write_due()

    def _on_event(self, fd: int) -> None:
        if fd == self._listener.fileno():
            self._accept()
        elif not self._read(self._peers[fd]):
            peer = self._peers.pop(fd)
            self._epoll.unregister(fd)
            peer.sock.close()
            if peer.log:
                self._note(peer)
                peer.log = array("q")

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, STAMPS, 1)
            self._peers[sock.fileno()] = _Peer(sock)
            self._epoll.register(sock.fileno(), select.EPOLLIN)

    # -- requests

    def _read(self, peer: _Peer) -> bool:
        """Take what came; False when the peer is gone."""
        try:
            data, ancillary, _, _ = peer.sock.recvmsg(1 << 18, 64)
        except OSError:
            return False
        if not data:
            return False
        peer.data += data
        head_end = peer.data.find(b"\r\n\r\n")
        if head_end < 0:
            return True
        head = peer.data[:head_end].lower()
        if len(peer.data) - head_end - 4 < _number_after(head, b"content-length: "):
            return True
        peer.data = b""
        path = head.split(b" ", 2)[1].decode()
        if head.startswith(b"get") or not path.endswith("completions"):
            peer.sock.sendall(self._page(path))
            return True
        self._begin(peer, head, _arrival_ns(ancillary))
        return True

    def _begin(self, peer: _Peer, head: bytes, received_ns: int) -> None:
        at = head.find(PACE)
        if at < 0:
            peer.identity, peer.chunks, peer.gap_ns = self._default
        else:
            words = head[at + len(PACE) :].split(b"\r", 1)[0].split()
            peer.identity, peer.chunks, peer.gap_ns = map(int, words)
        peer.done = 0
        peer.log.append(received_ns)
        peer.due_ns = received_ns + peer.gap_ns
        if peer.gap_ns == 0:
            self._send(peer, self._all_of(peer.chunks))
            self._end(peer)
        else:
            heapq.heappush(self._timers, (peer.due_ns, next(self._sequence), peer))

    # -- replies

    def _write_due(self) -> None:
        timers, now = self._timers, time.monotonic_ns()
        for _ in range(TURN):
            if not timers or timers[0][0] > now:
                return
            peer = timers[0][2]
            if not peer.log:  # it left
                heapq.heappop(timers)
                continue
            last = peer.done + 1 == peer.chunks
            data = self._text if peer.done else self._first
            peer.done += 1
            if last:
                data = self._end_of(peer.chunks)
                heapq.heappop(timers)
            else:
                peer.due_ns += peer.gap_ns
                heapq.heapreplace(timers, (peer.due_ns, next(self._sequence), peer))
            self._send(peer, data)
            if last:
                self._end(peer)

    def _send(self, peer: _Peer, data: bytes) -> None:
        log = peer.log
        log.append(time.monotonic_ns())
        try:
            peer.sock.sendall(data)
        except OSError:
            log.pop()  # the read side finds that it is gone
            return
        log.append(time.monotonic_ns())

    def _end(self, peer: _Peer) -> None:
        self._note(peer)
        peer.log = array("q")

    def _note(self, peer: _Peer) -> None:
        self._log.extend((peer.identity, peer.log[0], len(peer.log) // 2))
        self._log.extend(peer.log[1:])

    def _all_of(self, chunks: int) -> bytes:
        if chunks not in self._whole:
            self._whole[chunks] = self._first + self._text * (chunks - 1) + closing(chunks)
        return self._whole[chunks]

    def _end_of(self, chunks: int) -> bytes:
        if chunks not in self._last:
            begin = self._first if chunks == 1 else self._text
            self._last[chunks] = begin + closing(chunks)
        return self._last[chunks]

    def _page(self, path: str) -> bytes:
        if path != "/stamps":
            return self._pages.get(path, self._pages["/"])
        told, self._log = self._log, array("q")
        for peer in self._peers.values():
            if peer.log:
                told.extend((peer.identity, peer.log[0], len(peer.log) // 2))
                told.extend(peer.log[1:])
        return page("200 OK", "application/octet-stream", told.tobytes())


def _number_after(head: bytes, name: bytes) -> int:
    at = head.find(name)
    return int(head[at + len(name) :].split(b"\r", 1)[0]) if at >= 0 else 0


def _arrival_ns(ancillary: list[tuple[int, int, bytes]]) -> int:
    """When the bytes came, by the kernel's stamp, on the monotonic clock."""
    now_ns, real_ns = time.monotonic_ns(), time.time_ns()
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == STAMPS:
            seconds = int.from_bytes(data[:8], sys.byteorder)
            rest = int.from_bytes(data[8:16], sys.byteorder)
            return min(now_ns, now_ns - real_ns + seconds * 1_000_000_000 + rest)
    return now_ns


def _raise_file_limit() -> None:
    import resource  # noqa: PLC0415  not on every platform

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(arguments: list[str]) -> None:
    """Serve until standard input ends."""
    chunks = int(arguments[0]) if arguments else 1
    gap_ms = float(arguments[1]) if len(arguments) > 1 else 0.0
    _raise_file_limit()
    server = NullServer(chunks, round(gap_ms * 1e6))
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    with short_slices():  # as the client; under another policy it stays under that
        server.run(sys.stdin.fileno())
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
