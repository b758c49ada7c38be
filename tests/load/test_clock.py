"""Receive times: kernel stamps on the monotonic clock, and every reason not to trust one."""

import multiprocessing
import os
import signal
import socket
import struct
import time

import pytest

from ridgeline.load import clock as clock_module
from ridgeline.load.clock import (
    ANCILLARY_BYTES,
    SETTLE_NS,
    SO_TIMESTAMPNS,
    KernelClock,
    ask_for_stamps,
    realtime_stamp,
)
from support.driving import RecordingWatch, closed, drive
from support.mock_server import (
    DONE,
    MockProcess,
    MockServer,
    Script,
    delta,
    finish,
    plain_stream,
    role,
    stream,
    text,
    usage,
)

MS = 1_000_000


class Wall:
    """A wall clock that tests move: time_ns = monotonic + offset.

    The monotonic clock is the real one, or stands still where `sample` set it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.offset = 1_700_000_000_000_000_000
        self.stands_at: int | None = None
        monkeypatch.setattr(clock_module, "time", self)

    def monotonic_ns(self) -> int:
        return time.monotonic_ns() if self.stands_at is None else self.stands_at

    def time_ns(self) -> int:
        return self.monotonic_ns() + self.offset

    def sample(self, clock: KernelClock, at_ns: int) -> None:
        """A turn of the loop at that time."""
        self.stands_at = at_ns
        clock.sample(at_ns)


def test_a_stamp_becomes_monotonic(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = Wall(monkeypatch)
    clock = KernelClock()
    now = time.monotonic_ns()
    clock.sample(now)
    arrived = now + 3 * MS
    at, kernel = clock.receive_ns(arrived + wall.offset, now + 20 * MS, now)
    assert kernel
    assert abs(at - arrived) < 50_000


def test_without_a_stamp_it_is_the_time_of_the_read(monkeypatch: pytest.MonkeyPatch) -> None:
    Wall(monkeypatch)
    assert KernelClock().receive_ns(None, 7, 3) == (7, False)


@pytest.mark.parametrize("step_ms", [-5000, -2, 2, 5000])
def test_a_clock_step_falls_back_to_the_read(monkeypatch: pytest.MonkeyPatch, step_ms: int) -> None:
    wall = Wall(monkeypatch)
    clock = KernelClock()
    now = time.monotonic_ns()
    wall.sample(clock, now)
    stamped_before = now + 1 * MS + wall.offset
    wall.offset += step_ms * MS
    wall.sample(clock, now + 2 * MS)
    assert clock.steps == 1
    assert clock.receive_ns(stamped_before, now + 3 * MS, now) == (now + 3 * MS, False)
    later = now + 2 * MS + SETTLE_NS
    wall.sample(clock, later)
    at, kernel = clock.receive_ns(later + MS + wall.offset, later + 5 * MS, now)
    assert kernel
    assert abs(at - later - MS) < 50_000
    assert clock.steps == 1


def test_slow_drift_is_followed_without_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = Wall(monkeypatch)
    clock = KernelClock()
    now = time.monotonic_ns()
    for turn in range(100):
        wall.offset += 50_000  # 5 ms in all
        wall.sample(clock, now + turn * 10 * MS)
    end = now + 1000 * MS
    at, kernel = clock.receive_ns(end + wall.offset, end + 9 * MS, now)
    assert kernel
    assert abs(at - end) < 50_000
    assert clock.steps == 0


def test_impossible_stamps_are_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = Wall(monkeypatch)
    clock = KernelClock()
    now = time.monotonic_ns()
    clock.sample(now)
    read, sent = now + 10 * MS, now
    future = clock.receive_ns(read + 5 * MS + wall.offset, read, sent)
    assert future == (read, False)
    before_the_send = clock.receive_ns(sent - 5 * MS + wall.offset, read, sent)
    assert before_the_send == (read, False)
    # inside the sampling error: believed, but never outside [send, read]
    assert clock.receive_ns(read + 50_000 + wall.offset, read, sent) == (read, True)
    assert clock.receive_ns(sent - 50_000 + wall.offset, read, sent) == (sent, True)


def test_stamps_are_read_from_ancillary_data_only_where_they_are() -> None:
    stamp = struct.pack("@ll", 12, 345)
    assert realtime_stamp([(socket.SOL_SOCKET, SO_TIMESTAMPNS, stamp)]) == 12_000_000_345
    assert realtime_stamp([]) is None
    assert realtime_stamp([(socket.SOL_SOCKET, 2, stamp)]) is None
    assert realtime_stamp([(socket.SOL_SOCKET, SO_TIMESTAMPNS, stamp[:8])]) is None


def test_the_kernel_knows_when_a_late_reader_got_its_bytes() -> None:
    """Bytes wait 50 ms in the socket before they are read: the stamp is that of their arrival."""
    listener = socket.create_server(("127.0.0.1", 0))
    ours = socket.socket()
    assert ask_for_stamps(ours)
    ours.connect(listener.getsockname())
    theirs, _ = listener.accept()
    clock = KernelClock()
    for _ in range(100):  # the kernel begins to stamp a little after it is first asked to
        before = time.monotonic_ns()
        theirs.send(b"x")
        after = time.monotonic_ns()
        time.sleep(0.05)
        _, ancillary, _, _ = ours.recvmsg(100, ANCILLARY_BYTES)
        read = time.monotonic_ns()
        clock.sample(read)
        at, kernel = clock.receive_ns(realtime_stamp(ancillary), read, before)
        if kernel:
            break
    for sock in (listener, ours, theirs):
        sock.close()
    assert kernel
    assert before - 100_000 <= at <= after + 30 * MS
    assert read - at > 20 * MS


def test_a_late_reader_still_has_true_stamps() -> None:
    """The loop stalls 150 ms in the middle of a stream; every stamp is still the server's."""

    class Stall(RecordingWatch):
        def stop_asked(self) -> bool:
            if self.asked == 3:
                time.sleep(0.15)
            return super().stop_asked()

    with MockServer([plain_stream(40, first_ms=10, gap_ms=10)]) as mock:
        outcome = drive(mock.url, closed(requests=1, duration_s=5.0), watch=Stall())
        record, served = outcome.records[0], mock.served[0]
    assert record.chunk_ns is not None
    assert record.chunk_shared is not None
    shared = record.chunk_shared.tolist()
    assert sum(shared) >= 5  # what came during the stall came out of one read, and is marked
    misses = [
        served.miss_ns(i + 1, stamp + outcome.result.zero_ns)
        for i, stamp in enumerate(record.chunk_ns.tolist())
    ]
    together = [s or (i + 1 < len(shared) and shared[i + 1]) for i, s in enumerate(shared)]
    alone = [miss for miss, joint in zip(misses, together, strict=True) if not joint]
    assert len(alone) > 10
    assert sorted(abs(miss) for miss in alone)[len(alone) * 3 // 4] < 3 * MS
    # what came together has the last one's time: too late by up to the stall, and never too early
    joint = [miss for miss, both in zip(misses, together, strict=True) if both]
    assert max(joint) > 80 * MS
    assert min(joint) > -3 * MS
    # the read of the stall carries its last segment's time, so no stamp is 150 ms late
    gaps = (record.chunk_ns[1:] - record.chunk_ns[:-1]).tolist()
    assert max(gaps) > 90 * MS
    check = outcome.result.client
    assert check.receive_clock == "kernel"
    assert check.loop_lag_max_s is not None
    assert check.loop_lag_max_s > 0.1
    # and the client knows how wrong each stamp can be: never less than it is
    assert check.stamp_error_max_s is not None
    assert max(joint) / 1e9 <= check.stamp_error_max_s + 0.003
    assert check.stamp_error_p99_s is not None
    assert check.stamp_error_p99_s > 0.05


def test_a_wall_clock_step_in_a_run_changes_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock jumps back 5 s: durations stay right, and it is said what they rest on."""
    wall_steps = [0]
    real = time.time_ns

    class Stepping:
        monotonic_ns = staticmethod(time.monotonic_ns)

        @staticmethod
        def time_ns() -> int:
            return real() - wall_steps[0]

    monkeypatch.setattr(clock_module, "time", Stepping)

    class Jump(RecordingWatch):
        def stop_asked(self) -> bool:
            if self.asked == 4:
                wall_steps[0] = 5_000_000_000
            return super().stop_asked()

    with MockServer([plain_stream(50, first_ms=10, gap_ms=10)]) as mock:
        outcome = drive(mock.url, closed(requests=1, duration_s=5.0), watch=Jump())
        record, served = outcome.records[0], mock.served[0]
    assert record.failure is None
    assert record.chunk_ns is not None
    assert (record.chunk_ns[1:] >= record.chunk_ns[:-1]).all()
    misses = [
        served.miss_ns(i + 1, stamp + outcome.result.zero_ns)
        for i, stamp in enumerate(record.chunk_ns.tolist())
    ]
    assert min(misses) > -0.3 * MS
    assert sorted(misses)[len(misses) * 3 // 4] < 10 * MS
    # kernel stamps before the step; after it this fake keeps the kernel's stamps "in the future"
    assert record.read_timed is not None
    assert 10 <= record.read_timed <= 45
    assert outcome.result.client.receive_clock == "read"
    assert any("stepped" in note for note in outcome.result.notes)


def drive_frozen(gap_ms: float, chunks: int, closing_ms: float = 0) -> tuple[float, float, int]:
    """(p99, maximum of the stamp error in s, shared chunks) of a client that is stopped by a
    signal for 0.6 s in the middle of one stream, as a suspended or starved process is.
    """
    script = plain_stream(chunks, first_ms=10, gap_ms=gap_ms, closing_ms=closing_ms)
    ours, theirs = multiprocessing.get_context("fork").Pipe(duplex=False)
    with MockProcess([script]) as mock:
        child = os.fork()
        if child == 0:
            outcome = drive(mock.url, closed(requests=1, duration_s=20.0))
            check, record = outcome.result.client, outcome.records[0]
            assert record.chunk_shared is not None
            theirs.send(
                (check.stamp_error_p99_s, check.stamp_error_max_s, int(record.chunk_shared.sum()))
            )
            os._exit(0)
        time.sleep(0.5)
        os.kill(child, signal.SIGSTOP)
        time.sleep(0.6)
        os.kill(child, signal.SIGCONT)
        assert ours.poll(20)
        found: tuple[float, float, int] = ours.recv()
        os.waitpid(child, 0)
    return found


def test_a_stopped_process_knows_that_it_did_not_look() -> None:
    """Half a second of chunks came out of one read: no stall of the server, and no valid time."""
    for _ in range(5):  # on a busy machine the signal may come before the stream or after it
        p99_s, most_s, shared = drive_frozen(10, 180)
        if shared > 30:
            break
    assert shared > 30
    assert 0.4 < p99_s <= most_s < 5


def test_a_stopped_process_has_true_times_of_what_came_last() -> None:
    """One chunk in 0.7 s: it waits for the reader, and the kernel still knows when it came."""
    p99_s, _, shared = drive_frozen(700, 4, closing_ms=700)
    assert shared == 0
    assert p99_s < 0.001


class StallOnce(RecordingWatch):
    """The loop stands still from about 150 to 550 ms."""

    def stop_asked(self) -> bool:
        if self.asked == 3:
            time.sleep(0.4)
        return super().stop_asked()


CLOSING = finish("length") + usage(10, 1) + DONE
LATER = {
    "the closing events": [(450, CLOSING)],
    "a comment": [(450, b": keep-alive\n\n"), (700, CLOSING)],
    "half a comment": [(450, b": keep"), (700, b"-alive\n\n" + CLOSING)],
    "an empty delta": [(450, text("")), (700, CLOSING)],
    "half of the next chunk": [(450, text()[:20]), (700, text()[20:] + CLOSING)],
    "one more line end": [(450, b"\n"), (700, CLOSING)],
}


@pytest.mark.parametrize("more", LATER.values(), ids=LATER.keys())
def test_what_follows_a_chunk_in_its_read_may_have_come_later(
    more: list[tuple[float, bytes]],
) -> None:
    """A chunk at 300 ms, more bytes at 450 ms, one late read: the stamp is that of those bytes."""
    with MockServer([stream([(0, role()), (300, text()), *more])]) as mock:
        outcome = drive(mock.url, closed(requests=1, duration_s=5.0), watch=StallOnce())
        record, served = outcome.records[0], mock.served[0]
    assert record.failure is None
    assert record.first_ns is not None
    miss_ns = served.miss_ns(2, record.first_ns + outcome.result.zero_ns)
    assert miss_ns > 100 * MS, "else this did not test what it is meant to"
    check = outcome.result.client
    assert check.first_error_max_s is not None
    assert check.stamp_error_max_s is not None
    assert min(check.first_error_max_s, check.stamp_error_max_s) > miss_ns / 1e9 - 0.003
    assert record.first_error_ns == record.chunk_error_ns == round(check.first_error_max_s * 1e9)


@pytest.mark.parametrize("more", [b"", b"\r\n"])
def test_the_end_of_the_body_may_come_later_than_its_last_chunk(more: bytes) -> None:
    """The same for a reply without an end marker, of which only HTTP's end is left."""
    *parts, (_, last) = stream([(0, role()), (300, delta("stop", content="a"))]).parts
    chunk, end = last[:-5], last[-5:]
    with MockServer([Script((*parts, (300.0, chunk), (450.0, end + more)))]) as mock:
        outcome = drive(mock.url, closed(requests=1, duration_s=5.0), watch=StallOnce())
        record = outcome.records[0]
    assert record.failure is None
    assert record.first_ns is not None
    assert record.sent_ns is not None
    assert record.first_ns - record.sent_ns > 400 * MS
    assert outcome.result.client.first_error_max_s is not None
    assert outcome.result.client.first_error_max_s > 0.14


def test_a_late_chunk_that_ends_its_read_has_its_own_time() -> None:
    """And nothing is in doubt: the rule above must not be bought with a bound on everything."""
    with MockServer([plain_stream(1, first_ms=300, closing_ms=500)]) as mock:
        outcome = drive(mock.url, closed(requests=1, duration_s=5.0), watch=StallOnce())
        record, served = outcome.records[0], mock.served[0]
    assert record.first_ns is not None
    assert abs(served.miss_ns(1, record.first_ns + outcome.result.zero_ns)) < 30 * MS
    assert outcome.result.client.first_error_max_s == pytest.approx(0, abs=1e-6)


def test_chunks_that_the_server_sends_together_are_not_the_clients_doing() -> None:
    """A busy machine makes the client late in truth, so the best of some runs counts."""
    errors_s = []
    for _ in range(8):
        with MockProcess([stream_of_pairs()]) as mock:
            outcome = drive(mock.url, closed(requests=1, duration_s=20.0))
        record, check = outcome.records[0], outcome.result.client
        assert record.chunk_shared is not None
        assert int(record.chunk_shared.sum()) >= 45
        assert check.stamp_error_p95_s is not None
        errors_s.append(check.stamp_error_p95_s)
        if errors_s[-1] < 0.004:  # pairs come every 10 ms
            return
    pytest.fail(f"p95 of the stamp error is {errors_s} s")


def stream_of_pairs() -> Script:
    events = [(10.0 + 10 * i, text() + text()) for i in range(50)]
    return stream([*events, (505.0, finish("length") + usage(10, 100) + DONE)])


def errors_ms(clock: KernelClock) -> tuple[float, float, float]:
    """p50, p95 and maximum of the bound of chunk times."""
    found = (clock.errors.percentile_ns(50), clock.errors.percentile_ns(95), clock.errors.max_ns)
    return tuple(round((value or 0) / MS, 1) for value in found)  # type: ignore[return-value]


def test_a_chunk_is_no_later_than_the_last_read_of_its_connection() -> None:
    """The loop has been busy for 2 s, and reads this connection every 50 ms all the same."""
    clock = KernelClock()
    clock.note_read(3 * MS, 2000 * MS, kernel=True, since_last_ns=50 * MS)
    clock.note_chunks(2)
    assert errors_ms(clock) == (50.0, 50.0, 50.0)
    clock.forget()
    clock.note_read(3 * MS, 2000 * MS, kernel=True)  # the last read had left something behind
    clock.note_chunks(2)
    assert errors_ms(clock)[2] == 2000.0
    clock.forget()
    clock.note_read(3 * MS, 2000 * MS, kernel=True, since_last_ns=50 * MS)
    clock.note_chunks(1, last=True)
    assert errors_ms(clock)[2] == 0.0, "the last and only one of its read, stamped by the kernel"
    clock.forget()
    clock.note_read(3 * MS, 2000 * MS, kernel=True, since_last_ns=50 * MS)
    clock.note_chunks(1)
    assert errors_ms(clock)[2] == 50.0, "the read's time is that of what came after the chunk"


def test_first_chunks_are_counted_apart() -> None:
    """One in ten chunks is a first one and shares its read with the second, 5 ms late."""
    clock = KernelClock()
    for _ in range(100):
        clock.note_read(1 * MS, 5 * MS, kernel=True)
        clock.note_chunks(2, first=True)
        for _ in range(198):
            clock.note_read(1 * MS, 5 * MS, kernel=True)
            clock.note_chunks(1, last=True)
    assert errors_ms(clock)[1] == 0.0, "2 of 200 are too few for a p95"
    assert len(clock.firsts) == 100
    assert (clock.firsts.percentile_ns(50) or 0) / MS == pytest.approx(5, rel=0.03)


def test_a_reply_tells_its_first_chunks_lateness() -> None:
    """Two chunks in one write and then one by one: only first chunks can be late, and all are."""
    parts = stream([(20, text()), *((20 + 30 * i, text()) for i in range(10))])
    parts = Script(((0.0, parts.parts[0][1]), (20.0, parts.parts[1][1] + parts.parts[2][1]),
                    *parts.parts[3:]))  # fmt: skip
    with MockProcess([parts]) as mock:
        outcome = drive(mock.url, closed(requests=3, duration_s=20.0))
    check = outcome.result.client
    assert all(r.chunk_shared is not None and r.chunk_shared[1] for r in outcome.records)
    assert check.first_error_max_s is not None
    assert check.first_error_p95_s is not None
    assert 0 < check.first_error_p95_s <= check.first_error_max_s < 0.5
