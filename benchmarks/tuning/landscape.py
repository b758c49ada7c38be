"""What the twin says of every configuration of a setting: once as the search believes, once with
the hidden constants of the corpus.

The believed twin has the constants that ship. The hidden one has them drawn from their stated
uncertainty (launch, API server and scheduling costs of the host, shares of the peaks), one draw for
each setting by its number, and another draw of lengths and arrivals. `python -m benchmarks.tuning
--make` regenerates the stored file; what `ground` adds to it (a structural error of the twin for
every seed, noise, crashes) is not in it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tuning.settings import Setting
from ridgeline.domain.bands import value_at
from ridgeline.domain.errors import RidgelineError
from ridgeline.domain.records import Floats
from ridgeline.domain.summary import Summary
from ridgeline.engines.twin import TwinEngine, constants_of
from ridgeline.experiment.planning import with_changes
from ridgeline.experiment.predicting import Predictor
from ridgeline.tuning.objective import value_of
from ridgeline.tuning.space import Space
from ridgeline.tuning.trial import Candidate
from ridgeline.twin.constants import Constants
from ridgeline.twin.uncertainty import prior_doubt

FILE = Path(__file__).with_name("landscapes.npz")
LEAST_GOODPUT = 0.05
LAUNCHES = (
    "full_graph_launch_ns", "piecewise_launch_ns", "piecewise_launch_ns_per_layer",
    "eager_launch_ns", "eager_launch_ns_per_layer",
)  # fmt: skip
MOST_SIGMA = 1.5  # a draw further out is pulled in: 0.30 of a launch time is then x 0.64 to 1.57


@dataclass(frozen=True)
class Landscape:
    """figures: (candidates x columns), the objective first, then each limit in its order."""

    space: Space
    candidates: tuple[Candidate, ...]
    believed: Floats
    hidden: Floats


@dataclass(frozen=True, slots=True)
class _Twin(Predictor):
    """A predictor with constants of its own."""

    constants: Constants | None = None

    def engine(self, configuration: Any) -> TwinEngine:
        return TwinEngine(self.constants)


def hidden_constants(setting: Setting) -> Constants:
    """The constants of the setting's truth."""
    random = np.random.default_rng([setting.number, 2026])
    base = constants_of(setting.configuration)
    device = setting.configuration.device()
    assert device is not None
    changes: dict[str, Any] = {}
    if setting.launch is not None:
        return replace(base, **{n: setting.launch * getattr(base, n) for n in LAUNCHES})
    for direction in prior_doubt(device.name).directions:
        z = float(np.clip(random.standard_normal(), -MOST_SIGMA, MOST_SIGMA))
        for name, size in direction.items():
            moved = getattr(base, name) * float(np.exp(z * size))
            changes[name] = min(moved, 0.97) if name.endswith("_share") else moved
    return replace(base, **changes)


def columns(setting: Setting) -> tuple[str, ...]:
    """The limits' keys, in the order of the figures after the objective."""
    return tuple(setting.limits)


def all_candidates(space: Space) -> tuple[Candidate, ...]:
    """Every candidate that no rule refuses, once for each thing that the engine would run."""
    seen: dict[str, Candidate] = {}
    points = sorted(product(*(d.values for d in space.dimensions)),
                    key=lambda p: len(space.candidate(p).change))  # fmt: skip
    for point in points:
        candidate = space.candidate(point)
        if space.refused(candidate) is None:
            seen.setdefault(space.resolved(candidate).identity, candidate)
    return tuple(seen.values())


def make(settings: Sequence[Setting], said: Callable[[str], None]) -> None:
    """Simulate every candidate of every setting twice and store the figures."""
    found: dict[str, Any] = dict(_stored()) if FILE.exists() else {}
    for setting in (s for s in settings if s.like is None):
        space = setting.tuned()
        candidates = all_candidates(space)
        both = []
        for constants, seed in ((None, 7), (hidden_constants(setting), 11)):
            predict = _Twin(setting.slo, 0.0, constants)
            load = replace(setting.workload, seed=seed)
            rows = []
            for i, candidate in enumerate(candidates):
                rows.append(_figures(setting, predict, load, candidate))
                if i % 100 == 0:
                    said(f"{setting.name}: {i} of {len(candidates)}")
            both.append(np.array(rows, dtype=np.float32))
        found[f"{setting.name}/believed"], found[f"{setting.name}/hidden"] = both
        found[f"{setting.name}/changes"] = np.array(_text(candidates))
        np.savez_compressed(FILE, **found)  # after each, so that a stopped run is not lost


def _text(candidates: Sequence[Candidate]) -> str:
    return json.dumps([dict(c.change) for c in candidates])


def _figures(setting: Setting, predict: Predictor, load: Any, candidate: Candidate) -> list[float]:
    """Objective and limits; NaN where the twin refuses."""
    configuration = with_changes(setting.configuration, candidate.change)
    try:
        run = predict(configuration, load, candidate.change).summary
    except RidgelineError:
        run = None
    if run is None:
        return [float("nan")] * (1 + len(setting.limits))
    value = value_of(run, setting.goal, configuration.gpus)
    if setting.goal == "goodput":
        value = max(value or 0.0, LEAST_GOODPUT)  # no request in time is a very low score, not none
    return [value or float("nan"), *(_limit(run, key) for key in columns(setting))]


def _limit(run: Summary, key: str) -> float:
    metric, statistic, _ = key.rsplit("_", 2)
    found = value_at(run, f"{metric}_s.{statistic}")
    return float("nan") if found is None else 1e3 * found


@cache
def _stored() -> Mapping[str, Any]:
    with np.load(FILE, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def load(setting: Setting) -> Landscape:
    """The stored landscape. Candidates without a figure in either world are left out."""
    stored, name = _stored(), setting.like or setting.name
    believed = stored[f"{name}/believed"].astype(np.float64)
    hidden = stored[f"{name}/hidden"].astype(np.float64)
    candidates = [Candidate(_plain(c)) for c in json.loads(str(stored[f"{name}/changes"]))]
    known = np.isfinite(believed).all(axis=1) & np.isfinite(hidden).all(axis=1)
    kept = tuple(c for c, ok in zip(candidates, known, strict=True) if ok)
    return Landscape(setting.tuned(), kept, believed[known], hidden[known])


def _plain(change: Mapping[str, Any]) -> dict[str, Any]:
    return dict(change)
