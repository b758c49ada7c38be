"""A thousand prompts of 32 000 tokens, from the start of the process to the server's counts."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import psutil
import pytest

from ridgeline.domain.workload import (
    Arrivals,
    Images,
    Lengths,
    Outputs,
    Prompts,
    SharedPrefix,
    Workload,
)
from ridgeline.engines.bodies import Bodies
from ridgeline.load.making import RequestMaker
from ridgeline.workload.prompts import PromptMaker, TokenFit
from ridgeline.workload.schedule import draw_schedule
from support.mock_server import (
    MockProcess,
    Pages,
    Script,
    Served,
    at_once,
    models_page,
    plain_stream,
)
from support.reference import slowness

TOKENS, PROMPTS, RATE = 32_000, 1000, 200
REPLY = 3


@dataclass
class Tokenizing:
    """A token for every four letters of a word or less, and 11 of a template."""

    run: int = 0

    def __call__(self, served: Served, number: int) -> Script:
        body = json.loads(served.body)
        served.body = b"calibration"
        if body["max_tokens"] == REPLY:
            self.run += 1
            served.body = b"run" if self.run > 1 else b"run %f" % client_cpu_s()
        words = body["messages"][0]["content"].split()
        count = 11 + sum(-(-len(word) // 4) for word in words)
        return at_once(plain_stream(body["max_tokens"], prompt=count))


def test_the_first_is_sent_at_once_none_waits_to_be_made_and_all_are_as_long_as_asked_for(
    tmp_path: Path,
) -> None:
    result = tmp_path / "r.json"
    pages: Pages = {"/v1/models": models_page("m", max_model_len=40_000)}
    with MockProcess(Tokenizing(), pages, keep_bodies=True) as mock:
        args = ["bench", mock.url, "--rate", str(RATE), "--process", "constant", "--warmup", "0",
                "--duration", str(PROMPTS / RATE), "--prompt-tokens", str(TOKENS),
                "--output-tokens", str(REPLY), "--out", str(tmp_path / "o"),
                "--json", str(result), "--quiet", "--no-calibration"]  # fmt: skip
        before = slowness()
        began_ns = time.monotonic_ns()
        done = subprocess.run(
            [sys.executable, "-m", "ridgeline.cli.main", *args],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode in (0, 3), done.stderr  # a busy machine may make the run void
    (first,) = (s for s in mock.served if s.body.startswith(b"run "))
    wall_s, cpu_s = (first.received_ns - began_ns) / 1e9, float(first.body.split()[1])
    print(f"first request of the run after {wall_s:.2f} s, {cpu_s:.2f} s of them on a core")
    # start-up, four test requests and their answers, the texts of the run; how long it waits for a
    # core is the machine's doing
    assert cpu_s < 1.5 * max(before, slowness())
    assert wall_s < 2.0 or load_of_a_core() > 0.5
    body = json.loads(result.read_text())
    assert body["requests"]["ok"] == PROMPTS
    rows = pl.read_parquet(next((tmp_path / "o").rglob("requests.parquet")))
    counted = rows["prompt_tokens"].to_numpy()
    assert counted.mean() == pytest.approx(TOKENS, rel=0.01)
    assert np.abs(counted / TOKENS - 1).max() < 0.01
    if load_of_a_core() > 0.5:
        return  # sends wait for a core; what making a request costs is below
    late_ms = (rows["sent_ns"] - rows["intended_ns"]).to_numpy() / 1e6
    print(f"late: median {np.median(late_ms):.3f} ms, p99 {np.percentile(late_ms, 99):.2f} ms")
    # 5 ms apart: had each to be made first, the delays would add up
    assert np.median(late_ms) < 2.5


def load_of_a_core() -> float:
    """How many processes want each core."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def client_cpu_s() -> float:
    """CPU time so far of the client that the parent process has started."""
    for child in psutil.Process(os.getppid()).children():
        if "ridgeline.cli.main" in child.cmdline():
            spent = child.cpu_times()
            return float(spent.user + spent.system)
    raise AssertionError("there is no client")


@pytest.mark.parametrize(
    ("prompts", "exact"),
    [
        (Prompts(Lengths(TOKENS)), False),
        (Prompts(Lengths(TOKENS)), True),
        (Prompts(Lengths(TOKENS // 2), SharedPrefix(TOKENS // 2, 8)), False),
        (Prompts(Lengths(TOKENS // 2), SharedPrefix(TOKENS // 2, 8)), True),
        (Prompts(Lengths(TOKENS), images=Images(1, 512, 512)), False),
    ],
)
def test_making_a_request_costs_less_than_a_send_may_be_late(prompts: Prompts, exact: bool) -> None:
    """CPU time of a request of 32 000 tokens: its text is there before the run, it costs a copy."""
    costs = tuple([1, 1, 2, 1] * 64) if exact else None
    load = Workload(Arrivals(rate_per_s=50.0), prompts, Outputs(Lengths(8)), 4.0, 0.0)
    schedule = draw_schedule(load)
    maker = PromptMaker(load, "salt", TokenFit(1.25, 9.0, 0.0, costs))
    make = RequestMaker(Bodies(load, "chat", "m", maker), [b"POST / HTTP/1.1\r\nContent-Length: "])
    spent = []
    for number in range(150):
        planned = schedule.begin(number)
        before = time.thread_time_ns()
        parts = make(planned, number, 0)
        spent.append(time.thread_time_ns() - before)
        assert sum(map(len, parts)) > 2 * TOKENS
    print(f"{np.median(spent) / 1e3:.1f} us at the median, {max(spent) / 1e3:.1f} at most")
    assert np.median(spent) < 300_000 * slowness()
