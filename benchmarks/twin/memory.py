"""What a long trace takes on the twin: memory, records, time.

    python -m benchmarks.twin.memory [--requests 1000000]

Writes a trace of so many rows (Azure's columns), replays it in a process of its own on four
replicas and prints the peak of its memory, in MB, with the trace read and every record made.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.records import RequestRecord, RunEvent, StepTable
from ridgeline.domain.rows import RequestRows
from ridgeline.domain.run import SilentWatch
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.twin import TwinEngine
from ridgeline.workload.schedule import draw_schedule
from ridgeline.workload.traces import open_trace

RATE_PER_S = 500.0


class Counts:
    """A sink that counts what it is given and keeps nothing."""

    def __init__(self) -> None:
        self.numbers = bytearray()
        self.ended = self.tokens = self.steps_seen = 0

    def request(self, record: RequestRecord) -> None:
        if record.index >= len(self.numbers):
            self.numbers.extend(bytes(record.index + 1 - len(self.numbers)))
        self.numbers[record.index] += 1
        self.ended += record.last_ns is not None
        self.tokens += record.output_tokens or 0

    def rows(self, rows: RequestRows) -> None:
        raise AssertionError("a twin hands its requests in one by one")

    def event(self, event: RunEvent) -> None:
        pass

    def steps(self, table: StepTable) -> None:
        self.steps_seen = len(table)


def write_trace(path: Path, requests: int) -> None:
    """Poisson arrivals, lengths around 256 in and 32 out."""
    rng = np.random.default_rng(1)
    at = np.cumsum(rng.exponential(1 / RATE_PER_S, requests))
    prompts, outputs = rng.integers(128, 385, requests), rng.integers(16, 49, requests)
    begin = datetime(2024, 5, 10, tzinfo=UTC)
    with path.open("w") as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for second, prompt, output in zip(at.tolist(), prompts, outputs, strict=True):
            when = begin + timedelta(seconds=second)
            file.write(f"{when:%Y-%m-%d %H:%M:%S.%f}+00:00,{prompt},{output}\n")


def replay(path: Path) -> dict[str, float]:
    """Replay the trace in this process; what came of it."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    trace = open_trace(path)
    load = Workload(
        Arrivals(trace=trace), Prompts(Lengths(256)), Outputs(Lengths(32)),
        duration_s=trace.seconds + 1e-3, warmup_s=0.0,
    )  # fmt: skip
    knobs = Knobs(max_num_seqs=256, max_model_len=4096, data_parallel_size=4)
    configuration = Configuration("Qwen3-4B", knobs, gpu="H100-SXM", gpus=4)
    sink, begun = Counts(), time.process_time()
    with TwinEngine().start(configuration) as endpoint:
        endpoint.drive(DrivePlan(draw_schedule(load), "memory"), sink, SilentWatch())
    return {
        "requests": len(sink.numbers),
        "recorded_once": sink.numbers.count(1),
        "ended": sink.ended,
        "tokens": sink.tokens,
        "steps": sink.steps_seen,
        "cpu_s": round(time.process_time() - begun, 1),
        "imports_mb": round(before),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def measure(requests: int) -> dict[str, float]:
    """The same in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        write_trace(path, requests)
        command = [sys.executable, "-m", "benchmarks.twin.memory", "--replay", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--replay", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    print(json.dumps(replay(given.replay) if given.replay else measure(given.requests)))


if __name__ == "__main__":
    main()
