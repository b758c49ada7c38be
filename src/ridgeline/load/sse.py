"""Server-sent events, split incrementally over bytes (WHATWG HTML, section 9.2).

Only the `data` field matters to an OpenAI-compatible stream, and whether an `event` line calls it
an error; comments, other `event`, `id` and `retry` lines are skipped.
"""

MAX_EVENT_BYTES = 16 << 20


class BadStream(ValueError):
    """The bytes are not the event stream that they should be."""


def payload_of(block: bytes) -> bytes | None:
    """The data of the lines between two blank lines (LF line ends), None without a data field."""
    lines = [
        line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")
    ]
    return b"\n".join(lines) if lines else None


def names_error(block: bytes) -> bool:
    """True when the lines between two blank lines are an event of the type `error`."""
    types = [line[6:].strip() for line in block.split(b"\n") if line.startswith(b"event:")]
    return bool(types) and types[-1] == b"error"


class SseSplitter:
    """Cuts a byte stream after its last complete event, however the reads fall.

    Line ends may be LF, CRLF or CR, mixed; they come out as LF.
    """

    _size = 0
    _tail = b""  # the last byte of the pieces
    _after_cr = False

    def __init__(self, *, begun: bool = False) -> None:
        """begun: what is first in it is not the stream's beginning."""
        self._begun = begun
        self._pieces: list[bytes] = []  # of an event that is not complete yet

    def complete(self, data: bytes) -> bytes:
        """All events that `data` completes, each with its blank line; b"" when there is none.

        Raises BadStream for an event longer than MAX_EVENT_BYTES.
        """
        if self._after_cr or b"\r" in data:
            data = self._without_cr(data)
        if not data:
            return b""
        if self._size or not data.endswith(b"\n\n"):
            if b"\n\n" not in self._tail + data:
                self._keep(data)
                return b""
            data = b"".join((*self._pieces, data))
            self._forget()
            end = data.rfind(b"\n\n") + 2
            if end < len(data):
                self._keep(data[end:])
                data = data[:end]
        if not self._begun:
            self._begun = True
            data = data.removeprefix(b"\xef\xbb\xbf")  # a byte order mark
        return data

    @property
    def empty(self) -> bool:
        """True when nothing is kept of an event that is not complete."""
        return not self._size

    def finish(self) -> bytes:
        """A last event that the end of the stream left without its blank line, with one."""
        rest = b"".join(self._pieces).rstrip(b"\n")
        self._forget()
        return rest + b"\n\n" if rest else b""

    def _forget(self) -> None:
        self._pieces.clear()
        self._size, self._tail = 0, b""

    def _keep(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)
        self._tail = data[-1:]
        if self._size > MAX_EVENT_BYTES:
            raise BadStream(f"an event longer than {MAX_EVENT_BYTES >> 20} MiB")

    def _without_cr(self, data: bytes) -> bytes:
        """Turn CRLF and CR into LF; a CR at the end counts now, an LF after it is skipped."""
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
            self._after_cr = False
        if data:
            self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
