"""Do the bands hold what they say? The share of measured figures that lie inside them."""

from collections.abc import Mapping
from math import log
from typing import NamedTuple

from benchmarks.twin import h200_rows
from ridgeline.domain.bands import LEVEL, TOKENS, Z
from ridgeline.domain.errors import RidgelineError
from ridgeline.twin.constants import priors_for
from ridgeline.twin.uncertainty import design, prior_doubt, spread
from validation import silicon

ROUNDS = 3  # requests of a user in the runs that only show how figures move
PATHS = {
    "tok_s": TOKENS, "ttft_mean": "ttft_s.mean", "ttft_p95": "ttft_s.p95",
    "itl_mean": "itl_s.mean", "itl_p50": "itl_s.p50", "itl_p95": "itl_s.p95",
}  # fmt: skip


class Held(NamedTuple):
    """One figure of one row: its miss and its standard error, as logarithms."""

    figure: str
    miss: float
    error: float

    @property
    def inside(self) -> bool:
        """Whether the measurement lies in the band."""
        return abs(self.miss) <= Z * self.error


def of_row(row: silicon.Row) -> list[Held]:
    """TTFT and TPOT of a public row, with the priors that ship; empty where it does not fit."""
    gpu = silicon.gpu_of(row).name
    base, doubt = priors_for(gpu), prior_doubt(gpu)
    try:
        found = silicon.predict(row, base)
        runs = [
            silicon.means(silicon.simulate(row, constants, rounds=ROUNDS))
            for constants in design(base, doubt.directions)
        ]
    except RidgelineError:
        return []
    errors = spread([{"ttft_s.mean": r.ttft_ms, "tpot_s.mean": r.tpot_ms} for r in runs], doubt)
    return [
        Held("TTFT mean", log(found.ttft_ms / row.ttft_ms), errors["ttft_s.mean"]),
        Held("TPOT mean", log(found.tpot_ms / row.tpot_ms), errors["tpot_s.mean"]),
    ]


def of_host_row(row: h200_rows.Row) -> list[Held]:
    """All figures of a row of the H200 host, with the priors that ship."""
    base, doubt = priors_for("H200-SXM"), prior_doubt("H200-SXM")
    runs = [_by_path(h200_rows.simulate(row, 1, c)) for c in design(base, doubt.directions)]
    errors = spread(runs, doubt)
    return [
        Held(name, log(predicted / measured), errors[PATHS[name]])
        for name, (measured, predicted) in h200_rows.compare(row).items()
    ]


def _by_path(figures: Mapping[str, float]) -> dict[str, float]:
    return {PATHS[n]: v for n, v in figures.items()}


def coverage_lines(title: str, held: list[Held]) -> list[str]:
    """Coverage by figure and of all, with the bands' mean width."""
    names = list(dict.fromkeys(h.figure for h in held))
    lines = [f"\n{title}: share inside the {LEVEL:.0%} band, and its mean half-width"]
    for name in (*names, "all"):
        mine = [h for h in held if name in (h.figure, "all")]
        inside = sum(h.inside for h in mine)
        width = sum(Z * h.error for h in mine) / len(mine)
        lines.append(
            f"  {name:12}{inside:5} of {len(mine):<5}{inside / len(mine):6.0%}{width:8.0%}"
        )
    return lines
