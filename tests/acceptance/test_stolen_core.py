"""A client whose core is taken away now and then, by known amounts, says of itself what is right.

Client and mock go before all other work; only the thief goes before them. So the errors are those
that the thief makes, from none to a few per cent of the chunks, and the verdict can be held against
them on both sides: never wrong and valid, and never void for nothing.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.driving import closed, drive
from support.mock_server import MockProcess, plain_stream
from support.realtime import realtime, realtime_allowed
from support.truth import MS, errors_ms, told_of

pytestmark = pytest.mark.acceptance
THIEF = """
import os, random, sys, time
core, busy_s, every_s = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
os.sched_setaffinity(0, {core})
os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(2))
random.seed(1)
while True:
    time.sleep(random.expovariate(1 / every_s))
    until = time.monotonic() + busy_s * random.uniform(0.5, 1.5)
    while time.monotonic() < until:
        pass
"""


@pytest.mark.skipif(not realtime_allowed(), reason="real-time scheduling is not allowed here")
@pytest.mark.parametrize(
    ("streams", "gap_ms", "chunks"), [(100, 10, 100), (300, 50, 20)], ids=["100x100/s", "300x20/s"]
)
@pytest.mark.parametrize(
    ("busy_ms", "every_ms"),
    [(3, 50), (6, 100), (12, 300), (12, 1000), (25, 500), (25, 2000), (60, 1000), (60, 3000)],
)
def test_what_is_stolen_is_told(
    streams: int, gap_ms: int, chunks: int, busy_ms: int, every_ms: int
) -> None:
    starts = [int(i * chunks * gap_ms * MS / streams) for i in range(streams)]
    load = closed(streams, duration_s=3.0, warmup_s=0.6, start_ns=starts, output_tokens=chunks)
    cores, thief = sorted(os.sched_getaffinity(0)), None
    try:
        script = plain_stream(chunks, first_ms=gap_ms, gap_ms=gap_ms, closing_ms=gap_ms / 2)
        with MockProcess([script]) as mock:
            os.sched_setaffinity(mock._process.pid, {cores[-1]})
            os.sched_setaffinity(0, {cores[0]})
            numbers = (str(cores[0]), str(busy_ms / 1e3), str(every_ms / 1e3))
            thief = subprocess.Popen([sys.executable, "-c", THIEF, *numbers])
            with realtime(mock._process.pid):
                outcome = drive(mock.url, load, grace_s=30.0)
            mock.stop()
    finally:
        os.sched_setaffinity(0, set(cores))
        if thief is not None:
            thief.kill()
            thief.wait()
    verdict, summary = told_of(outcome, load)
    limit_ms = max(1.0, 0.05 * gap_ms)
    worst = {}
    for name, errors in zip(
        ("ttft_s", "itl_s"), errors_ms(outcome, mock.served, streams), strict=True
    ):
        figures = getattr(summary, name)
        for percent in (50, 90, 95, 99):
            worst[name, percent] = float(np.quantile(errors, percent / 100))
            if verdict.valid and getattr(figures, f"p{percent}") is not None:
                assert worst[name, percent] <= limit_ms, f"wrong and valid: {name} p{percent}"
    p99 = worst["ttft_s", 99], worst["itl_s", 99]
    said = "valid" if verdict.valid else f"void: {verdict.reasons[0]}"
    print(f"\np99 error TTFT {p99[0]:.2f} ms, ITL {p99[1]:.2f} ms; {said}")
    if max(p99) <= limit_ms:
        assert not any(r.startswith("client limit") for r in verdict.reasons), "a false alarm"
