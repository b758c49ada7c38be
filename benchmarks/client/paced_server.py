"""A server with known times: writes what a plan says when it says, and stamps what it did.

    python -m benchmarks.client.paced_server CASE    # prints its port; ends with its standard input

`GET /served` gives, for each request since the last such call, when it was complete (the kernel's
stamp of its last bytes) and when each write with content was made, in monotonic ns; JSON.
"""

import heapq
import itertools
import json
import os
import select
import socket
import struct
import sys
import time

from benchmarks.client.cases import CASES
from benchmarks.client.replies import Part, page, pages

_STAMPS = 35  # SO_TIMESTAMPNS, which Python does not name
_TIMESPEC = struct.Struct("@ll")


class _Peer:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.data = b""
        self.received_ns = 0
        self.content_ns: list[int] = []


class PacedServer:
    """One thread, one epoll; a peer that leaves in the middle is forgotten."""

    def __init__(self, plan: tuple[Part, ...]) -> None:
        self._plan, self._pages = plan, pages()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.port: int = self._listener.getsockname()[1]
        self._epoll = select.epoll()
        self._peers: dict[int, _Peer] = {}
        self._timers: list[tuple[int, int, _Peer, int]] = []
        self._sequence = itertools.count()
        self._served: list[tuple[int, list[int]]] = []

    def run(self, stop_fd: int) -> None:
        """Serve until `stop_fd` can be read."""
        for fd in (self._listener.fileno(), stop_fd):
            self._epoll.register(fd, select.EPOLLIN)
        while True:
            wait_s = None
            if self._timers:
                wait_s = max(0.0, (self._timers[0][0] - time.monotonic_ns()) / 1e9)
            # epoll's own time-out is rounded up to whole milliseconds, that of select is not
            if select.select([self._epoll], [], [], wait_s)[0]:
                for fd, _ in self._epoll.poll(0):
                    if fd == stop_fd:
                        return
                    if fd == self._listener.fileno():
                        self._accept()
                    elif not self._read(self._peers[fd]):
                        self._drop(fd)
            while self._timers and self._timers[0][0] <= time.monotonic_ns():
                _, _, peer, number = heapq.heappop(self._timers)
                self._write(peer, number)

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, _STAMPS, 1)
        self._peers[sock.fileno()] = _Peer(sock)
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _drop(self, fd: int) -> None:
        self._epoll.unregister(fd)
        self._peers.pop(fd).sock.close()

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
        head = peer.data[:head_end]
        if len(peer.data) - head_end - 4 < _length(head):
            return True
        peer.data = b""
        peer.received_ns = _arrival_ns(ancillary)
        path = head.split(b" ", 2)[1].decode()
        if path == "/served":
            self._say(peer, page("200 OK", "application/json", json.dumps(self._served).encode()))
            self._served = []
        elif head.startswith(b"GET"):
            self._say(peer, self._pages.get(path, self._pages["/"]))
        else:
            peer.content_ns = []
            self._later(peer, 0)
        return True

    def _later(self, peer: _Peer, number: int) -> None:
        due_ns = peer.received_ns + round(self._plan[number].ms * 1e6)
        heapq.heappush(self._timers, (due_ns, next(self._sequence), peer, number))

    def _write(self, peer: _Peer, number: int) -> None:
        if peer.sock.fileno() < 0:
            return
        part = self._plan[number]
        if part.content:
            peer.content_ns.append(time.monotonic_ns())
        if number + 1 == len(self._plan):
            self._served.append((peer.received_ns, peer.content_ns))
        else:
            self._later(peer, number + 1)
        self._say(peer, part.data)

    @staticmethod
    def _say(peer: _Peer, data: bytes) -> None:
        try:
            peer.sock.sendall(data)
        except OSError:
            return  # the read side finds that it is gone


def _length(head: bytes) -> int:
    at = head.lower().find(b"content-length:")
    return int(head[at + 15 :].split(b"\r", 1)[0]) if at >= 0 else 0


def _arrival_ns(ancillary: list[tuple[int, int, bytes]]) -> int:
    """When the bytes came, by the kernel's stamp, on the monotonic clock."""
    now_ns, real_ns = time.monotonic_ns(), time.time_ns()
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _STAMPS:
            seconds, rest = _TIMESPEC.unpack(data)
            return min(now_ns, now_ns - real_ns + int(seconds) * 1_000_000_000 + int(rest))
    return now_ns


def main() -> None:
    server = PacedServer(CASES[sys.argv[1]].plan)
    print(server.port, flush=True)
    server.run(sys.stdin.fileno())
    os._exit(0)


if __name__ == "__main__":
    main()
