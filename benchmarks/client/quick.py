"""How many requests and chunks a second the load client takes from a server that is no limit.

    .venv/bin/python -m benchmarks.client.quick [--seconds 3] [--repeats 3] [--streams 32]

Everything that a normal run has is on: records in the journal, kernel stamps, self-check, live
figures. "of a
core" is the request rate at which the client would fill one core: it does not depend on what else
the machine does.
"""

import argparse
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.client.null_server import NullServer
from benchmarks.client.replies import prebuilt
from ridgeline.domain.run import SilentWatch
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.endpoint import HttpEndpoint
from ridgeline.store.journal import Journal, read_journal
from ridgeline.workload.schedule import draw_schedule


def measure(url: str, streams: int, chunks: int, seconds: float) -> tuple[float, ...]:
    """(requests/s, chunks/s, median TTFT in ms, CPU in us per request) of the client."""
    workload = Workload(
        Arrivals(users=streams),
        Prompts(Lengths(32)),
        Outputs(Lengths(chunks)),
        duration_s=seconds,
        warmup_s=0.5,
    )
    endpoint = HttpEndpoint(url, model="mock")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        with Journal(path, {}) as journal:
            plan = DrivePlan(draw_schedule(workload), "bench")
            facts = endpoint.drive(plan, journal, SilentWatch())
        requests = read_journal(path).requests
    window = facts.window
    inside = [r for r in requests if window.start_ns <= (r.end_ns or 0) < window.end_ns]
    bad = [r for r in requests if r.chunk_ns is None or len(r.chunk_ns) != chunks or r.failure]
    assert not bad, bad[0]
    waits = [(r.first_ns or 0) - (r.sent_ns or 0) for r in inside]
    rate = len(inside) / window.seconds
    cpu = (facts.client.cpu_share or 0.0) / rate * 1e6
    return rate, rate * chunks, float(np.median(waits)) / 1e6, cpu


def wrk(url: str, streams: int, seconds: float) -> float | None:
    """Requests/s of wrk with one thread against the same server, None when it is not here."""
    program = shutil.which("wrk")
    if program is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "post.lua"
        script.write_text('wrk.method = "POST"\nwrk.body = "{}"\n')
        command = [program, "-t1", f"-c{streams}", f"-d{max(1, round(seconds))}s", "-s"]
        ended = subprocess.run(
            [*command, str(script), f"{url}/v1/chat/completions"],
            capture_output=True,
            text=True,
            check=True,
        )
    line = next(line for line in ended.stdout.splitlines() if line.startswith("Requests/sec"))
    return float(line.split()[1])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--streams", type=int, default=32)
    options = parser.parse_args(arguments)
    titles = (
        "reply",
        "requests/s",
        "chunks/s",
        "TTFT p50 ms",
        "CPU us/req",
        "of a core",
        "wrk req/s",
    )
    print(" ".join(f"{title:>12}" for title in titles))
    for chunks in (1, 200):
        with NullServer(prebuilt(chunks)) as server:
            rounds = [
                measure(server.url, options.streams, chunks, options.seconds)
                for _ in range(options.repeats)
            ]
            ceiling = wrk(server.url, options.streams, options.seconds)
        rate, per_chunk, wait, cpu = (
            statistics.median(column) for column in zip(*rounds, strict=True)
        )
        shown = "-" if ceiling is None else f"{ceiling:.0f}"
        print(
            f"{chunks:>5} chunks {rate:>12.0f} {per_chunk:>12.0f} {wait:>12.3f} {cpu:>12.1f}"
            f" {1e6 / cpu:>12.0f} {shown:>12}"
        )


if __name__ == "__main__":
    main()
