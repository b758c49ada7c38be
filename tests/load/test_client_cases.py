"""A client that is slow, stalled or full: it says so, and never takes it for the server's doing.

Cases C-LC-01, 04, 05, 06 and 07 with their values; 02 and 03 are in test_connections.py, 08 and the
CPU of logging in tests/acceptance/test_client_scaling.py.
"""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest

from ridgeline.domain.run import Verdict
from ridgeline.load.http import Connection
from support.driving import RecordingWatch, closed, drive, opened
from support.mock_server import MockProcess, Script, at_once, plain_stream
from support.truth import MS, errors_ms, told_of


def client_reasons(verdict: Verdict) -> str:
    return " | ".join(r for r in verdict.reasons if r.startswith("client limit"))


# -- C-LC-01: a burst that leaves slowly


def test_a_slow_client_names_itself_and_not_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 requests at t = 0 and 4 ms of computing before each: the last leaves 128 ms late, and the
    server's first chunk still comes 50 ms after it had the request.
    """
    send = Connection.send

    def slowly(self: Connection, *args: object) -> int | None:
        until = time.thread_time() + 0.004
        while time.thread_time() < until:
            pass
        return send(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Connection, "send", slowly)
    load = opened([0.001] * 32, duration_s=2.0)
    with MockProcess([plain_stream(1, first_ms=50)]) as mock:
        outcome = drive(mock.url, load)
        mock.stop()
    verdict, summary = told_of(outcome, load)
    client = outcome.result.client
    assert summary.arrivals is not None
    skew = summary.arrivals.burst_skew_max_s
    assert skew is not None
    assert 31 * 0.004 <= skew < 1.5
    sent = [r.sent_ns or 0 for r in outcome.records]
    assert skew == pytest.approx((max(sent) - min(sent)) / 1e9)
    late = (client.send_lateness_p50_s, client.send_lateness_p99_s, client.send_lateness_max_s)
    assert all(value is not None for value in late)
    assert 16 * 0.004 <= (late[0] or 0) < (late[1] or 0) <= (late[2] or 0)
    assert (late[2] or 0) >= 32 * 0.004
    reason = client_reasons(verdict)
    assert "requests left" in reason
    assert "5% of the median TTFT" in reason
    assert not any(r.startswith("the server") for r in verdict.reasons)
    # the kernel's stamps of the replies are right all the same
    truth, zero = {s.identity: s for s in mock.served}, outcome.result.zero_ns
    misses = [
        truth[identity].miss_ns(1, (record.first_ns or 0) + zero)
        for identity, record in outcome.of_identity(None).items()
    ]
    assert max(map(abs, misses)) < 1 * MS
    waits_s = [((r.first_ns or 0) - r.intended_ns) / 1e9 for r in outcome.records]
    assert max(waits_s) > 0.05 + 0.1


def test_a_busy_loop_on_the_clients_core_is_never_the_servers_time() -> None:
    """Three processes compute on the core that the client is pinned to, from before the burst."""
    cores = sorted(os.sched_getaffinity(0))
    spin = f"import os; os.sched_setaffinity(0, {{{cores[0]}}})\nwhile True: pass"
    load = opened([0.001 + 0.1 * wave for wave in range(10) for _ in range(32)], duration_s=1.5)
    spinners: list[subprocess.Popen[bytes]] = []
    # the closing events come when the client has read the chunk, however late: else its time is
    # theirs, in doubt by the client's lateness, and no figure
    with MockProcess([plain_stream(1, first_ms=50, closing_ms=300)]) as mock:
        try:
            os.sched_setaffinity(0, {cores[0]})
            spinners = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(3)]
            outcome = drive(mock.url, load)
        finally:
            os.sched_setaffinity(0, set(cores))
            for spinner in spinners:
                spinner.kill()
                spinner.wait()
        mock.stop()
    verdict, summary = told_of(outcome, load)
    late, ttft = outcome.result.client.send_lateness_p99_s, summary.ttft_s.p50
    assert late is not None
    if ttft is None:  # read so late that it is no figure: then the client is named
        assert client_reasons(verdict), verdict.reasons
    elif late > max(0.001, 0.05 * ttft) * 1.05:
        assert "requests left" in client_reasons(verdict)
    truth, zero = {s.identity: s for s in mock.served}, outcome.result.zero_ns
    misses = [
        truth[identity].miss_ns(1, (record.first_ns or 0) + zero)
        for identity, record in outcome.of_identity(None).items()
    ]
    assert len(misses) == 320
    assert np.quantile(np.abs(misses), 0.99) < 1 * MS


# -- C-LC-04: a loop that stalls


class Stalls(RecordingWatch):
    """Holds the loop up for 200 ms every 2 s, from 0.5 s on."""

    def __init__(self) -> None:
        super().__init__()
        self.next_s = time.monotonic() + 0.5

    def stop_asked(self) -> bool:
        if time.monotonic() >= self.next_s:
            time.sleep(0.2)
            self.next_s += 2.0
        return super().stop_asked()


def test_a_stalling_loop_is_measured_marked_and_void() -> None:
    """A chunk every 10 ms while the loop is away for a tenth of the time."""
    load = closed(4, duration_s=5.5)
    with MockProcess([plain_stream(100, first_ms=10, gap_ms=10)]) as mock:
        outcome = drive(mock.url, load, watch=Stalls())
        mock.stop()
    client = outcome.result.client
    assert client.loop_lag_p99_s is not None
    assert 0.15 <= client.loop_lag_p99_s <= 0.5  # a random moment waits 180 ms at p99
    assert client.loop_lag_max_s is not None
    assert client.loop_lag_max_s >= 0.19
    marked = np.concatenate([r.chunk_shared for r in outcome.records if r.chunk_shared is not None])
    assert 0.05 < marked.mean() < 0.4  # a tenth; more where the machine stalls it too
    verdict, summary = told_of(outcome, load)
    reason = client_reasons(verdict)
    assert "because the client read them late" in reason
    assert "loop lag" in reason
    assert "receive backlog" in reason
    assert summary.itl_s.p99 is None, "the stall of the client is not shown as one of the server"
    # what came one by one has the server's own gaps, whatever the loop did meanwhile
    gaps = np.concatenate([np.diff(r.chunk_ns) for r in outcome.records if r.chunk_ns is not None])
    assert np.median(gaps) / MS == pytest.approx(10, abs=1.5)


# -- C-LC-05: nothing is formatted on the hot path


class Counts(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@pytest.fixture
def logged() -> Iterator[Counts]:
    """Everything that is logged at any level."""
    handler, root = Counts(), logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler
    root.removeHandler(handler)
    root.setLevel(before)


def test_a_run_logs_nothing_at_any_level(logged: Counts) -> None:
    logging.getLogger("test").debug("heard")
    with MockProcess([plain_stream(50, first_ms=5, gap_ms=2)]) as mock:
        outcome = drive(mock.url, closed(50, requests=100, duration_s=20.0))
    assert len(outcome.records) >= 100
    assert logged.texts == ["heard"]


# -- C-LC-06: a reply in one piece


@pytest.mark.parametrize("pieces", [1, 2], ids=["one segment", "two segments 2 ms apart"])
def test_a_reply_in_one_piece_has_no_speed(pieces: int) -> None:
    """100 chunks at 1000 ms: 4 M tokens/s once stood in a report."""
    whole = b"".join(data for _, data in plain_stream(100).parts)
    half = len(whole) // 2
    parts = ((1000.0, whole),) if pieces == 1 else ((1000.0, whole[:half]), (1002.0, whole[half:]))
    load = closed(12, duration_s=2.5)
    with MockProcess([Script(parts)]) as mock:
        outcome = drive(mock.url, load)
    _, summary = told_of(outcome, load)
    spans_s = [((r.last_ns or 0) - (r.first_ns or 0)) / 1e9 for r in outcome.records]
    slow = [s for s in spans_s if s >= 99 / 20_000]  # a busy machine put more between the segments
    if summary.ttft_s.p50 is None or len(slow) >= len(spans_s) / 2:
        pytest.skip("this machine is too busy to deliver 100 chunks within 5 ms")
    assert summary.ttft_s.p50 == pytest.approx(1.0, abs=0.05)
    assert summary.tpot_s.n == len(slow), "20 000 tokens/s in one stream is no stream"
    assert any("replies came at once: no time per token for them" in n for n in summary.notes)
    if pieces == 1:
        assert summary.itl_note == "not measurable: each reply came within one read"
        assert (summary.itl_s.mean, summary.itl_s.p50, summary.itl_s.p99) == (None, None, None)
    else:
        assert summary.itl_note is not None
        assert "not resolvable" in summary.itl_note
        assert summary.itl_s.p50 is None


# -- C-LC-07: a server that is faster than its client


def test_a_full_client_is_right_or_says_lag_cpu_and_backlog() -> None:
    """1 ms and then 200 chunks at once, 32 streams: other tools printed 83 to 122 ms as a mean."""
    load = closed(32, duration_s=2.0, warmup_s=0.3)
    with MockProcess([at_once(plain_stream(200), 1.0)]) as mock:
        outcome = drive(mock.url, load)
        mock.stop()
    verdict, summary = told_of(outcome, load)
    truth = {s.identity: s for s in mock.served}
    zero, errors = outcome.result.zero_ns, []
    for identity, record in outcome.of_identity(32).items():
        if record.failure is None and record.first_ns is not None:
            at = record.first_ns + zero
            errors.append(abs(truth[identity].miss_ns(0, at)) / MS)
    assert len(errors) > 500
    assert np.median(errors) < 1.0, "the kernel's stamps, whatever else is wrong"
    if verdict.valid:
        sent = [(s.sent_ns[0] - s.received_ns) / MS for s in mock.served if s.sent_ns]
        assert summary.ttft_s.p50 is not None
        assert abs(summary.ttft_s.p50 * 1e3 - float(np.median(sent))) < 1.0
    else:
        reason = client_reasons(verdict)
        for words in ("loop lag", "CPU", "receive backlog"):
            assert words in reason


# -- the truth at load, in short (in full: tests/acceptance/test_truth_at_load.py)


@pytest.mark.parametrize(
    ("streams", "gap_ms", "chunks"), [(200, 20, 25), (40, 10, 50)], ids=["200x50/s", "40x100/s"]
)
def test_never_wrong_and_valid(streams: int, gap_ms: int, chunks: int) -> None:
    """Whatever else the machine does: p99 within a millisecond of the server's stamps, or withheld,
    or the run is void and names the client, or says that the server stood still (it, too, may be
    kept from running here).
    """
    starts = [int(i * chunks * gap_ms * MS / streams) for i in range(streams)]
    load = closed(streams, duration_s=2.0, warmup_s=0.5, start_ns=starts, output_tokens=chunks)
    with MockProcess([plain_stream(chunks, first_ms=gap_ms, gap_ms=gap_ms)]) as mock:
        outcome = drive(mock.url, load, grace_s=20.0)
        mock.stop()
    verdict, summary = told_of(outcome, load)
    ttft, itl = errors_ms(outcome, mock.served, streams)
    assert len(ttft) > streams
    if not verdict.valid:
        stood_still = any("no chunk came for" in reason for reason in verdict.reasons)
        assert client_reasons(verdict) or stood_still, verdict.reasons
        return
    for errors, figures in ((ttft, summary.ttft_s), (itl, summary.itl_s)):
        for percent in (50, 95, 99):
            if getattr(figures, f"p{percent}") is not None:
                assert np.quantile(errors, percent / 100) <= max(1.0, 0.05 * gap_ms)
