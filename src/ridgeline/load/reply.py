"""One reply as it comes: content stamps, usage, and in the end whether it succeeded."""

import re
from array import array

from ridgeline.load.openai import Event, Usage, read_event, reply_text
from ridgeline.load.sse import BadStream, SseSplitter

_KEPT_BYTES = 1 << 14  # of a body that is not a stream, for its message
# Text inside a JSON string that needs no unescaping and no decoding.
_PLAIN_TEXT = re.compile(rb"[ !#-\[\]-~]+")
_TEXT_KEYS = (b'"content":"', b'"text":"', b'"content": "', b'"text": "')


class Reply:
    """Collects what one reply brings. Stamps are monotonic ns.

    `shared[i]` is 1 for a content chunk out of the same read as the one before it. `read_timed`
    counts chunks with the time of the read.
    """

    __slots__ = (
        "_bad", "_body", "_bytes", "_parsed", "_prefix", "_read", "_splitter", "_stream", "_suffix",
        "content_type", "done", "error", "event_ns", "finish_reason", "first_answer_ns",
        "read_timed", "shared", "stamps", "status", "usage",
    )  # fmt: skip

    def __init__(self) -> None:
        self.status: int | None = None
        self.content_type = ""
        self.stamps = array("q")
        self.shared = bytearray()
        self.read_timed = 0
        self.first_answer_ns: int | None = None
        self.event_ns: int | None = None  # the last event of any kind, for time-outs
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.done = False
        self._splitter = SseSplitter()
        self._stream = True
        self._bad: str | None = None
        self._body = b""  # of a reply that is no stream
        self._bytes = 0
        self._read = 0, False
        self._parsed = 0
        self._prefix: bytes | None = None
        self._suffix = b""

    def head(self, status: int, content_type: str) -> None:
        """Take the reply's head."""
        self.status, self.content_type = status, content_type.partition(";")[0].strip().lower()
        self._stream = status == 200 and self.content_type not in ("text/html", "application/json")

    def body(self, block: bytes, stamp_ns: int, kernel: bool) -> bool:
        """Take the body bytes of one read; False when nothing after them can make it good."""
        self._bytes += len(block)
        self._read = stamp_ns, kernel
        if not self._stream:
            if len(self._body) < _KEPT_BYTES:
                self._body += block[:_KEPT_BYTES]
            return True
        try:
            events = self._splitter.feed(block)
            if events:
                self._take(events, stamp_ns, kernel)
        except BadStream as error:
            self._bad = str(error)
            return False
        return True

    def _take(self, events: list[bytes], stamp_ns: int, kernel: bool) -> None:
        """Count the content among events of one read."""
        content = 0
        prefix, suffix, plain = self._prefix, self._suffix, _PLAIN_TEXT.fullmatch
        self.event_ns = stamp_ns
        for data in events:
            if (
                prefix is not None
                and data.startswith(prefix)
                and data.endswith(suffix)
                and plain(data, len(prefix), len(data) - len(suffix))
            ):
                content += 1
            elif not self.done:  # what follows the end marker is not part of the reply
                event = read_event(data)
                content += self._note(event, stamp_ns)
                if prefix is None and event.answer and self._parsed > 1:
                    self._learn(event, data)
                prefix, suffix = self._prefix, self._suffix
        if content:
            self.stamps.extend([stamp_ns] * content)
            self.shared += b"\0" + b"\1" * (content - 1)
            if not kernel:
                self.read_timed += content

    def _note(self, event: Event, stamp_ns: int) -> bool:
        """Take one event; True when it is content."""
        if event.usage is not None:
            self.usage = event.usage
        if event.finish_reason is not None:
            self.finish_reason = event.finish_reason
        if event.error is not None and self.error is None:
            self.error = event.error
        if event.done:
            self.done, self._prefix = True, None
        if event.answer:
            self._parsed += 1
            if self.first_answer_ns is None:
                self.first_answer_ns = stamp_ns
        return event.content

    def _learn(self, event: Event, data: bytes) -> None:
        """Remember what surrounds the text in this stream's chunks.

        Chunks of one stream differ in their text only. One that equals a parsed chunk around a
        plain text therefore means the same, and needs no parsing. Anything else is parsed.
        (Unescaped quotes cannot occur inside a JSON string, so a key found is a key.)
        """
        if event.finish_reason is not None or event.usage is not None or event.error is not None:
            return
        for key in _TEXT_KEYS:
            start = data.find(key)
            if start >= 0 and data.count(key) == 1:
                start += len(key)
                end = data.find(b'"', start)
                if _PLAIN_TEXT.fullmatch(data, start, end):
                    self._prefix, self._suffix = data[:start], data[end:]
                return

    def judge(self, problem: str | None) -> tuple[str | None, str | None]:
        """(failure class, detail) at the end; `problem` says why it ended early, if it did.

        The order matters: what the server said comes before what its silence means.
        """
        if self.status is None:
            broken = problem is not None and problem.startswith("not HTTP")
            return ("bad_stream" if broken else "stream_cut"), f"no reply: {problem}"
        if self.status != 200:
            return "http_status", f"HTTP {self.status}: {reply_text(self._body)}"
        if not self._stream:
            kind = self.content_type
            return "bad_stream", f"{kind} instead of an event stream: {reply_text(self._body)}"
        if problem is None and self._bad is None:
            self._finish_events()
        if self._bad is not None:
            return "bad_stream", self._bad
        if self.error is not None or self.finish_reason == "error":
            return "stream_error", self.error or "finish reason 'error'"
        return self._judge_end(problem)

    def _judge_end(self, problem: str | None) -> tuple[str | None, str | None]:
        """The same for a stream in which every event was good."""
        after = f"after {len(self.stamps)} chunks"
        if self.finish_reason == "abort":
            return "aborted", f"the server ended it {after}"
        if problem is not None and not self.done:
            broken = problem.startswith("not HTTP")
            return ("bad_stream" if broken else "stream_cut"), f"{problem} {after}"
        if not self.stamps:
            if self._bytes and not self._splitter.events_seen:
                return "bad_stream", f"no event in {self._bytes} bytes of {self.content_type!r}"
            return "no_tokens", "a reply without content"
        if self.finish_reason is None:
            return "no_finish", f"no finish reason {after}"
        return None, None

    def _finish_events(self) -> None:
        """Take a last event without its blank line: the body was whole, so the line is."""
        stamp_ns, kernel = self._read
        before = len(self.stamps)
        try:
            self._take(self._splitter.finish(), stamp_ns, kernel)
        except BadStream as error:
            self._bad = str(error)
        if len(self.stamps) > before > 0 and self.stamps[before - 1] == stamp_ns:
            self.shared[before] = 1
