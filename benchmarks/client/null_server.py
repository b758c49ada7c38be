"""A server that is not the limit: one write of a prebuilt reply for each request, one process.

It does not parse what it is sent beyond the end of the head and the length of the body.
"""

import json
import multiprocessing
import os
import select
import socket
from types import TracebackType


def prebuilt_reply(chunks: int) -> bytes:
    """A whole streamed chat completion of that many one-token chunks, as vLLM frames it."""
    frame = {
        "id": "chatcmpl-0123456789abcdef0123456789abcdef",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "null",
    }

    def event(**more: object) -> bytes:
        return b"data: " + json.dumps({**frame, **more}, separators=(",", ":")).encode() + b"\n\n"

    def chunk(data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data)

    def choice(delta: object, finish: str | None) -> list[object]:
        return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]

    events = [event(choices=choice({"role": "assistant", "content": ""}, None))]
    events += [event(choices=choice({"content": " word"}, None)) for _ in range(chunks)]
    events.append(event(choices=choice({"content": ""}, "length")))
    counts = {"prompt_tokens": 32, "completion_tokens": chunks, "total_tokens": 32 + chunks}
    events += [event(choices=[], usage=counts), b"data: [DONE]\n\n"]
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
        b"transfer-encoding: chunked\r\n\r\n"
    )
    return head + b"".join(map(chunk, events)) + b"0\r\n\r\n"


class NullServer:
    """A context manager; `port` is free, `url` its base."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
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
        epoll = select.epoll()
        listener, stop_fd = self._listener.fileno(), self._stop[0]
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
                sock.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            elif _complete(data):
                sock.sendall(self._reply)
            else:
                partial[fd] = data
        except OSError:
            return False
        return True


def _complete(data: bytes) -> bool:
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return False
    at = data.lower().find(b"content-length:", 0, end)
    if at < 0:
        return True
    return len(data) - end - 4 >= int(data[at + 15 : data.find(b"\r", at)])
