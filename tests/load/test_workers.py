"""Several workers drive one run: the same requests, one zero, nothing lost, nobody left behind."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from ridgeline.domain.errors import EndpointError
from ridgeline.domain.records import RequestRecord
from ridgeline.domain.rows import MISSING, ROW, ROW_NUMBERS, RowsBuilder
from ridgeline.domain.run import ClientCheck, LiveFigures
from ridgeline.domain.workload import Arrivals, Workload
from ridgeline.load import crew as crew_module
from ridgeline.load.crew import together, workers_for
from ridgeline.load.line import Line
from ridgeline.workload.schedule import draw_schedule
from support.driving import Outcome, RecordingWatch, closed, drive
from support.mock_server import MockProcess, MockServer, Served, plain_stream

MS = 1_000_000


def workers_of(pid: int) -> list[psutil.Process]:
    """Living worker processes below a process."""
    return [
        child
        for child in psutil.Process(pid).children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE and "ridgeline.load.worker" in child.cmdline()
    ]


def alive(process: psutil.Process) -> bool:
    """False for a zombie too: nobody collects an orphan where there is no init."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(condition, limit_s: float = 20.0) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "gave up waiting"
        time.sleep(0.01)


def open_run(workers: int) -> tuple[Outcome, list[Served]]:
    load = Workload(Arrivals(rate_per_s=150.0), duration_s=1.2, warmup_s=0.3, seed=5)
    with MockProcess([plain_stream(2, first_ms=5, gap_ms=5)]) as mock:
        outcome = drive(mock.url, draw_schedule(load), workers=workers)
        mock.stop()
    return outcome, mock.served


def test_the_server_gets_the_same_requests_at_the_same_times_from_three_workers() -> None:
    """Intended times are counted from one zero; the server's own clock says when they came."""
    alone, served_alone = open_run(1)
    three, served = open_run(3)
    intended = [sorted(r.intended_ns for r in o.records) for o in (alone, three)]
    assert intended[0] == intended[1]
    assert sorted(s.identity for s in served) == sorted(s.identity for s in served_alone)
    assert all(r.failure is None for r in three.records)
    assert len({r.index for r in three.records}) == len(three.records)
    # the stamp of the server's receiving, on the run's clock, follows the intended time
    zero = three.result.zero_ns
    came = {s.identity: s.received_ns - zero for s in served}
    schedule = draw_schedule(
        Workload(Arrivals(rate_per_s=150.0), duration_s=1.2, warmup_s=0.3, seed=5)
    )
    assert schedule.intended_ns is not None
    late = [came[i] - int(at) for i, at in enumerate(schedule.intended_ns)]
    assert min(late) >= 0
    assert np.median(late) < 50 * MS
    assert three.result.client.workers == 3
    assert alone.result.client.workers == 1
    assert three.result.client.send_lateness_p99_s is not None


def test_users_stay_with_their_worker_and_records_come_home_whole() -> None:
    with MockProcess([plain_stream(5, first_ms=20, gap_ms=10)]) as mock:
        outcome = drive(mock.url, closed(10, duration_s=1.0, warmup_s=0.2), workers=2)
        mock.stop()
    assert len(mock.served) == len(outcome.records) > 60
    assert {r.user for r in outcome.records} == set(range(10))
    for record in outcome.records:
        assert record.failure is None
        assert record.chunk_ns is not None
        assert len(record.chunk_ns) == 5
        assert record.first_ns == record.chunk_ns[0]
        assert record.chunk_shared is not None
        apart = ~record.chunk_shared[1:]
        assert (np.diff(record.chunk_ns)[apart] > 0).all()
    # workers number their records apart: even users belong to the first, odd ones to the second
    assert all((r.index - (r.user or 0)) % 2 == 0 for r in outcome.records)
    window = outcome.result.window
    assert (window.start_ns, window.end_ns) == (200 * MS, 1200 * MS)
    assert outcome.result.client.connections == 10


def test_a_count_of_requests_holds_for_all_workers_together() -> None:
    with MockProcess([plain_stream(1, first_ms=10)]) as mock:
        outcome = drive(mock.url, closed(8, requests=50, duration_s=20.0), workers=2)
    window = outcome.result.window
    inside = [r for r in outcome.records if window.start_ns <= (r.sent_ns or 0) < window.end_ns]
    assert len(inside) == 50
    assert window.seconds < 5.0


def test_fewer_users_than_workers_is_no_endless_wait() -> None:
    """A worker without a user would wait for ever for the connections that it does not need."""
    for users in (1, 2):
        with MockServer([plain_stream(2, first_ms=5)]) as mock:
            outcome = drive(mock.url, closed(users, duration_s=0.4), workers=4)
        assert {r.user for r in outcome.records} == set(range(users))
        assert outcome.result.client.workers == (users if users > 1 else 1)


def test_a_cap_below_the_workers_holds() -> None:
    load = Workload(
        Arrivals(rate_per_s=100.0, process="constant", max_concurrency=2), duration_s=0.6,
        warmup_s=0, seed=5,
    )  # fmt: skip
    with MockServer([plain_stream(2, first_ms=20)]) as mock:
        drive(mock.url, draw_schedule(load), workers=4)
        assert mock.peak_busy <= 2


def test_workers_open_one_window_when_they_are_steady_together() -> None:
    """The warm-up is automatic: the parent looks at all workers' chunks and tells them when."""
    load = closed(6, duration_s=1.0)
    auto = replace(load.workload, warmup_auto=True, warmup_s=15.0)
    with MockProcess([plain_stream(4, first_ms=20, gap_ms=10)]) as mock:
        outcome = drive(mock.url, replace(load, workload=auto), workers=2)
    window, warmup = outcome.result.window, outcome.result.warmup
    assert warmup is not None
    assert warmup.offered == window
    if warmup.found:  # what a machine that is too busy to be steady must not decide
        (event,) = outcome.sink.events
        assert event.kind == "steady"
        assert window.start_ns == event.at_ns
    assert window.end_ns - window.start_ns == 1000 * MS
    inside = [r for r in outcome.records if window.start_ns <= (r.sent_ns or 0) < window.end_ns]
    assert {r.user for r in inside} == set(range(6))


def test_stop_reaches_all_workers_and_keeps_what_was_measured() -> None:
    watch = RecordingWatch(stop_after_s=0.5)
    began = time.monotonic()
    with MockProcess([plain_stream(2, first_ms=30, gap_ms=5)]) as mock:
        outcome = drive(mock.url, closed(6, duration_s=60.0), workers=2, watch=watch)
    assert time.monotonic() - began < 20
    assert outcome.result.interrupted
    done = Counter(r.failure for r in outcome.records)
    assert done[None] > 20
    assert set(done) <= {None, "stopped"}
    assert watch.figures[-1].sent > 20
    assert not workers_of(os.getpid())


def test_a_worker_that_dies_ends_the_run_and_is_named() -> None:
    killed: list[int] = []
    watch = RecordingWatch()

    def kill() -> None:
        wait_for(lambda: watch.figures and watch.figures[-1].sent > 30)
        process = workers_of(os.getpid())[0]
        killed.append(process.pid)
        process.kill()

    killer = threading.Thread(target=kill)
    with MockProcess([plain_stream(2, first_ms=20, gap_ms=5)]) as mock:
        killer.start()
        outcome = drive(mock.url, closed(6, duration_s=60.0), workers=2, watch=watch)
        killer.join()
    assert killed
    assert outcome.result.window.seconds < 50
    (fault,) = outcome.result.client.faults
    assert fault.startswith("worker ")
    assert "of 2 died (signal 9): its part of the load was not offered" in fault
    assert sum(r.failure is None for r in outcome.records) > 10
    assert not workers_of(os.getpid())


def test_a_worker_that_hangs_is_ended_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped as by a debugger, or waiting for a disk: the run ends all the same, and is void."""
    monkeypatch.setattr(crew_module, "SILENT_S", 2.0)
    watch = RecordingWatch()

    def stop() -> None:
        wait_for(lambda: watch.figures and watch.figures[-1].sent > 10)
        os.kill(workers_of(os.getpid())[0].pid, signal.SIGSTOP)

    stopper = threading.Thread(target=stop)
    with MockProcess([plain_stream(2, first_ms=20, gap_ms=5)]) as mock:
        stopper.start()
        began = time.monotonic()
        outcome = drive(mock.url, closed(4, duration_s=60.0), workers=2, watch=watch)
        assert time.monotonic() - began < 20
        stopper.join()
    (fault,) = outcome.result.client.faults
    assert "of 2 hung (no word for 2 s) and was ended: its part of the load was not" in fault
    assert sum(r.failure is None for r in outcome.records) > 5
    assert not workers_of(os.getpid())


def test_a_worker_that_was_away_for_less_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "SILENT_S", 2.0)
    watch = RecordingWatch()

    def pause() -> None:
        wait_for(lambda: watch.figures and watch.figures[-1].sent > 4)
        pid = workers_of(os.getpid())[0].pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.8)
        os.kill(pid, signal.SIGCONT)

    pauser = threading.Thread(target=pause)
    with MockProcess([plain_stream(2, first_ms=20, gap_ms=5)]) as mock:
        pauser.start()
        outcome = drive(mock.url, closed(4, duration_s=2.5), workers=2, watch=watch)
        pauser.join()
    assert outcome.result.client.faults == ()


def test_what_a_worker_finds_wrong_is_the_runs_error() -> None:
    with MockServer([plain_stream(1)]) as mock:
        url = mock.url
    with pytest.raises(EndpointError, match=r"no connection: .*refused"):
        drive(url, closed(4), workers=2)
    assert not workers_of(os.getpid())


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[2])
from support.driving import closed, drive
print("driving", flush=True)
drive(sys.argv[1], closed(4, duration_s=60.0), workers=2)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_parent_leaves_no_worker(how: signal.Signals) -> None:
    here = str(Path(__file__).parent.parent)
    with MockProcess([plain_stream(2, first_ms=20, gap_ms=5)]) as mock:
        parent = subprocess.Popen([sys.executable, "-c", SCRIPT, mock.url, here])
        try:
            wait_for(lambda: len(workers_of(parent.pid)) == 2)
            time.sleep(0.5)
            workers = workers_of(parent.pid)
            parent.send_signal(how)
            parent.wait(timeout=20)
            wait_for(lambda: not any(map(alive, workers)), limit_s=5.0)
        finally:
            parent.kill()
            parent.wait()


def test_rows_survive_their_way_home() -> None:
    ours, theirs = socket.socketpair()
    line, home = Line(ours), Line(theirs)
    rows = RowsBuilder(zero_ns=1000)
    place = rows.say(("stream_cut",), ("stream_cut", "ümläut", None, None))
    values = [7, 3, 1010, 1011, 1012, 1013, 1014, 15, 16, *[MISSING] * (len(ROW_NUMBERS) - 9)]
    rows.numbers += ROW(*values, place, 2)
    rows.stamps.extend((1012, 1013))
    rows.shared += b"\0\1"
    sent = rows.take()
    line.send("rows", sent)
    (message,) = home.receive()
    for end in (line, home):
        end.close()
    assert message[0] == "rows"
    (record,) = message[1].records()
    assert record.chunk_ns.tolist() == [12, 13]
    assert record.chunk_shared.tolist() == [False, True]
    expected = RequestRecord(
        7, 3, 10, 11, 12, 13, 14, 15, 16, failure="stream_cut", failure_detail="ümläut",
        chunk_ns=record.chunk_ns, chunk_shared=record.chunk_shared,
    )  # fmt: skip
    for name in RequestRecord.__slots__:
        assert getattr(record, name) is getattr(expected, name) or (
            getattr(record, name) == getattr(expected, name)
        ), name
    assert not len(rows)


def test_live_figures_of_workers_add_up() -> None:
    one = LiveFigures(1.0, 9.0, "measuring", 100.0, 0.2, 10, 1, 3)
    other = LiveFigures(1.1, 9.0, "measuring", None, 0.5, 5, 0, 4)
    assert together([one, other]) == LiveFigures(1.0, 9.0, "measuring", 100.0, 0.5, 15, 1, 7)
    counted = [replace(one, chunks=40), replace(other, chunks=2)]
    assert together(counted).chunks == 42
    assert together([counted[0], other]).chunks is None  # one of them does not say


def test_how_many_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.load.crew.usable_cores", lambda: 8)
    assert [workers_for(3), workers_for("auto")] == [3, 7]
    monkeypatch.setattr("ridgeline.load.crew.usable_cores", lambda: 1)
    assert workers_for("auto") == 1
    assert ClientCheck("kernel").workers is None
