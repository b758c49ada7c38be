"""A GPU that the catalogue does not have, from the user's own file."""

import json
from pathlib import Path
from typing import Any

from ridgeline.domain.errors import BadInput
from ridgeline.domain.hardware import differing_rates, gpu, gpu_from_row

GPU_FILES = (".yaml", ".yml", ".json")
AMOUNTS = ("_bytes", "_per_s", "_flops")
# Far around what exists: a figure outside was given in GB, TB/s or TFLOP/s.
PLAUSIBLE = {
    "memory_bytes": (1e9, 1e13), "bandwidth_bytes_per_s": (1e9, 1e14), "bf16_flops": (1e11, 1e17),
}  # fmt: skip
HOW = "it needs name, memory_bytes, bandwidth_bytes_per_s and bf16_flops (dense)"


def read_gpu(path: Path) -> dict[str, Any]:
    """A catalogue row, checked. Raises BadInput for a file that is none."""
    import yaml  # noqa: PLC0415  heavy

    try:
        text = path.read_text("utf-8")
        row = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        why = (isinstance(error, OSError) and error.strerror) or " ".join(str(error).split())
        raise BadInput(f"the GPU's file cannot be read: {why}", where=path.name) from None
    if not isinstance(row, dict) or not isinstance(row.get("name"), str) or not row["name"]:
        raise BadInput("describes no GPU", where=path.name, fix=HOW)
    row = {str(k): _number(v) if str(k).endswith(AMOUNTS) else v for k, v in row.items()}
    gpu_from_row(row)
    for key, (low, high) in PLAUSIBLE.items():
        if not low <= row[key] <= high:
            what = f"{key} {row[key]:g} is no GPU's: plain bytes, bytes/s and FLOP/s are meant"
            raise BadInput(what, where=path.name)
    _refuse_taken_name(row, path)
    return row


def _refuse_taken_name(row: dict[str, Any], path: Path) -> None:
    """The twin's constants of a catalogue GPU are looked up by its name."""
    try:
        known = gpu(row["name"])
    except BadInput:
        return
    apart = differing_rates(known, gpu_from_row(row))
    if apart:
        what = f"is called {known.name}, but not with the catalogue's {', '.join(apart)}"
        raise BadInput(what, where=path.name, fix="give yours a name of its own")


def _number(value: object) -> object:
    """YAML 1.1 takes 3.35e12 for a text, because the exponent has no sign."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return value
