"""What a calibration is worth for another model or another precision on the same GPU.

`ridgeline calibrate` moves two shares of the GPU (bandwidth and FLOP/s of its GEMMs) on top of the
constants that ship. Here they are fitted to the public rows of one model and precision, and the
rows of another on that GPU are predicted with them. What is worse than after a fit to those rows
themselves is the error of carrying it over: the bands of such a prediction are wider by that
(`twin.uncertainty.ELSEWHERE`). Launch times and the API server, which a calibration fits too, are
not in these rows: nothing here says how they carry over.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np

from ridgeline.domain.records import Floats
from ridgeline.twin.constants import Constants, priors_for
from validation.fit import fit_rows, ratios
from validation.score import FIGURES
from validation.silicon import Row, apart, gpu_of

NAMES = ("gemm_bandwidth_share", "gemm_flops_share")  # of those that a calibration fits
PULL = 0.8  # as `ridgeline calibrate`
Say = Callable[[str], None]


def carried_over(rows: Sequence[Row], pool: Executor, say: Say) -> dict[str, Any]:
    """Errors (RMS of logarithms) of TTFT and TPOT by pair of groups, and what carrying adds."""
    groups: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        if apart(row) is None:
            groups.setdefault(gpu_of(row).name, {}).setdefault(row.group, []).append(row)
    say("\nCalibrated on one model and precision, carried over to another (RMS of logarithms)")
    body: dict[str, Any] = {"pairs": {}}
    squares: list[Floats] = []
    for gpu, known in groups.items():
        if len(known) < 2:
            continue
        made = {name: _calibrated(part, gpu, pool) for name, part in known.items()}
        for source, target in permutations(known, 2):
            own, there = (_squares(known[target], made[n], pool) for n in (target, source))
            squares.append(there - own)
            rms = {f: (_rms(own[:, i]), _rms(there[:, i])) for i, f in enumerate(FIGURES)}
            body["pairs"][f"{source} -> {target}"] = rms
            told = ", ".join(f"{f} {a:.1%} -> {b:.1%}" for f, (a, b) in rms.items())
            say(f"  {source} -> {target}: {len(own)} rows, {told}")
    body["adds"] = adds = _adds(squares)
    say("  carrying it over adds " + ", ".join(f"{f} {v:.1%}" for f, v in adds.items()))
    return body


def _calibrated(rows: Sequence[Row], gpu: str, pool: Executor) -> Constants:
    return fit_rows(rows, pool, NAMES, start=priors_for(gpu), pull=PULL).constants


def _squares(rows: Sequence[Row], constants: Constants, pool: Executor) -> Floats:
    """Squared logarithmic errors, a row each, TTFT and TPOT beside each other."""
    found = list(pool.map(partial(ratios, constants), rows, chunksize=4))
    squares: Floats = np.square(np.log(np.array(found)))
    return squares


def _rms(squares: Floats) -> float:
    return float(np.sqrt(np.mean(squares)))


def _adds(squares: Sequence[Floats]) -> Mapping[str, float]:
    """The standard deviation that is to be added, over all rows of all pairs."""
    mean = np.mean(np.concatenate(squares), axis=0) if squares else np.zeros(len(FIGURES))
    return {f: float(np.sqrt(max(v, 0.0))) for f, v in zip(FIGURES, mean.tolist(), strict=True)}
