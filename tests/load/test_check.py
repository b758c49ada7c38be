"""The client's figures about itself."""

import random
import time

import numpy as np
import pytest

from ridgeline.load.check import SelfCheck, pooled
from ridgeline.load.clock import KernelClock
from ridgeline.load.digest import Digest
from ridgeline.load.loop import EpollPoller, Loop, SelectorPoller
from support.driving import RecordingWatch, closed, drive
from support.mock_server import MockProcess, plain_stream


@pytest.mark.parametrize("n", [1, 10, 4096, 30_000])
def test_digest_percentiles(n: int) -> None:
    rng = random.Random(n)
    values = [int(rng.lognormvariate(12, 2)) + 1 for _ in range(n)]
    digest = Digest()
    for value in values:
        digest.add(value)
    assert len(digest) == n
    assert digest.max_ns == max(values)
    for percent in (1, 50, 90, 99, 100):
        exact = float(np.percentile(values, percent, method="inverted_cdf"))
        found = digest.percentile_ns(percent)
        assert found is not None
        assert exact <= found * 1.0001
        assert found <= exact * 1.023 + 1


def test_a_digest_counts_equal_values_as_often_as_they_came() -> None:
    rng = random.Random(3)
    values = [rng.randrange(1, 10**9) for _ in range(9000)]
    times = [rng.randrange(1, 300) for _ in values]
    digest, other = Digest(), Digest()
    for number, (value, count) in enumerate(zip(values, times, strict=True)):
        (digest if number % 2 else other).add(value, count)
    assert len(digest) + len(other) == sum(times)
    digest.merge(other)
    assert len(digest) == sum(times)
    exact = float(np.percentile(np.repeat(values, times), 95, method="inverted_cdf"))
    found = digest.percentile_ns(95)
    assert found is not None
    assert exact <= found * 1.0001
    assert found <= exact * 1.023 + 1


def test_digest_without_values_measures_nothing() -> None:
    digest = Digest()
    assert digest.percentile_ns(50) is None
    assert digest.max_ns is None
    digest.add(5)
    digest.clear()
    assert len(digest) == 0
    assert digest.percentile_ns(50) is None


def test_loop_lag_counts_every_moment_of_a_stall() -> None:
    """200 ms stalls every 400 ms: a random moment waits up to 200 ms, and half of them some."""
    loop = Loop()
    check = SelfCheck(loop, KernelClock())
    check.begin()
    start = time.monotonic_ns()
    for i in range(4):
        loop.call_at(start + i * 400_000_000, time.sleep, 0.2)
    loop.call_at(start + 1_600_000_000, loop.stop)
    loop.run()
    check.finish()
    loop.close()
    found = pooled([check.figures(1)])
    assert found.loop_lag_p99_s is not None
    assert found.loop_lag_max_s is not None
    assert 0.17 <= found.loop_lag_p99_s <= 0.35
    assert found.loop_lag_p99_s <= found.loop_lag_max_s <= 0.5
    assert found.cpu_share is not None
    assert found.cpu_share < 0.5


def test_what_the_warm_up_left_is_forgotten() -> None:
    """A late read before the window says nothing about its chunks; one inside does."""
    loop, clock = Loop(), KernelClock()
    check = SelfCheck(loop, clock)
    clock.note_read(400_000_000, 500_000_000, kernel=True)
    clock.note_chunks(2, first=True)
    clock.note_read(0, 0, kernel=False)
    check.begin()
    before = check.figures(1)
    assert (len(before.errors), len(before.firsts), len(before.backlog)) == (0, 0, 0)
    assert before.unstamped == 0
    clock.note_read(1_000, 2_000_000, kernel=True)
    clock.note_chunks(3, first=True)
    found = pooled([check.figures(1)])
    loop.close()
    assert found.stamp_error_max_s == found.first_error_max_s == 0.002
    assert found.backlog_p99_s == pytest.approx(1e-6, rel=0.03)


def test_what_was_not_measured_is_none() -> None:
    loop = Loop()
    found = pooled([SelfCheck(loop, KernelClock()).figures(0)])
    loop.close()
    assert found.loop_lag_p99_s is None
    assert found.send_lateness_p50_s is None
    assert found.backlog_p99_s is None
    assert found.cpu_share is None
    assert found.receive_clock == "read"


def test_backlog_is_how_long_bytes_waited_to_be_read() -> None:
    class Stall(RecordingWatch):
        def stop_asked(self) -> bool:
            time.sleep(0.03)  # in every sweep, 20 times a second
            return super().stop_asked()

    # one chunk a read: of several, only the last one's wait can be known
    with MockProcess([plain_stream(15, first_ms=5, gap_ms=70)]) as mock:
        slow = drive(mock.url, closed(2, duration_s=1.0), watch=Stall()).result.client
    assert slow.backlog_p99_s is not None
    assert 0.015 < slow.backlog_p99_s < 0.3


def test_a_busy_client_shows_its_cpu_share() -> None:
    class Busy(RecordingWatch):
        def stop_asked(self) -> bool:
            until = time.thread_time() + 0.02
            while time.thread_time() < until:
                pass
            return super().stop_asked()

    shares = []
    for _ in range(6):  # a machine that gives the client no core lets it burn none
        with MockProcess([plain_stream(5, first_ms=5, gap_ms=5)]) as mock:
            idle = drive(mock.url, closed(1, duration_s=0.6)).result.client.cpu_share
            busy = drive(mock.url, closed(1, duration_s=0.6), watch=Busy()).result.client.cpu_share
        assert idle is not None
        assert busy is not None
        shares.append((idle, busy))
        if busy > idle + 0.1:
            return
    pytest.fail(f"(idle, busy) shares: {shares}")


@pytest.mark.parametrize("poller", [EpollPoller, SelectorPoller])
def test_pollers_wait_and_tell(poller: type[EpollPoller] | type[SelectorPoller]) -> None:
    import socket  # noqa: PLC0415

    ours, theirs = socket.socketpair()
    found = poller()
    found.register(ours.fileno(), 1)
    start = time.monotonic()
    assert found.poll(0.02) == []
    assert time.monotonic() - start >= 0.019
    theirs.send(b"x")
    assert [fd for fd, _ in found.poll(1.0)] == [ours.fileno()]
    found.modify(ours.fileno(), 1 | 4)
    assert found.poll(0)[0] == (ours.fileno(), 5)
    found.unregister(ours.fileno())
    assert found.poll(0) == []
    found.close()
    ours.close()
    theirs.close()


def test_timers_run_in_order_and_close_to_their_time() -> None:
    loop = Loop()
    seen: list[tuple[int, int]] = []
    start = time.monotonic_ns() + 5_000_000

    def note(i: int) -> None:
        seen.append((i, time.monotonic_ns() - start - i * 700_000))

    for i in reversed(range(50)):
        loop.call_at(start + i * 700_000, note, i)
    loop.call_at(start + 50 * 700_000, loop.stop)
    loop.run()
    loop.close()
    assert [i for i, _ in seen] == list(range(50))
    late = [ns for _, ns in seen]
    assert min(late) >= 0
    assert float(np.median(late)) < 2_000_000
