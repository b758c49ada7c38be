"""The table of `python -m benchmarks.router`: what ran, what was void, and nothing left behind."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from benchmarks.router import __main__ as benchmark
from benchmarks.router import engine
from benchmarks.router.engine import STUDY

PAIR = {"delta": 0.0003, "low": 0.0001, "high": 0.0005}


def found() -> dict[str, object]:
    def run(name: str, *repeats: tuple[str, int]) -> dict[str, object]:
        return {"name": name, "repeats": [{"state": s, "tries": n} for s, n in repeats]}

    cost = {"experiment": "routed-16", "pairs": 2, "seconds": {"ttft_s.p50": PAIR}}
    return {
        "router_cost": [cost],
        "runs": [
            run("direct-16", ("done", 1), ("done", 2)),  # one was done again
            run("routed-16", ("done", 3), ("void", 3), ("planned", 0)),
            run("direct-64", ("done", 1)), run("routed-64", ("void", 3)),
        ],
    }  # fmt: skip


def test_the_table_has_the_router_that_ran_and_the_runs_that_were_void() -> None:
    lines = benchmark.table(found(), "nginx 1.29", [16, 64], 2, 6.0).splitlines()
    assert lines[0].startswith("nginx 1.29 before one server")
    assert "2 pairs of 6 s" in lines[0]
    assert lines[4].startswith("| 16 | 2 | 5, 1 | +0.30 (+0.10 to +0.50) | not measured |")
    assert lines[5] == "| 64 | 0 | 3, 0 | no valid pair | | | |"


def test_the_server_starts_and_leaves_no_file_behind(tmp_path: Path) -> None:
    study, temporary = tmp_path / "known-times.yaml", tmp_path / "tmp"
    temporary.mkdir()
    study.write_text(STUDY)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(study), "Qwen/Qwen3-4B", "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(
        [sys.executable, str(Path(engine.__file__)), *words],
        env={**os.environ, "TMPDIR": str(temporary)},
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 30
        while not _answers(port):
            assert server.poll() is None, "it ended"
            assert time.monotonic() < until, "it does not answer"
            time.sleep(0.1)
    finally:
        server.terminate()
        server.wait(20)
    assert [p.name for p in temporary.rglob("*")] == []


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False
