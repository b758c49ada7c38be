"""Servers that misbehave: every request gets its class, one clear detail, and the run goes on."""

import socket

import pytest

from ridgeline.domain.errors import EndpointError
from ridgeline.domain.records import RequestRecord
from support.driving import RecordingWatch, closed, drive, opened
from support.mock_server import (
    DONE,
    MockServer,
    Script,
    finish,
    http_chunk,
    http_head,
    page,
    plain_stream,
    stream,
    text,
)

GOOD = plain_stream(3, first_ms=2, gap_ms=2)


def failing(script: Script, **limits_s: float | None) -> RequestRecord:
    """The record of a failing request; the next, good one of the same run must succeed."""
    with MockServer([script, GOOD]) as mock:
        outcome = drive(mock.url, closed(requests=2, duration_s=20.0), **limits_s)
    first, second = outcome.records
    assert second.failure is None, second.failure_detail
    assert first.failure is not None
    assert first.failure_detail
    return first


@pytest.mark.parametrize("status", [301, 400, 401, 404, 429, 500, 503])
def test_statuses(status: int) -> None:
    body = b'{"error": {"message": "because", "code": %d}}' % status
    record = failing(page(status, "application/json", body))
    assert record.failure == "http_status"
    assert record.http_status == status
    assert record.failure_detail == f"HTTP {status}: because (code {status})"
    assert record.first_ns is None


def test_web_page_instead_of_a_stream() -> None:
    record = failing(page(200, "text/html; charset=utf-8", b"<html>Welcome</html>"))
    assert record.failure == "bad_stream"
    assert "text/html" in str(record.failure_detail)
    assert "Welcome" in str(record.failure_detail)


def test_whole_json_instead_of_a_stream() -> None:
    record = failing(page(200, "application/json", b'{"choices":[{"message":{"content":"x"}}]}'))
    assert record.failure == "bad_stream"


@pytest.mark.parametrize("after", ["close", "reset"])
def test_stream_that_ends_early(after: str) -> None:
    parts = ((0.0, http_head() + http_chunk(text()) + http_chunk(text())), (20.0, b""))
    record = failing(Script(parts, after))
    assert record.failure == "stream_cut"
    assert record.chunk_ns is not None
    assert len(record.chunk_ns) == 2


def test_empty_reply() -> None:
    assert failing(page(200, "text/event-stream", b"")).failure == "no_tokens"


def test_close_without_a_byte_twice() -> None:
    """A request that met a closed connection and is dropped by the next one is counted once."""
    with MockServer([Script(GOOD.parts, "closed"), Script((), "close"), GOOD]) as mock:
        outcome = drive(mock.url, closed(requests=3, duration_s=20.0))
        assert len(mock.served) == 3
    told = [(r.failure, r.retries) for r in outcome.records]
    assert told == [(None, 0), ("stream_cut", 1), (None, 0)]


def test_bytes_that_are_not_utf8() -> None:
    record = failing(
        stream([(1, text()), (5, b'data: {"x":"\xff\xfe"}\n\n'), (9, finish() + DONE)])
    )
    assert record.failure == "bad_stream"
    assert "UTF-8" in str(record.failure_detail)


def test_garbage_after_the_finish() -> None:
    record = failing(stream([(1, text()), (5, finish() + b"data: }garbage{\n\n" + DONE)]))
    assert record.failure == "bad_stream"
    assert "garbage" in str(record.failure_detail)


def test_not_http_at_all() -> None:
    record = failing(Script(((0.0, b"SSH-2.0-OpenSSH_9.2\r\n"),), "close"))
    assert record.failure == "bad_stream"
    assert "not HTTP" in str(record.failure_detail)


def test_broken_chunked_coding() -> None:
    record = failing(Script(((0.0, http_head() + http_chunk(text()) + b"zz\r\nhm\r\n"),), "close"))
    assert record.failure == "bad_stream"


def test_surplus_bytes_do_not_reach_the_next_request() -> None:
    """A second, unasked reply behind the first: the first is whole, the connection not reusable."""
    good = b"".join(data for _, data in GOOD.parts)
    wrong = b"".join(data for _, data in plain_stream(50).parts)
    with MockServer([Script(((0.0, good + wrong),)), GOOD]) as mock:
        outcome = drive(mock.url, closed(requests=2))
        assert mock.served[0].connection != mock.served[1].connection
    assert [len(r.chunk_ns) for r in outcome.records if r.chunk_ns is not None] == [3, 3]
    assert all(r.failure is None for r in outcome.records)


def test_time_out_before_the_first_token() -> None:
    record = failing(stream([(0, b": wait\n\n"), (30_000, text())]), first_s=0.2)
    assert record.failure == "timeout_first"
    assert record.sent_ns is not None
    assert record.end_ns is not None
    assert 0.2e9 <= record.end_ns - record.sent_ns < 1.0e9


def test_time_out_between_chunks_although_comments_come() -> None:
    parts = [(1, text()), *[(20.0 * i, b": ping\n\n") for i in range(1, 50)], (30_000, text())]
    record = failing(stream(parts), gap_s=0.3)
    assert record.failure == "timeout_gap"
    assert record.chunk_ns is not None
    assert len(record.chunk_ns) == 1


def test_time_out_of_the_whole() -> None:
    record = failing(plain_stream(2000, first_ms=1, gap_ms=20), total_s=0.3)
    assert record.failure == "timeout_total"
    assert record.chunk_ns is not None
    assert len(record.chunk_ns) > 3


def test_a_body_left_open_after_its_end_marker_is_complete() -> None:
    parts = ((0.0, http_head() + http_chunk(text() + finish() + DONE)), (60_000.0, http_chunk(b"")))
    with MockServer([Script(parts), GOOD]) as mock:
        outcome = drive(mock.url, closed(requests=2, duration_s=20.0))
    assert [r.failure for r in outcome.records] == [None, None]
    first = outcome.records[0]
    assert first.end_ns is not None
    assert first.end_ns == first.last_ns  # the wait for nothing is not part of it


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(EndpointError, match=r"127\.0\.0\.1.*refused.*is the server running"):
            drive(url, closed(2))


def test_server_that_goes_away_in_the_middle() -> None:
    """Streams are cut, later requests find nobody; all of it is recorded, nothing hangs."""
    with MockServer([plain_stream(1000, first_ms=5, gap_ms=5)]) as mock:

        class Killer(RecordingWatch):
            def live(self, figures: object) -> None:
                super().live(figures)  # type: ignore[arg-type]
                if len(self.figures) == 2:
                    mock.stop()

        outcome = drive(mock.url, closed(3, duration_s=1.2), watch=Killer())
        failures = [r.failure for r in outcome.records]
    assert failures.count("stream_cut") == 3
    assert failures.count("connect") >= 3
    # a failed user goes on at most ten times a second
    assert failures.count("connect") <= 3 * 10
    assert [r.index for r in outcome.records] == list(range(len(failures)))


def test_a_failed_request_does_not_make_a_user_hammer() -> None:
    with MockServer([page(500, "text/plain", b"no")]) as mock:
        outcome = drive(mock.url, closed(2, duration_s=1.0))
        assert len(mock.served) == len(outcome.records)
    assert 10 <= len(outcome.records) <= 22


def test_open_loop_failures_do_not_slow_the_schedule() -> None:
    times = [0.01 * i for i in range(60)]
    with MockServer([page(500, "text/plain", b"no")]) as mock:
        outcome = drive(mock.url, opened(times, duration_s=0.6))
    assert [r.intended_ns for r in outcome.records] == [round(t * 1e9) for t in times]
    assert all(r.failure == "http_status" for r in outcome.records)
