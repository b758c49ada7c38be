"""Replies over a real socket: stamps against the server's own, cases of public reports."""

import numpy as np
import pytest

from ridgeline.domain.records import RequestRecord
from support.driving import Outcome, closed, drive, opened
from support.mock_server import (
    DONE,
    MockProcess,
    MockServer,
    Script,
    Served,
    at_once,
    delta,
    event,
    finish,
    http_chunk,
    http_head,
    plain_stream,
    role,
    stream,
    text,
    usage,
)

MS = 1_000_000


def one(script: Script, **options: float) -> RequestRecord:
    """The record of one request answered by `script`."""
    return both(script, **options)[0]


def both(script: Script, **options: float) -> tuple[RequestRecord, Served, Outcome]:
    with MockServer([script]) as mock:
        outcome = drive(mock.url, closed(requests=1, duration_s=20.0), **options)
        assert len(outcome.records) == 1
        return outcome.records[0], mock.served[0], outcome


def came_with(parts: list[int], script: Script) -> tuple[RequestRecord, Served]:
    """Drive one request; its chunks must carry the times at which these parts were written.

    The server's own stamps are the truth. A machine that is busy with other work hands bytes from
    process to process late now and then; such an attempt shows nothing and is made again.
    """
    for _ in range(8):
        record, served, outcome = both(script)
        assert record.chunk_ns is not None
        assert len(record.chunk_ns) == len(parts)
        misses = [
            served.miss_ns(part, stamp + outcome.result.zero_ns)
            for part, stamp in zip(parts, record.chunk_ns.tolist(), strict=True)
        ]
        if min(misses) > -0.3 * MS and max(misses) < 3 * MS:
            return record, served
    pytest.fail(f"no attempt in which the stamps are the server's: {misses}")


def gaps_ms(record: RequestRecord) -> np.ndarray:
    assert record.chunk_ns is not None
    return np.diff(record.chunk_ns) / MS


def sent_gaps_ms(served: Served, parts: list[int]) -> np.ndarray:
    """The gaps between some writes of the server."""
    return np.diff([served.sent_ns[p] for p in parts]) / MS


def test_stamps_are_the_servers_own() -> None:
    """20 chunks 5 ms apart, 4 users: each stamp against the moment just before its write."""
    with MockProcess([plain_stream(20, first_ms=30, gap_ms=5)], keep_bodies=True) as mock:
        outcome = drive(mock.url, closed(4, duration_s=1.5))
        mock.stop()
    records = outcome.of_identity(4)
    misses: list[int] = []
    lags: list[int] = []
    for served in mock.served:
        record = records[served.identity]
        assert record.failure is None
        assert record.output_tokens == 20
        assert record.chunk_ns is not None
        assert record.sent_ns is not None
        # part 0 is the head; what follows the last chunk has a part of its own
        for part, stamp in enumerate(record.chunk_ns.tolist(), start=1):
            misses.append(served.miss_ns(part, stamp + outcome.result.zero_ns))
        lags.append(served.received_ns - outcome.result.zero_ns - record.sent_ns)
    assert len(misses) >= 400
    assert min(misses) > -0.3 * MS  # nothing arrives before it was sent
    assert np.median(np.abs(misses)) < 0.2 * MS
    assert np.percentile(np.abs(misses), 80) < 1 * MS
    assert min(lags) > 0  # sent before it was received
    assert outcome.result.client.receive_clock == "kernel"
    assert all(r.read_timed == 0 for r in records.values())


def test_role_chunk_is_not_the_first_token() -> None:
    script = stream([(5, role()), (214, text("Hi")), (220, finish() + usage(9, 1) + DONE)])
    record, _ = came_with([2], script)
    assert record.failure is None


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_counts_and_the_first_answer_is_known(field: str) -> None:
    events = [(100 + 10 * i, delta(**{field: "hm"})) for i in range(25)]
    events += [(350 + 10 * i, text()) for i in range(5)]
    record, served = came_with(
        list(range(1, 31)), stream([*events, (395, finish() + usage(9, 30) + DONE)])
    )
    assert record.chunk_ns is not None
    assert record.first_ns is not None
    assert len(record.chunk_ns) == 30
    assert record.output_tokens == 30
    assert record.first_answer_ns == record.chunk_ns[25]
    thinking = (record.first_answer_ns - record.first_ns) / MS
    assert thinking == pytest.approx(sent_gaps_ms(served, [1, 26])[0], abs=8)


def test_error_event_after_tokens_is_a_failure() -> None:
    events = [(10 * i, text()) for i in range(1, 11)]
    record = one(
        stream([*events, (105, event({"error": {"message": "died", "code": 500}}) + DONE)])
    )
    assert record.failure == "stream_error"
    assert record.failure_detail == "died (code 500)"
    assert record.chunk_ns is not None
    assert len(record.chunk_ns) == 10
    assert record.http_status == 200


@pytest.mark.parametrize("events", [DONE, role() + finish() + DONE, finish() + DONE])
def test_a_reply_without_content_has_no_ttft(events: bytes) -> None:
    record = one(stream([(5, events)]))
    assert record.failure == "no_tokens"
    assert record.first_ns is None
    assert record.last_ns is None
    assert record.end_ns is not None
    assert record.sent_ns is not None
    assert record.end_ns >= record.sent_ns


def test_a_stall_shows_as_one_gap() -> None:
    times = [100 + 10 * i + (1000 if i >= 10 else 0) for i in range(50)]
    record, served = came_with(
        list(range(1, 51)),
        stream([*[(t, text()) for t in times], (times[-1], finish() + usage(9, 50) + DONE)]),
    )
    gaps, sent = gaps_ms(record), sent_gaps_ms(served, list(range(1, 51)))
    assert len(gaps) == 49
    assert gaps.argmax() == 9
    assert gaps.max() > 950
    assert gaps.max() == pytest.approx(sent.max(), abs=8)
    assert gaps.mean() == pytest.approx(sent.mean(), abs=0.3)


def test_comments_crlf_split_and_joined_events() -> None:
    crlf = text("a").replace(b"\n", b"\r\n")
    parts = [(50.0 * i, b": ping\n\n") for i in range(6)]
    parts += [
        (300, crlf),
        (320, text("b")[:20]),
        (340, text("b")[20:]),
        (360, text("c") + text("d")),
        (380, finish() + usage(9, 4) + DONE),
    ]
    record, served = came_with([7, 9, 10, 10], stream(parts))
    assert record.failure is None
    assert gaps_ms(record)[:2] == pytest.approx(sent_gaps_ms(served, [7, 9, 10]), abs=8)
    assert gaps_ms(record)[2] == 0
    assert record.chunk_shared is not None
    assert record.chunk_shared.tolist() == [False, False, False, True]


def test_everything_in_one_read_is_marked_as_such() -> None:
    """100 chunks in one segment after 1 s: TTFT is 1 s, and no decode rate can be had of it."""
    record, _ = came_with([0] * 100, at_once(plain_stream(100), 1000))
    assert record.chunk_ns is not None
    assert record.chunk_shared is not None
    assert len(record.chunk_ns) == 100
    assert len(set(record.chunk_ns.tolist())) <= 2  # one read, unless the segment was cut in two
    assert record.chunk_shared.sum() >= 98
    assert not record.chunk_shared[0]


def test_several_tokens_a_chunk_are_counted_by_usage() -> None:
    events = [(200, text("a")), *[(t, text("b c d e")) for t in (240, 280, 320)]]
    record, served = came_with(
        [1, 2, 3, 4], stream([*events, (325, finish() + usage(9, 13) + DONE)])
    )
    assert record.output_tokens == 13
    assert record.first_ns is not None
    assert record.last_ns is not None
    per_token = (record.last_ns - record.first_ns) / MS / 12
    assert per_token == pytest.approx(sent_gaps_ms(served, [1, 4])[0] / 12, abs=0.8)
    assert gaps_ms(record) == pytest.approx(sent_gaps_ms(served, [1, 2, 3, 4]), abs=8)


def test_early_stop_is_seen_as_what_it_is() -> None:
    with MockServer([plain_stream(20, first_ms=24, gap_ms=5)]) as mock:
        outcome = drive(mock.url, closed(requests=1, output_tokens=100))
        assert mock.served[0].json()["max_tokens"] == 100
    record = outcome.records[0]
    assert (record.planned_output_tokens, record.output_tokens) == (100, 20)


def test_without_usage_tokens_are_not_measured() -> None:
    record = one(stream([(5, text()), (10, finish() + DONE)]))
    assert record.failure is None
    assert record.output_tokens is None
    assert record.prompt_tokens is None


def test_completions_stream() -> None:
    events = [
        event({"choices": [{"index": 0, "text": t, "finish_reason": r}]})
        for t, r in ((" a", None), (" b", None), ("", None), (" c", "length"))
    ]
    with MockServer([stream([(10.0 * i, e) for i, e in enumerate(events)] + [(40, DONE)])]) as mock:
        outcome = drive(mock.url, closed(requests=1), endpoint="completions")
        assert mock.served[0].path == "/v1/completions"
        assert isinstance(mock.served[0].json()["prompt"], str)
    record = outcome.records[0]
    assert record.failure is None
    assert record.finish_reason == "length"
    assert record.chunk_ns is not None
    assert len(record.chunk_ns) == 3


def bytewise(whole: bytes) -> Script:
    """A reply whose every byte is a write of its own."""
    return Script(tuple((0.0, whole[i : i + 1]) for i in range(len(whole))))


def test_a_whole_reply_byte_by_byte() -> None:
    body = role() + text("a") + text('q"uo\\te') + text("c") + finish() + usage(9, 3) + DONE
    chunked = http_head() + b"".join(http_chunk(body[i : i + 7]) for i in range(0, len(body), 7))
    for whole in (
        chunked + http_chunk(b""),
        http_head(length=len(body)) + body,
        b"HTTP/1.1 100 Continue\r\n\r\n" + http_head(length=len(body)) + body,
    ):
        record = one(bytewise(whole))
        assert record.failure is None, record.failure_detail
        assert record.output_tokens == 3
        assert record.chunk_ns is not None
        assert len(record.chunk_ns) == 3


def test_every_cut_is_a_failure_never_a_success() -> None:
    """The connection closes after each possible byte of the reply: no prefix is a success."""
    body = text("a") + text("b") + finish() + usage(9, 2) + DONE
    whole = http_head() + http_chunk(body) + http_chunk(b"")
    done = whole.index(b"[DONE]") + len(b"[DONE]\n\n")
    scripts = [Script(((0.0, whole[:cut]),), "close") for cut in range(1, len(whole))]
    times = [0.002 * i for i in range(len(scripts))]
    with MockServer(lambda served, _: scripts[served.identity]) as mock:
        outcome = drive(mock.url, opened(times, duration_s=0.002 * len(scripts)))
        served = len(mock.served)
    assert served == len(scripts) == len(outcome.records)
    for cut, record in enumerate(outcome.records, start=1):
        if cut < done:
            assert record.failure in ("stream_cut", "no_finish"), (cut, record.failure)
        else:
            assert record.failure is None, (cut, record.failure_detail)
