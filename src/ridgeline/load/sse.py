"""Server-sent events, split incrementally over bytes (WHATWG HTML, section 9.2).

Only the `data` field matters to an OpenAI-compatible stream; comments, `event`, `id` and `retry`
lines are skipped.
"""

MAX_EVENT_BYTES = 16 << 20


class BadStream(ValueError):
    """The bytes are not the event stream that they should be."""


class SseSplitter:
    """Cuts a byte stream into the data of its events, however the reads fall.

    Line ends may be LF, CRLF or CR, mixed. `bytes_seen` and `events_seen` tell an empty stream
    from one that is something else.
    """

    __slots__ = ("_after_cr", "_pieces", "_size", "_tail", "bytes_seen", "events_seen")

    def __init__(self) -> None:
        self.bytes_seen = 0
        self.events_seen = 0
        self._pieces: list[bytes] = []  # of an event that is not complete yet
        self._size = 0
        self._tail = b""  # the last byte of the pieces
        self._after_cr = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of every event that `data` completes, in order.

        Raises BadStream for an event longer than MAX_EVENT_BYTES.
        """
        self.bytes_seen += len(data)
        if self._after_cr or b"\r" in data:
            data = self._without_cr(data)
        if not data:
            return []
        if self._size == 0 and data.endswith(b"\n\n"):
            return self._payloads(data.split(b"\n\n"))
        if b"\n\n" not in self._tail + data:
            self._keep(data)
            return []
        blocks = b"".join((*self._pieces, data)).split(b"\n\n")
        self._pieces.clear()
        self._size, self._tail = 0, b""
        rest = blocks.pop()
        if rest:
            self._keep(rest)
        return self._payloads(blocks)

    def finish(self) -> list[bytes]:
        """The data of a last event that the end of the stream left without its blank line."""
        rest = b"".join(self._pieces)
        self._pieces.clear()
        self._size, self._tail = 0, b""
        return self._payloads([rest.rstrip(b"\n")]) if rest else []

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

    def _payloads(self, blocks: list[bytes]) -> list[bytes]:
        """The data of each block between blank lines; blocks without data give nothing."""
        payloads: list[bytes] = []
        for block in blocks:
            if self.events_seen == 0 and not payloads:
                block = block.removeprefix(b"\xef\xbb\xbf")  # noqa: PLW2901 (a byte order mark)
            if block.startswith(b"data: ") and b"\n" not in block:  # nearly every event
                payloads.append(block[6:])
            elif block:
                lines = [
                    line[5:].removeprefix(b" ")
                    for line in block.split(b"\n")
                    if line.startswith(b"data:")
                ]
                if lines:
                    payloads.append(b"\n".join(lines))
        self.events_seen += len(payloads)
        return payloads
