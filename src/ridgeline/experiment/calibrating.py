"""Fits the twin's host constants to measured runs, and says how well that went.

What is fitted is a property of a host and a GPU, not of a run: launch times, the time between two
steps, what the API server costs, and the two efficiencies that decide decode and prefill. Runs of
the same configuration and load (repeats) are merged first. A constant about which the runs say
nothing keeps its start and is reported as not informed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.domain.bands import TOKENS, value_at
from ridgeline.domain.errors import BadInput
from ridgeline.domain.knobs import Configuration, Served
from ridgeline.domain.metrics import Sample, take_sample, throughput
from ridgeline.domain.model import shape
from ridgeline.domain.records import Floats, MemorySink
from ridgeline.domain.run import SilentWatch
from ridgeline.domain.summary import Throughput
from ridgeline.domain.workload import Workload
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.twin import (
    FREE,
    TwinEngine,
    fit_constants,
    known_constants,
)
from ridgeline.engines.twin_scope import same_shape, served
from ridgeline.store.run_directory import StoredRun, is_finished, read_run
from ridgeline.workload.calibrationfile import CALIBRATION_SCHEMA
from ridgeline.workload.schedule import Schedule, draw_schedule

# Figures that are held against each other, and the error that is expected of each (a logarithm).
FIGURES: Mapping[str, float] = {
    "output_tokens_per_s": 0.04,
    "itl_mean_s": 0.07, "itl_p50_s": 0.05, "itl_p95_s": 0.20,
    "ttft_mean_s": 0.15, "ttft_p50_s": 0.15, "ttft_p95_s": 0.20,
    "tokens_per_chunk": 0.05,  # above 1 where a late API server merges: what its work costs
}  # fmt: skip
CHUNKS = "throughput.chunks_per_s"
PATHS: Mapping[str, str] = {
    "output_tokens_per_s": TOKENS,
    **{n: f"{n[:-2].replace('_', '_s.')}" for n in FIGURES if n.startswith(("itl", "ttft"))},
}  # fmt: skip
WORSE = 0.1  # a share of a figure: more than the noise of a run
LEAST = 0.02  # no figure is known better than the noise of a repeat
# A simulation is not smooth: whether outputs are merged jumps with a constant.
STEP, EVALUATIONS = 0.15, 25
PULL = 0.8  # hosts differ more than the kernels of one GPU: a wide start, as a logarithm
Said = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Observation:
    """What was measured of one configuration under one load (the mean over its repeats).

    `prompt_extra`: tokens that the server counted above what was planned (the chat template).
    `kv_tokens`: the pool's size by the engine's own log, None when not known. `release`: what the
    engine said that it is, likewise. `taken_for`: the runs' own name of their model where its shape
    is not known here, and the configuration's is one that was given for it.
    """

    name: str
    configuration: Configuration
    workload: Workload
    figures: Mapping[str, float]
    prompt_extra: int = 0
    kv_tokens: int | None = None
    repeats: int = 1
    release: str | None = None
    taken_for: str | None = None

    @property
    def served(self) -> Served:
        """What a calibration on it is of."""
        return served(on_twin(self), self.release)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted constants, their standard errors (shares), and figures before and after by run."""

    gpu: str
    model: str
    constants: Mapping[str, float]
    errors: Mapping[str, float]
    observations: tuple[Observation, ...]
    before: tuple[Mapping[str, float], ...]
    after: tuple[Mapping[str, float], ...]
    covariance: tuple[tuple[float, ...], ...] = ()

    @property
    def residuals(self) -> dict[str, float]:
        """What the fit left over, by the figure's path in a Summary: an RMS of logarithms.

        No smaller than LEAST: few runs can be met by chance. The fit took some of the freedom.
        """
        found = {}
        for name in FIGURES:
            off = [
                np.log(a[name] / o.figures[name])
                for o, a in zip(self.observations, self.after, strict=True)
                if name in o.figures and name in a
            ]
            if off and name in PATHS:  # the others have no band
                free = max(1.0, len(off) - len(self.informed) / len(FIGURES))
                rms = float(np.sqrt(np.sum(np.square(off)) / free))
                found[PATHS[name]] = round(max(rms, LEAST), 3)
        return found

    @property
    def informed(self) -> tuple[str, ...]:
        """Constants about which the runs say more than the prior did."""
        return tuple(n for n, e in self.errors.items() if e < 0.8 * PULL)

    def to_json(self) -> dict[str, Any]:
        """The calibration file."""
        figures = self.observations[0].configuration.gpu_figures
        return {
            "schema": CALIBRATION_SCHEMA,
            "gpu": self.gpu,
            **({"gpu_figures": dict(figures)} if figures is not None else {}),
            "model": self.model,
            "fitted_on": [asdict(s) for s in dict.fromkeys(o.served for o in self.observations)],
            "constants": dict(self.constants),
            "errors": dict(self.errors),
            "informed": list(self.informed),
            "covariance": [list(row) for row in self.covariance],
            "residuals": self.residuals,
            "runs": [
                {"name": o.name, "repeats": o.repeats, "measured": dict(o.figures),
                 "before": dict(b), "after": dict(a)}
                for o, b, a in zip(self.observations, self.before, self.after, strict=True)
            ],
        }  # fmt: skip


def read_observations(
    folders: Iterable[Path], model: str | None = None, where: str = "calibrate"
) -> tuple[Observation, ...]:
    """The measured runs under the given folders (runs, or studies that hold runs).

    `model` has the shape that was served, where the runs name a folder that is not here. `where`
    goes into errors.

    Raises BadInput when there is nothing to learn from: no runs, twins only, no known GPU; and for
    runs whose own model is known to have another shape than `model`.
    """
    runs: list[StoredRun] = []
    twins = unknown = pools = 0
    for folder in folders:
        for run in _runs_in(folder):
            if not run.valid or run.facts is None or run.summary is None:
                continue
            if run.meta.configuration.pools:  # several configurations in one set of figures
                pools += 1
                continue
            twins += run.facts.source == "twin"
            unknown += run.facts.source != "twin" and run.meta.configuration.gpu is None
            if run.facts.source != "twin" and run.meta.configuration.gpu is not None:
                runs.append(run)
    if not runs:
        why = "no valid run was found"
        if twins:
            why = f"all {twins} valid runs are twins: a twin cannot be calibrated on itself"
        elif unknown:
            why = f"{unknown} runs do not say on which GPU they ran"
        elif pools:
            why = f"all {pools} valid runs are of several pools, none of one configuration"
        raise BadInput(why, where=where, fix="give runs of a real engine on a known GPU")
    groups: dict[str, list[StoredRun]] = {}
    for run in runs:
        same = replace(run.meta.workload, seed=0)
        groups.setdefault(repr((run.meta.configuration, same)), []).append(run)
    found = tuple(_observation(group) for group in groups.values())
    if model is not None:
        found = tuple(_of_model(o, model, where) for o in found)
    cards = {repr(o.configuration.gpu_figures or o.configuration.gpu): o for o in found}
    if len(cards) > 1:
        names = sorted(str(o.configuration.gpu) for o in cards.values())
        raise BadInput(
            f"the runs are from several GPUs: {', '.join(names)}",
            where=where,
            fix="give those of one",
        )
    return found


def _of_model(observation: Observation, model: str, where: str) -> Observation:
    """The observation under its own model's name, under `model` where that one's is not known."""
    own = observation.configuration.model
    try:
        shape(own)
    except BadInput:
        served_as = replace(observation.configuration, model=model)
        return replace(observation, configuration=served_as, taken_for=own)
    if own != model and not same_shape(own, model):
        raise BadInput(
            f"{observation.name} served {own}, which has another shape than {model}",
            where=where,
            fix=f"give runs of {model}",
        )
    return observation


def assumed(observations: Iterable[Observation]) -> tuple[str, ...]:
    """What is taken for granted of the runs' models, a line each."""
    return tuple(
        dict.fromkeys(
            f"the runs' model {o.taken_for}, whose shape is not known here, is taken for"
            f" {o.configuration.model}"
            for o in observations
            if o.taken_for is not None
        )
    )


def _ensure_shape(name: str) -> None:
    """Raise BadInput where the shape of a served model is not known here."""
    try:
        shape(name)
    except BadInput as error:
        raise BadInput(
            error.what, where="calibrate",
            fix="say which model has the shape that was served: --model NAME, or a folder with its"
            " config.json",
        ) from None  # fmt: skip


def _runs_in(folder: Path) -> list[StoredRun]:
    if is_finished(folder):
        return [read_run(folder)]
    if not folder.is_dir():
        raise BadInput("there is no such folder", where=str(folder))
    inside = sorted(p for p in folder.iterdir() if p.is_dir() and is_finished(p))
    if not inside:
        raise BadInput("holds no finished run", where=str(folder))
    return [read_run(p) for p in inside]


def _observation(group: Sequence[StoredRun]) -> Observation:
    first = group[0]
    extra, columns = [], []
    for run in group:
        records = run.records()
        assert run.facts is not None
        sample = take_sample(records, run.facts.window)
        columns.append({**_told(run), **_figures(sample, throughput(records, sample, 1))})
        over = records.prompt_tokens - records.planned_prompt_tokens
        # Images are in what the server counts and not in what was planned; the twin adds them.
        pictured = any(k.prompts.images is not None for k in run.meta.workload.kinds)
        known = np.isfinite(over).any() and not pictured
        extra.append(float(np.nanmedian(over)) if known else 0.0)
    names = [n for n in FIGURES if all(n in c for c in columns)]
    facts = first.facts
    tokens = None if facts is None else facts.server.get("kv_tokens")
    return Observation(
        first.meta.experiment,
        first.meta.configuration,
        first.meta.workload,
        {n: float(np.exp(np.mean([np.log(c[n]) for c in columns]))) for n in names},
        round(float(np.median(extra))),
        tokens if isinstance(tokens, int) else None,
        len(group),
        _release(first),
    )


def _release(run: StoredRun) -> str | None:
    """The engine's release, as it says itself or as the study file says it."""
    told = None if run.facts is None else run.facts.server.get("version")
    return str(told or "") or run.meta.configuration.engine_version


def _figures(sample: Sample, rates: Throughput) -> dict[str, float]:
    """Figures above 0 that the sample has."""
    tokens, chunks = rates.output_tokens_per_s or 0.0, rates.chunks_per_s or 0.0
    found = {"output_tokens_per_s": tokens, "tokens_per_chunk": tokens / chunks if chunks else 0.0}
    for name in ("itl", "ttft"):
        values = sample.percentiles(f"{name}_s")
        for statistic in ("mean", "p50", "p95"):
            found[f"{name}_{statistic}_s"] = getattr(values, statistic) or 0.0
    return {n: v for n, v in found.items() if v > 0}


def _told(run: StoredRun) -> dict[str, float]:
    """The same figures from the run's record: trimmed results keep no times of single chunks."""
    assert run.summary is not None
    found = {name: value_at(run.summary, path) for name, path in PATHS.items()}
    tokens, chunks = found["output_tokens_per_s"], value_at(run.summary, CHUNKS)
    found["tokens_per_chunk"] = tokens / chunks if tokens and chunks else None
    return {name: value for name, value in found.items() if value}


def on_twin(observation: Observation) -> Configuration:
    """What was measured as a twin's configuration, with the KV cache that the engine had."""
    configuration = replace(observation.configuration, engine="twin")
    if observation.kv_tokens is not None:
        block = configuration.knobs.block_size or 16
        blocks = observation.kv_tokens // block + 1
        knobs = replace(configuration.knobs, num_gpu_blocks_override=blocks)
        configuration = replace(configuration, knobs=knobs)
    return configuration


def simulate(observation: Observation, constants: Any) -> dict[str, float]:
    """The same figures of the twin with such constants."""
    configuration = on_twin(observation)
    sink = MemorySink()
    schedule = longer(draw_schedule(observation.workload), observation.prompt_extra)
    with TwinEngine(constants).start(configuration) as endpoint:
        # What was measured is what such a client waited for: so the twin's has its patience.
        limits = observation.workload.client.timeouts
        plan = DrivePlan(schedule, "calibrate", timeouts=limits, routing=configuration.routing)
        facts = endpoint.drive(plan, sink, SilentWatch())
    records = sink.records()
    sample = take_sample(records, facts.window)
    return _figures(sample, throughput(records, sample, 1))


def longer(schedule: Schedule, extra: int) -> Schedule:
    """Prompts as long as the server counted them."""
    prompts = np.maximum(schedule.prompt_tokens + np.int32(extra), 1)
    return replace(schedule, prompt_tokens=prompts)


def calibrate(
    observations: Sequence[Observation],
    said: Said = lambda what: None,
    names: Sequence[str] = FREE,
) -> Calibration:
    """Fit the named constants to the observations, which are of one GPU.

    Raises BadInput where the shape of a model is not known here.
    """
    for name in sorted({o.configuration.model for o in observations}):
        _ensure_shape(name)
    first = observations[0].configuration
    base = known_constants(first)
    count = 0

    def residuals(constants: Any) -> Floats:
        nonlocal count
        count += 1
        if count % 20 == 0:
            said(f"fitting: {count} evaluations of {len(observations)} configurations")
        return np.array(
            [
                np.log(found[name] / value) / FIGURES[name] if name in found else 5.0
                for observation, found in ((o, simulate(o, constants)) for o in observations)
                for name, value in observation.figures.items()
            ]
        )

    fitted = fit_constants(base, names, residuals, pull=PULL, step=STEP, evaluations=EVALUATIONS)
    return Calibration(
        gpu=str(first.gpu),
        model=first.model,
        constants=fitted.values,
        errors=fitted.errors,
        observations=tuple(observations),
        before=tuple(simulate(o, base) for o in observations),
        after=tuple(simulate(o, fitted.constants) for o in observations),
        covariance=fitted.covariance,
    )


def errors_of(calibration: Calibration) -> dict[str, tuple[float, float, int, int]]:
    """By figure: mean absolute error before and after the fit, over how many runs, and of how many
    more the twin has none (before or after). The errors are NaN where that is so of all.
    """
    found = {}
    each = (calibration.observations, calibration.before, calibration.after)
    for name in FIGURES:
        measured = [row for row in zip(*each, strict=True) if name in row[0].figures]
        rows = [
            (abs(b[name] / o.figures[name] - 1), abs(a[name] / o.figures[name] - 1))
            for o, b, a in measured
            if name in b and name in a
        ]
        if measured:
            before, after = np.mean(rows, axis=0) if rows else (np.nan, np.nan)
            found[name] = (float(before), float(after), len(rows), len(measured) - len(rows))
    return found


def worse_after(calibration: Calibration) -> list[tuple[str, str, float, float]]:
    """(run, figure, error before, error after) where the fit made one WORSE and more, worst first.

    Such a run pulls against the others: what it had is not in the model, or it was disturbed.
    """
    found = [
        (o.name, name, b[name] / o.figures[name] - 1, a[name] / o.figures[name] - 1)
        for o, b, a in zip(
            calibration.observations, calibration.before, calibration.after, strict=True
        )
        for name in FIGURES
        if name in o.figures and name in a and name in b
    ]
    worse = [one for one in found if abs(one[3]) > abs(one[2]) + WORSE]
    return sorted(worse, key=lambda one: -abs(one[3]))
