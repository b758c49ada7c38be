"""What the twin says of candidates, calibrated by what was measured so far.

A look is a short run of the twin; looks are kept, and spread over the cores. Measured trials are
held against what was predicted of them before: a twin that they contradict is demoted, which is
said, and its bands are as wide as it was wrong. From the first two configurations on it is
fitted to them (`refitting`) in a process of its own. The first fit is waited for, so that the next
question already goes by this host; later fits run beside the measuring.
"""

import contextlib
import json
import math
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ridgeline.domain.bands import LEVEL, TOKENS, Z, value_at
from ridgeline.domain.errors import BadInput
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.slo import Slo, parse_slo
from ridgeline.domain.summary import Summary
from ridgeline.domain.workload import Workload
from ridgeline.experiment.heldagainst import Held, agreement
from ridgeline.experiment.predicting import Predictor
from ridgeline.tuning.certificate import Basis
from ridgeline.tuning.objective import Goal, value_of
from ridgeline.tuning.port import Expected
from ridgeline.tuning.setting import Setting
from ridgeline.tuning.trial import Candidate, Trial
from ridgeline.workload.calibrationfile import read_calibration

LOOK_S, LOOK_WARMUP_S = 6.0, 3.0
POOL_PAYS = 12  # looks from which worker processes save more than their start takes
MOST_WORKERS = 12
FIT_FROM, FIT_MOST = 2, 5  # distinct measured configurations that a fit needs, and takes
FIT_AGAIN = 4  # the same where the study has a calibration, which two short runs do not outweigh
# The first fit takes 40 simulations of 0.1 to 0.3 s on one core. A GPU waits no longer than this.
FIRST_FIT_S = 20.0
CORES_FOR_FIT = 4
FITTED_HERE = "the twin was calibrated"
UNKNOWN = 0.5  # probability of meeting the targets where nothing is known
CALIBRATION = "calibration.json"
Key = tuple[tuple[str, str], ...]
_Job = tuple[Configuration, Workload, Slo, Goal]


@dataclass(frozen=True, slots=True)
class _Look:
    """What one look gave; plain, so that it travels between processes."""

    value: float | None
    tokens: float | None
    limits: dict[str, float]
    refused: str | None = None


class Oracle:
    """Answers for a setting's candidates; close it. Without a known GPU it knows nothing.

    `folder`: where a calibration is kept.
    """

    def __init__(self, setting: Setting, folder: Path, cores: int | None = None) -> None:
        self.setting, self._folder = setting, folder
        self._cores = cores or len(os.sched_getaffinity(0))
        self._base = replace(setting.configuration, engine="twin", launch=None)
        self._load = _short(setting.workload)
        self._looks: dict[Key, _Look] = {}
        self._pool: ProcessPoolExecutor | None = None
        self._sigmas: dict[str, float] | None = None
        self._held: dict[int, Held] = {}
        self._fit: Future[dict[str, Any]] | None = None
        self._fitted_to = 0
        self.known = self._base.gpu is not None
        self.notes: list[str] = []
        if (folder / CALIBRATION).exists():
            self._take(json.loads((folder / CALIBRATION).read_text("utf-8")))

    def expect(self, candidates: Sequence[Candidate]) -> tuple[Expected, ...]:
        """What is expected of each; see Ground."""
        if not self.known:
            return tuple(Expected(c, feasible=UNKNOWN) for c in candidates)
        self._take_fit()
        self._look([c for c in candidates if c.key not in self._looks])
        return tuple(self._expected(c, self._looks[c.key]) for c in candidates)

    def learn(self, trials: Sequence[Trial], runs: Path, tokens: dict[int, float]) -> None:
        """Take measured trials: hold them against what was expected, and fit anew when it pays.

        `runs`: the folder of their runs. `tokens`: output tokens/s by a trial's number.
        """
        if not self.known or self.setting.simulated:
            return
        for trial in trials:
            seen = tokens.get(trial.number)
            if trial.value is None or seen is None or trial.number in self._held:
                continue
            self._look([trial.candidate] if trial.candidate.key not in self._looks else [])
            self._held[trial.number] = self._hold(trial, seen)
        counted = [t for t in trials if t.value is not None]
        distinct = len({t.candidate.key for t in counted})
        least = FIT_FROM if self.setting.configuration.calibration is None else FIT_AGAIN
        if self._cores >= CORES_FOR_FIT and distinct >= max(least, 2 * self._fitted_to):
            first = not self._fitted_to
            self._begin_fit(runs, distinct)
            if first and self._fit is not None:
                wait([self._fit], timeout=FIRST_FIT_S)
                self._take_fit()

    @property
    def demoted(self) -> str | None:
        """Why the twin's ranking is not relied on, None while it is."""
        found = agreement(self._held.values())
        if not found.demoted:
            return None
        return (
            f"the twin is demoted: {found.outside} of {found.known} measured throughputs lie"
            f" outside its {LEVEL:.0%} bands; the search goes by what was measured"
        )

    def basis(self) -> Basis:
        """What its word rests on, for the certificate; ask only with a known GPU."""
        known = self._base.calibration
        words = "the twin, its constants prior and fitted to nothing measured here"
        if known is not None:
            fitted = any(n.startswith(FITTED_HERE) for n in self.notes)
            words = "the twin, calibrated " + (
                "on this tuning's own trials" if fitted else "by the study's calibration file"
            )
        held = sum(h.predicted is not None for h in self._held.values())
        if held:
            words += f" and held against {held} measured trial{'s' * (held != 1)}"
        return Basis(words, Z * self._errors()[TOKENS])

    def under(self, wanted: Sequence[tuple[Candidate, Workload]]) -> tuple[Expected, ...]:
        """What is expected of candidates under other loads; nothing without a known GPU."""
        if not self.known:
            return ()
        setting = self.setting
        jobs = [(self._twin(c), _short(load), setting.slo, setting.goal) for c, load in wanted]
        found = self._looks_at(jobs)
        return tuple(self._expected(c, x) for (c, _), x in zip(wanted, found, strict=True))

    def close(self) -> None:
        """End the worker processes."""
        if self._pool is not None:
            for process in list((self._pool._processes or {}).values()):
                process.terminate()
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _look(self, candidates: Sequence[Candidate]) -> None:
        todo = {c.key: c for c in candidates}
        goal, slo = self.setting.goal, self.setting.slo
        jobs = [(self._twin(c), self._load, slo, goal) for c in todo.values()]
        self._looks |= dict(zip(todo, self._looks_at(jobs), strict=True))

    def _twin(self, candidate: Candidate) -> Configuration:
        return replace(
            self.setting.served(candidate), engine="twin", launch=None,
            calibration=self._base.calibration,
        )  # fmt: skip

    def _looks_at(self, jobs: Sequence[_Job]) -> list[_Look]:
        workers = min(self._cores, MOST_WORKERS)
        if len(jobs) >= POOL_PAYS and workers > 1:
            try:
                return list(self._workers().map(_look_of, jobs, chunksize=2))
            except BrokenProcessPool:  # a worker was killed, perhaps for memory: go on alone
                self._pool, self._fit, self._cores = None, None, 1
        return [_look_of(job) for job in jobs]

    def _workers(self) -> ProcessPoolExecutor:
        if self._pool is None:
            workers = min(self._cores, MOST_WORKERS)
            self._pool = ProcessPoolExecutor(
                workers, mp_context=multiprocessing.get_context("spawn"), initializer=_quiet
            )
        return self._pool

    def _expected(self, candidate: Candidate, look: _Look) -> Expected:
        if look.refused is not None or look.value is None:
            return Expected(candidate, refused=look.refused or "the twin gives no figure")
        sigmas = self._errors()
        chance = 1.0
        for limit in self.setting.slo.limits:
            value = look.limits.get(limit.key)
            if value is None:
                continue
            margin = math.inf if not value else math.log(max(limit.value, 1e-9) / value)
            if limit.key == "attainment":
                margin = -margin
            error = sigmas.get(f"{limit.metric}_s.{limit.statistic}", sigmas[TOKENS])
            chance = min(chance, 0.5 * math.erfc(-margin / (error * math.sqrt(2))))
        spread = math.exp(Z * sigmas[TOKENS])
        return Expected(
            candidate, look.value, look.value / spread, look.value * spread, chance,
            limits=look.limits,
        )  # fmt: skip

    def _errors(self) -> dict[str, float]:
        """Standard errors as logarithms by a figure's path; of throughput at least as it erred."""
        if self._sigmas is None:
            full = Predictor(self.setting.slo)(self._base, self._load, {}, bands=True)
            bands = {} if full.summary is None else full.summary.bands
            found = {path: math.log(b.high / b.low) / (2 * Z) for path, b in bands.items()}
            self._sigmas = {TOKENS: 0.2, **found}
        erred = [math.log(h.measured / h.predicted) for h in self._held.values() if h.predicted]
        rms = math.sqrt(sum(e * e for e in erred) / len(erred)) if len(erred) > 1 else 0.0
        return {**self._sigmas, TOKENS: max(self._sigmas[TOKENS], rms)}

    def _hold(self, trial: Trial, measured: float) -> Held:
        look = self._looks[trial.candidate.key]
        name = trial.run or str(trial.number)
        if look.refused is not None or not look.tokens:
            return Held(name, TOKENS, measured, refused=look.refused)
        spread = math.exp(Z * self._errors()[TOKENS])
        return Held(name, TOKENS, measured, look.tokens, look.tokens / spread, look.tokens * spread)

    def _begin_fit(self, runs: Path, distinct: int) -> None:
        if self._fit is None:
            self._fitted_to = distinct
            self._fit = self._workers().submit(_fit, runs)

    def _take_fit(self) -> None:
        if self._fit is None or not self._fit.done():
            return
        done, self._fit = self._fit, None
        try:
            body = done.result()
        except Exception as error:  # a fit that did not work out must not end a tuning
            self.notes.append(f"the twin was not calibrated: {type(error).__name__}: {error}")
            return
        path = self._folder / CALIBRATION
        path.write_text(json.dumps(body) + "\n", encoding="utf-8")
        try:
            self._take(body)
        except BadInput as error:  # a fit that went far astray: it must not end one either
            path.unlink()
            self.notes.append(f"the twin was not calibrated: {error}")

    def _take(self, body: dict[str, Any]) -> None:
        known = read_calibration(self._folder / CALIBRATION)
        self._base = replace(self._base, calibration=known)
        self._looks.clear()
        self._sigmas = None
        runs = len(body.get("runs", ()))
        self.notes.append(f"{FITTED_HERE} on {runs} measured configurations")


def _short(workload: Workload) -> Workload:
    """The load as a look has it: enough to rank by."""
    return replace(
        workload,
        duration_s=min(workload.duration_s, LOOK_S),
        warmup_s=min(workload.warmup_s, LOOK_WARMUP_S),
        warmup_auto=False,
        requests=None,
    )


def _look_of(job: _Job) -> _Look:
    configuration, workload, slo, goal = job
    found = Predictor(slo)(configuration, workload, {})
    if found.summary is None:
        return _Look(None, None, {}, found.refused)
    summary: Summary = found.summary
    limits = {
        parse_slo(r.limit).limits[0].key: r.value
        for r in summary.slo
        if r.value is not None and r.traffic_class is None
    }
    return _Look(
        value_of(summary, goal, configuration.gpus), value_at(summary, TOKENS), limits
    )  # fmt: skip


def _fit(runs: Path) -> dict[str, Any]:
    """In a worker: constants that fit the runs of a folder."""
    from ridgeline.experiment.calibrating import read_observations  # noqa: PLC0415
    from ridgeline.tuning.refitting import refit  # noqa: PLC0415

    return refit(read_observations([runs])[-FIT_MOST:]).to_json()


def _quiet() -> None:
    """Ctrl-C reaches the whole process group; the parent decides what it means."""
    import signal  # noqa: PLC0415

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(10)  # looks must not disturb what is being measured
