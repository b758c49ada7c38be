"""The file that `ridgeline calibrate` writes and a study file names."""

import json
from pathlib import Path

from ridgeline.domain.errors import BadInput
from ridgeline.domain.knobs import Calibration

CALIBRATION_SCHEMA = 1
HOW = "write one with `ridgeline calibrate RUN... --json FILE`"


def read_calibration(path: Path) -> Calibration:
    """The constants in a calibration file. Raises BadInput for one that is none."""
    try:
        body = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot be read: {error}", where=str(path), fix=HOW) from None
    if not isinstance(body, dict) or body.get("schema") != CALIBRATION_SCHEMA:
        raise BadInput("is no calibration file", where=str(path), fix=HOW)
    gpu, constants = body.get("gpu"), body.get("constants")
    if isinstance(gpu, str) and isinstance(constants, dict) and _all_positive(constants):
        return Calibration(gpu, {str(n): float(v) for n, v in constants.items()})
    raise BadInput("is damaged: it needs a GPU and constants above 0", where=str(path), fix=HOW)


def _all_positive(constants: dict[object, object]) -> bool:
    return all(
        isinstance(v, int | float) and not isinstance(v, bool) and v > 0 for v in constants.values()
    )
