"""Ways to serve groups of traffic on the GPUs that are there, each on the twin, paired.

Every way sees the same arrivals under each set of constants: an error that all share cancels.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.domain.knobs import Configuration
from ridgeline.domain.metrics import take_sample
from ridgeline.domain.parts import select
from ridgeline.domain.workload import Workload
from ridgeline.engines.twin import constants_of, twin_of
from ridgeline.engines.twin_bands import Serving, simulated
from ridgeline.twin.uncertainty import Doubt, design

TTFT, E2E, ITL = "ttft_p95_s", "e2e_mean_s", "itl_mean_s"
Figures = Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class Priced:
    """One way: figures by (group, figure), their ratios to the first way's and the standard errors
    of the ratios' logarithms.
    """

    figures: Figures
    ratios: Mapping[tuple[str, str], tuple[float, float]]


def serving_of(configuration: Configuration, load: Workload) -> Serving:
    """The twins of a configuration, with or without pools. Raises what a twin raises."""
    constants = constants_of(configuration)
    twins = tuple(twin_of(part, constants) for part in configuration.parts)
    return Serving(twins, configuration.pool_of([kind.name for kind in load.classes]))


def price(
    ways: Mapping[str, Serving], load: Workload, groups: Mapping[str, str], doubt: Doubt
) -> dict[str, Priced]:
    """All ways against the first one. groups: traffic class -> group. Raises what a twin raises."""
    base = next(iter(ways.values())).twins[0].constants
    sets = [base, *design(base, doubt.directions)]
    seen = {
        name: [figures(way.under(constants), load, groups) for constants in sets]
        for name, way in ways.items()
    }
    first = next(iter(seen.values()))
    return {name: Priced(rows[0], _ratios(first, rows)) for name, rows in seen.items()}


def _ratios(
    base: Sequence[Figures], rows: Sequence[Figures]
) -> dict[tuple[str, str], tuple[float, float]]:
    found = {}
    for key in base[0]:
        logs = [math.log(b[key] / a[key]) for a, b in zip(base, rows, strict=True)
                if key in a and key in b]  # fmt: skip
        if len(logs) == len(base):
            found[key] = (math.exp(logs[0]), float(np.std(logs[1:])))
    return found


def figures(way: Serving, load: Workload, groups: Mapping[str, str]) -> Figures:
    """The figures of one way by (group, figure), "" for all requests; those above 0."""
    records, window = simulated(way, load)
    kinds = records.text["traffic_class"]
    found: dict[tuple[str, str], float] = {}
    for group in ("", *dict.fromkeys(groups.values())):
        mine = np.array(
            [not group or groups[kind or ""] == group for kind in kinds], dtype=np.bool_
        )
        sample = take_sample(select(records, mine), window)
        first, ends = sample.successes("ttft_s"), sample.successes("e2e_s")
        gaps = sample.successes("itl_s")
        if len(first):
            told = {
                TTFT: float(np.quantile(first, 0.95)), E2E: float(ends.mean()),
                ITL: float(gaps.mean()) if len(gaps) else 0.0,
            }  # fmt: skip
            found |= {(group, name): value for name, value in told.items() if value > 0}
    return found
