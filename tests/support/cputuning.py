"""A tuning of three knobs on the real vLLM on the CPU, for a short test and for the long proof."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

SERVER = ("-P", "-m", "vllm.entrypoints.openai.api_server", "--model", "{model}")
# What a busy machine does to the client is told, and is no fault of the tuning.
OF_THE_MACHINE = ("client limit", "not steady")


def study_of(
    name: str,
    model: Path | str,
    python: Sequence[str],
    environment: Mapping[str, str],
    *,
    ready_s: float,
    window: Mapping[str, float],
    slots: int,
    among: Sequence[int],
    finalists: int,
) -> dict[str, Any]:
    """The study file's content. python: starts vLLM's interpreter. window: warmup_s, duration_s.

    slots: the baseline's; among: those to choose from.
    """
    return {
        "name": name,
        "model": str(model),
        "engine": "vllm",
        "launch": {
            "command": [*python, *SERVER],
            "arguments": ["--load-format", "dummy", "--distributed-executor-backend", "uni"],
            # the last one counts in whole GiB and would override kv_cache_memory_bytes
            "environment": {**environment, "VLLM_CPU_KVCACHE_SPACE": ""},
            "ready_s": ready_s,
            "resident": 3,
            "cold_s": 1.0,
        },
        "workload": {
            "arrivals": {"users": 8},
            "prompts": {"tokens": {"min": 32, "max": 64}},
            "output_tokens": {"min": 16, "max": 48, "ignore_eos": True},
            **window,
            "seed": 7,
        },
        "baseline": {
            "max_num_seqs": slots, "max_model_len": 2048, "block_size": 32, "enforce_eager": True,
            "kv_cache_memory_bytes": 64 * 2**20, "enable_prefix_caching": False,
        },
        "tune": {
            "only": True,
            "finalists": finalists,
            "space": {
                "max_num_seqs": list(among),
                "max_num_batched_tokens": [2048, 4096],
                "enable_chunked_prefill": [True, False],
            },
        },
    }  # fmt: skip


def wait_for(condition: Callable[[], object], seconds: float, log: Path) -> None:
    """Until it holds; a test whose log is shown fails otherwise."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.1)
    pytest.fail(log.read_text())
