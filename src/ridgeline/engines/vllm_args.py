"""Knobs as vLLM command-line arguments."""

import json
from typing import Any

from ridgeline.domain.knobs import Knobs

# The layout over GPUs is ours: one process per data-parallel replica, pinned to its GPUs.
_NOT_PASSED = ("data_parallel_size",)


def serve_arguments(knobs: Knobs) -> list[str]:
    """Arguments for one replica: `max_num_seqs=64` becomes `--max-num-seqs 64`.

    Switches use vLLM's pair `--enable-x` / `--no-enable-x`; mappings are passed as JSON, tuples
    as several values. Knobs that were not given are left out, so that the engine's default acts.
    """
    arguments: list[str] = []
    for name, value in knobs.given().items():
        if name not in _NOT_PASSED:
            arguments += _argument("--" + name.replace("_", "-"), value)
    return arguments


def _argument(flag: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [flag if value else "--no-" + flag.removeprefix("--")]
    if isinstance(value, tuple | list):
        return [flag, *map(str, value)]
    if isinstance(value, dict):
        return [flag, json.dumps(value, sort_keys=True)]
    # repr: the shortest text that reads back as the same number
    return [flag, repr(value) if isinstance(value, float) else str(value)]
