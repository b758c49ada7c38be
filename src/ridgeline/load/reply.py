"""One reply as it comes: content stamps, usage, and in the end whether it succeeded."""

import re
from array import array
from collections.abc import Sequence
from functools import lru_cache

from ridgeline.load.openai import (
    DATA,
    Event,
    Usage,
    after_id,
    error_event,
    known_event,
    leading_id,
    reply_text,
)
from ridgeline.load.sse import BadStream, SseSplitter, names_error, payload_of

_KEPT_BYTES = 1 << 14  # of a body that is not a stream, for its message
# Text inside a JSON string, as JSON allows it; bytes from 0x80 on must be checked to be UTF-8.
# Possessive, because texts of a megabyte must not make it backtrack.
_TEXT = re.compile(rb'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))++')
_TEXT_KEYS = (b'"content":"', b'"text":"', b'"content": "', b'"text": "')

_FEW = 4  # events of a read that are looked at one by one before the form of a stream is known
_END = b"\n\ndata: [DONE]\n\n"
_KEPT_REPLIES, _KEPT_REPLY_BYTES = 256, 4096
# a whole reply without its id -> chunks, events, whether it answers, usage, finish reason, end
_whole_replies: dict[bytes, tuple[int, int, bool, Usage | None, str | None, bool]] = {}
_MANY = 8  # pieces from which on it is cheaper to use them than to cut anew
_BAD_ENDS = ("error", "abort")
_NO_GOOD_END = (None, *_BAD_ENDS)
_GOOD = None, None


def _is_text(data: bytes) -> bool:
    """True for the inside of a valid JSON string that is not empty."""
    if _TEXT.fullmatch(data) is None:
        return False
    if data.isascii():
        return True
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


@lru_cache(maxsize=64)
def _media_type(header: str) -> str:
    return header.partition(";")[0].strip().lower()


class Reply:
    """Collects what one reply brings. Stamps are monotonic ns.

    `shared[i]` is 1 for a content chunk out of the same read as the one before it. `read_timed`
    counts chunks with the time of the read. `content_last`: the bytes taken last ended with a
    content chunk, so that nothing after it can have come later. `first_error_ns` and
    `chunk_error_ns`: how much too late the first stamp may be, and the worst one. keep_text: every
    event is parsed and its text kept, which costs more and is for conversations only.
    """

    # What a reply begins with stands in the class: one is made for every request, and most of
    # this is never set in most of them.
    status: int | None = None
    content_type = ""
    read_timed = 0
    first_answer_ns: int | None = None
    event_ns: int | None = None  # the last event of any kind, for time-outs
    usage: Usage | None = None
    finish_reason: str | None = None
    error: str | None = None
    done = False
    content_last = False
    first_error_ns = chunk_error_ns = 0
    _stream = True
    _bad: str | None = None
    _body = b""  # of a reply that is no stream
    _bytes = 0
    _read = 0, False
    _events = 0
    _parsed = 0
    _prefix: bytes | None = None
    _suffix = _ending = _joint = b""
    _begin = b""  # of this reply's events, up to the end of its id

    _pieces: list[str] | None = None

    _splitter: SseSplitter | None = None  # once a read does not end with an event

    def __init__(self, *, keep_text: bool = False) -> None:
        if keep_text:
            self._pieces = []
        self.stamps = array("q")
        self.shared = bytearray()

    @property
    def text(self) -> str | None:
        """The answer's text so far; None when it is not kept."""
        return None if self._pieces is None else "".join(self._pieces)

    def head(self, status: int, content_type: str) -> None:
        """Take the reply's head."""
        self.status, self.content_type = status, _media_type(content_type)
        self._stream = status == 200 and self.content_type not in ("text/html", "application/json")

    def body(self, block: bytes, stamp_ns: int, kernel: bool, pieces: Sequence[bytes] = ()) -> int:
        """Take the body bytes of one read; how many content chunks they have completed.

        Below 0 it is ~count, and nothing after them can make the reply good. pieces: the same bytes
        as HTTP cut them, which is often where events end.
        """
        first, before = not self._bytes, len(self.stamps)
        self._bytes += len(block)
        if not self._stream:
            if len(self._body) < _KEPT_BYTES:
                self._body += block[:_KEPT_BYTES]
            return 0
        try:
            if (
                first
                and len(block) <= _KEPT_REPLY_BYTES
                and block.endswith(_END)
                and self._take_whole(block, stamp_ns, kernel)
            ):
                return len(self.stamps)
            if (
                self._splitter is None
                and block.endswith(b"\n\n")
                and b"\r" not in block
                and (not first or block.startswith(DATA))
            ):  # whole events
                self._take(block, stamp_ns, kernel, pieces)
            else:
                self._split(block, stamp_ns, kernel, first=first)
        except BadStream as error:
            self._bad, self.content_last = str(error), False
            return ~(len(self.stamps) - before)
        return len(self.stamps) - before

    def note_late(self, error_ns: int, *, first: bool, upload_ns: int = 0) -> None:
        """The last read's stamps may be that much too late; `first`: the first is among them.

        upload_ns: the client held its request up for so long, and the first chunk with it.
        """
        if first:
            self.first_error_ns = error_ns + upload_ns
        self.chunk_error_ns = max(self.chunk_error_ns, error_ns)

    def _take_whole(self, block: bytes, stamp_ns: int, kernel: bool) -> bool:
        """Take a reply that is whole in its first read; False when it is none.

        Short answers of a fast server differ in their ids only: what one without its id has said,
        every other says. A byte that stands in none of them marks where the id was, so that no
        other text gives the same.
        """
        begin = leading_id(block)
        if not begin or self._pieces is not None or b"\r" in block:
            return False
        self.content_last = False
        key = block.replace(begin, b"\r")
        said = _whole_replies.get(key)
        if said is None:
            self._take(block, stamp_ns, kernel)  # what it raises is for `body`
            if self.error is None and self._prefix is None:
                if len(_whole_replies) >= _KEPT_REPLIES:
                    _whole_replies.clear()
                _whole_replies[key] = (
                    len(self.stamps), self._events, self.first_answer_ns is not None,
                    self.usage, self.finish_reason, self.done,
                )  # fmt: skip
            return True
        content, self._events, answers, self.usage, self.finish_reason, self.done = said
        self.event_ns = stamp_ns
        if answers:
            self.first_answer_ns = stamp_ns
        if content:
            self._count(content, stamp_ns, kernel)
        return True

    def _split(self, block: bytes, stamp_ns: int, kernel: bool, *, first: bool) -> None:
        """Take the events that a read completes, and keep the rest."""
        if self._splitter is None:
            self._splitter = SseSplitter(begun=not first)
        self._read = stamp_ns, kernel
        text = self._splitter.complete(block)
        if text:
            self._take(text, stamp_ns, kernel)
        if not self._splitter.empty:
            self.content_last = False

    def _take(self, text: bytes, stamp_ns: int, kernel: bool, pieces: Sequence[bytes] = ()) -> None:
        """Count the content among complete events of one read."""
        content, before = 0, self._events
        if self._prefix is None:
            *blocks, text = text.split(b"\n\n", _FEW)
            content = self._take_each(blocks, stamp_ns)
            pieces = pieces[len(blocks) :]
        if text:
            content += self._take_runs(text, stamp_ns, pieces)
        if self._events > before:
            self.event_ns = stamp_ns
        if content:
            self._count(content, stamp_ns, kernel)

    def _take_each(self, blocks: list[bytes], stamp_ns: int) -> int:
        """Take events one by one; how many are content. Most have been seen in other replies."""
        begin, content, events, last = self._begin, 0, 0, False
        size, known = len(begin), after_id.get
        for block in blocks:
            if not size or not block.startswith(begin):
                if block == b"data: [DONE]":
                    events += 1
                    self.done, self._prefix, last = True, None, False
                    continue
                begin = self._begin = leading_id(block)
                size = len(begin)
            event = known(block[size:]) if size and not self.done else None
            if event is None:
                last = bool(block) and self._take_one(block, stamp_ns)
                content += last
                continue
            events += 1
            last = event.content
            if event.says:
                content += event.content
                if event.answer:
                    self._answer(event, block, stamp_ns)
                if event.ends:
                    self._note_end(event)
        self._events += events
        self.content_last = last
        return content

    def _take_runs(self, text: bytes, stamp_ns: int, pieces: Sequence[bytes]) -> int:
        """Take the events of a stream whose form is known; how many are content."""
        content, place, length = 0, 0, len(text)
        runs = True
        while place < length:
            if runs and self._prefix is not None and text.startswith(self._prefix, place):
                count, end = self._run(text, place, pieces)
                if count:
                    content += count
                    place = end
                    self._events += count
                    self.content_last = True
                    continue
                runs = False  # one try a read: a mixed one is taken event by event
            end = text.find(b"\n\n", place)
            if end < 0:  # one more line end than an event needs: an empty line says nothing
                self.content_last = False
                break
            block = text[place:end]
            place = end + 2
            if self._prefix is not None and self._is_like_before(block):
                self._events += 1
                content += 1
                self.content_last = True
            else:
                content += self._take_each([block], stamp_ns)
        return content

    def _count(self, content: int, stamp_ns: int, kernel: bool) -> None:
        """Note so many content chunks of one read."""
        if content == 1:
            self.stamps.append(stamp_ns)
            self.shared.append(0)
        else:
            self.stamps.extend(array("q", (stamp_ns,)) * content)
            self.shared += b"\0" + b"\1" * (content - 1)
        if not kernel:
            self.read_timed += content

    def _run(self, text: bytes, place: int, pieces: Sequence[bytes]) -> tuple[int, int]:
        """(content chunks, where they end) of a run of events that differ in their text only.

        The run goes on to the last event of that form; (0, 0) when something else is among them.
        """
        assert self._prefix is not None
        end = text.rfind(self._ending, place)
        if end < 0:
            return 0, 0
        begin, stop = place + len(self._prefix), end + len(self._suffix)
        inner = text[begin:end]
        texts = self._texts_of(pieces)
        if texts is None or self._joint.join(texts) != inner:
            # Cutting at one byte and comparing the whole is several times as fast as looking for
            # all that stands between two texts; no text has a line end, so the cuts are the same.
            low, high = len(self._prefix), -len(self._suffix)
            texts = [event[low:high] for event in text[place:stop].split(b"\n")[::2]]
            if self._joint.join(texts) != inner:
                return 0, 0
        # joined by a blank, because what ends with a backslash has not ended
        if b"" in texts or not _is_text(b" ".join(texts)):
            return 0, 0
        return len(texts), end + len(self._ending)

    def _texts_of(self, pieces: Sequence[bytes]) -> list[bytes] | None:
        """The texts of a run, if each piece up to its last event holds one; the caller looks."""
        assert self._prefix is not None
        ending, last = self._ending, len(pieces)
        if last < _MANY or not pieces[0].endswith(ending):
            return None
        while not pieces[last - 1].endswith(ending):
            last -= 1
        low, high = len(self._prefix), -len(ending)
        return [piece[low:high] for piece in pieces[:last]]

    def _is_like_before(self, block: bytes) -> bool:
        """True for a chunk that differs from a parsed one in its text only."""
        prefix = self._prefix
        return (
            prefix is not None
            and block.startswith(prefix)
            and block.endswith(self._suffix)
            and _is_text(block[len(prefix) : len(block) - len(self._suffix)])
        )

    def _take_one(self, block: bytes, stamp_ns: int) -> bool:
        """Take one event; True when it is content."""
        if block.startswith(b"data: ") and b"\n" not in block:  # nearly every one: no call for it
            data: bytes | None = block[6:]
        else:
            data = payload_of(block)
        if data is None:
            return False
        self._events += 1
        if self.done:  # what follows the end marker is not part of the reply
            return False
        if b"event:" in block and names_error(block):
            event = error_event(data)
        else:
            begin = leading_id(block)
            event = known_event(data, max(0, len(begin) - len(DATA)))
        if event.answer:
            self._answer(event, block, stamp_ns)
        if event.ends:
            self._note_end(event)
        return event.content

    def _answer(self, event: Event, block: bytes, stamp_ns: int) -> None:
        """Take a piece of the answer."""
        self._parsed += 1
        if self.first_answer_ns is None:
            self.first_answer_ns = stamp_ns
        if self._pieces is not None:
            self._pieces.append(event.text)
        elif self._prefix is None and self._parsed > 1:
            self._learn(event, block)

    def _note_end(self, event: Event) -> None:
        """Take what an event says besides text."""
        if event.usage is not None:
            self.usage = event.usage
        if event.finish_reason is not None and self.finish_reason not in _BAD_ENDS:
            self.finish_reason = event.finish_reason  # nothing after a bad end makes it good
        if event.error is not None and self.error is None:
            self.error = event.error
        if event.done:
            self.done, self._prefix = True, None

    def _learn(self, event: Event, block: bytes) -> None:
        """Remember what surrounds the text in this stream's chunks.

        Chunks of one stream differ in their text only. One that equals a parsed chunk around
        another text therefore means the same, and needs no parsing. Anything else is parsed.
        (Unescaped quotes cannot occur inside a JSON string, so a key found is a key.)
        """
        if event.finish_reason is not None or event.usage is not None or b"\n" in block:
            return
        for key in _TEXT_KEYS:
            start = block.find(key)
            if start >= 0 and block.count(key) == 1:
                start += len(key)
                end = block.find(b'"', start)
                if _is_text(block[start:end]):
                    self._prefix, self._suffix = block[:start], block[end:]
                    self._ending = self._suffix + b"\n\n"
                    self._joint = self._ending + self._prefix
                return

    def judge(self, problem: str | None) -> tuple[str | None, str | None]:
        """(failure class, detail) at the end; `problem` says why it ended early, if it did.

        The order matters: what the server said comes before what its silence means.
        """
        if (
            problem is None
            and self.done
            and self._splitter is None
            and self.finish_reason not in _NO_GOOD_END
            and self.stamps
            and self.error is None
            and self._bad is None
        ):
            return _GOOD  # as nearly all: what the rest would find out, too
        if self.status is None:
            broken = problem is not None and problem.startswith("not HTTP")
            return (
                "bad_stream" if broken else "stream_cut"
            ), f"dropped before answering: {problem}"
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
            if self._bytes and not self._events:
                return "bad_stream", f"no event in {self._bytes} bytes of {self.content_type!r}"
            return "no_tokens", "a reply without content"
        if self.finish_reason is None:
            return "no_finish", f"no finish reason {after}"
        return None, None

    def _finish_events(self) -> None:
        """Take a last event without its blank line: the body was whole, so the line is."""
        if self._splitter is None or self._splitter.empty:
            return
        stamp_ns, kernel = self._read
        before = len(self.stamps)
        try:
            self._take(self._splitter.finish(), stamp_ns, kernel)
        except BadStream as error:
            self._bad = str(error)
        if len(self.stamps) > before > 0 and self.stamps[before - 1] == stamp_ns:
            self.shared[before] = 1
