"""The engines of a study: found by name, kept up between runs where that is possible.

An engine that has to be started is started once for all runs of its configuration, unless the plan
wants turns. How many stay up side by side decides whether runs can be interleaved; see `arrange`.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.domain.errors import BadInput, RidgelineError, RunFailed, nearest
from ridgeline.domain.knobs import Configuration, Launch
from ridgeline.engines.base import Engine
from ridgeline.engines.resident import GivesUp, KeepsEngines
from ridgeline.experiment.plan import PlannedRun, file_name
from ridgeline.store.run_directory import StoredRun
from ridgeline.workload.study import ENGINES, ExperimentSpec, Study

if TYPE_CHECKING:
    from ridgeline.engines.started import Dialect

COLD_FOLDER, LOG_FOLDER = "cold", "engines"
COLD_NOTE = "cold: the first load of a fresh engine, kept for itself and never compared"
BLOCKS_NOTE = (
    "in blocks: not all engines are up side by side, so runs that are compared lie further apart"
    " in time than interleaved ones"
)
TURNS_NOTE = (
    "in turns: not all engines are up side by side, so they are started anew in every round, whose"
    " order is that of the last one reversed"
)
REPORTED = {  # of a cold run, beside the measured ones
    "output_tokens_per_s": ("throughput", "output_tokens_per_s"),
    "ttft_p95_s": ("ttft_s", "p95"),
    "itl_p50_s": ("itl_s", "p50"),
    "itl_p95_s": ("itl_s", "p95"),
}


def engine_named(name: str) -> Engine:
    """The engine that serves configurations of this name; raises BadInput for one that is not
    built in.
    """
    if name == "twin":
        from ridgeline.engines.twin import TwinEngine  # noqa: PLC0415  only what is asked for

        return TwinEngine()
    if name == "endpoint":
        from ridgeline.engines.endpoint import EndpointEngine  # noqa: PLC0415

        return EndpointEngine()
    if name == "vllm":
        from ridgeline.engines.resident import ResidentEngine  # noqa: PLC0415
        from ridgeline.engines.vllm import VllmEngine  # noqa: PLC0415

        return ResidentEngine(VllmEngine())
    if name == "llamacpp":
        from ridgeline.engines.llamacpp import LlamaCppEngine  # noqa: PLC0415
        from ridgeline.engines.resident import ResidentEngine  # noqa: PLC0415

        return ResidentEngine(LlamaCppEngine())
    if name in ENGINES:
        raise BadInput(
            f"Ridgeline cannot start {name} by itself yet",
            fix="start it and measure it with `ridgeline bench URL`",
        )
    raise BadInput(f"unknown engine {name!r}{nearest(name, ENGINES)}")


def check_startable(study: Study, file: str) -> tuple[str, ...]:
    """Refuse what is known to be refused before the first run; raises BadInput with file and line.

    Returns notes about what could not be checked.

    An engine that is not built in or not installed, an endpoint without a URL; for a twin
    everything that it or its engine would refuse. A model that does not fit in memory is no
    mistake: that run fails, and the failure is its result.
    """
    for name in dict.fromkeys(spec.configuration.engine for spec in study.experiments):
        engine_named(name)
    unchecked: dict[str, list[str]] = {}
    for spec in study.experiments:
        try:
            _check_spec(spec)
            why = _check_installed(spec.configuration)
            if why is not None:
                unchecked.setdefault(f"{spec.configuration.engine}: {why}", []).append(spec.name)
        except BadInput as error:
            key = "model" if error.where == spec.configuration.model else error.where or ""
            line = spec.lines.get(key, spec.lines.get("", 0))
            place = f"{file}:{line}: experiment {spec.name}" if line else f"{file}: {spec.name}"
            where = place if not key else f"{place}: {key}"
            raise BadInput(error.what, where=where, fix=error.fix) from None
    notes = [
        f"engine options were not checked before the start ({why}): {', '.join(names)}"
        for why, names in unchecked.items()
    ]
    routed = [s.name for s in study.experiments if _routed_twin(s.configuration)]
    if routed:
        notes.append(f"the twin has no router, it predicts these without one: {', '.join(routed)}")
    return tuple(notes)


def _routed_twin(configuration: Configuration) -> bool:
    launch = configuration.launch
    return configuration.engine == "twin" and launch is not None and launch.router is not None


def refusal(spec: ExperimentSpec) -> RidgelineError | None:
    """Why an experiment cannot run as it stands: a mistake, or a twin that does not fit in memory.

    None when nothing is known against it; a real engine's own checks are not foreseen.
    """
    try:
        _check_spec(spec)
        if spec.configuration.engine == "twin":
            from ridgeline.engines.twin import twin_of  # noqa: PLC0415

            for part in spec.configuration.parts:
                twin_of(part)
    except RidgelineError as error:
        return error
    return None


def _check_installed(configuration: Configuration) -> str | None:
    """Why the options could not be checked, None when they were.

    Here and not in `refusal`: a study file may be written on another machine than it runs on.
    """
    dialect = dialect_of(configuration.engine)
    if dialect is None:
        return None
    from ridgeline.engines.launching import program_needed  # noqa: PLC0415
    from ridgeline.engines.router import INSTALL as ROUTER_INSTALL  # noqa: PLC0415
    from ridgeline.engines.started import missing_program  # noqa: PLC0415

    launch = configuration.launch or Launch()
    command = launch.command or dialect.command()
    needed = program_needed(launch, command)
    if missing_program([needed], launch.environment) is not None:
        fix = dialect.install if needed == command[0] else f"install {needed} here"
        raise BadInput(f"there is no program {needed!r}", where="engine", fix=fix)
    absent = [n for n, v in launch.environment.items() if v is None and n not in os.environ]
    if absent and launch.host is None:
        raise BadInput(
            f"{absent[0]} is to be taken from the environment and is not set",
            where="launch.environment", fix=f"export {absent[0]}, or leave it out",
        )  # fmt: skip
    router = launch.router
    if router is not None and missing_program(router.command, {}) is not None:
        what = f"there is no program {router.command[0]!r}"
        raise BadInput(what, where="launch.router", fix=ROUTER_INSTALL)
    told = []
    for part in configuration.parts:
        dialect.arguments(part, port=1)  # knobs that this engine does not have
        told.append(dialect.check(part, command))
    return next((why for why in told if why is not None), None)


def dialect_of(engine: str) -> "Dialect | None":
    """How an engine that Ridgeline starts is spoken to; None for the others."""
    if engine == "vllm":
        from ridgeline.engines.vllm import VllmDialect  # noqa: PLC0415

        return VllmDialect()
    if engine == "llamacpp":
        from ridgeline.engines.llamacpp import LlamaCppDialect  # noqa: PLC0415

        return LlamaCppDialect()
    return None


def _check_spec(spec: ExperimentSpec) -> None:
    configuration, workload = spec.configuration, spec.workload
    if configuration.engine == "endpoint" and any(p.url is None for p in configuration.parts):
        raise BadInput("an endpoint needs the key 'url'", where="engine")
    if configuration.engine != "twin":
        return
    from ridgeline.engines.twin import twin_of  # noqa: PLC0415  only what is asked for

    pictured = any(kind.prompts.images is not None for kind in workload.kinds)
    options = workload.options
    refused = {
        "prompts.images": pictured,
        "extra_body": options.extra_body,
        "headers": options.headers,
        "sampling.stop": options.sampling.get("stop"),
    }
    for name, given in refused.items():
        if given:
            raise BadInput(f"the twin does not know {name}", where="workload", fix="leave it out")
    places = configuration.pool_of([kind.name for kind in workload.classes])
    for place, part in enumerate(configuration.parts):
        try:
            limit = twin_of(part).knobs.max_model_len
        except RunFailed:
            return
        mine = [k for k, at in zip(workload.classes, places, strict=True) if at == place]
        longest = replace(workload, classes=tuple(mine)).longest
        if longest > limit:
            raise BadInput(
                f"prompt and output of up to {longest} tokens do not fit into {limit}",
                where="max_model_len",
                fix="ask for shorter ones, or raise it where the model allows",
            )


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Runs in the order in which they are done, and which engines are up side by side.

    in_blocks: the order is not the plan's, because not all engines are up side by side. in_turns:
    they are not, and the order is the plan's all the same: engines are started anew.
    """

    runs: tuple[PlannedRun, ...]
    groups: tuple[tuple[Configuration, ...], ...]
    in_blocks: bool
    in_turns: bool = False


def arrange(runs: Sequence[PlannedRun], turns: Sequence[Configuration] = ()) -> Arrangement:
    """Order runs so that no engine is started twice; raises BadInput when they cannot share.

    With `launch.resident` N, all engines stay up when there are at most N configurations, and the
    plan's order stays. Otherwise the first configuration (the baseline's) stays up, the others
    follow it in groups of N - 1; without `resident`, or with 1, one engine is up at a time.

    turns: the configurations in the plan's order, the baseline's first, where engines are to be
    started anew rather than runs moved. The plan's order (A B C, C B A, ...) then stays: the group
    that ends a round begins the next one.
    """
    configurations = _distinct(runs)
    if turns:  # what is left to do may begin with the last one
        there = {repr(c) for c in configurations}
        configurations = [c for c in turns if repr(c) in there]
    launch = configurations[0].launch if configurations else None
    places = (launch.resident if launch is not None else None) or 1
    if len(configurations) <= places:
        groups = [tuple(configurations)]
    elif places == 1:
        groups = [(c,) for c in configurations]
    else:
        first, rest = configurations[0], configurations[1:]
        size = places - 1
        groups = [(first, *rest[i : i + size]) for i in range(0, len(rest), size)]
    for group in groups:
        _check_memory(group)
    if turns:
        return Arrangement(tuple(runs), tuple(groups), in_blocks=False, in_turns=len(groups) > 1)
    place = {repr(c): i for i, group in reversed(list(enumerate(groups))) for c in group}
    ordered = sorted(runs, key=lambda run: place[repr(run.configuration)])
    return Arrangement(tuple(ordered), tuple(groups), len(groups) > 1)


def _distinct(runs: Sequence[PlannedRun]) -> list[Configuration]:
    """The configurations of runs, each once (they hold mappings, so they have no hash)."""
    return list({repr(run.configuration): run.configuration for run in runs}.values())


def _check_memory(group: Sequence[Configuration]) -> None:
    """Engines that share a machine must each say how much memory they take."""
    if len(group) < 2:
        return
    for configuration in (part for one in group for part in one.parts):
        knobs = configuration.knobs
        missing = [
            name
            for name, needed in (
                ("kv_cache_memory_bytes", True),
                ("gpu_memory_utilization", configuration.gpu is not None),
            )
            if needed and getattr(knobs, name) is None
        ]
        if missing:
            raise BadInput(
                f"engines that stay up side by side need explicit {' and '.join(missing)}",
                where="launch.resident",
                fix="set it in the baseline, or leave resident away",
            )
    shares = [
        max(part.knobs.gpu_memory_utilization or 0.0 for part in c.parts)
        for c in group if c.gpu is not None
    ]  # fmt: skip
    if sum(shares) > 1.0 + 1e-9:
        raise BadInput(
            f"{len(group)} engines side by side ask for {sum(shares):.0%} of the GPU's memory",
            where="launch.resident",
            fix="lower gpu_memory_utilization or resident",
        )


@dataclass(slots=True)
class Engines:
    """The engines of the runs to be done; close it, whatever happens.

    `folder` is the study's: logs and cold runs go into folders of it. `turns`: see `arrange`.
    """

    engine_for: Callable[[str], Engine]
    folder: Path
    turns: Sequence[Configuration] = ()
    _by_name: dict[str, Engine] = field(default_factory=dict)
    _arranged: dict[str, Arrangement] = field(default_factory=dict)
    _cold: dict[str, Mapping[str, object]] = field(default_factory=dict)

    def order(self, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
        """The runs in the order in which they are to be done; raises BadInput."""
        arranged_runs: list[PlannedRun] = []
        for name in dict.fromkeys(run.configuration.engine for run in runs):
            mine = [run for run in runs if run.configuration.engine == name]
            engine = self._by_name[name] = self.engine_for(name)
            if isinstance(engine, KeepsEngines):
                arranged = self._arranged[name] = arrange(mine, self.turns)
                launch = mine[0].configuration.launch
                engine.expect(
                    arranged.groups,
                    together=launch is None or launch.start_together,
                    logs=self.folder / LOG_FOLDER,
                )
                mine = list(arranged.runs)
            arranged_runs += mine
        # Engines of different kinds that are all up side by side are interleaved as planned.
        return arranged_runs if self.in_blocks else list(runs)

    @property
    def in_blocks(self) -> bool:
        """True when runs that are compared are not interleaved."""
        return any(arranged.in_blocks for arranged in self._arranged.values())

    @property
    def in_turns(self) -> bool:
        """True when engines are started anew so that runs that are compared are interleaved."""
        return any(arranged.in_turns for arranged in self._arranged.values())

    def colds(self) -> list[PlannedRun]:
        """The cold runs to be expected: one for each configuration that is started."""
        return [
            self._cold_run(configuration, arranged.runs)
            for arranged in self._arranged.values()
            for configuration in _distinct(arranged.runs)
            if _has_cold(configuration)
        ]

    def of(self, run: PlannedRun) -> Engine:
        """The engine that serves the run."""
        return self._by_name[run.configuration.engine]

    def starts_due(self, run: PlannedRun) -> int:
        """How many engines have to be started before the run can be loaded."""
        engine = self.of(run)
        return engine.starts_due(run.configuration) if isinstance(engine, KeepsEngines) else 0

    def give_up(self) -> None:
        """End the starts that are going on; they fail."""
        for engine in self._by_name.values():
            if isinstance(engine, GivesUp):
                engine.abandon()

    def cold_due(self, run: PlannedRun) -> PlannedRun | None:
        """The cold run that must come before this one: its engine was not loaded since its start.

        It has the traffic of the busiest run of the same engine, and no warm-up.
        """
        engine = self.of(run)
        if not (
            isinstance(engine, KeepsEngines)
            and _has_cold(run.configuration)
            and engine.fresh(run.configuration)
        ):
            return None
        return self._cold_run(run.configuration, self._arranged[engine.name].runs)

    def cold_folder(self, cold: PlannedRun) -> Path:
        """A folder for it that is not there yet."""
        n = 1
        while (folder := self.folder / COLD_FOLDER / f"{file_name(cold.experiment)}-{n}").exists():
            n += 1
        return folder

    def cold_done(self, stored: StoredRun) -> None:
        """Remember what a cold run found, to be shown beside the runs of its engine."""
        figures: dict[str, object] = {
            "run": f"{stored.folder.parent.name}/{stored.folder.name}",
            "experiment": stored.meta.experiment,
            "window_s": stored.meta.workload.duration_s,
            "state": stored.state,
        }
        for name, (part, figure) in REPORTED.items():
            value = getattr(getattr(stored.summary, part, None), figure, None)
            if value is not None and value != float("inf"):
                figures[name] = value
        self._cold[repr(stored.meta.configuration)] = figures

    def known(self, run: PlannedRun) -> tuple[Mapping[str, object], tuple[str, ...]]:
        """What is to be kept with the run: facts about its server, and notes."""
        cold = self._cold.get(repr(run.configuration))
        arranged = self._arranged.get(run.configuration.engine)
        notes = (BLOCKS_NOTE,) if arranged is not None and arranged.in_blocks else ()
        return ({} if cold is None else {"cold": cold}), notes

    def close(self) -> None:
        """Take down what is up."""
        for engine in self._by_name.values():
            if isinstance(engine, KeepsEngines):
                engine.close()

    @property
    def left_behind(self) -> tuple[str, ...]:
        """What engines that were stopped have left on this machine, a line each."""
        kept = [e for e in self._by_name.values() if isinstance(e, KeepsEngines)]
        return tuple(line for engine in kept for line in engine.left_behind)

    def _cold_run(self, configuration: Configuration, runs: Sequence[PlannedRun]) -> PlannedRun:
        mine = [run for run in runs if run.configuration == configuration]
        busiest = max(mine, key=_load)
        workload = busiest.workload
        launch = configuration.launch
        length = launch.cold_s if launch is not None else None
        if length is None:
            length = workload.warmup_s + workload.duration_s
        return replace(
            busiest,
            run_id=f"cold-{file_name(busiest.experiment)}",
            repeat=0,
            workload=replace(workload, warmup_s=0.0, duration_s=length, requests=None),
        )


def start_seconds(stored: StoredRun) -> float | None:
    """How long the engine of a run took until it was ready, its slowest replica; None: not told."""
    replicas = None if stored.facts is None else stored.facts.server.get("replicas")
    told = [r.get("ready_s") for r in replicas] if isinstance(replicas, list | tuple) else []
    known = [s for s in told if isinstance(s, int | float)]
    return max(known, default=None)


def _has_cold(configuration: Configuration) -> bool:
    return configuration.launch is None or configuration.launch.cold_s != 0


def _load(run: PlannedRun) -> tuple[float, float]:
    """How busy a run keeps its engine: users (or rate), then prompt lengths."""
    return run.workload.arrivals.peak, run.workload.mean_prompt_tokens
