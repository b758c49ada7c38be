"""The line between the process that runs a drive and its workers: messages over a socket pair.

Both ends are processes of ours, started by each other, so what goes over it may be pickled.
"""

import pickle
import socket
import struct
from collections.abc import Iterator
from typing import Any

_LENGTH = struct.Struct("<Q")
_BUFFER_BYTES = 4 << 20  # a busy other end must not hold this one up

Message = tuple[Any, ...]  # its kind, then what belongs to it


class Line:
    """One end. `send` never waits, `receive` never does either; `flush` and `wait` do."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        self._out = bytearray()
        self._in = bytearray()
        self.closed = False

    def fileno(self) -> int:
        """For pollers."""
        return self.sock.fileno()

    def send(self, *message: object) -> None:
        """Send what can be sent now; the rest goes with the next call."""
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        self._out += _LENGTH.pack(len(data))
        self._out += data
        self.push()

    def push(self) -> None:
        """Send what is left, as far as the other end takes it now."""
        try:
            while self._out and not self.closed:
                gone = self.sock.send(self._out, socket.MSG_DONTWAIT)
                del self._out[:gone]
        except BlockingIOError:
            return
        except OSError:
            self.closed = True

    def flush(self) -> None:
        """Wait until everything is sent, or the other end is gone."""
        self.sock.setblocking(True)
        try:
            self.sock.sendall(self._out)
        except OSError:
            self.closed = True
        self._out.clear()

    def receive(self) -> Iterator[Message]:
        """The messages that are here; sets `closed` once the other end is gone."""
        try:
            while data := self.sock.recv(1 << 20, socket.MSG_DONTWAIT):
                self._in += data
            self.closed = True
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True
        yield from self._messages()

    def wait(self) -> Message | None:
        """The next message, however long it takes; None when the other end is gone."""
        self.sock.setblocking(True)
        while True:
            message = next(self._messages(), None)
            if message is not None:
                return message
            try:
                data = self.sock.recv(1 << 20)
            except OSError:
                data = b""
            if not data:
                self.closed = True
                return None
            self._in += data

    def _messages(self) -> Iterator[Message]:
        while len(self._in) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._in)
            end = _LENGTH.size + length
            if len(self._in) < end:
                return
            data = bytes(memoryview(self._in)[_LENGTH.size : end])
            del self._in[:end]
            yield pickle.loads(data)  # noqa: S301  from a process of ours

    def close(self) -> None:
        """Close this end."""
        self.closed = True
        self.sock.close()
