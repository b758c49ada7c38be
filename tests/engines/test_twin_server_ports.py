"""What every pacer and every poller must do, one class for all implementations of each."""

import os
import time
from collections.abc import Callable, Hashable, Iterator

import pytest

from ridgeline.domain import hardware
from ridgeline.domain.defaults import resolve
from ridgeline.domain.knobs import Knobs
from ridgeline.domain.model import shape
from ridgeline.engines.twin_server.live import TwinPacer
from ridgeline.engines.twin_server.pacer import FixedPacer, Pacer
from ridgeline.engines.twin_server.poller import READ, WRITE, Poller, SelectorPoller, make_poller
from ridgeline.twin.fleet import build_twin

MS = 1_000_000


def fixed() -> Pacer:
    return FixedPacer(ttft_ns=30 * MS, itl_ns=4 * MS)


def simulated() -> Pacer:
    gpu, form = hardware.gpu("H100-SXM"), shape("Qwen/Qwen3-0.6B")
    knobs = resolve(Knobs(max_num_seqs=2, max_model_len=1024), gpu, form)
    return TwinPacer(build_twin(form, gpu, knobs), origin_ns=0)


@pytest.fixture(params=[fixed, simulated])
def pacer(request: pytest.FixtureRequest) -> Pacer:
    make: Callable[[], Pacer] = request.param
    return make()


class TestEveryPacer:
    def run(self, pacer: Pacer, gone: Callable[[Hashable, int], bool]) -> dict[Hashable, list[int]]:
        """5 streams of 7 tokens, 3 ms apart; `gone` says when a client leaves."""
        sent: dict[Hashable, list[int]] = {}

        def send(key: Hashable, planned: int, count: int) -> None:
            assert count == 1
            sent.setdefault(key, []).append(planned)
            if len(sent[key]) == 7 or gone(key, len(sent[key])):
                pacer.cancel(key)

        now = 0
        for key in range(5):
            while (due := pacer.deliver(now, send)) is not None and due <= key * 3 * MS:
                now = max(now, due)
            now = max(now, key * 3 * MS)
            assert pacer.add(key, ["w"] * 20, 7, now) == 0
        while (due := pacer.deliver(now, send)) is not None:
            assert due > now, "what was due has been sent"
            now = due
        return sent

    def test_every_token_is_sent_once_and_in_order(self, pacer: Pacer) -> None:
        sent = self.run(pacer, lambda key, count: False)
        assert {key: len(times) for key, times in sent.items()} == dict.fromkeys(range(5), 7)
        for key, times in sent.items():
            assert times == sorted(set(times))
            assert times[0] > key * 3 * MS
        assert (pacer.state()[0].running, pacer.state()[0].waiting) == (0, 0)

    def test_nothing_is_sent_to_a_client_that_left(self, pacer: Pacer) -> None:
        sent = self.run(pacer, lambda key, count: key == 1 and count == 3)
        assert [len(sent[key]) for key in range(5)] == [7, 3, 7, 7, 7]
        assert (pacer.state()[0].running, pacer.state()[0].waiting) == (0, 0)

    def test_cancelling_what_is_not_there_does_nothing(self, pacer: Pacer) -> None:
        assert pacer.cancel("nobody").scheduled_ns is None
        assert pacer.deliver(10**12, lambda *_: None) is None

    def test_late_delivery_keeps_the_plan(self, pacer: Pacer) -> None:
        """Asked once, ten seconds later: all tokens come at once, each with its planned time."""
        planned: list[int] = []
        pacer.add("a", ["w"] * 20, 7, 0)
        assert pacer.deliver(10_000 * MS, lambda _, at, __: planned.append(at)) is None
        assert len(planned) == 7
        assert len(set(planned)) == 7
        assert max(planned) < 200 * MS


@pytest.fixture(params=[make_poller, SelectorPoller])
def poller(request: pytest.FixtureRequest) -> Iterator[Poller]:
    make: Callable[[], Poller] = request.param
    found = make()
    yield found
    found.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


class TestEveryPoller:
    def test_it_does_not_wake_before_the_deadline(self, poller: Poller) -> None:
        for wait_ms in (0.2, 2, 7.3):
            until = time.monotonic_ns() + int(wait_ms * MS)
            assert poller.wait(until) == []
            assert 0 <= time.monotonic_ns() - until < 500 * MS

    def test_a_deadline_in_the_past_returns_at_once(self, poller: Poller) -> None:
        start = time.monotonic_ns()
        assert poller.wait(0) == []
        assert poller.wait(start - 1) == []
        assert time.monotonic_ns() - start < 500 * MS

    def test_what_is_ready_comes_before_the_deadline(
        self, poller: Poller, pipe: tuple[int, int]
    ) -> None:
        reader, writer = pipe
        poller.watch(reader, READ)
        os.write(writer, b"x")
        far = time.monotonic_ns() + 60_000 * MS
        assert poller.wait(far) == [(reader, READ)]
        assert poller.wait(None) == [(reader, READ)]
        os.read(reader, 1)
        assert poller.wait(time.monotonic_ns() + MS) == []

    def test_interest_can_change_and_end(self, poller: Poller, pipe: tuple[int, int]) -> None:
        _, writer = pipe
        poller.watch(writer, WRITE)
        assert poller.wait(None) == [(writer, WRITE)]
        poller.watch(writer, 0)
        poller.watch(writer, 0)
        assert poller.wait(time.monotonic_ns() + MS) == []

    def test_a_hang_up_is_something_to_read(self, poller: Poller) -> None:
        reader, writer = os.pipe()
        poller.watch(reader, READ)
        os.close(writer)
        assert poller.wait(None) == [(reader, READ)]
        poller.watch(reader, 0)
        os.close(reader)
