"""Speculation by n-grams on real weights: a study recommends it for text that repeats itself, and
not for prose. Real vLLM on the CPU; five minutes.
"""

import json
import os
import sys
from pathlib import Path

import pytest
import yaml

from ridgeline.cli.main import run as ridgeline
from ridgeline.experiment.results import load_results
from ridgeline.report.model import Difference
from support.realtime import realtime_allowed

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "vllm")]
from real_vllm import ENVIRONMENT, environment_folder  # noqa: E402
from smollm2 import real_weights  # noqa: E402

pytestmark = pytest.mark.acceptance

SPECULATION = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
ROWS = ("apples", "pears", "plums", "grapes", "lemons", "figs")
REPETITIVE = [
    "| item | state |\n|---|---|\n" + f"| a box of {thing} | it was checked and found good |\n" * 12
    for thing in ROWS
]  # fmt: skip
PROSE = [
    "The old woman opened the door and looked at the sea. She had not expected",
    "When the train stopped in the middle of the forest, nobody in the carriage",
    "My grandfather never spoke about the war, but one evening he began",
    "The city council met in secret that night, because the mayor had",
    "Nobody knew where the painting had come from. Some people said",
    "It was the last day of the holidays, and the two brothers decided",
]


def speeds(folder: Path, name: str, prompts: list[str]) -> Difference:
    """Output tokens/s with speculation over without, as the study compares them."""
    rows, file = folder / f"{name}.jsonl", folder / f"{name}.yaml"
    rows.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts))
    python = environment_folder() / "bin" / "python"
    body = {
        "name": name,
        "model": str(real_weights() / "bf16"),
        "engine": "vllm",
        "api": "completions",
        "launch": {
            "command": [str(python), "-P", "-m", "vllm.entrypoints.openai.api_server",
                        "--model", "{model}"],
            "arguments": ["--distributed-executor-backend", "uni"],
            "environment": {**ENVIRONMENT, "VLLM_CPU_KVCACHE_SPACE": ""},
            "ready_s": 300.0,
            "resident": 2,
            "cold_s": 3.0,
        },
        "workload": {
            "arrivals": {"users": 1},
            "prompts": {"file": {"file": str(rows), "salted": False}},
            "output_tokens": {"max": 64, "ignore_eos": True},
            "sampling": {"temperature": 0.0},
            "warmup_s": 3.0,
            "duration_s": 12.0,
        },
        "baseline_name": "plain",
        "baseline": {
            "max_num_seqs": 4, "max_model_len": 1024, "block_size": 32, "enforce_eager": True,
            "kv_cache_memory_bytes": 256 * 2**20, "enable_prefix_caching": False,
        },
        "experiments": [{"name": "speculation", "set": {"speculative_config": SPECULATION}}],
        "repeats": 3,
    }  # fmt: skip
    file.write_text(yaml.safe_dump(body))
    if realtime_allowed():  # the client goes before other work, and the engines that it starts not
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    assert ridgeline(["study", str(file), "--out", str(folder / name), "--retries", "2"]) in (0, 3)
    found = load_results(folder / name).experiment("speculation")
    assert found is not None
    return found.against_baseline["throughput.output_tokens_per_s"]


def test_speculation_pays_where_text_repeats_and_not_in_prose(tmp_path: Path) -> None:
    repetitive = speeds(tmp_path, "repetitive", REPETITIVE)
    prose = speeds(tmp_path, "prose", PROSE)
    for name, found in (("repetitive", repetitive), ("prose", prose)):
        print(f"{name}: {found.delta:+.1%} ({found.low} to {found.high}), {found.verdict}")
    assert repetitive.verdict == "clearly better"
    assert repetitive.delta is not None
    assert repetitive.delta > 0.3
    assert prose.verdict != "clearly better"
