"""Users, arrivals, warm-up, window, stop and grace: when requests go out and which are followed."""

import heapq
import itertools
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ridgeline.domain.run import LiveFigures
from ridgeline.domain.workload import Arrivals, Workload
from ridgeline.load.traffic import Launch, Share, traffic_of
from ridgeline.workload.schedule import Schedule, draw_schedule
from support.driving import RecordingWatch, closed, drive, opened
from support.mock_server import MockProcess, MockServer, at_once, plain_stream

MS = 1_000_000


def test_closed_loop_intends_the_end_of_the_last_reply_plus_think_time() -> None:
    with MockServer([plain_stream(2, first_ms=10, gap_ms=5)]) as mock:
        outcome = drive(mock.url, closed(3, duration_s=0.6, think_time_s=0.05))
    by_user: dict[int | None, list[int]] = {}
    for record in outcome.records:
        by_user.setdefault(record.user, []).append(record.index)
    assert sorted(by_user) == [0, 1, 2]
    for indices in by_user.values():
        rows = [outcome.records[i] for i in indices]
        assert len(rows) > 3
        for before, after in itertools.pairwise(rows):
            assert before.end_ns is not None
            assert after.sent_ns is not None
            assert after.intended_ns == before.end_ns + 50 * MS
            assert after.sent_ns >= after.intended_ns
            # one request at a time: the next is not sent before the last ended
            assert after.sent_ns > before.end_ns


def test_every_user_starts_at_its_own_time() -> None:
    starts = [0, 40 * MS, 80 * MS, 200 * MS]
    with MockServer([plain_stream(1, first_ms=500)]) as mock:
        outcome = drive(mock.url, closed(4, duration_s=0.4, start_ns=starts))
    assert [r.intended_ns for r in outcome.records] == starts
    assert [r.user for r in outcome.records] == [0, 1, 2, 3]


def test_open_loop_waits_for_nobody() -> None:
    """50 arrivals in half a second at a server that takes a second: all go out in time."""
    times = [0.01 * i for i in range(50)]
    with MockServer([plain_stream(1, first_ms=1000)]) as mock:
        outcome = drive(mock.url, opened(times, duration_s=0.5))
        assert mock.peak_busy == 50
    late = [r.sent_ns - r.intended_ns for r in outcome.records if r.sent_ns is not None]
    assert len(late) == 50
    assert min(late) >= 0
    assert np.median(late) < 20 * MS
    assert all(r.failure is None and r.user is None for r in outcome.records)


def test_a_pause_of_the_client_is_seen_and_shifts_nothing() -> None:
    """Constant 20/s for 3 s, the loop held up 300 ms at 1.5 s: six late, the rest on time."""

    class Pause(RecordingWatch):
        def live(self, figures: LiveFigures) -> None:
            super().live(figures)
            if len(self.figures) == 4:  # at 1.5 s
                time.sleep(0.3)

    times = [0.025 + 0.05 * i for i in range(60)]
    with MockProcess([at_once(plain_stream(1))]) as mock:
        outcome = drive(mock.url, opened(times, duration_s=3.0), watch=Pause())
    late = np.array([(r.sent_ns or 0) - r.intended_ns for r in outcome.records]) / MS
    assert [r.intended_ns for r in outcome.records] == [round(t * 1e9) for t in times]
    assert np.median(late) < 10
    assert 220 <= late.max() <= 600
    assert 5 <= (late > 50).sum() <= 15
    check = outcome.result.client
    assert check.send_lateness_max_s is not None
    assert check.send_lateness_max_s == pytest.approx(late.max() / 1e3, rel=0.03)
    assert check.send_lateness_p50_s is not None
    assert check.send_lateness_p50_s < 0.010
    assert check.loop_lag_max_s is not None
    assert 0.25 <= check.loop_lag_max_s <= 0.7


def test_warm_up_hands_over_without_draining() -> None:
    """A request of the warm-up is in flight when the window opens, and is followed like others."""
    script = plain_stream(40, first_ms=10, gap_ms=10)
    with MockServer([script]) as mock:
        outcome = drive(mock.url, closed(2, warmup_s=0.6, duration_s=0.6))
    window = outcome.result.window
    assert (window.start_ns, window.end_ns) == (600 * MS, 1200 * MS)
    across = [r for r in outcome.records if (r.sent_ns or 0) < window.start_ns < (r.end_ns or 0)]
    assert len(across) == 2
    assert all(r.failure is None for r in outcome.records)
    # nobody waits at the border: the gap between a reply and the next request stays small
    assert max((r.sent_ns or 0) - r.intended_ns for r in outcome.records) < 300 * MS
    # sent inside, ended after the window: followed to the end
    assert any((r.end_ns or 0) > window.end_ns for r in outcome.records)
    assert all((r.sent_ns or 0) < window.end_ns + 100 * MS for r in outcome.records)
    # chunks of a warm-up request that came inside the window are there to be counted
    chunk_ns = across[0].chunk_ns
    assert chunk_ns is not None
    inside = ((chunk_ns >= window.start_ns) & (chunk_ns < window.end_ns)).sum()
    assert 0 < inside < 40


def test_requests_end_the_window_once_so_many_were_sent_inside() -> None:
    with MockServer([plain_stream(3, first_ms=20, gap_ms=5)]) as mock:
        outcome = drive(mock.url, closed(4, warmup_s=0.2, duration_s=30.0, requests=10))
    window = outcome.result.window
    inside = [r for r in outcome.records if window.start_ns <= (r.sent_ns or 0) < window.end_ns]
    assert len(inside) == 10
    assert max(r.sent_ns or 0 for r in outcome.records) == window.end_ns - 1
    assert all(r.failure is None for r in outcome.records)
    assert not outcome.result.interrupted


def test_grace_ends_what_does_not_end() -> None:
    with MockServer([plain_stream(1000, first_ms=5, gap_ms=20)]) as mock:
        outcome = drive(mock.url, closed(2, duration_s=0.3), grace_s=0.3)
        until = time.monotonic() + 5
        while not all(s.left for s in mock.served) and time.monotonic() < until:
            time.sleep(0.01)
        assert all(s.left for s in mock.served)
    assert [r.failure for r in outcome.records] == ["cancelled", "cancelled"]
    for record in outcome.records:
        assert record.end_ns is not None
        assert 600 * MS <= record.end_ns < 1500 * MS
        assert record.chunk_ns is not None
        assert len(record.chunk_ns) >= 10  # what came is kept


def test_stop_keeps_what_was_measured() -> None:
    watch = RecordingWatch(stop_after_s=0.5)
    with MockServer([plain_stream(5, first_ms=10, gap_ms=5)]) as mock:
        outcome = drive(mock.url, closed(2, duration_s=60.0), watch=watch)
    assert outcome.result.interrupted
    assert 0.5e9 <= outcome.result.window.end_ns < 2e9
    failures = Counter(r.failure for r in outcome.records)
    assert failures[None] > 10
    assert failures["stopped"] <= 2
    assert set(failures) <= {None, "stopped"}


def test_live_figures() -> None:
    watch = RecordingWatch()
    with MockProcess([plain_stream(10, first_ms=30, gap_ms=10)]) as mock:
        outcome = drive(mock.url, closed(5, warmup_s=0.6, duration_s=1.4), watch=watch)
    assert watch.figures[0].phase == "warm-up"
    assert watch.figures[2].phase == "measuring"
    last = watch.figures[3]
    assert last.total_s == pytest.approx(2.0)
    assert last.elapsed_s == pytest.approx(1.5, abs=0.3)
    # at most 5 users, 10 tokens in 120 ms each; a busy machine is slower
    assert last.output_tokens_per_s is not None
    assert 200 < last.output_tokens_per_s < 5 * 10 / 0.119
    waits = [(r.first_ns or 0) - (r.sent_ns or 0) for r in outcome.records]
    assert last.ttft_p95_s is not None
    assert min(waits) / 1e9 <= last.ttft_p95_s <= max(waits) / 1e9
    assert last.failed == 0
    assert last.in_flight == 5
    assert 0 < last.sent <= len(outcome.records)


def test_records_are_numbered_in_order_of_launch() -> None:
    with MockServer([plain_stream(2, first_ms=3, gap_ms=1)]) as mock:
        outcome = drive(mock.url, closed(4, duration_s=0.3))
    assert [r.index for r in outcome.records] == list(range(len(outcome.records)))
    launched = [r.sent_ns or 0 for r in outcome.records]
    assert launched == sorted(launched)


def test_the_first_requests_are_inside_a_window_without_warm_up() -> None:
    with MockServer([plain_stream(1, first_ms=5)]) as mock:
        outcome = drive(mock.url, closed(3, duration_s=0.2))
    assert outcome.result.window.start_ns == 0
    assert all((r.sent_ns or -1) >= 0 for r in outcome.records)


class HandTurned:
    """Timers without a clock: `turn` runs them in order, `now` is that of the last one."""

    def __init__(self) -> None:
        self.timers: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self.now = 0

    def call_at(self, when_ns: int, callback: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self.timers, (when_ns, len(self.timers), callback, args))

    def turn(self) -> None:
        self.now, _, callback, args = heapq.heappop(self.timers)
        callback(*args)


def launches(
    schedule: Schedule, share: Share, monkeypatch: pytest.MonkeyPatch, until_ns: int
) -> list[tuple[int, int, int | None, int]]:
    """(intended, identity, user, row) of all that one worker starts; each reply takes 30 ms."""
    loop = HandTurned()
    monkeypatch.setattr(time, "monotonic_ns", lambda: loop.now)
    found = []
    traffic = traffic_of(schedule, share)

    def launch(request: Launch) -> None:
        found.append((request.intended_ns, request.identity, request.user, request.planned.row))
        traffic.ended(request, request.intended_ns + 30 * MS, 0)

    traffic.start(loop, 0, launch)  # type: ignore[arg-type]
    while loop.timers and loop.timers[0][0] < until_ns:
        loop.turn()
    return found


@pytest.mark.parametrize(
    "arrivals",
    [
        Arrivals(users=7),
        Arrivals(users=2, think_time_s=0.01),
        Arrivals(rate_per_s=400.0),
        Arrivals(rate_per_s=300.0, process="gamma", burstiness=0.2),
        Arrivals(rate_per_s=50.0, process="constant"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_shares_of_all_workers_make_up_the_schedule_exactly(
    arrivals: Arrivals, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = draw_schedule(Workload(arrivals, duration_s=2.0, warmup_s=0.5, seed=11))
    end_ns = 2_500 * MS
    whole = sorted(launches(schedule, Share(), monkeypatch, end_ns))
    dealt = [launches(schedule, Share(i, workers), monkeypatch, end_ns) for i in range(workers)]
    assert sorted(itertools.chain(*dealt)) == whole
    for worker, part in enumerate(dealt):
        numbers = [identity if user is None else user for _, identity, user, _ in part]
        assert all(number % workers == worker for number in numbers)
        assert [time_ns for time_ns, *_ in part] == sorted(time_ns for time_ns, *_ in part)


@pytest.mark.parametrize(("rate", "sends"), [(0.2, 12), (2.0, 120), (0.05, 3)])
def test_low_rates_are_exact(rate: float, sends: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """60 s of a low constant rate on timers that are never late: as many sends as it makes."""
    workload = Workload(Arrivals(rate_per_s=rate, process="constant"), duration_s=60, warmup_s=0)
    found = launches(draw_schedule(workload), Share(), monkeypatch, 60_000 * MS)
    assert [at for at, *_ in found] == [round(i / rate * 1e9) for i in range(sends)]


def test_a_low_rate_leaves_in_time() -> None:
    """2/s on a real clock: 11 sends in 5.2 s, the rate within 1 %, late by less than 5 ms."""
    workload = Workload(Arrivals(rate_per_s=2, process="constant"), duration_s=5.2, warmup_s=0)
    for _ in range(4):  # a busy machine may hold one try up
        with MockProcess([at_once(plain_stream(1))]) as mock:
            outcome = drive(mock.url, draw_schedule(workload))
        sent = [r.sent_ns for r in outcome.records if r.sent_ns is not None]
        assert len(sent) == 11
        late = [s - r.intended_ns for s, r in zip(sent, outcome.records, strict=True)]
        rate = (len(sent) - 1) / (sent[-1] - sent[0]) * 1e9
        if max(late) < 5 * MS and rate == pytest.approx(2.0, rel=0.01):
            return
    pytest.fail(f"late by up to {max(late) / MS:.1f} ms, {rate:.3f} requests/s")


def test_a_worker_beyond_the_last_is_refused() -> None:
    for index, of in ((2, 2), (-1, 3), (0, 0)):
        with pytest.raises(ValueError, match="worker"):
            Share(index, of)


def test_connections_are_shared_out() -> None:
    schedule = draw_schedule(Workload(Arrivals(users=10), duration_s=1.0))
    assert [traffic_of(schedule, Share(i, 4)).connections for i in range(4)] == [3, 3, 2, 2]
