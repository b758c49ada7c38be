"""C-LC-08 and C-LC-05: the client is the same at 100 and at 5000 requests, and at any log level."""

import logging
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.driving import Outcome, closed, drive
from support.mock_server import MockProcess, Script, Served, at_once, plain_stream
from support.realtime import realtime

pytestmark = pytest.mark.acceptance
CAPACITY = 50.0  # requests/s of the mock, one after another
WHOLE = at_once(plain_stream(4)).parts[0][1]


class OneByOne:
    """Answers a request every 1 / CAPACITY s, at fixed times, however many wait."""

    def __init__(self, per_s: float) -> None:
        self._step_ns = round(1e9 / per_s)
        self._next_ns = 0

    def __call__(self, served: Served, number: int) -> Script:
        at = max(self._next_ns, served.received_ns)
        self._next_ns = at + self._step_ns
        return Script((((self._next_ns - served.received_ns) / 1e6, WHOLE),))


def measured(requests: int, users: int = 64) -> tuple[float, float, float]:
    """(requests/s of the plateau, CPU us per request, growth of memory in bytes per request).

    So many users that the mock has work for a second ahead, whatever delays one of them.
    """
    with MockProcess(OneByOne(CAPACITY)) as mock:
        before = resource.getrusage(resource.RUSAGE_SELF)
        outcome = drive(mock.url, closed(users, requests=requests, duration_s=300.0), grace_s=60.0)
        after = resource.getrusage(resource.RUSAGE_SELF)
    ends = sorted(r.end_ns or 0 for r in outcome.records if r.failure is None)
    assert len(ends) >= requests
    inner = ends[users:]  # the first wave finds an idle server
    rate = (len(inner) - 1) / ((inner[-1] - inner[0]) / 1e9)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    grown = (after.ru_maxrss - before.ru_maxrss) * 1024
    return rate, cpu / len(ends) * 1e6, grown / len(ends)


def test_the_plateau_is_the_same_for_any_number_of_requests() -> None:
    """Another client read 6 % less than it should at 1000 requests, and the same at 100."""
    found = {n: measured(n) for n in (100, 1000, 5000)}
    for n, (rate, cpu, memory) in found.items():
        print(f"\n{n} requests: {rate:.3f}/s, {cpu:.0f} us of CPU and {memory:.0f} bytes a request")
    for rate, _, _ in found.values():
        assert rate == pytest.approx(CAPACITY, rel=0.01)
    assert found[5000][1] < 1.25 * found[1000][1], "the client's time per request grows with them"
    assert found[5000][2] < 20_000, "bytes per request"


def of_level(level: int) -> float:
    """CPU time of the client per chunk (us) with 500 streams of 50 chunks, logging at a level."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(level)
    try:
        with MockProcess([plain_stream(50, first_ms=20, gap_ms=20)]) as mock:
            begun = time.process_time()
            with realtime(mock._process.pid):  # so that other work does not change what a turn has
                outcome: Outcome = drive(mock.url, closed(500, requests=500, duration_s=60.0))
            spent = time.process_time() - begun
    finally:
        root.setLevel(before)
    chunks = sum(len(r.chunk_ns) for r in outcome.records if r.chunk_ns is not None)
    assert chunks >= 25_000
    return spent / chunks * 1e6


@pytest.fixture
def to_nowhere() -> Iterator[None]:
    """A handler that formats all it gets, so that debug logging would cost what it costs."""
    with Path(os.devnull).open("w") as nowhere:
        handler = logging.StreamHandler(nowhere)
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
        logging.getLogger().addHandler(handler)
        yield
        logging.getLogger().removeHandler(handler)


def test_debug_logging_costs_the_client_nothing(to_nowhere: None) -> None:
    """Turn by turn; the least of each level, because other work can only add to it."""
    spent: dict[int, list[float]] = {logging.ERROR: [], logging.DEBUG: []}
    for turn in range(10):
        levels = (logging.ERROR, logging.DEBUG) if turn % 2 else (logging.DEBUG, logging.ERROR)
        for level in levels:
            spent[level].append(of_level(level))
    least = {level: min(found) for level, found in spent.items()}
    ratio = least[logging.DEBUG] / least[logging.ERROR]
    ranges = ", ".join(f"{min(f):.1f} to {max(f):.1f}" for f in spent.values())
    print(
        f"\nCPU us per chunk, error and debug: {ranges}; debug over error, the least: {ratio:.3f}"
    )
    assert abs(ratio - 1) < 0.05
