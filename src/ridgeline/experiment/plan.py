"""Which runs a study needs, in which order, and how each is recognised when it is done."""

import datetime
import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ridgeline
from ridgeline.domain.errors import BadInput
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.slo import Slo
from ridgeline.domain.workload import Workload
from ridgeline.store.codec import to_plain
from ridgeline.workload.study import Study

# What a twin's result depends on besides its inputs; a change of it makes earlier runs outdated.
_TWIN_SOURCES = (
    "domain", "workload", "twin", "engines/twin.py", "engines/twin_bands.py",
    "engines/twin_records.py", "engines/twin_scope.py",
)  # fmt: skip

_LATER_LAUNCH: dict[str, Any] = {
    "image": None,
    "container": [],
    "host": None,
    "tunnel": True,
    "router": None,
    "stalled_s": None,
}


@dataclass(frozen=True, slots=True)
class PlannedExperiment:
    """One experiment: what it serves, under which traffic, and its change in words.

    `repeats`: its own number where it has fewer than the plan. `since`: the first one that it has,
    for one that joins later.
    """

    name: str
    configuration: Configuration
    workload: Workload
    change: str = ""
    repeats: int | None = None
    since: int = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a study measures. kind: "study" or "bench"; baseline None = nothing to compare.

    turns: engines that do not all stay up side by side are started anew in every round, so that the
    order stays; without it their runs are done in blocks, an engine's one after another.
    """

    name: str
    kind: str
    baseline: str | None
    experiments: tuple[PlannedExperiment, ...]
    slo: Slo = field(default_factory=Slo)
    repeats: int = 1
    endpoint: str = "chat"
    turns: bool = False

    def experiment(self, name: str) -> PlannedExperiment:
        """The experiment of that name."""
        return next(e for e in self.experiments if e.name == name)


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of the plan. `workload` carries the seed of this repeat."""

    run_id: str
    study: str
    experiment: str
    repeat: int
    configuration: Configuration
    workload: Workload
    slo: Slo
    endpoint: str
    fingerprint: str
    versions: Mapping[str, str]


def plan_of(study: Study) -> Plan:
    """The plan of a study file."""
    return Plan(
        name=study.name,
        kind="study",
        baseline=study.baseline.name,
        experiments=tuple(
            PlannedExperiment(s.name, s.configuration, s.workload, s.change, s.repeats)
            for s in study.experiments
        ),
        slo=study.slo,
        repeats=study.repeats,
        endpoint=study.api,
    )


def plan_runs(plan: Plan) -> tuple[PlannedRun, ...]:
    """All runs in the order in which they are to be done: A B .. Z, Z .. B A, A B .. Z, ...

    Every experiment keeps the same mean place in time, so a slow drift of the machine cancels out
    of the comparisons. All experiments of a repeat share the seed, hence arrivals and lengths;
    repeat r has the workload's seed + r - 1.
    """
    if plan.repeats < 1:
        raise BadInput(f"repeats must be at least 1, not {plan.repeats}")
    versions: dict[str, dict[str, str]] = {}
    runs = []
    for repeat in range(1, plan.repeats + 1):
        forward = repeat % 2 == 1
        for experiment in plan.experiments if forward else reversed(plan.experiments):
            if experiment.repeats is not None and repeat > experiment.repeats:
                continue
            if repeat < experiment.since:
                continue
            engine = experiment.configuration.engine
            versions.setdefault(engine, versions_for(engine))
            runs.append(_planned_run(plan, experiment, repeat, versions[engine]))
    _refuse_twins([r.run_id for r in runs])
    return tuple(runs)


def _planned_run(
    plan: Plan, experiment: PlannedExperiment, repeat: int, versions: Mapping[str, str]
) -> PlannedRun:
    workload = replace(experiment.workload, seed=experiment.workload.seed + repeat - 1)
    return PlannedRun(
        run_id=f"{file_name(experiment.name)}-r{repeat}",
        study=plan.name,
        experiment=experiment.name,
        repeat=repeat,
        configuration=experiment.configuration,
        workload=workload,
        slo=plan.slo,
        endpoint=plan.endpoint,
        fingerprint=fingerprint(experiment.configuration, workload, plan.endpoint, versions),
        versions=versions,
    )


def _refuse_twins(run_ids: Sequence[str]) -> None:
    seen: set[str] = set()
    for run_id in run_ids:
        if run_id in seen:
            raise BadInput(f"two experiments would both be stored as {run_id!r}", fix="rename one")
        seen.add(run_id)


def file_name(name: str) -> str:
    """A name that is safe as a folder's on every file system."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"


def fingerprint(
    configuration: Configuration,
    workload: Workload,
    endpoint: str,
    versions: Mapping[str, str],
) -> str:
    """Equal for runs that are the same measurement: 16 hex digits of a SHA-256.

    Targets and prices are left out: they judge a measurement and change nothing in it.
    """
    offered = to_plain(workload)
    if not workload.warmup_auto:  # as it was before there were automatic ones
        del offered["warmup_auto"]
    plain = to_plain(replace(configuration, price_per_gpu_hour=None))
    if not plain["pools"]:  # likewise, as before there were any
        del plain["pools"]
    if plain["launch"] is not None:  # likewise: ways to start that came later
        for name, usual in _LATER_LAUNCH.items():
            if plain["launch"][name] == usual:
                del plain["launch"][name]
    body = {
        "configuration": plain,
        "model_files": model_digest(configuration),
        "workload": offered,
        "endpoint": endpoint,
        "versions": dict(versions),
    }
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def model_digest(configuration: Configuration) -> str | None:
    """12 hex digits over a model that is a folder here, None for a name.

    The shape in config.json decides what a twin answers; for an engine that loads the weights
    their files count too, by name and size.
    """
    path = Path(configuration.model)
    if not path.exists():
        return None
    config = path / "config.json" if path.is_dir() else path
    digest = hashlib.sha256(config.read_bytes() if config.is_file() else b"")
    if path.is_dir() and configuration.engine != "twin":
        for file in sorted(f for f in path.rglob("*") if f.is_file()):
            digest.update(f"{file.relative_to(path)}\0{file.stat().st_size}\0".encode())
    return digest.hexdigest()[:12]


def versions_for(engine: str) -> dict[str, str]:
    """Versions of what a result depends on; for a twin also a digest of its own source."""
    found = {"ridgeline": ridgeline_version()}
    if engine == "twin":
        found["twin_source"] = source_digest()
    return found


def ridgeline_version() -> str:
    """The version of this source, installed or not."""
    return ridgeline.__version__


def source_digest() -> str:
    """12 hex digits over the source files and data that decide what a twin answers."""
    root = Path(ridgeline.__file__).parent
    digest = hashlib.sha256()
    for place in _TWIN_SOURCES:
        path = root / place
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.suffix in (".py", ".json") and file.is_file():
                digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def host_facts() -> dict[str, Any]:
    """The machine that measures (or simulates)."""
    import psutil  # noqa: PLC0415

    return {
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
    }


def utc_now() -> str:
    """Now, ISO 8601 in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
