"""`kill -9` in the middle of a million chunks: what had ended a second before is on disk, whole."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ridgeline.domain.records import records_from_requests
from ridgeline.load.selftest import NullServerProcess, identities
from ridgeline.store.journal import read_journal

pytestmark = pytest.mark.acceptance
STREAMS, CHUNKS, GAP_MS = 500, 20, 25  # 20 000 chunks/s in replies of half a second
SECONDS = float(os.environ.get("KILL_SECONDS", "50"))  # a million chunks
CLIENT = """
import sys
from pathlib import Path
from ridgeline.domain.run import SilentWatch
from ridgeline.load.crew import drive_with
from ridgeline.load.driver import Job
from ridgeline.load.http import Site
from ridgeline.load.selftest import LIMITS, PacedRequests, Pace
from ridgeline.store.journal import Journal
port, streams, chunks, gap_ns, workers = map(int, sys.argv[2:7])
pace = Pace(streams, chunks, gap_ns)
site = Site(2, ("127.0.0.1", port), "127.0.0.1", "null")
with Journal(Path(sys.argv[1]), {}) as journal:
    job = Job(pace.schedule(float(sys.argv[7])), [site], PacedRequests(pace), LIMITS)
    drive_with(workers, job, journal, SilentWatch())
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_is_lost_but_the_last_second(tmp_path: Path, workers: int) -> None:
    """Held against the server's own log: by identity, every chunk, and when it was sent."""
    journal = tmp_path / "journal"
    with NullServerProcess() as server:
        numbers = (server.port, STREAMS, CHUNKS, GAP_MS * 1_000_000, workers)
        arguments = [str(journal), *map(str, numbers), str(SECONDS)]
        child = subprocess.Popen([sys.executable, "-c", CLIENT, *arguments])
        try:
            time.sleep(2 + SECONDS / 2)
            assert child.poll() is None, "the client ended by itself"
            killed_ns = time.monotonic_ns()
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
        time.sleep(0.2)
        sent = server.stamps()
    records = records_from_requests(read_journal(journal).requests)
    stored = dict(zip(identities(records, STREAMS).tolist(), range(len(records)), strict=True))
    due = {
        identity
        for identity, reply in sent.items()
        if len(reply.after_ns) == CHUNKS and reply.after_ns[-1] < killed_ns - 1_000_000_000
    }
    told = sum(len(reply.after_ns) for reply in sent.values())
    ended_ns = max(int(sent[identity].after_ns[-1]) for identity in stored)
    print(
        f"\n{workers} worker(s): killed after {told} chunks of {len(sent)} requests; on disk"
        f" {len(records.chunk_ns)} chunks of {len(records)} requests, the last one ended"
        f" {(killed_ns - ended_ns) / 1e9:.2f} s before; {len(due)} requests had ended 1 s before"
    )
    assert told > 0.6 * SECONDS / 2 * STREAMS * 1000 / GAP_MS, "too slow a machine"
    assert len(due) > 0.8 * (len(sent) - 3 * STREAMS)
    assert due <= stored.keys(), f"lost: {len(due - stored.keys())}"
    rows = np.array([stored[identity] for identity in due])
    assert records.ok[rows].all()
    assert (np.diff(records.chunk_start)[rows] == CHUNKS).all()
    assert set(stored) <= set(sent), "nothing is on disk that was never sent"
    # and each is the very reply: its gaps are those of the server's writes
    for identity in sorted(due)[:: max(1, len(due) // 500)]:
        low, high = records.chunk_start[stored[identity] : stored[identity] + 2]
        span = int(records.chunk_ns[high - 1] - records.chunk_ns[low])
        true = int(sent[identity].before_ns[-1] - sent[identity].before_ns[0])
        assert abs(span - true) < 500_000_000
