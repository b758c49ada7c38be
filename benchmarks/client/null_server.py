"""A server that is not the limit: one write of a prebuilt reply for each request, one process.

It does not parse what it is sent beyond the end of the head and the length of the body. As a
program it takes the place of null_server.c where there is no compiler; it prints its port and ends
with its standard input:

    python -m benchmarks.client.null_server CHUNKS
"""

import multiprocessing
import os
import select
import socket
import sys
import time
from array import array
from types import TracebackType

from benchmarks.client.replies import page, pages, prebuilt


class NullServer:
    """A context manager; `port` is free, `url` its base."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self._pages = pages()
        self._served = array("q")
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "NullServer":
        self._stop = os.pipe()
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=self._run, daemon=True)
        self._process.start()
        self._listener.close()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.write(self._stop[1], b"x")
        self._process.join()
        for fd in self._stop:
            os.close(fd)

    def _run(self) -> None:
        self.serve(self._stop[0])

    def serve(self, stop_fd: int) -> None:
        """Serve in this process until `stop_fd` can be read."""
        epoll = select.epoll()
        listener = self._listener.fileno()
        for fd in (listener, stop_fd):
            epoll.register(fd, select.EPOLLIN)
        peers: dict[int, socket.socket] = {}
        partial: dict[int, bytes] = {}
        while True:
            for fd, _ in epoll.poll():
                if fd == stop_fd:
                    return
                if fd == listener:
                    sock, _ = self._listener.accept()
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    peers[sock.fileno()] = sock
                    epoll.register(sock.fileno(), select.EPOLLIN)
                elif not self._answer(peers[fd], fd, partial):
                    epoll.unregister(fd)
                    peers.pop(fd).close()

    def _answer(self, sock: socket.socket, fd: int, partial: dict[int, bytes]) -> bool:
        try:
            data = sock.recv(1 << 18)
            if not data:
                return False
            data = partial.pop(fd, b"") + data
            if data.startswith(b"GET"):
                sock.sendall(self._page(data.split(b" ", 2)[1].decode()))
            elif _complete(data):
                self._served.append(time.monotonic_ns())
                sock.sendall(self._reply)
            else:
                partial[fd] = data
        except OSError:
            return False
        return True

    def _page(self, path: str) -> bytes:
        if path != "/served":
            return self._pages.get(path, self._pages["/"])
        stamps, self._served = self._served.tobytes(), array("q")
        return page("200 OK", "application/octet-stream", stamps)


def _complete(data: bytes) -> bool:
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return False
    at = data.lower().find(b"content-length:", 0, end)
    if at < 0:
        return True
    return len(data) - end - 4 >= int(data[at + 15 : data.find(b"\r", at)])


def main() -> None:
    server = NullServer(prebuilt(int(sys.argv[1])))
    print(server.port, flush=True)
    server.serve(sys.stdin.fileno())
    os._exit(0)


if __name__ == "__main__":
    main()
