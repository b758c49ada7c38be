"""Splitting an event stream: the same events, however the bytes fall."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.load import sse
from ridgeline.load.sse import BadStream, SseSplitter, payload_of

STREAM = (
    b": a comment\n\n"
    b'data: {"a":1}\n\n'
    b"event: message\r\nid: 7\r\ndata: two\r\ndata: lines\r\n\r\n"
    b"data:no space\n\n"
    b": ping\r\n\r\n"
    b"retry: 10\n\n"
    b"data: old mac\r\r"
    b"\n\n\n"
    b"data:  two spaces\n\n"
    b"datax: no\n\n"
    b"data: [DONE]\n\n"
)
EVENTS = [b'{"a":1}', b"two\nlines", b"no space", b"old mac", b" two spaces", b"[DONE]"]


def payloads(complete: bytes) -> list[bytes]:
    assert complete == b"" or complete.endswith(b"\n\n")
    found = [payload_of(block) for block in complete.split(b"\n\n")]
    return [data for data in found if data is not None]


def split(pieces: list[bytes]) -> list[bytes]:
    splitter = SseSplitter()
    found = [data for piece in pieces for data in payloads(splitter.complete(piece))]
    return found + payloads(splitter.finish())


def test_every_split_into_two_reads_gives_the_same_events() -> None:
    for cut in range(len(STREAM) + 1):
        assert split([STREAM[:cut], STREAM[cut:]]) == EVENTS, cut


def test_byte_by_byte() -> None:
    assert split([STREAM[i : i + 1] for i in range(len(STREAM))]) == EVENTS


def test_random_splits() -> None:
    rng = random.Random(5)
    for _ in range(300):
        cuts = sorted(rng.randrange(len(STREAM) + 1) for _ in range(rng.randrange(12)))
        ends = [*cuts, len(STREAM)]
        starts = [0, *cuts]
        assert split([STREAM[a:b] for a, b in zip(starts, ends, strict=True)]) == EVENTS


def test_an_event_is_there_as_soon_as_its_blank_line_is() -> None:
    """A receive time must not wait for a byte that the event does not need."""
    splitter = SseSplitter()
    assert splitter.complete(b"data: x\n") == b""
    assert payloads(splitter.complete(b"\n")) == [b"x"]
    assert payloads(splitter.complete(b"data: y\r\n\r")) == [b"y"]
    assert payloads(splitter.complete(b"\ndata: z\r\n\r\n")) == [b"z"]


def test_a_last_event_without_its_blank_line() -> None:
    assert split([b"data: a\n\ndata: [DONE]\n"]) == [b"a", b"[DONE]"]
    assert split([b"data: a\n\ndata: [DO", b"NE]"]) == [b"a", b"[DONE]"]


def test_byte_order_mark_at_the_start_only() -> None:
    assert split([b"\xef\xbb\xbfdata: a\n\n"]) == [b"a"]
    assert split([b"\xef", b"\xbb\xbfdata: a\n\n", b"data: b\n\n"]) == [b"a", b"b"]


def test_an_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    splitter = SseSplitter()
    for _ in range(10):
        splitter.complete(b"x" * 100)
    with pytest.raises(BadStream, match="longer than"):
        splitter.complete(b"x")


def test_text_that_is_no_stream_has_no_events() -> None:
    assert split([b"<html>\n\n<body>hello</body>\n\n</html>\n"]) == []


LINE = st.binary(max_size=8).map(lambda b: b.replace(b"\r", b"").replace(b"\n", b""))


@given(
    events=st.lists(st.lists(LINE, min_size=1, max_size=3), max_size=6),
    ending=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    cuts=st.lists(st.integers(0, 400), max_size=10),
)
def test_any_data_lines_come_back(
    events: list[list[bytes]], ending: bytes, cuts: list[int]
) -> None:
    whole = b"".join(
        b"".join(b"data: " + line + ending for line in lines) + ending for lines in events
    )
    places = sorted({min(c, len(whole)) for c in cuts})
    pieces = [whole[a:b] for a, b in zip([0, *places], [*places, len(whole)], strict=True)]
    assert split(pieces) == [b"\n".join(lines) for lines in events]
