"""Two replicas of the real vLLM on the CPU behind the real vllm-router: a study file for serve."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
# What users ask for: as many tokens as that, and a stream says at its end how many came.
PLAIN = {"max_tokens": 16, "ignore_eos": True}
STREAM = {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}


def router_program() -> str:
    """vllm-router, installed once."""
    made = subprocess.run(
        [ROOT / "scripts" / "vllm_router_env.sh"], capture_output=True, text=True, check=True
    )
    return made.stdout.strip()


def study_text(
    python: Path,
    environment: Mapping[str, str],
    model: Path,
    router: str,
    seqs: int,
    ready_s: float = 240.0,
) -> str:
    """python: vLLM's interpreter. seqs: by which configurations differ."""
    module = ["-P", "-m", "vllm.entrypoints.openai.api_server", "--model", "{model}"]
    body: dict[str, Any] = {
        "name": "two-on-the-cpu", "model": str(model), "engine": "vllm",
        "launch": {
            "command": [str(python), *module],
            "arguments": ["--load-format", "dummy", "--distributed-executor-backend", "uni"],
            "environment": {**environment, "VLLM_CPU_KVCACHE_SPACE": ""},
            "ready_s": ready_s,
            "router": {"command": [router], "policy": "round_robin"},
        },
        "workload": {"arrivals": {"users": 32}},
        "baseline": {
            "data_parallel_size": 2, "max_num_seqs": seqs, "max_model_len": 2048,
            "block_size": 32, "enforce_eager": True, "kv_cache_memory_bytes": 64 * 2**20,
        },
    }  # fmt: skip
    return yaml.safe_dump(body)
