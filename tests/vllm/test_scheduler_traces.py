"""The twin decides every step as the real vLLM does, when it is given the same arrivals.

Twice: a server that is driven over HTTP, whose scheduler writes down what it saw and did; and the
scheduler class alone on loads by hand and at random, which also runs two steps in flight (on a CPU
the server never does).
"""

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from real_vllm import ENVIRONMENT, MODEL_NAME, ROOT, serve
from scenarios import Scenario, at_random, by_hand

from ridgeline.twin.trace import StepLog, difference, read_step_logs, replay

pytestmark = pytest.mark.vllm

RANDOM = 40


def read(path: Path) -> tuple[StepLog, ...]:
    lines = path.read_text().splitlines()
    return read_step_logs((f"{path}:{n}", json.loads(line)) for n, line in enumerate(lines, 1))


def parting(log: StepLog) -> str | None:
    """The first step in which the twin decides otherwise, in words."""
    both = zip(log.lines, replay(log), strict=True)
    return next((d for d in (difference(engine, twin) for engine, twin in both) if d), None)


FEW_BLOCKS = (
    "--max-model-len=512", "--max-num-seqs=6", "--max-num-batched-tokens=96",
    "--num-gpu-blocks-override=24", "--long-prefill-token-threshold=64",
    "--scheduling-policy=priority",
)  # fmt: skip
WHOLE_PROMPTS = (
    "--max-model-len=512", "--max-num-batched-tokens=512", "--no-enable-chunked-prefill",
    "--num-gpu-blocks-override=200",
)  # fmt: skip


FLAGS = {"few blocks": FEW_BLOCKS, "whole prompts": WHOLE_PROMPTS}
Logged = tuple[str, Path]  # a server's URL and the log of its scheduler


def drive(python: Path, model: Path, folder: Path) -> tuple[list[Scenario], Path]:
    """The scheduler class on all scenarios, and the log that it wrote."""
    scenarios = by_hand() + [at_random(seed) for seed in range(RANDOM)]
    given, log = folder / "scenarios.json", folder / "steps.jsonl"
    given.write_text(json.dumps(scenarios))
    driver = Path(__file__).with_name("drive_scheduler.py")
    done = subprocess.run(
        [python, driver, model, given],
        env=os.environ | ENVIRONMENT
        | {"PYTHONPATH": str(ROOT / "scripts"), "RIDGELINE_STEP_LOG": str(log)},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return scenarios, log


@pytest.fixture(scope="module")
def driven(
    vllm_python: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Future[tuple[list[Scenario], Path]]]:
    """It runs while the servers start."""
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(drive, vllm_python, tiny_model, tmp_path_factory.mktemp("driven"))


@pytest.fixture(scope="module")
def servers(
    vllm_python: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Logged]]:
    """By name; started beside each other."""

    def start(name: str) -> Logged:
        folder = tmp_path_factory.mktemp(name.replace(" ", "-"))
        log = folder / "steps.jsonl"
        flags = (*FLAGS[name], "--scheduler-cls=vllm_step_log.StepLogScheduler")
        environment = {"PYTHONPATH": str(ROOT / "scripts"), "RIDGELINE_STEP_LOG": str(log)}
        server = serve(
            vllm_python, tiny_model, folder / "engine.log", flags=flags, environment=environment
        )
        return stack.enter_context(server).url, log

    with ThreadPoolExecutor(2) as threads, ExitStack() as stack:
        yield dict(zip(FLAGS, threads.map(start, FLAGS), strict=True))


@pytest.mark.usefixtures("driven")
@pytest.mark.parametrize("name", FLAGS)
def test_a_server_and_the_twin_take_the_same_steps(servers: dict[str, Logged], name: str) -> None:
    url, path = servers[name]
    with ThreadPoolExecutor(16) as pool:
        sent = list(pool.map(lambda n: ask(url, n), range(48)))
    (log,) = read(path)
    assert parting(log) is None
    # The engine's names hold ours, so what the client was told can be held against its steps.
    arrivals = {a.id: a for line in log.lines for a in line.arrived}
    for number, prompt, output in sent:
        (name,) = [i for i in arrivals if f"load-{number}-" in i]
        assert arrivals[name].prompt == prompt
        tokens = sum(line.scheduled.get(name, 0) + line.hits.get(name, 0) for line in log.lines)
        assert tokens >= prompt + output - 1
    hits = sum(n > 0 for line in log.lines for n in line.hits.values())
    assert hits >= 8
    most = max(sum(line.scheduled.values()) for line in log.lines)
    if log.settings["enable_chunked_prefill"]:
        assert log.settings["scheduling_policy"] == "priority"
        assert sum(len(line.preempted) for line in log.lines) >= 5
        assert most == 96
        assert max(n for line in log.lines for n in line.scheduled.values()) <= 96
    else:
        assert all(n == 1 or n in _whole(log, r) for line in log.lines
                   for r, n in line.scheduled.items())  # fmt: skip


def _whole(log: StepLog, name: str) -> set[int]:
    """Tokens that a whole prompt may lack: all of it less what was found in the cache."""
    prompt = next(a.prompt for line in log.lines for a in line.arrived if a.id == name)
    return {prompt - line.hits[name] for line in log.lines if name in line.hits}


def ask(url: str, number: int) -> tuple[int, int, int]:
    """One completion; (number, prompt tokens, output tokens) by the server's own account."""
    shared = "The same beginning for every other request. " * 8 if number % 2 else ""
    body = {
        "model": MODEL_NAME,
        "prompt": shared + f"{number} words " * (1 + 7 * number % 40),
        "max_tokens": 4 + 11 * number % 90,
        "ignore_eos": True,
        "priority": number % 3,
    }
    headers = {"Content-Type": "application/json", "X-Request-Id": f"load-{number}"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as reply:
        usage = json.load(reply)["usage"]
    return number, usage["prompt_tokens"], usage["completion_tokens"]


def test_the_scheduler_class_and_the_twin_take_the_same_steps(
    driven: Future[tuple[list[Scenario], Path]],
) -> None:
    scenarios, path = driven.result()
    logs = read(path)
    assert len(logs) == len(scenarios)
    partings = {
        s["name"]: words
        for s, log in zip(scenarios, logs, strict=True)
        if (words := parting(log)) is not None
    }
    assert partings == {}
    lines = [line for log in logs for line in log.lines]
    # What the loads were made for has happened.
    assert sum(len(line.preempted) for line in lines) > 100
    assert sum(tokens > 0 for line in lines for tokens in line.hits.values()) > 100
    assert {log.settings["async_scheduling"] for log in logs} == {True, False}
