"""What one reply means: first content, answer, usage, finish, and when it is a failure."""

import json
import random
from typing import Any

import pytest

from ridgeline.load import openai
from ridgeline.load import reply as reply_module
from ridgeline.load.openai import DATA, RequestForm, known_event, leading_id, read_event
from ridgeline.load.reply import Reply
from ridgeline.load.sse import BadStream
from support.mock_server import DONE, chunk_value, delta, event, finish, role, text, usage


def reply_of(
    blocks: list[tuple[int, bytes]],
    *,
    status: int = 200,
    content_type: str = "text/event-stream; charset=utf-8",
) -> Reply:
    """A reply from (stamp, bytes of one read)."""
    reply = Reply()
    reply.head(status, content_type)
    for stamp, block in blocks:
        if reply.body(block, stamp, True) < 0:
            break
    return reply


def choice(**fields: Any) -> bytes:
    return event(chunk_value([{"index": 0, "finish_reason": None, **fields}]))


@pytest.mark.parametrize(
    ("data", "content", "answer"),
    [
        (role(), False, False),
        (delta(role="assistant", content=None), False, False),
        (delta(content=""), False, False),
        (delta(content="Hi"), True, True),
        (delta(content=" "), True, True),
        (delta(reasoning="hm"), True, False),
        (delta(reasoning_content="hm"), True, False),
        (delta(reasoning_content="", content="x"), True, True),
        (delta(tool_calls=[{"index": 0, "function": {"arguments": "{"}}]), True, True),
        (delta(tool_calls=[]), False, False),
        (choice(text="word"), True, True),
        (choice(text=""), False, False),
        (choice(delta=None, text="word"), True, True),
        (finish(), False, False),
        (usage(3, 4), False, False),
        (DONE, False, False),
    ],
)
def test_what_is_content(data: bytes, content: bool, answer: bool) -> None:
    found = read_event(data[6:].strip())
    assert (found.content, found.answer) == (content, answer)


@pytest.mark.parametrize(
    "data",
    [b"{", b"nonsense", b"[1]", b"12", b"\xff\xfe", b'{"choices":[3]}', b'{"choices":7}', b""],
)
def test_what_is_not_an_event(data: bytes) -> None:
    with pytest.raises(BadStream):
        read_event(data)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"error": {"message": "engine died", "code": 500}}, "engine died (code 500)"),
        ({"error": "out of memory"}, "out of memory"),
        ({"object": "error", "message": "old form", "code": 400}, "old form (code 400)"),
    ],
)
def test_error_events(value: dict[str, Any], message: str) -> None:
    assert read_event(json.dumps(value).encode()).error == message


def test_a_null_error_is_none() -> None:
    assert read_event(text()[6:].strip().replace(b"{", b'{"error":null,', 1)).error is None


def test_usage_that_is_not_a_count_was_not_reported() -> None:
    value = chunk_value([], usage={"prompt_tokens": 5, "completion_tokens": "7"})
    found = read_event(json.dumps(value).encode()).usage
    assert found is not None
    assert (found.prompt_tokens, found.completion_tokens) == (5, None)
    value = chunk_value([], usage={"prompt_tokens": -1, "completion_tokens": "7"})
    assert read_event(json.dumps(value).encode()).usage is None


def test_stamps_and_shared_marks() -> None:
    reply = reply_of(
        [
            (10, role()),
            (20, text("a")),
            (30, text("b") + text("c") + text("d")),
            (40, text("e")[:15]),
            (50, text("e")[15:] + finish() + usage(5, 6, 2) + DONE),
        ]
    )
    assert list(reply.stamps) == [20, 30, 30, 30, 50]
    assert list(reply.shared) == [0, 0, 1, 1, 0]
    assert reply.first_answer_ns == 20
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (5, 6)
    assert reply.usage.cached_tokens == 2
    assert reply.judge(None) == (None, None)


STREAMS: list[list[bytes]] = [
    # plain, escapes, other alphabets, control characters, quotes, braces, empty ones in between
    [
        role(),
        *[text(t) for t in ("a", "b", 'say "x"', "\\", "é", "日本", "\n", "", " ", "}{", "z")],
    ],
    # reasoning, then answer: the learnt surroundings change in the middle
    [delta(reasoning="r"), delta(reasoning="s"), *[text(str(i)) for i in range(5)]],
    # text and finish in one chunk; content after it
    [text("a"), text("b"), text("c"), delta(finish_reason="stop", content="d"), text("e")],
    # usage in every chunk (continuous usage)
    [
        event(chunk_value([{"index": 0, "delta": {"content": "x"}}], usage={"prompt_tokens": i}))
        for i in range(6)
    ],
    [choice(text=t) for t in ("a", "b", "", "c", '"', "d")],
    # a neighbour field that looks like the text
    [choice(delta={"content": "a", "note": "content"}, text="") for _ in range(5)],
    [delta(content="a", reasoning="b"), delta(content="a", reasoning="c"), delta(content="", x="")],
]


@pytest.mark.parametrize("events", STREAMS)
def test_skipping_json_never_changes_what_is_counted(events: list[bytes]) -> None:
    """The shortcut against parsing every event, in one read and in one read per event."""
    whole = [*events, finish(), DONE]
    expected = [i for i, data in enumerate(whole) if read_event(data[6:].strip()).content]
    one_each = reply_of(list(enumerate(whole)))
    assert list(one_each.stamps) == expected
    together = reply_of([(7, b"".join(whole))])
    assert len(together.stamps) == len(expected)


def test_mutated_events_are_never_taken_for_content() -> None:
    """One byte of a learnt stream changed: counted as content only if JSON says it is."""
    rng = random.Random(11)
    good = text("word")
    for _ in range(4000):
        broken = bytearray(good)
        place = rng.randrange(6, len(broken) - 2)
        broken[place] = rng.choice(b'"\\{}[]:,x \x00\xff\x01')
        reply = reply_of([(1, good * 3), (2, bytes(broken) + good)])
        try:
            expected = read_event(bytes(broken)[6:-2]).content
        except BadStream:
            assert reply.judge(None)[0] == "bad_stream"
            continue
        assert list(reply.stamps) == [1, 1, 1] + [2] * (1 + expected), bytes(broken)


def ends(
    events: list[bytes], problem: str | None = None, **head: Any
) -> tuple[str | None, str | None]:
    return reply_of(list(enumerate(events)), **head).judge(problem)


def test_failure_classes() -> None:
    ten = [text() for _ in range(10)]
    assert ends([*ten, finish(), DONE]) == (None, None)
    assert ends([*ten, finish()]) == (None, None)  # servers without an end marker
    assert ends([DONE])[0] == "no_tokens"
    assert ends([role(), finish(), usage(4, 0), DONE])[0] == "no_tokens"
    assert ends([*ten, DONE])[0] == "no_finish"
    assert ends(ten, "closed by the server") == (
        "stream_cut",
        "closed by the server after 10 chunks",
    )
    assert ends([*ten, finish()], "closed by the server")[0] == "stream_cut"
    assert ends([*ten, finish(), DONE], "closed by the server") == (None, None)
    assert ends([*ten, finish("abort"), usage(4, 10), DONE])[0] == "aborted"
    assert ends([*ten, event({"error": {"message": "boom", "code": 500}}), DONE]) == (
        "stream_error",
        "boom (code 500)",
    )
    assert ends([*ten, b"data: \xff\xfe\n\n", finish(), DONE])[0] == "bad_stream"
    assert ends([*ten, finish(), b"data: garbage\n\n", DONE])[0] == "bad_stream"
    assert ends([b"hello there\n"])[0] == "bad_stream"
    assert ends([b""])[0] == "no_tokens"


def test_what_follows_the_end_marker_is_not_part_of_the_reply() -> None:
    reply = reply_of([(1, text() * 3 + finish() + DONE + text() + b"data: junk\n\n"), (2, text())])
    assert list(reply.stamps) == [1, 1, 1]
    assert reply.judge(None) == (None, None)


def test_replies_that_are_no_streams() -> None:
    page = b"<html><body>\n  It works!\n</body></html>"
    failure, detail = ends([page], content_type="text/html")
    assert failure == "bad_stream"
    assert detail is not None
    assert "text/html instead of an event stream" in detail
    assert "It works!" in detail
    error = b'{"error": {"message": "no such\\nmodel", "code": 404}}'
    assert ends([error], status=404, content_type="application/json") == (
        "http_status",
        "HTTP 404: no such model (code 404)",
    )
    assert ends([b'{"detail":"Not Found"}'], status=404) == ("http_status", "HTTP 404: Not Found")


def test_a_last_event_without_blank_line_counts() -> None:
    reply = reply_of([(1, text()), (2, text() + finish() + DONE[:-2])])
    assert reply.judge(None) == (None, None)
    assert reply.done
    reply = reply_of([(1, text() + text()[:-2])])
    assert reply.judge(None)[0] == "no_finish"
    assert (list(reply.stamps), list(reply.shared)) == ([1, 1], [0, 1])


def test_request_bodies_are_valid_json_with_everything_in_it() -> None:
    for endpoint, ignore_eos in (("chat", True), ("completions", False)):
        form = RequestForm(endpoint, 'a "model"', ignore_eos=ignore_eos)
        body = json.loads(b"".join(form.parts(b"some words", 17)))
        assert body["model"] == 'a "model"'
        assert body["max_tokens"] == 17
        assert body["stream"] is True
        assert body["stream_options"] == {"include_usage": True}
        assert body.get("ignore_eos", False) is ignore_eos
        if endpoint == "chat":
            assert body["messages"] == [{"role": "user", "content": "some words"}]
        else:
            assert body["prompt"] == "some words"


def test_runs_of_chunks_whose_texts_end_in_backslashes() -> None:
    """A text that ends in an escape swallows the quote after it: the run is not what it seems."""
    good = text("word")
    odd = good.replace(b"word", b"wo\\")  # the JSON string goes on
    reply = reply_of([(1, good * 3), (2, good + odd + good)])
    assert reply.judge(None)[0] == "bad_stream"
    assert list(reply.stamps)[:3] == [1, 1, 1]
    tail = good.replace(b"word", b"\\\\")  # a whole escaped backslash
    assert list(reply_of([(1, good * 3), (2, tail * 4)]).stamps) == [1] * 3 + [2] * 4


@pytest.mark.parametrize(
    ("odd", "counts"),
    [
        (delta(content=""), False),
        (event(chunk_value([])), False),
        (b": a comment\n\n", False),
        (b"\n\n", False),
        (b"data: {}\n\n", None),
        (delta(content='a\\nb "quoted" \\'), True),
        (delta(reasoning="hm"), True),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 4, 9])
def test_one_read_of_many_chunks_counts_as_many_reads_do(
    odd: bytes, counts: bool | None, place: int
) -> None:
    """Chunks that are alike are taken together; an odd one among them must not be taken for one."""
    alike = [delta(content=f" word{i}") for i in range(10)]
    events = [role(), delta(content="a"), delta(content="b")]
    chunks = [*alike[:place], odd, *alike[place:]]
    ends = [finish(), usage(32, 12), DONE]
    begun = [(i, e) for i, e in enumerate(events)]
    single = reply_of([*begun, *((9, e) for e in [*chunks, *ends])])
    joined = reply_of([*begun, (9, b"".join([*chunks, *ends]))])
    assert joined.stamps == single.stamps
    assert joined.judge(None) == single.judge(None)
    if counts is not None:
        assert len(joined.stamps) == 12 + counts
        assert joined.judge(None) == (None, None)


def test_texts_in_any_alphabet_are_checked_to_be_utf8() -> None:
    raw = text("word").replace(b"word", "日本 é".encode())
    assert list(reply_of([(1, raw * 3), (2, raw * 5)]).stamps) == [1] * 3 + [2] * 5
    cut = text("word").replace(b"word", "日".encode()[:2])
    assert reply_of([(1, raw * 3), (2, raw + cut + raw)]).judge(None)[0] == "bad_stream"
    # halves of a character in neighbouring chunks are two broken chunks, not one good text
    halves = [text("word").replace(b"word", part) for part in (b"\xe6\x97", b"\xa5")]
    assert reply_of([(1, raw * 3), (2, b"".join(halves))]).judge(None)[0] == "bad_stream"


@pytest.mark.parametrize("ends", [b"\n\n\n", b"\n\n\n\n\n", b"\r\n\r\n\r\n"])
def test_more_empty_lines_than_an_event_needs(ends: bytes) -> None:
    reply = Reply()
    reply.head(200, "text/event-stream")
    for part in (text("a"), text("b"), finish(), DONE):
        assert reply.body(part.rstrip(b"\n") + ends, 1, True) >= 0
    assert reply.judge(None) == (None, None)
    assert len(reply.stamps) == 2


def test_known_events_never_mix_up_replies() -> None:
    """The memory ignores a leading id only: everything else still tells events apart."""
    for number in range(3):
        for content, finish_reason in (("a", None), ("", None), ("", "stop"), ("a", "stop")):
            value = chunk_value(
                [{"index": 0, "delta": {"content": content}, "finish_reason": finish_reason}]
            ) | {"id": f"chatcmpl-{number}"}
            data = json.dumps(value).encode()
            line = DATA + data
            begin = leading_id(line)
            assert begin == f'data: {{"id": "chatcmpl-{number}"'.encode()
            skip = len(begin) - len(DATA)
            assert known_event(data, skip) == read_event(data)
            # what stands after the id is no event by itself, however well it is known
            with pytest.raises(BadStream):
                known_event(data[skip:], 0)
    broken = b'{"id":"a\\","choices":[{"delta":{"content":"x"}}]}'
    assert leading_id(DATA + broken) == b""
    with pytest.raises(BadStream):
        known_event(broken, 0)


def outcome(whole: bytes, *, remember: bool) -> tuple[object, ...]:
    """What a reply in one read says; not remember: to a client that has seen nothing before."""
    if not remember:
        openai.after_id.clear()
        reply_module._whole_replies.clear()
    reply = reply_of([(5, whole)])
    return (
        reply.judge(None), reply.stamps.tolist(), bytes(reply.shared), reply.usage, reply.done,
        reply.finish_reason, reply.first_answer_ns, reply.event_ns,
    )  # fmt: skip


def test_whole_replies_that_are_known_are_never_mixed_up() -> None:
    """A reply in one read is taken from memory; nothing that differs in more than its id is."""
    rng = random.Random(7)
    whole = b"".join((role(), text("a"), finish("length"), usage(3, 1), DONE))
    begin = leading_id(whole)
    assert begin.count(b"chatcmpl-1") == 1
    outcome(whole, remember=False)
    assert len(reply_module._whole_replies) == 1
    other = whole.replace(b"chatcmpl-1", b"chatcmpl-22")
    assert outcome(other, remember=True) == outcome(whole, remember=False)
    places = [i for i in range(len(whole)) if whole.startswith(begin, i)]
    assert len(places) == 4
    foreign = (b"", b"\r", b"\0", b"data: {", b'data: {"id":"x"', b"\n", begin * 2)
    variants = [whole[:at] + new + whole[at + len(begin) :] for at in places[1:] for new in foreign]
    variants += [whole.replace(begin, b"\r"), whole.replace(b"data: [DONE]", b"data: x")]
    variants += [whole + text("b") + DONE, text("c") + whole]
    variants += [whole.replace(b'"length"', b'"abort"')]
    for _ in range(3000):
        at, end = (rng.randrange(len(whole)) for _ in range(2))
        new = rng.choice((b"", b"\n", b'"', b"{", begin))
        variants.append(whole[:at] + new + whole[at + (end % 8) :])
    for variant in variants:
        fresh = outcome(variant, remember=False)
        outcome(whole, remember=True)
        outcome(other, remember=True)
        assert outcome(variant, remember=True) == fresh, variant
        assert outcome(variant, remember=True) == fresh, variant


def test_pieces_as_http_cut_them_change_nothing() -> None:
    """They are a hint where events end; whatever they are, the bytes decide."""
    rng = random.Random(11)
    for number in range(400):
        words = [
            rng.choice(("a", "bc", "d\\\\", "e", "\u00fc", " ")) for _ in range(rng.randint(9, 40))
        ]
        events = [role(), *map(text, words), finish("stop"), usage(3, len(words)), DONE]
        if number % 3 == 1:
            events.insert(
                rng.randrange(1, len(words)), rng.choice((b": ping\n\n", role(), usage(1, 1)))
            )
        block = b"".join(events)
        cuts = sorted(rng.randrange(len(block) + 1) for _ in range(30))
        odd = [block[a:b] for a, b in zip([0, *cuts], [*cuts, len(block)], strict=True)]
        shuffled = rng.sample(events, len(events))
        outcomes = []
        for pieces in ([], events, odd, shuffled, events[1:], [b"", *events], events[:-4]):
            reply = Reply()
            reply.head(200, "text/event-stream")
            count = reply.body(block, 5, True, pieces)
            outcomes.append((count, reply.judge(None), reply.usage, bytes(reply.shared)))
        assert outcomes[0][0] == len(words)
        assert all(found == outcomes[0] for found in outcomes)


ROLE_AND_TEXTS = [role(), text(), text("b"), text("c")]
HALF = text("d")[:30]


@pytest.mark.parametrize("known", [0, 1, 3], ids=["new", "seen", "of a known form"])
@pytest.mark.parametrize(
    ("block", "last"),
    [
        (text("x"), True),
        (text("x") + text("y"), True),
        (b": comment\n\n" + text("x"), True),
        (role() + text("x"), True),
        (text("x") + finish(), False),
        (text("x") + usage(3, 4), False),
        (text("x") + DONE, False),
        (text("x") + finish() + usage(3, 4) + DONE, False),
        (text("x") + text(""), False),
        (text("x") + b": comment\n\n", False),
        (text("x") + b": comment", False),
        (text("x") + HALF, False),
        (text("x") + b"\n", False),
        (text("x") + b"\n\n", False),
        (text("x").replace(b"\n", b"\r\n"), True),
        ((text("x") + finish()).replace(b"\n", b"\r\n"), False),
        (text("x") + b"data: nonsense\n\n", False),
    ],
)
def test_whether_a_read_ends_with_content(known: int, block: bytes, last: bool) -> None:
    """However much of the stream's form is known, and whether reads end with events or not."""
    for before in (b"", HALF):
        reply = reply_of([(1, b"".join(ROLE_AND_TEXTS[: known + 1]) + before)])
        rest = text("d")[30:] if before else b""
        reply.body(rest + block, 2, True)
        assert reply.content_last is last, before


def test_a_whole_reply_in_one_read_does_not_end_with_content() -> None:
    """The first of its form is taken apart, the second one is known as a whole."""
    whole = role() + text() + finish() + usage(3, 1) + DONE
    for name in (b"chatcmpl-8", b"chatcmpl-9"):
        reply = reply_of([(1, whole.replace(b"chatcmpl-1", name))])
        assert len(reply.stamps) == 1
        assert not reply.content_last


GOOD_END = finish() + usage(3, 1) + DONE
SECOND = event(chunk_value([{"index": 1, "delta": {"content": "b"}, "finish_reason": None}]))
TWO = event(
    chunk_value([{"index": i, "delta": {"content": "b"}, "finish_reason": None} for i in (0, 1)])
)


@pytest.mark.parametrize("known", [1, 4], ids=["new", "of a known form"])
@pytest.mark.parametrize(
    ("odd", "failure", "detail"),
    [
        (b'event: error\ndata: {"message": "out of blocks"}\n\n', "stream_error", "out of blocks"),
        (b'data: {"message": "out of blocks"}\nevent:error\n\n', "stream_error", "out of blocks"),
        (b"event: error\ndata: boom\n\n", "stream_error", "boom"),
        (finish("abort"), "aborted", "the server ended it"),
        (finish("error"), "stream_error", "finish reason 'error'"),
        (SECOND, "bad_stream", "more than one choice"),
        (TWO, "bad_stream", "more than one choice"),
    ],
)
@pytest.mark.parametrize("again", [False, True])
def test_a_good_end_does_not_hide_what_went_wrong(
    known: int, odd: bytes, failure: str, detail: str, again: bool
) -> None:
    """In one read or in several, the first time and when such replies have been seen."""
    parts = [role(), *[text()] * known, odd, GOOD_END]
    for blocks in ([(1, b"".join(parts))], [(i, part) for i, part in enumerate(parts)]):
        for _ in range(1 + again):
            found, why = reply_of(blocks).judge(None)
            assert found == failure
            assert why is not None
            assert detail in why


def test_other_event_names_are_no_errors() -> None:
    reply = reply_of([(1, b"event: chunk\n" + text() + GOOD_END)])
    assert reply.judge(None) == (None, None)
    assert len(reply.stamps) == 1


def test_a_usage_without_counts_does_not_undo_one_with_them() -> None:
    empty = event(chunk_value([], usage={}))
    odd = event(chunk_value([], usage={"prompt_tokens": None, "completion_tokens": "7"}))
    reply = reply_of([(1, text() + finish() + usage(3, 1) + empty + odd + DONE)])
    assert reply.usage is not None
    assert reply.usage.numbers[:2] == (3, 1)
    assert reply_of([(1, text() + finish() + empty + DONE)]).usage is None
