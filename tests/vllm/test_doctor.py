"""`ridgeline doctor` beside the real vLLM: five conditions are staged, each is named."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from real_vllm import RealVllm, serve

from ridgeline.cli.main import run as ridgeline
from ridgeline.telemetry.host import listener
from ridgeline.telemetry.prometheus import parse_metrics

pytestmark = pytest.mark.vllm

Diagnose = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Pair:
    """Two servers, for conditions that no one server can show."""

    four_slots: RealVllm  # eager, four slots
    few_blocks: RealVllm  # 40 KV blocks of 32 tokens, 16 slots


@pytest.fixture(scope="module")
def pair(
    vllm_python: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """Both, started beside each other: a start is imports on one core."""
    folder = tmp_path_factory.mktemp("pair")
    few = ["--num-gpu-blocks-override=40", "--max-model-len=1024", "--max-num-seqs=16",
           "--no-enable-prefix-caching"]  # fmt: skip
    # Not in vLLM's own layout: on two cores its worker starves client and front end, so that of 32
    # users about 8 are in the server, and what is staged is not there to be found. (The engine core
    # is a process of its own in either; pages of that layout: data/vllm-0.32.0-lagging-*.)
    servers = (
        serve(vllm_python, tiny_model, folder / "four.log", flags=["--max-num-seqs=4"]),
        serve(vllm_python, tiny_model, folder / "few.log", flags=few),
    )  # fmt: skip
    with ThreadPoolExecutor(2) as threads, ExitStack() as stack:
        for server in servers:
            stack.push(server)
        yield Pair(*threads.map(lambda server: server.__enter__(), servers))


@pytest.fixture(scope="module")
def four_slots(pair: Pair) -> RealVllm:
    """See Pair."""
    return pair.four_slots


@contextmanager
def load(server: RealVllm, users: int, prompt: int, output: int, out: Path) -> Iterator[None]:
    """Users that ask with fresh prompts until the context ends."""
    words = [
        sys.executable, "-m", "ridgeline.cli.main", "bench", server.url, "--endpoint",
        "completions", "--users", str(users), "--duration", "300", "--warmup", "1", "--ignore-eos",
        "--prompt-tokens", str(prompt), "--output-tokens", str(output), "--no-calibration",
        "--quiet", "--out", str(out),
    ]  # fmt: skip
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as client:
        try:
            _until(lambda: _gauge(server, "vllm:num_requests_running") > 0)
            time.sleep(3.0)  # the ramp
            yield
        finally:
            client.kill()
    # a client that is gone leaves its requests to be aborted
    _until(lambda: _gauge(server, "vllm:num_requests_running") == 0)


def _gauge(server: RealVllm, name: str) -> float:
    with suppress(OSError):
        page = urllib.request.urlopen(f"{server.url}/metrics", timeout=10).read().decode()
        return parse_metrics(page).total(name) or 0.0
    return float("nan")


def _until(true: Callable[[], bool], limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end, "vLLM did not get there"
        time.sleep(0.3)


@pytest.fixture
def diagnose(tmp_path: Path) -> Diagnose:
    """Runs the command; its JSON, the findings by id."""

    def run(server: RealVllm, *, seconds: float = 8) -> dict[str, Any]:
        out = tmp_path / "doctor.json"
        # RIDGELINE_KEEP_PAGES: how the recorded pages of tests/diagnosis/data are made
        keep = os.environ.get("RIDGELINE_KEEP_PAGES")
        kept = [] if keep is None else ["--save", str(Path(keep) / tmp_path.name)]
        code = ridgeline(["doctor", server.url, "--seconds", str(seconds), "--log",
                          str(server.log), "--json", str(out), *kept])  # fmt: skip
        assert code == 0
        body = json.loads(out.read_text())
        return {"first": body["findings"][0], **{f["id"]: f for f in body["findings"]}}

    return run


def test_a_ceiling_of_four_with_32_users(
    four_slots: RealVllm, diagnose: Diagnose, tmp_path: Path
) -> None:
    with load(four_slots, 32, 48, 64, tmp_path / "b"):
        found = diagnose(four_slots)
    first = found["first"]
    assert (first["id"], first["confidence"]) == ("batch-ceiling", "high"), found
    assert "max_num_seqs 4" in first["binds"]
    assert any("start-up log" in fact["words"] for fact in first["evidence"])
    assert 0.7 < first["share"] < 0.95  # 28 of 32 wait


def test_eager_and_prompts_that_share_nothing(
    four_slots: RealVllm, diagnose: Diagnose, tmp_path: Path
) -> None:
    """Three users of four slots: nothing waits, each step is launched kernel by kernel."""
    with load(four_slots, 3, 256, 300, tmp_path / "b"):
        found = diagnose(four_slots)
    assert found["first"]["id"] == "eager", found
    assert "batch-ceiling" not in found
    useless = found["prefix-cache-useless"]
    assert useless["kind"] == "note"
    rate = next(f["value"] for f in useless["evidence"] if f["name"] == "hit_rate")
    assert rate < 0.02


def test_a_frozen_engine_core(four_slots: RealVllm, diagnose: Diagnose, tmp_path: Path) -> None:
    """Its API server goes on saying 200."""
    pid = listener(int(four_slots.url.rsplit(":", 1)[1]))
    assert pid is not None
    core = next(
        p for p in psutil.Process(pid).children(recursive=True)
        if "EngineCore" in " ".join([p.name(), *p.cmdline()])
    )  # fmt: skip
    with load(four_slots, 6, 48, 1800, tmp_path / "b"):
        # a gauge is what the engine said last: frozen between two requests it would say 0
        _until(lambda: _gauge(four_slots, "vllm:num_requests_running") == 4)
        core.send_signal(signal.SIGSTOP)
        try:
            found = diagnose(four_slots, seconds=24)
        finally:
            core.send_signal(signal.SIGCONT)
    first = found["first"]
    assert (first["id"], first["kind"]) == ("hung", "fault"), found
    assert any("/health says 200" in fact["words"] for fact in first["evidence"])


def test_a_kv_cache_that_is_too_small(pair: Pair, diagnose: Diagnose, tmp_path: Path) -> None:
    """Eight answers of 400 tokens do not fit together into 40 blocks of 32."""
    with load(pair.few_blocks, 8, 32, 400, tmp_path / "b"):
        found = diagnose(pair.few_blocks, seconds=8)
    first = found["first"]
    assert first["id"] == "kv-memory", found
    assert "preemption" in first["title"]
    count = next(f["value"] for f in first["evidence"] if f["name"] == "preemptions")
    assert count > 0
