"""A small model with real weights under the real vLLM, two servers at a time."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from real_vllm import ROOT, RealVllm, serve

from ridgeline.domain.readings import QualityPrompt
from ridgeline.engines.logprobs import Asking
from ridgeline.tuning.quality_prompts import bundled_prompts

# Ten short texts and all long ones, cut: about 2,500 tokens, ten seconds a server.
PROMPTS: tuple[QualityPrompt, ...] = tuple(
    p for i, p in enumerate(bundled_prompts()) if p.long or (i % 2 == 0 and i < 20)
)
ASKING = Asking(longest=256, short=160, answer_tokens=8, timeout_s=120.0)
FLAGS = ("--load-format=auto", "--kv-cache-memory-bytes=256M", "--max-model-len=1024")


def script_says(script: str, *arguments: str) -> str:
    out = subprocess.run(
        [ROOT / "scripts" / script, *arguments], env=os.environ | {"PYTHON": sys.executable},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return out.stdout.strip()


def real_weights() -> Path:
    """Their absence is an error, not a skip."""
    folder = Path(script_says("smollm2_env.sh", "--where"))
    if not (folder / ".ridgeline-complete").exists():
        pytest.fail(f"no SmolLM2 in {folder}: run scripts/smollm2_env.sh (make test-vllm does it)")
    return folder


@contextmanager
def served(python: Path, model: Path, log: Path, flags: Sequence[str] = ()) -> Iterator[RealVllm]:
    with serve(python, model, log, flags=[*FLAGS, *flags]) as server:
        yield server
