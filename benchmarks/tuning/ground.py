"""A ground for replay: the search sees the believed twin, measurements come from the hidden truth.

The truth of one seed is the hidden twin's figure times a structural error that is drawn anew for
every seed: a random walk over the values of each knob and a rough field over all knobs together
(exponential covariance; the search's own model takes another one). Trials add the noise of real
runs: common to throughput and latencies as it was between repeats on the H200 hosts, less in a
longer window by the share that a run's own interval knows of. Starts cost what real starts cost.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.tuning import drift, real
from benchmarks.tuning.landscape import Landscape, columns, load
from benchmarks.tuning.settings import Setting
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.records import Floats
from ridgeline.domain.workload import Workload
from ridgeline.tuning.port import Ask, Expected
from ridgeline.tuning.trial import Candidate, Miss, State, Trial

# Standard deviations (log) of the structural error: of each knob over its range, and of all
# together. With six knobs 12 % in throughput, 20 % in latencies: what a twin of H200 hosts was off
# by, calibrated on other runs (docs/twin.md: tokens/s 7 to 13 % in the mean, latencies 10 to 24 %).
KNOB_ERROR, JOINT_ERROR = 0.04, 0.06
LATENCY_FACTOR = 1.6
WARM_S, COLD_S = 4.0, 6.0  # seconds before a trial's window, and of an engine's first load
MARGIN = 1.15  # the optimum is sought among those that meet limits by this factor
Z = 1.959964


@dataclass(frozen=True)
class Truth:
    """figures: as in the landscape. best: the highest objective that can be shown to be feasible
    (every limit met by MARGIN, more than the noise of one run's p95: nearer to a limit a few runs
    show nothing).
    """

    figures: Floats
    feasible: np.ndarray
    best: float


class ReplayGround:
    """One setting under one seed; a `Ground`."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting, self.seed = setting, seed
        self.landscape: Landscape = load(setting)
        self.space = self.landscape.space
        self._keys = columns(setting)
        self._rows = {self.space.resolved(c).identity: i
                      for i, c in enumerate(self.landscape.candidates)}  # fmt: skip
        self.crashing = np.array([setting.crashes(c.change) for c in self.landscape.candidates])
        self.truth = self._truth()
        self._compiled: set[str] = set()
        self._up: dict[object, Candidate] = {}  # engines by the candidate's key, the latest last
        self.now_s = 0.0  # of wall time since the search began; moves the host where that drifts
        self._host = drift.walk((setting.number, seed, 77)) if setting.drifts else None

    @property
    def name(self) -> str:
        """The setting's."""
        return self.setting.name

    @property
    def baseline(self) -> Configuration:
        """What is tuned."""
        return self.setting.configuration

    @property
    def workload(self) -> Workload:
        """What is offered."""
        return self.setting.workload

    @property
    def gpus(self) -> int:
        """Of the host."""
        return self.setting.configuration.gpus

    @property
    def limits(self) -> Mapping[str, float]:
        """What a search has to meet."""
        return self.setting.limits

    @property
    def places(self) -> int:
        return self.setting.places

    @property
    def lasting(self) -> bool:
        """Engines stay up from one question to the next, as those of the product on one host."""
        return True

    def row(self, candidate: Candidate) -> int | None:
        """The candidate's row in the landscape; None where the engine would refuse it."""
        if self.space.refused(candidate) is not None:
            return None
        return self._rows.get(self.space.resolved(candidate).identity)

    def expect(self, candidates: Sequence[Candidate]) -> tuple[Expected, ...]:
        """What the believed twin says; a crash is no part of it."""
        return tuple(map(self._expected, candidates))

    def cost_s(self, candidates: Sequence[Candidate], window_s: float) -> float:
        """All GPUs of the host are taken while engines start and are measured in turn."""
        start, fresh = real.starts(), {c.key: c for c in candidates if c.key not in self._up}
        wall = (WARM_S + window_s) * len(candidates)
        if fresh:
            wall += max(self._start_s(c) for c in fresh.values()) + COLD_S * len(fresh)
            wall += start.beside_s * (len(fresh) - 1)
        return wall * self._gpus(candidates)

    def measure(self, ask: Ask, first: int) -> tuple[Trial, ...]:
        cost = self.cost_s(ask.candidates, ask.window_s)
        share, run_s = cost / len(ask.candidates), WARM_S + ask.window_s
        self.now_s += cost / self._gpus(ask.candidates) - run_s * len(ask.candidates)
        trials: list[Trial] = []
        for candidate in ask.candidates:
            self.now_s += run_s
            trial = self._trial(first + len(trials), candidate, ask.window_s, share)
            if trial.state != "crashed" or candidate.key not in {t.candidate.key for t in trials}:
                trials.append(trial)
        self._compiled.update(self._compile_key(c) for c in ask.candidates)
        crashed = {t.candidate.key for t in trials if t.state in ("crashed", "refused")}
        asked = {c.key: c for c in ask.candidates if c.key not in crashed}
        earlier = [(k, c) for k, c in self._up.items() if k not in asked]
        room = max(self.places - len(asked), 0)
        self._up = dict([*(earlier[-room:] if room else ()), *asked.items()])
        return tuple(trials)

    def one(self, candidate: Candidate, number: int, window_s: float) -> tuple[Floats, Floats]:
        """Figures of one run and their standard errors as the run knows them (logarithms).

        On a host that drifts its speed of now is in them, and its runs scatter around that by what
        they know of themselves alone: what earlier visits saw between runs may have been drift.
        """
        row = self.row(candidate)
        assert row is not None
        random = np.random.default_rng([self.setting.number, self.seed, number])
        noise = real.noise()
        scale = math.sqrt(
            (noise.between**2 + noise.within**2 * real.WINDOW_S / window_s)
            / (noise.between**2 + noise.within**2)
        )
        if self._host is not None:
            scale = noise.within * math.sqrt(real.WINDOW_S / window_s / noise.covariance[0, 0])
        drawn = random.multivariate_normal(np.zeros(3), noise.covariance) * scale
        drawn += self._moved(window_s)
        signs = [drawn[0], *(drawn[1 if k.startswith("ttft") else 2] for k in self._keys)]
        figures = self.truth.figures[row] * np.exp(np.array(signs))
        spread = np.sqrt(np.diag(noise.covariance)) * scale
        errors = [spread[0], *(spread[1 if k.startswith("ttft") else 2] for k in self._keys)]
        return np.asarray(figures, dtype=np.float64), np.array(errors, dtype=np.float64)

    def _moved(self, window_s: float) -> Floats:
        """What the host's speed moves: (throughput, p95 TTFT, p95 ITL), logarithms."""
        if self._host is None:
            return np.zeros(3)
        speed, power = drift.at(self._host, self.now_s - window_s / 2), drift.seen().latency
        return speed * np.array([1.0, -power["ttft"], -power["itl"]])

    def _expected(self, candidate: Candidate) -> Expected:
        row = self.row(candidate)
        if row is None:
            return Expected(candidate, refused="the engine or the twin refuses it")
        value, *slow = (float(v) for v in self.landscape.believed[row])
        limits = dict(zip(self._keys, slow, strict=True))
        met = all(v <= self.setting.limits[k] for k, v in limits.items())
        band = math.exp(0.25)
        return Expected(
            candidate, value, value / band, value * band, 0.8 if met else 0.2, None, limits
        )

    def _trial(self, number: int, candidate: Candidate, window_s: float, gpu_s: float) -> Trial:
        row = self.row(candidate)
        if row is None:
            return Trial(number, candidate, "refused", gpu_s=0.0)
        if self.crashing[row]:
            return Trial(number, candidate, "crashed", gpu_s=gpu_s, reason="planted")
        figures, errors = self.one(candidate, number, window_s)
        low, high = figures * np.exp(-Z * errors), figures * np.exp(Z * errors)
        misses = tuple(
            Miss(k, limit, float(figures[i]), float(low[i]), float(high[i]),
                 True if high[i] <= limit else False if low[i] > limit else None)
            for i, (k, limit) in enumerate(self.setting.limits.items(), 1)
        )  # fmt: skip
        state: State = "feasible"
        if any(m.met is False for m in misses):
            state = "infeasible"
        elif any(m.met is None for m in misses):
            state = "unsure"
        return Trial(number, candidate, state, float(figures[0]), float(low[0]), float(high[0]),
                     misses, window_s, gpu_s, seed=number)  # fmt: skip

    def _gpus(self, candidates: Sequence[Candidate]) -> int:
        found = [self.space.resolved(c).knobs for c in candidates]
        return max((k.tensor_parallel * k.data_parallel for k in found if k is not None), default=1)

    def _start_s(self, candidate: Candidate) -> float:
        start, knobs = real.starts(), self.space.resolved(candidate).knobs
        seconds = start.alone_s
        if self._compile_key(candidate) in self._compiled:
            seconds -= start.compile_s
        if knobs is not None and knobs.eager:
            seconds -= start.eager_s
        if knobs is not None and knobs.weights == "fp8":
            seconds += start.fp8_s
        return seconds

    def _compile_key(self, candidate: Candidate) -> str:
        """What the engine's compiled code depends on."""
        live = [d.name for d in self.space.dimensions if d.restart != "compile"]
        return repr(sorted((n, repr(v)) for n, v in candidate.change.items() if n not in live))

    def _truth(self) -> Truth:
        random = np.random.default_rng([self.setting.number, self.seed, 99])
        places = self.space.places(self.landscape.candidates)
        error = _structure(places, random)
        own = _structure(places, random)
        figures = self.landscape.hidden.copy()
        figures[:, 0] *= np.exp(error)
        for i in range(1, figures.shape[1]):
            # A latency errs with the throughput in part: both come from the step's time.
            figures[:, i] *= np.exp(LATENCY_FACTOR * (-0.7 * error + 0.7 * own))
        limits = list(self.setting.limits.values())
        runs = ~self.crashing
        feasible = runs & (figures[:, 1:] <= limits).all(axis=1)
        shown = runs & (figures[:, 1:] * MARGIN <= limits).all(axis=1)
        best = float(figures[shown, 0].max()) if shown.any() else math.nan
        return Truth(figures, feasible, best)


def _structure(places: Floats, random: np.random.Generator) -> Floats:
    """A random walk over each knob's values, and a field with exponential covariance over all."""
    error = np.zeros(len(places))
    for column in places.T:
        values = np.unique(column)
        steps = np.sqrt(np.diff(values) / max(float(np.ptp(values)), 1e-9))
        walk = np.concatenate(([0.0], np.cumsum(steps * random.standard_normal(len(steps)))))
        error += KNOB_ERROR * (walk - walk.mean())[np.searchsorted(values, column)]
    # Random features of the exponential kernel: frequencies of a Cauchy law.
    frequencies = random.standard_cauchy((places.shape[1], 200)) / 1.5
    waves = np.cos(places @ frequencies + random.uniform(0, 2 * np.pi, 200))
    field = np.sqrt(2 / 200) * waves @ random.standard_normal(200)
    return np.asarray(error + JOINT_ERROR * field, dtype=np.float64)
