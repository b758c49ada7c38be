"""How much memory `ridgeline bench` holds at most, from its start to its stored figures.

    .venv/bin/python -m benchmarks.client.memory [--requests 5000] [--chunks 200]

A whole run in a process of its own against a server that is no limit; the default is a million
chunks. The run is void, since the client is the limit; its records and figures are complete.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.client.null_server import NullServer
from benchmarks.client.replies import prebuilt
from ridgeline.store.tables import read_tables

_BENCH = """
import resource, sys
from ridgeline.cli.main import run
run(sys.argv[1:])
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak_mb(url: str, requests: int, chunks: int) -> float:
    """The most that a whole run of so many requests had resident (MB of 2^20 bytes)."""
    with tempfile.TemporaryDirectory() as folder:
        load = ["--users", "16", "--requests", str(requests), "--warmup", "0"]
        lengths = ["--prompt-tokens", "32", "--output-tokens", str(chunks)]
        out = str(Path(folder) / "run")
        ended = subprocess.run(
            [sys.executable, "-c", _BENCH, "bench", url, *load, *lengths, "--out", out],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "NO_COLOR": "1"},
        )
        stored = read_tables(next(Path(out).rglob("requests.parquet")).parent)
        assert len(stored.chunk_ns) >= requests * chunks, "a smaller run than asked for"
    found = re.search(r"^peak (\d+)$", ended.stdout, re.MULTILINE)
    assert found is not None, ended.stdout + ended.stderr
    return int(found.group(1)) / 1024


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--chunks", type=int, default=200)
    options = parser.parse_args(arguments)
    with NullServer(prebuilt(options.chunks)) as server:
        peak = peak_mb(server.url, options.requests, options.chunks)
    print(f"{options.requests} requests of {options.chunks} chunks: {peak:.0f} MB at most")


if __name__ == "__main__":
    main()
