"""Fits the few constants that differ by GPU to measured rows: never per model, never per row."""

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial

import numpy as np

from ridgeline.domain.records import Floats
from ridgeline.twin.calibration import PULL, Fitted, fit
from ridgeline.twin.constants import PRIORS, Constants
from validation.silicon import Row, predict

EXPECTED = (0.15, 0.05)  # errors of TTFT and TPOT, as logarithms, that count as one
# Where the fit starts: away from the bound at which the prior of this constant lies.
START = replace(PRIORS, fp8_rows_share=0.85)


def fit_rows(
    rows: Sequence[Row],
    pool: Executor,
    names: Sequence[str],
    *,
    start: Constants = START,
    pull: float = PULL,
) -> Fitted:
    """Fit `names` to the rows of one GPU; `pool` simulates them."""

    def residuals(constants: Constants) -> Floats:
        found = list(pool.map(partial(ratios, constants), rows, chunksize=4))
        errors: Floats = np.log(np.array(found)) / EXPECTED
        return errors.ravel()

    return fit(start, names, residuals, pull=pull)


def ratios(constants: Constants, row: Row) -> tuple[float, float]:
    """Predicted over measured: TTFT, TPOT."""
    found = predict(row, constants)
    return found.ttft_ms / row.ttft_ms, found.tpot_ms / row.tpot_ms
