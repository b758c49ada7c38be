"""The real trials: configurations that were measured on H200 hosts, replayed.

Space: batch ceiling, captured graphs, weights, eager. Seven of its points were measured, nine to
three times each, in three studies (results/h200/one-gpu, knobs, two-gpus); the others count as
refused. A trial is one of the stored runs, drawn by the seed; the truth is the geometric mean over
all of them. What the twin believes has the constants that ship.

A second ground has the three configurations of one tuning on a host that launched a third slower
and drifted (results/h200/tune/h200-tune-32-slow-host): its runs differ by what the host did.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from benchmarks.tuning import drift, real
from benchmarks.tuning.ground import COLD_S, WARM_S, Truth, Z
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.records import Floats
from ridgeline.domain.slo import slo_from_mapping
from ridgeline.engines.twin import twin_of
from ridgeline.experiment.planning import with_changes
from ridgeline.experiment.predicting import Predictor
from ridgeline.store.run_directory import StoredRun
from ridgeline.tuning.port import Ask, Expected
from ridgeline.tuning.ranges import space_of
from ridgeline.tuning.space import Space
from ridgeline.tuning.trial import Candidate, Miss, State, Trial

STUDIES = ("one-gpu", "knobs", "two-gpus", "one-gpu-control")
LIMITS = {"ttft_p95_ms": 2000.0, "itl_p95_ms": 20.0}
VALUES = {
    "max_num_seqs": (32, 64, 128), "max_cudagraph_capture_size": (None, 1024),
    "quantization": (None, "fp8"), "enforce_eager": (False, True),
    "max_num_batched_tokens": (4096,),
}  # fmt: skip
SLOW_VALUES = {
    "max_num_seqs": (32, 64, 128), "max_num_batched_tokens": (512, 4096, 16384),
    "max_cudagraph_capture_size": (None, 512, 2048), "enable_prefix_caching": (False, True),
    "api_server_count": (1, 4),
}  # fmt: skip
PLACES = 1  # one engine at a time: seven candidates would be two batches of four
SHAPE = "Qwen/Qwen3-4B"  # of the served model, whose weights are random


Measured = tuple[Space, Configuration, Any, tuple[Candidate, ...], tuple[Floats, ...]]


@cache
def _of_slow_host() -> Measured:
    """The same of the slow host's visit; changes are the knobs that differ from its baseline's."""
    runs = drift.whole_runs()
    first = next(r for r in runs if r.meta.experiment.startswith("trial-001-baseline"))
    base = replace(first.meta.configuration, model=SHAPE, launch=None)
    slo = slo_from_mapping(LIMITS)
    space = space_of(base, first.meta.workload, slo, wanted=SLOW_VALUES, only=True)
    found: dict[str, tuple[Candidate, list[Sequence[float]]]] = {}
    given = base.knobs.given()
    for run in runs:
        own = run.meta.configuration.knobs.given()
        candidate = Candidate({n: v for n, v in own.items() if given.get(n) != v})
        _, rows = found.setdefault(space.resolved(candidate).identity, (candidate, []))
        rows.append(_figures(run))
    candidates = tuple(c for c, _ in found.values())
    return space, base, first.meta.workload, candidates, tuple(np.array(r) for _, r in found.values())  # noqa: E501  # fmt: skip


@cache
def _measured() -> Measured:
    """Space, baseline, workload, the candidates that were measured, and the runs of each: rows of
    (output tokens/s, p95 TTFT in ms, p95 ITL in ms).
    """
    first = next(r for (s, e), runs in real.stored().items() if (s, e) == ("knobs", "seqs-32") for r in runs)  # fmt: skip  # noqa: E501
    base = replace(first.meta.configuration, model=SHAPE, launch=None)
    workload = first.meta.workload
    space = space_of(base, workload, slo_from_mapping(LIMITS), wanted=VALUES, only=True)
    found: dict[str, tuple[Candidate, list[Sequence[float]]]] = {}
    for (study, experiment), runs in real.stored().items():
        for run in runs:
            candidate = _candidate(space, base, run) if study in STUDIES else None
            if candidate is None or experiment.startswith(("short", "users", "two-gpus")):
                continue
            _, rows = found.setdefault(space.resolved(candidate).identity, (candidate, []))
            rows.append(_figures(run))
    candidates = tuple(c for c, _ in found.values())
    return space, base, workload, candidates, tuple(np.array(r) for _, r in found.values())


def _candidate(space: Space, base: Configuration, run: StoredRun) -> Candidate | None:
    """The run's configuration as a change from the baseline."""
    knobs = twin_of(replace(run.meta.configuration, model=SHAPE)).knobs
    change: dict[str, Any] = {}
    if knobs.max_num_seqs != base.knobs.max_num_seqs:
        change["max_num_seqs"] = knobs.max_num_seqs
    if run.meta.configuration.knobs.max_cudagraph_capture_size is not None:
        change["max_cudagraph_capture_size"] = knobs.max_capture_size
    if knobs.weights == "fp8":
        change["quantization"] = "fp8"
    if knobs.eager:
        change["enforce_eager"] = True
    candidate = Candidate(change)
    return candidate if space.refused(candidate) is None else None


def _figures(run: StoredRun) -> tuple[float, float, float]:
    s = run.summary
    assert s is not None
    assert s.throughput.output_tokens_per_s is not None
    assert s.ttft_s.p95 is not None
    assert s.itl_s.p95 is not None
    return s.throughput.output_tokens_per_s, 1e3 * s.ttft_s.p95, 1e3 * s.itl_s.p95


@cache
def _believed(name: str) -> Floats:
    _, base, workload, candidates, _ = MEASURED[name]()
    predict, rows = Predictor(slo_from_mapping(LIMITS)), []
    for candidate in candidates:
        s = predict(with_changes(base, candidate.change), workload, candidate.change).summary
        assert s is not None
        rows.append((s.throughput.output_tokens_per_s, 1e3 * (s.ttft_s.p95 or 0.0),
                     1e3 * (s.itl_s.p95 or 0.0)))  # fmt: skip
    return np.array(rows, dtype=np.float64)


MEASURED = {"h200-real": _measured, "h200-slow-real": _of_slow_host}


class RealGround:
    """The stored runs under one seed; a `Ground`."""

    name = "h200-real"
    limits = LIMITS
    places = PLACES
    gpus = 1
    lasting = True

    def __init__(self, seed: int) -> None:
        self.seed, self.now_s = seed, 0.0
        self._up: tuple[object, ...] = ()  # keys of the engines that are up, the latest first
        self.space, self.baseline, self.workload, self.candidates, self._runs = MEASURED[
            self.name
        ]()
        self._rows = {self.space.resolved(c).identity: i for i, c in enumerate(self.candidates)}
        self.crashing = np.zeros(len(self.candidates), dtype=bool)
        figures = np.exp([np.log(rows).mean(axis=0) for rows in self._runs])
        feasible = np.all(figures[:, 1:] <= np.array(list(LIMITS.values())), axis=1)
        best = float(figures[feasible, 0].max()) if feasible.any() else math.nan
        self.truth = Truth(figures, feasible, best)

    def row(self, candidate: Candidate) -> int | None:
        """Where the candidate stands; None where it was not measured."""
        if self.space.refused(candidate) is not None:
            return None
        return self._rows.get(self.space.resolved(candidate).identity)

    def expect(self, candidates: Sequence[Candidate]) -> tuple[Expected, ...]:
        """What the twin says with the constants that ship."""
        found = []
        for candidate in candidates:
            row = self.row(candidate)
            if row is None:
                found.append(Expected(candidate, refused="not among the stored runs"))
                continue
            value, *slow = (float(v) for v in _believed(self.name)[row])
            limits = dict(zip(LIMITS, slow, strict=True))
            chance = 0.8 if all(limits[k] <= v for k, v in LIMITS.items()) else 0.2
            found.append(Expected(candidate, value, value / 1.5, value * 1.5, chance, None, limits))
        return tuple(found)

    def cost_s(self, candidates: Sequence[Candidate], window_s: float) -> float:
        """As the other settings: starts side by side, windows in turn."""
        start, windows_s = real.starts(), (WARM_S + window_s) * len(candidates)
        fresh = {c.key: c for c in candidates if c.key not in self._up}
        if not fresh:
            return windows_s
        fp8 = any(c.change.get("quantization") for c in fresh.values())
        beside = start.beside_s * (len(fresh) - 1) + COLD_S * len(fresh)
        return start.alone_s + start.fp8_s * fp8 + beside + windows_s

    def measure(self, ask: Ask, first: int) -> tuple[Trial, ...]:
        share = self.cost_s(ask.candidates, ask.window_s) / len(ask.candidates)
        self._up = tuple(dict.fromkeys((*(c.key for c in ask.candidates), *self._up)))[:PLACES]
        return tuple(
            self._trial(n, c, ask.window_s, share) for n, c in enumerate(ask.candidates, first)
        )

    def one(self, candidate: Candidate, number: int, window_s: float) -> tuple[Floats, Floats]:
        """One of the stored runs, and standard errors as noise of such runs is known."""
        row = self.row(candidate)
        assert row is not None
        random = np.random.default_rng([self.seed, number])
        rows = self._runs[row]
        return rows[random.integers(len(rows))], np.sqrt(np.diag(real.noise().covariance))

    def _trial(self, number: int, candidate: Candidate, window_s: float, gpu_s: float) -> Trial:
        if self.row(candidate) is None:
            return Trial(number, candidate, "refused")
        figures, errors = self.one(candidate, number, window_s)
        low, high = figures * np.exp(-Z * errors), figures * np.exp(Z * errors)
        misses = tuple(
            Miss(k, limit, float(figures[i]), float(low[i]), float(high[i]),
                 True if high[i] <= limit else False if low[i] > limit else None)
            for i, (k, limit) in enumerate(LIMITS.items(), 1)
        )  # fmt: skip
        state: State = "feasible" if all(m.met for m in misses) else "unsure"
        if any(m.met is False for m in misses):
            state = "infeasible"
        return Trial(number, candidate, state, float(figures[0]), float(low[0]), float(high[0]),
                     misses, window_s, gpu_s, seed=number)  # fmt: skip


class SlowRealGround(RealGround):
    """The runs of the slow host's visit."""

    name = "h200-slow-real"
