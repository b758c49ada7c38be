"""A study on three real vLLM engines: interleaved, killed in the middle, resumed, nothing left."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from real_vllm import ENVIRONMENT, MODEL_NAME, RealVllm

from ridgeline.experiment.results import load_results
from ridgeline.store.run_directory import read_run
from ridgeline.store.study_directory import StudyDirectory
from ridgeline.store.tables import read_telemetry

pytestmark = pytest.mark.vllm

SECOND = 1_000_000_000
SEQS = {"seqs-8": 8, "seqs-2": 2, "seqs-4": 4}
REPEATS = 2  # A B C C B A: interleaved, and reversed once
# The machine may be busy with other things; what it does to the client is told, and no fault here.
FINISHED = {"done", "void"}
OF_THE_MACHINE = ("client limit", "not steady")
BUSY = "the machine was too busy: void runs are no pairs"


@pytest.fixture(scope="module")
def study_file(
    vllm_python: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    module = ["-P", "-m", "vllm.entrypoints.openai.api_server", "--model", "{model}"]
    knobs = {
        "max_num_seqs": 8, "max_model_len": 2048, "block_size": 32, "enforce_eager": True,
        "kv_cache_memory_bytes": 64 * 2**20, "enable_prefix_caching": False,
    }  # fmt: skip
    body = {
        "name": "three-on-the-cpu",
        "model": str(tiny_model),
        "engine": "vllm",
        "launch": {
            "command": [str(vllm_python), *module],
            "arguments": ["--load-format", "dummy", "--distributed-executor-backend", "uni"],
            # the last one counts in whole GiB and would override kv_cache_memory_bytes
            "environment": {**ENVIRONMENT, "VLLM_CPU_KVCACHE_SPACE": ""},
            "ready_s": 240.0,
            "resident": 3,
            "cold_s": 2.0,
        },
        "workload": {
            "arrivals": {"users": 8},
            "prompts": {"tokens": {"min": 32, "max": 64}},
            "output_tokens": {"min": 16, "max": 48, "ignore_eos": True},
            "warmup_s": 1.0,
            "duration_s": 3.0,
            "seed": 7,
        },
        "baseline_name": "seqs-8",
        "baseline": knobs,
        "experiments": [
            {"name": name, "set": {"max_num_seqs": seqs}} for name, seqs in list(SEQS.items())[1:]
        ],
        "repeats": REPEATS,
    }
    path = tmp_path_factory.mktemp("study") / "study.yaml"
    path.write_text(yaml.safe_dump(body))
    return path


def ridgeline(*arguments: str, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "from ridgeline.cli.main import main; main()", *arguments]
    with log.open("ab") as out:
        return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=log.parent)


def engines_of(model: Path) -> list[psutil.Process]:
    """Every living process that serves this test's model, and what those started."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(model) in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found += [process, *process.children(recursive=True)]
        except psutil.Error:
            continue
    return found


def states(folder: Path) -> dict[str, str]:
    try:
        index = json.loads((folder / "index.json").read_text())
    except FileNotFoundError:
        return {}
    return {run: entry["state"] for run, entry in index["runs"].items()}


def test_killed_at_a_random_moment_and_resumed_it_is_the_same_study(
    study_file: Path, tiny_model: Path, tmp_path: Path
) -> None:
    folder, log = tmp_path / "out", tmp_path / "ridgeline.log"
    planned = {f"{name}-r{r}" for name in SEQS for r in range(1, REPEATS + 1)}
    first = ridgeline("study", str(study_file), "--out", str(folder), log=log)
    try:
        _wait_for(lambda: "done" in (s := states(folder).values()) or "void" in s, first, log)
        family = engines_of(tiny_model)
        assert len({p.pid for p in family}) >= 3, "three engines side by side"
        moment_s = random.uniform(0.2, 8.0)
        print(f"killed {moment_s:.2f} s after the first run")
        time.sleep(moment_s)
    finally:
        first.kill()
        first.wait()
    killed = states(folder)
    assert set(killed) == planned
    assert any(state in ("planned", "running") for state in killed.values())
    _wait_until_gone(family)
    assert engines_of(tiny_model) == []

    before = {r: (folder / r / "run.json").read_bytes() for r, s in killed.items() if s == "done"}
    second = ridgeline("study", str(study_file), "--out", str(folder), log=log)
    try:
        code = second.wait(300)
    finally:
        second.kill()
        second.wait()
    assert engines_of(tiny_model) == []
    _check_whole(folder, planned, log)
    assert code in (0, 3), log.read_text()  # 3: an experiment lost all its runs to a busy machine
    for run_id, body in before.items():
        assert (folder / run_id / "run.json").read_bytes() == body, "measured twice"

    page = tmp_path / "report.html"
    assert ridgeline("report", str(folder), "--html", str(page), log=log).wait(60) == 0
    text = page.read_text()
    assert all(name in text for name in SEQS)


def _check_whole(folder: Path, planned: set[str], log: Path) -> None:
    """Every run is there once, with its telemetry and log, and the ceilings act in order."""
    index = StudyDirectory(folder).index()
    assert set(index.runs) == planned
    assert index.notes == (), "all three engines were up: interleaved"
    assert {e.state for e in index.runs.values()} <= FINISHED, log.read_text()
    for entry in index.runs.values():
        run = read_run(folder / entry.run_id)
        assert run.facts is not None
        assert run.summary is not None
        assert run.summary.requests.failed == 0
        assert all(r.startswith(OF_THE_MACHINE) for r in run.summary.verdict.reasons)
        _check_beside(folder / entry.run_id, run.facts.server, SEQS[entry.experiment])
        cold = run.facts.server["cold"]
        assert isinstance(cold, dict)
        assert read_run(folder / str(cold["run"])).meta.repeat == 0
    found = load_results(folder)
    assert [e.name for e in found.experiments] == list(SEQS)


def _check_beside(folder: Path, server: Any, seqs: int) -> None:
    rows = read_telemetry(folder)
    running = [r.value for r in rows if r.metric == "running"]
    assert len(running) >= 2
    assert max(running) <= seqs, "the ceiling acts, and this is the engine that has it"
    units = {r.unit for r in rows if r.source == "host"}
    assert {"replica 0: api server", "replica 0: engine core"} <= units
    assert not [r for r in rows if r.source == "gpu"], "no GPU here: absent, not 0"
    # counters read at least a second apart inside a window of three; the last step ends a request
    assert server["telemetry"]["engine"]["generation_tokens_per_s"] > 0
    assert server["telemetry"]["host"]["replica 0: engine core"]["cpu_cores_mean"] > 0
    assert "gpus" not in server["telemetry"]
    assert server["replicas"][0]["kv_tokens"] > 0
    assert "POST /v1/chat/completions" in (folder / "engine.log").read_text()


def _wait_for(condition: Any, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 280
    while not condition():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def _wait_until_gone(family: list[psutil.Process]) -> None:
    deadline = time.monotonic() + 30
    while left := [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]:
        assert time.monotonic() < deadline, f"outlived a killed Ridgeline: {left}"
        time.sleep(0.1)


def test_ctrl_c_ends_tidily_and_takes_the_engines_along(
    study_file: Path, tiny_model: Path, tmp_path: Path
) -> None:
    """During a start, where a second Ctrl-C is the way out: nothing was measured yet."""
    folder, log = tmp_path / "out", tmp_path / "ridgeline.log"
    process = ridgeline("study", str(study_file), "--out", str(folder), log=log)
    try:
        _wait_for(lambda: engines_of(tiny_model), process, log)
        family = engines_of(tiny_model)
        for _ in range(2):
            os.kill(process.pid, signal.SIGINT)
            time.sleep(0.5)
        assert process.wait(60) == 130, log.read_text()
    finally:
        process.kill()
        process.wait()
    _wait_until_gone(family)
    assert engines_of(tiny_model) == []
    assert "Traceback" not in log.read_text()


def test_a_study_of_a_thing_with_itself_shows_no_clear_difference(
    study_file: Path, vllm: RealVllm, tmp_path: Path
) -> None:
    """One engine, one load, twice. A study is wrong one time in twenty, so two may be tried.

    The engine is the one that runs already: a start more would show nothing of the comparison.

    Where the machine is so busy that no pairs are left, every run says that it was the machine.
    (Many such studies, with the noise of real runs, are in acceptance: test_aa_studies.py.)
    """
    body = yaml.safe_load(study_file.read_text())
    del body["launch"]
    body |= {"name": "a-and-a", "engine": "endpoint", "url": vllm.url, "model": MODEL_NAME}
    body |= {"baseline": {}, "experiments": [{"name": "again"}], "repeats": 4}
    file, verdicts = tmp_path / "study.yaml", []
    file.write_text(yaml.safe_dump(body))
    for attempt in range(2):
        out = tmp_path / f"out-{attempt}"
        arguments = ("study", str(file), "--out", str(out), "--retries", "1")
        process = ridgeline(*arguments, log=tmp_path / "ridgeline.log")
        try:
            assert process.wait(400) in (0, 3), (tmp_path / "ridgeline.log").read_text()
        finally:
            process.kill()
            process.wait()
        again = load_results(out).experiment("again")
        assert again is not None
        found = again.against_baseline.get("throughput.output_tokens_per_s")
        if found is None or found.pairs < 2:
            verdicts.append(_busy_machine(out))
            break
        print(f"A/A: {found.delta:+.1%} ({found.low} to {found.high}), {found.verdict}")
        verdicts.append(found.verdict)
        if found.verdict == "no clear difference":
            break
    assert verdicts[-1] in ("no clear difference", BUSY)


def _busy_machine(folder: Path) -> str:
    """BUSY, when every void run of the study names nothing but the machine's doing."""
    for run_id in StudyDirectory(folder).index().runs:
        summary = read_run(folder / run_id).summary
        assert summary is not None
        assert all(r.startswith(OF_THE_MACHINE) for r in summary.verdict.reasons)
    return BUSY
