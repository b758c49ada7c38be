"""The account of a measured run names the party that holds it back: four cases, each staged.

The server is the twin behind real HTTP, so its queue, steps and stages are known; what is slow is
really slow (a process that delays, a client without the interpreter), not told to be.
"""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ridgeline.domain.run import SilentWatch
from ridgeline.domain.summary import Summary
from ridgeline.experiment.engines import engine_named
from ridgeline.experiment.plan import plan_of, plan_runs
from ridgeline.experiment.protocol import carry_out
from ridgeline.workload.studyfile import load_study

TESTS = Path(__file__).parents[1]
SUPPORT = TESTS / "support"
sys.path.insert(0, str(TESTS / "engines"))
from twin_server_support import running  # noqa: E402

pytestmark = pytest.mark.acceptance
WORKLOAD = """\
workload:
  arrivals: {{users: {users}}}
  prompts: {{tokens: {{min: 40, max: 80}}}}
  output_tokens: {{min: {output}, max: {twice}, ignore_eos: true}}
  warmup_s: 1
  duration_s: 4
"""
STUDY = """\
name: staged
model: Qwen/Qwen3-4B
engine: {engine}
{url}
hardware: {{gpu: H200-SXM, count: 1, price_per_gpu_hour: 4}}
baseline: {{max_num_seqs: {seqs}, max_num_batched_tokens: 2048, enforce_eager: {eager}}}
"""


def measured(
    folder: Path,
    *,
    users: int,
    seqs: int,
    eager: bool = False,
    delay_s: float = 0.0,
    output: int = 32,
) -> Summary:
    """One run against the served twin, through a proxy that delays when `delay_s` is given."""
    values = {"seqs": seqs, "eager": str(eager).lower()}
    traffic = WORKLOAD.format(users=users, output=output, twice=2 * output)
    served = folder / "served.yaml"
    served.write_text(STUDY.format(engine="twin", url="", **values) + traffic)
    with running(folder, str(served)) as server, proxied(server.url, delay_s) as url:
        study = folder / "study.yaml"
        study.write_text(STUDY.format(engine="endpoint", url=f"url: {url}", **values) + traffic)
        (run,) = plan_runs(plan_of(load_study(study)))[:1]
        stored = carry_out(run, folder / "run", engine_named("endpoint"), SilentWatch())
    assert stored.failure is None, stored.failure
    assert stored.summary is not None
    assert (folder / "run" / "telemetry.parquet").exists()
    return stored.summary


@contextlib.contextmanager
def proxied(url: str, delay_s: float) -> Iterator[str]:
    if not delay_s:
        yield url
        return
    port = str(urlsplit(url).port)
    process = subprocess.Popen(
        [sys.executable, SUPPORT / "slow_proxy.py", port, str(delay_s)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextlib.contextmanager
def robbed_of_the_interpreter() -> Iterator[None]:
    """Another thread computes and lets the client in every 10 ms only."""
    before, stop = sys.getswitchinterval(), threading.Event()

    def burn() -> None:
        while not stop.is_set():
            sum(range(1000))

    thread = threading.Thread(target=burn)
    sys.setswitchinterval(0.01)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(before)


def check_account(found: Summary) -> None:
    """It closes, and its parts are those that a server with histograms lets one tell apart."""
    assert abs(found.steps["closure_error"]) < 0.05
    parts = {"network_http", "api_server", "queue", "prefill", "decode"}
    assert parts <= set(found.accounting)
    inside = sum(v for name, v in found.accounting.items() if name != "client")
    assert inside == pytest.approx(found.e2e_s.mean)


def test_a_full_batch(tmp_path: Path) -> None:
    found = measured(tmp_path, users=16, seqs=4)
    check_account(found)
    assert found.binding_limit is not None
    assert found.binding_limit.startswith("batch ceiling: max_num_seqs 4 is full with 12 waiting")
    assert found.accounting["queue"] > 0.6 * (found.e2e_s.mean or 0)


def test_an_engine_without_graphs(tmp_path: Path) -> None:
    found = measured(tmp_path, users=24, seqs=32, eager=True, output=24)
    check_account(found)
    assert found.binding_limit is not None
    assert found.binding_limit.startswith("step time, bound by kernel launch: no CUDA graphs")
    assert found.roofline.mbu is not None
    assert 0.02 < found.roofline.mbu < 0.5


def test_a_proxy_that_delays(tmp_path: Path) -> None:
    found = measured(tmp_path, users=8, seqs=32, delay_s=0.15)
    check_account(found)
    assert found.binding_limit is not None
    assert found.binding_limit.startswith("network or proxy: ")
    assert found.accounting["network_http"] > 0.14


def test_a_client_that_is_slow(tmp_path: Path) -> None:
    with robbed_of_the_interpreter():
        found = measured(tmp_path, users=8, seqs=32)
    assert found.binding_limit is not None
    assert found.binding_limit.startswith("client: requests left late")
    assert found.accounting["client"] > 0.05 * (found.e2e_s.mean or 0)
    assert not found.verdict.valid
    assert any(reason.startswith("client limit") for reason in found.verdict.reasons)
