"""What the stored runs of the H200 hosts say about noise and start times."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from ridgeline.domain.records import Floats
from ridgeline.store.run_directory import StoredRun, read_run

RESULTS = Path(__file__).parents[2] / "results" / "h200"
STUDIES = ("knobs", "one-gpu", "one-gpu-control", "probe", "prompts", "two-gpus")
WINDOW_S = 12.0  # of most stored runs: 10 to 16 s


@dataclass(frozen=True, slots=True)
class Noise:
    """Standard deviations of logarithms. covariance: of (throughput, p95 TTFT, p95 ITL) between
    runs of one configuration. within: of the throughput, by the runs' own intervals. freedom:
    degrees of freedom of the covariance.
    """

    covariance: Floats
    within: float
    freedom: int

    @property
    def between(self) -> float:
        """Of the throughput, beside what runs know of themselves."""
        return math.sqrt(max(0.0, float(self.covariance[0, 0]) - self.within**2))


@cache
def stored() -> dict[tuple[str, str], tuple[StoredRun, ...]]:
    """Valid runs by (study, experiment)."""
    found: dict[tuple[str, str], list[StoredRun]] = defaultdict(list)
    for folder in sorted(f for s in STUDIES for f in (RESULTS / s).glob("*-r[0-9]")):
        run = read_run(folder)
        if run.summary is not None and run.summary.verdict.valid:
            found[folder.parent.name, folder.name[:-3]].append(run)
    return {key: tuple(runs) for key, runs in found.items()}


@cache
def noise() -> Noise:
    """Pooled over all configurations that were run at least twice."""
    parts, own, freedom = [], [], 0
    for runs in stored().values():
        rows = [row for run in runs if (row := _logs(run)) is not None]
        if len(rows) > 1:
            table = np.array(rows)
            parts.append(table - table.mean(axis=0))
            freedom += len(rows) - 1
        own += [w for run in runs if (w := _within(run)) is not None]
    off = np.concatenate(parts)
    return Noise(off.T @ off / freedom, float(np.sqrt(np.mean(np.square(own)))), freedom)


def _logs(run: StoredRun) -> tuple[float, float, float] | None:
    s = run.summary
    assert s is not None
    values = (s.throughput.output_tokens_per_s, s.ttft_s.p95, s.itl_s.p95)
    if any(not v for v in values):
        return None
    return tuple(math.log(v) for v in values if v)  # type: ignore[return-value]


def _within(run: StoredRun) -> float | None:
    assert run.summary is not None
    found = run.summary.intervals.get("throughput.output_tokens_per_s")
    if found is None or not found.low or not found.high:
        return None
    return math.log(found.high / found.low) / 3.92


@dataclass(frozen=True, slots=True)
class Starts:
    """Seconds until an engine answers: with everything to be compiled, alone or nearly; of that
    the compilation; what each further engine that starts beside it adds; what an eager engine
    saves (no compilation, no graphs) and FP8 weights cost.
    """

    alone_s: float
    compile_s: float
    beside_s: float
    eager_s: float
    fp8_s: float


@cache
def starts() -> Starts:
    """From the stored starts; each is one engine, however many runs it served."""
    seen = {name: _replicas([r for (s, _), runs in stored().items() if s == name for r in runs])
            for name in ("probe", "two-gpus", "prompts", "knobs", "one-gpu")}  # fmt: skip
    few = [h for name in ("probe", "two-gpus", "prompts") for h, c in seen[name] if c]
    compiled = [c for name in ("probe", "two-gpus", "prompts") for _, c in seen[name] if c]
    alone = float(np.median(few))
    beside = []
    for name, engines in (("knobs", 7), ("one-gpu", 6)):
        together = [h for h, c in seen[name] if c]
        beside.append((float(np.median(together)) - alone) / (engines - 1))
    eager = [float(np.median([h for h, c in seen[name] if c])) - h
             for name in ("knobs", "one-gpu") for h, c in seen[name] if not c]  # fmt: skip
    fp8 = _healthy("one-gpu", "fp8") - _healthy("one-gpu", "seqs-32")
    return Starts(alone, float(np.median(compiled)), float(np.mean(beside)),
                  float(np.median(eager)), fp8)  # fmt: skip


def _replicas(runs: Sequence[StoredRun]) -> list[tuple[float, float | None]]:
    """(seconds until healthy, seconds of compilation) of each engine."""
    found: dict[tuple[float, float | None], None] = {}
    for run in runs:
        assert run.facts is not None
        replicas = run.facts.server.get("replicas")
        for replica in replicas if isinstance(replicas, list | tuple) else ():
            found[float(replica["healthy_s"]), replica.get("compile_s")] = None
    return list(found)


def _healthy(study: str, experiment: str) -> float:
    return _replicas(stored()[study, experiment])[0][0]
