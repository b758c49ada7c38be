"""The file that `ridgeline calibrate` writes and a study file names."""

import json
import math
from pathlib import Path
from typing import Any

from ridgeline.domain.errors import BadInput
from ridgeline.domain.knobs import Calibration, Served

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
        values = {str(n): float(v) for n, v in constants.items()}
        return Calibration(
            gpu, values, *_uncertainty(body, values, path), fitted_on=_fitted_on(body, path)
        )
    raise BadInput("is damaged: it needs a GPU and constants above 0", where=str(path), fix=HOW)


def _uncertainty(
    body: dict[str, Any], constants: dict[str, float], path: Path
) -> tuple[tuple[str, ...], tuple[tuple[float, ...], ...], dict[str, float]]:
    """Names, covariance and residuals; all empty in a file without them (an older one)."""
    matrix, left = body.get("covariance") or [], body.get("residuals") or {}
    try:
        rows = tuple(tuple(float(v) for v in row) for row in matrix)
        residuals = {str(n): float(v) for n, v in left.items()}
        square = all(len(row) == len(rows) for row in rows) and len(rows) in (0, len(constants))
        if not square or not all(math.isfinite(v) for row in rows for v in row):
            raise ValueError
        if not all(0 <= v < math.inf for v in residuals.values()):
            raise ValueError
    except (TypeError, ValueError, AttributeError):
        what = "is damaged: its covariance or residuals are no numbers that fit its constants"
        raise BadInput(what, where=str(path), fix=HOW) from None
    return (tuple(constants) if rows else ()), rows, residuals


def _fitted_on(body: dict[str, Any], path: Path) -> tuple[Served, ...]:
    """What the runs served; of an older file the model only."""
    model = body.get("model")
    rows = body.get("fitted_on") or ([{"model": model}] if isinstance(model, str) else [])
    try:
        found = tuple(
            Served(row["model"], row.get("weights"), row.get("tensor_parallel"), row.get("release"))
            for row in rows
        )
        for one in found:
            texts = (one.model, one.weights or "", one.release or "")
            ranks = 1 if one.tensor_parallel is None else one.tensor_parallel
            if not all(isinstance(t, str) for t in texts) or type(ranks) is not int or ranks < 1:
                raise ValueError
    except (TypeError, ValueError, KeyError, AttributeError):
        what = "is damaged: fitted_on needs a model, weights, tensor_parallel and release a row"
        raise BadInput(what, where=str(path), fix=HOW) from None
    return found


def _all_positive(constants: dict[object, object]) -> bool:
    return all(
        isinstance(v, int | float) and not isinstance(v, bool) and v > 0 for v in constants.values()
    )
