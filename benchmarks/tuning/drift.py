"""How a host drifts: what one H200 host did within minutes, as a walk that all its engines share.

On the slow host of results/h200/tune/h200-tune-32-slow-host the same configuration, under the same
load, gave 3 494 and 2 819 output tokens/s 200 s apart, another 8 395, 7 018 and 6 417 within 70 s.
The logarithm of the host's speed is taken for a random walk with the variance per second of these
steps that is pulled back to its mean (Ornstein and Uhlenbeck, 1930); how far it goes in the long
run (`LONG_RUN`) the visit was too short to tell.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import pairwise

import numpy as np

from benchmarks.tuning.real import RESULTS
from ridgeline.domain.records import Floats
from ridgeline.store.run_directory import StoredRun, read_run

VISIT = RESULTS / "tune" / "h200-tune-32-slow-host"
LONG_RUN = 0.2  # standard deviation of the speed's logarithm over hours: an assumption
STEP_S, MOST_S = 5.0, 6 * 3600.0


@dataclass(frozen=True, slots=True)
class Drift:
    """per_s: variance of the speed's logarithm that a second adds. latency: by what power of the
    slowness a latency grows, by metric.
    """

    per_s: float
    latency: Mapping[str, float]

    @property
    def back_s(self) -> float:
        """Seconds in which a deviation falls to 1/e."""
        return 2 * LONG_RUN**2 / self.per_s


@cache
def whole_runs() -> tuple[StoredRun, ...]:
    """The visit's runs that came to their end; first loads of fresh engines are left out."""
    folders = (f.parent for f in sorted(VISIT.glob("**/run.json")) if "cold" not in f.parts)
    return tuple(r for r in map(read_run, folders) if r.valid and r.summary is not None)


@cache
def seen() -> Drift:
    """From the whole runs of configurations that the visit measured more than once."""
    runs: dict[str, list[StoredRun]] = {}
    for run in whole_runs():
        runs.setdefault(repr(run.meta.configuration.knobs), []).append(run)
    rows = []
    for own in runs.values():
        own.sort(key=_ended_s)
        for before, after in pairwise(own):
            logs = _logs(after) - _logs(before)
            rows.append((_ended_s(after) - _ended_s(before), *logs))
    seconds, speed, ttft, itl = np.array(rows).T
    squares = float((speed**2).sum())
    power = {"ttft": -float((speed * ttft).sum()) / squares,
             "itl": -float((speed * itl).sum()) / squares}  # fmt: skip
    return Drift(squares / float(seconds.sum()), power)


def _ended_s(run: StoredRun) -> float:
    return datetime.fromisoformat(run.ended_at).timestamp()


def _logs(run: StoredRun) -> Floats:
    s = run.summary
    assert s is not None
    figures = (s.throughput.output_tokens_per_s, s.ttft_s.p95, s.itl_s.p95)
    return np.log(np.array(figures, dtype=np.float64))


def walk(seed: tuple[int, ...]) -> Floats:
    """The logarithm of a host's speed every `STEP_S`, for `MOST_S`; its long run has mean 0."""
    random, drift = np.random.default_rng(seed), seen()
    kept = math.exp(-STEP_S / drift.back_s)
    fresh = LONG_RUN * math.sqrt(1 - kept**2) * random.standard_normal(int(MOST_S / STEP_S))
    found = np.empty(len(fresh))
    level = LONG_RUN * random.standard_normal()
    for i, step in enumerate(fresh):
        level = kept * level + step
        found[i] = level
    return found


def at(host: Floats, second: float) -> float:
    """The logarithm of its speed at that second."""
    return float(host[min(int(second / STEP_S), len(host) - 1)])
