"""The client's calibration: its null server says the truth, and a client that lies is found out."""

import http.client
import json
import os
import time
from collections.abc import Callable
from contextlib import closing
from urllib.parse import urlsplit

import numpy as np
import pytest

from ridgeline.domain.calibration import ClientLevel
from ridgeline.load import selftest
from ridgeline.load.clock import KernelClock
from ridgeline.load.http import Connection
from ridgeline.load.selftest import (
    Form,
    NullServerProcess,
    Pace,
    SelfTest,
    calibrate_client,
    drive_paced,
    stamp_errors_s,
)
from support.realtime import realtime, realtime_allowed

MS = 1_000_000
ATTEMPTS = 5


def connect(server: NullServerProcess) -> http.client.HTTPConnection:
    parts = urlsplit(server.url)
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)


def ask(connection: http.client.HTTPConnection, pace: str | None = None) -> bytes:
    connection.request(
        "POST", "/v1/chat/completions", "{}", {} if pace is None else {"X-Pace": pace}
    )
    return connection.getresponse().read()


def texts(body: bytes) -> list[str]:
    *events, done, rest = body.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    values = [json.loads(event.removeprefix(b"data: ")) for event in events]
    found = [v["choices"][0]["delta"].get("content", "") for v in values if v["choices"]]
    assert values[-1]["usage"]["completion_tokens"] == sum(map(bool, found))
    return [text for text in found if text]


def test_the_null_server_keeps_its_pace_and_tells_what_it_did() -> None:
    with NullServerProcess() as server, closing(connect(server)) as connection:
        begun = time.monotonic_ns()
        assert texts(ask(connection, f"7 5 {20 * MS}")) == [" word"] * 5
        ended = time.monotonic_ns()
        sent = server.stamps()[7]
        assert server.stamps() == {}, "each request is told once"
    assert begun < sent.received_ns < sent.before_ns[0]
    assert len(sent.before_ns) == len(sent.after_ns) == 5
    assert (sent.before_ns < sent.after_ns).all()
    planned = sent.received_ns + np.arange(1, 6) * 20 * MS
    assert (sent.before_ns >= planned).all(), "never early"
    assert sent.before_ns[-1] < ended


def test_without_a_pace_of_its_own_a_request_gets_the_servers() -> None:
    with NullServerProcess("3", "10") as server, closing(connect(server)) as connection:
        assert len(texts(ask(connection))) == 3
        (sent,) = server.stamps().values()
        assert sent.after_ns[-1] - sent.received_ns >= 30 * MS
    with NullServerProcess("3") as server, closing(connect(server)) as connection:
        assert len(texts(ask(connection))) == 3
        (sent,) = server.stamps().values()
        assert len(sent.before_ns) == 1, "all of it in one write"


def test_a_reply_that_is_cut_is_told_as_far_as_it_went() -> None:
    with NullServerProcess() as server, closing(connect(server)) as watcher:
        leaver = connect(server)
        leaver.request("POST", "/v1/chat/completions", "{}", {"X-Pace": f"3 1000 {2 * MS}"})
        leaver.getresponse().read(1500)
        going_on = server.stamps()[3]
        leaver.close()
        deadline = time.monotonic() + 10
        while 3 not in (told := server.stamps()) or len(told[3].before_ns) > 990:
            assert time.monotonic() < deadline
        assert len(texts(ask(watcher, "4 1 0"))) == 1, "the others go on"
    assert 1 < len(going_on.before_ns) < 1000


def test_it_ends_with_whoever_started_it() -> None:
    with NullServerProcess() as server:
        pass
    assert server.process.returncode == 0


def one_level(kind: str = "chunks", rate: float = 2000.0) -> ClientLevel:
    with SelfTest(40, 1) as test:
        return test.level(kind, rate, 0.4)


@pytest.mark.parametrize("kind", ["requests", "chunks"])
def test_an_honest_client_is_found_true(kind: str) -> None:
    for _ in range(ATTEMPTS):  # a busy machine disturbs the sending
        level = one_level(kind)
        assert level.failed == 0
        assert level.compared >= 200
        if level.true:
            break
    else:
        pytest.fail(f"never true: {level}")
    assert 0.5 * 2000 < level.rate_per_s < 1.3 * 2000
    assert level.ttft_error_p50_s == pytest.approx(0, abs=2e-4)


def test_late_receive_stamps_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stamp 5 ms late: gaps stay right, TTFT does not."""
    told = KernelClock.receive

    def late(self: KernelClock, *args: int) -> tuple[int, bool]:
        stamp, kernel = told(self, *args)
        return stamp + 5 * MS, kernel

    monkeypatch.setattr(KernelClock, "receive", late)
    level = one_level()
    assert not level.true
    assert level.ttft_error_p50_s == pytest.approx(0.005, abs=0.0005)


def test_stamps_that_jump_are_found_in_the_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    told = KernelClock.receive
    turn = iter(range(10**9))

    def jumping(self: KernelClock, *args: int) -> tuple[int, bool]:
        stamp, kernel = told(self, *args)
        return stamp + 3 * MS * (next(turn) % 2), kernel

    monkeypatch.setattr(KernelClock, "receive", jumping)
    level = one_level(rate=500.0)
    assert not level.true
    assert level.itl_error_p99_s == pytest.approx(0.003, abs=0.001)


def test_a_wrong_stamp_of_the_sending_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Connection.send

    def early(self: Connection, *args: object) -> int | None:
        at = sent(self, *args)  # type: ignore[arg-type]
        return None if at is None else at - 4 * MS

    monkeypatch.setattr(Connection, "send", early)
    level = one_level()
    assert not level.true
    assert level.ttft_error_p50_s == pytest.approx(0.004, abs=0.0005)


def test_a_client_that_loses_chunks_is_found() -> None:
    with NullServerProcess() as server:
        pace = Pace(4, 5, 10 * MS)
        result, records = drive_paced([server], pace, 0.3, 1)
        sent = server.stamps()
    first, gaps, wrong = stamp_errors_s(records, result.zero_ns, sent, pace.streams)
    assert wrong == 0
    assert len(gaps) == 4 * len(first) > 0
    short = {
        k: selftest.Sent(s.received_ns, s.before_ns[:4], s.after_ns[:4]) for k, s in sent.items()
    }
    assert stamp_errors_s(records, result.zero_ns, short, pace.streams)[2] == len(records)


def scripted(
    monkeypatch: pytest.MonkeyPatch, judge: Callable[[float], dict[str, object]]
) -> list[float]:
    """The rates that a search asks for when levels come out as `judge` says."""
    asked: list[float] = []

    def level(self: SelfTest, kind: str, rate: float, window_s: float) -> ClientLevel:
        asked.append(rate)
        values: dict[str, object] = {
            "kind": kind, "asked_per_s": rate, "requests_per_s": rate, "chunks_per_s": rate,
            "compared": 9, "failed": 0, "ttft_error_p50_s": 0.0, "ttft_error_p99_s": 0.0,
            "itl_error_p50_s": 0.0, "itl_error_p99_s": 0.0, "send_lateness_p50_s": 0.0,
            "send_lateness_p99_s": 0.0, "loop_lag_p99_s": 0.0, "cpu_share": 0.3,
            "server_lateness_p50_s": 0.0, "server_was_the_limit": False, **judge(rate),
        }  # fmt: skip
        return ClientLevel(**values)  # type: ignore[arg-type]

    monkeypatch.setattr(SelfTest, "level", level)
    SelfTest(100, 1).search("chunks", Form(6, 0.1, 60.0, 100), lambda _: None)
    return asked


def test_the_search_goes_up_to_a_full_core_and_halves_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that can do 30 000/s and needs 25 us of CPU for each at low rates."""

    def client(rate: float) -> dict[str, object]:
        if rate > 30_000:
            return {"cpu_share": 0.99, "send_lateness_p50_s": 0.05}
        return {"cpu_share": rate * 25e-6}

    asked = scripted(monkeypatch, client)
    assert asked == pytest.approx([12_000, 38_000, 25_000, 31_500, 28_250, 29_875])


def test_a_disturbed_level_is_tried_again_before_a_lower_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy = iter([True, False, True, True])

    def client(rate: float) -> dict[str, object]:
        late = next(busy, False)
        return {
            "cpu_share": 0.92 if not late else 0.3,
            "send_lateness_p50_s": 0.05 if late else 0.0,
        }

    assert scripted(monkeypatch, client) == [12_000, 12_000]
    busy = iter([True, True, False])
    assert scripted(monkeypatch, client) == [12_000, 12_000, 6_000]


def test_a_server_that_gives_no_more_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(scripted(monkeypatch, lambda _: {"server_was_the_limit": True})) == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_the_short_form_takes_seconds_and_finds_rates(workers: int) -> None:
    found = calibrate_client(4, workers)
    assert found.problem is None
    assert found.seconds < 20  # about one where nobody else works
    assert found.workers == workers
    assert {level.kind for level in found.levels} == {"requests", "chunks"}
    assert all(level.failed == 0 for level in found.levels)


def test_what_cannot_be_tried_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest.sys, "executable", "/bin/true")
    found = calibrate_client(4, 1)
    assert found.levels == ()
    assert found.problem is not None
    assert "null server did not start" in found.problem


@pytest.mark.skipif(not realtime_allowed(), reason="real-time scheduling is not allowed here")
def test_the_null_server_keeps_the_policy_that_it_was_started_under() -> None:
    with realtime(), NullServerProcess() as server:
        assert server.stamps() == {}
        assert os.sched_getscheduler(server.process.pid) & ~os.SCHED_RESET_ON_FORK == os.SCHED_RR
