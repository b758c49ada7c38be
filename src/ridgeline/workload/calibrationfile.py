"""The file that `ridgeline calibrate` writes and a study file names."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.domain.bands import LATENCIES, TOKENS
from ridgeline.domain.errors import BadInput, nearest
from ridgeline.domain.hardware import gpu_from_row
from ridgeline.domain.hostconstants import LIMITS
from ridgeline.domain.knobs import Calibration, Served

CALIBRATION_SCHEMA = 1
# Logarithms, far beyond what a fit that went wrong writes of itself: bands that cannot be had from
# it are told with the prediction.
MOST_LEFT, MOST_DEVIATION = 10.0, 50.0
ROUNDED = 0.01
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
    if not isinstance(gpu, str) or not isinstance(constants, dict):
        raise BadInput("is damaged: it needs a GPU and constants", where=str(path), fix=HOW)
    values = _constants(constants, path)
    return Calibration(
        gpu,
        values,
        *_uncertainty(body, values, path),
        fitted_on=_fitted_on(body, path),
        gpu_figures=_figures(body, gpu, path),
    )


def _constants(given: dict[str, Any], path: Path) -> dict[str, float]:
    """The constants, each one that a calibration may hold and within what is possible."""
    if not given:
        raise BadInput("is damaged: it holds no constant", where=str(path), fix=HOW)
    for name, value in given.items():
        if name not in LIMITS:
            what = f"{name} is no constant to calibrate{nearest(name, LIMITS)}"
            raise BadInput(f"is damaged: {what}", where=str(path), fix=HOW)
        low, high = LIMITS[name]
        if not _is_number(value) or not low <= value <= high:
            what = f"is damaged: {name} is {value!r}, it lies between {low:g} and {high:g}"
            raise BadInput(what, where=str(path), fix=HOW)
    return {name: float(value) for name, value in given.items()}


def _figures(body: dict[str, Any], gpu: str, path: Path) -> dict[str, Any] | None:
    """The card's row, None where the file has none (a catalogue GPU, or an older file)."""
    row = body.get("gpu_figures")
    try:
        if row is None or gpu_from_row(row).name == gpu:
            return None if row is None else dict(row)
    except (BadInput, AttributeError, KeyError, TypeError):
        pass
    what = f"is damaged: gpu_figures are not the figures of a GPU that is called {gpu}"
    raise BadInput(what, where=str(path), fix=HOW)


def _uncertainty(
    body: dict[str, Any], constants: dict[str, float], path: Path
) -> tuple[tuple[str, ...], tuple[tuple[float, ...], ...], dict[str, float]]:
    """Names, covariance and residuals; all empty in a file without them (an older one)."""
    matrix, left = body.get("covariance") or [], body.get("residuals") or {}
    if not _is_covariance(matrix, len(constants)):
        what = "is damaged: its covariance is none of its constants' logarithms"
        raise BadInput(what, where=str(path), fix=HOW)
    known = isinstance(left, dict) and set(left) <= {TOKENS, *LATENCIES}
    if not known or not all(_is_number(v) and 0 <= v <= MOST_LEFT for v in left.values()):
        what = "is damaged: its residuals are no errors (logarithms) of a run's figures"
        raise BadInput(what, where=str(path), fix=HOW)
    rows = tuple(tuple(float(v) for v in row) for row in matrix)
    return (tuple(constants) if rows else ()), rows, {n: float(v) for n, v in left.items()}


def _is_covariance(matrix: Any, size: int) -> bool:
    """Symmetric, no negative variance in any direction, and none that says nothing at all.

    The file has three digits of each value: so much may it be off.
    """
    if not isinstance(matrix, list) or not all(isinstance(row, list) for row in matrix):
        return False
    if not matrix:
        return True
    if len(matrix) != size or any(len(row) != size for row in matrix):
        return False
    if not all(_is_number(v) for row in matrix for v in row):
        return False
    found = np.array(matrix, dtype=np.float64)
    most = float(np.abs(found).max())
    return bool(
        np.abs(found - found.T).max() <= ROUNDED * most
        and np.diag(found).min() >= 0
        and np.diag(found).max() <= MOST_DEVIATION**2
        and np.linalg.eigvalsh(found).min() >= -ROUNDED * most
    )


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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
