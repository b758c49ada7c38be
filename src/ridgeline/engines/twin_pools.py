"""Ways to serve two groups of traffic on the GPUs that are there, each on the twin, paired.

Every way sees the same arrivals under each set of constants: an error that all share cancels.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.domain.records import RequestRecord
from ridgeline.domain.workload import Workload
from ridgeline.engines.twin import Twin
from ridgeline.twin.fleet import Fleet
from ridgeline.twin.offer import Offer
from ridgeline.twin.results import request_record
from ridgeline.twin.uncertainty import Doubt, design
from ridgeline.workload.schedule import draw_schedule

Way = Sequence[tuple[Twin, Workload]]  # pools side by side, each with its own traffic
TTFT, E2E, ITL = "ttft_p95_s", "e2e_mean_s", "itl_mean_s"


@dataclass(frozen=True, slots=True)
class Priced:
    """One way: figures by (group, figure), their ratios to the first way's and the standard errors
    of the ratios' logarithms.
    """

    figures: Mapping[tuple[str, str], float]
    ratios: Mapping[tuple[str, str], tuple[float, float]]


def price(
    ways: Mapping[str, Way], groups: Mapping[str, str], doubt: Doubt
) -> dict[str, Priced]:  # fmt: skip
    """All ways against the first one. groups: traffic class -> group. Raises what a twin raises."""
    first = next(iter(ways.values()))[0][0]
    sets = [first.constants, *design(first.constants, doubt.directions)]
    seen = {
        name: [
            _figures([(replace(t, constants=constants), w) for t, w in way], groups)
            for constants in sets
        ]
        for name, way in ways.items()
    }
    base = next(iter(seen.values()))
    return {name: Priced(rows[0], _ratios(base, rows)) for name, rows in seen.items()}


def figures(way: Way, groups: Mapping[str, str]) -> dict[tuple[str, str], float]:
    """The figures of one way with the twins' own constants."""
    return _figures(way, groups)


def _ratios(
    base: Sequence[Mapping[tuple[str, str], float]], rows: Sequence[Mapping[tuple[str, str], float]]
) -> dict[tuple[str, str], tuple[float, float]]:
    found = {}
    for key in base[0]:
        logs = [math.log(b[key] / a[key]) for a, b in zip(base, rows, strict=True)
                if key in a and key in b]  # fmt: skip
        if len(logs) == len(base):
            found[key] = (math.exp(logs[0]), float(np.std(logs[1:])))
    return found


def _figures(way: Way, groups: Mapping[str, str]) -> dict[tuple[str, str], float]:
    records: list[RequestRecord] = []
    for twin, load in way:
        records += _records(twin, load)
    found: dict[tuple[str, str], float] = {}
    for group in ("", *dict.fromkeys(groups.values())):
        mine = [r for r in records if not group or groups[r.traffic_class or ""] == group]
        found |= {(group, name): value for name, value in _of(mine).items() if value > 0}
    return found


def _of(records: Sequence[RequestRecord]) -> dict[str, float]:
    whole = [(r.sent_ns, r.first_ns, r.last_ns, r.output_tokens or 0) for r in records]
    told = [(s, f, z, n) for s, f, z, n in whole
            if s is not None and f is not None and z is not None]  # fmt: skip
    if not told:
        return {}
    gaps = sum(n - 1 for _, _, _, n in told if n > 1)
    return {
        TTFT: float(np.quantile([f - s for s, f, _, _ in told], 0.95)) / 1e9,
        E2E: float(np.mean([z - s for s, _, z, _ in told])) / 1e9,
        ITL: sum(z - f for _, f, z, n in told if n > 1) / gaps / 1e9 if gaps else 0.0,
    }


def _records(twin: Twin, load: Workload) -> list[RequestRecord]:
    """Requests that were sent in the window, each followed to its end."""
    offer = Offer(draw_schedule(load))
    fleet = Fleet(twin, offer)
    offer.begin(fleet)
    fleet.run_until(None)
    rows = []
    for request, item in offer.take_ended():
        row = request_record(request, fleet.replicas[request.replica])
        row.traffic_class = load.kinds[item.planned.traffic_class or 0].name
        rows.append(row)
    return [
        r for r in rows
        if r.failure is None and r.sent_ns is not None
        and offer.window_start <= r.sent_ns < offer.window_end
    ]  # fmt: skip
