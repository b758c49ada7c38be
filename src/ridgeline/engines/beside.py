"""What happened beside a drive of an engine that we started: its log, its readings, its death."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from ridgeline.domain.errors import EndpointError, RunFailed
from ridgeline.domain.numerals import counted
from ridgeline.domain.records import RecordSink, TelemetryRow
from ridgeline.domain.run import LiveFigures, RunFacts, Source, Watch, Window
from ridgeline.engines.base import DrivePlan, Endpoint
from ridgeline.engines.process import EngineProcess
from ridgeline.engines.vllm_log import classify_failure
from ridgeline.telemetry.gpu import GpuProbe, GpuSampler, GpuSummary
from ridgeline.telemetry.host import HostProbe, descendants
from ridgeline.telemetry.sampling import (
    ClockWatch,
    EngineProbe,
    Sampling,
    summarise_engine,
    summarise_host,
)
from ridgeline.telemetry.stalled import Quiet, StallProbe


@dataclass(frozen=True, slots=True)
class Beside:
    """The last drive's telemetry, on the run's clock, and what the engine logged meanwhile."""

    telemetry: tuple[TelemetryRow, ...] = ()
    log: str = ""


@runtime_checkable
class WatchedEndpoint(Protocol):
    """An endpoint that keeps what happened beside its drives. Implementations: StartedEndpoint,
    SampledEndpoint.
    """

    def beside(self) -> Beside:
        """What happened beside the last drive, also when that ended in an error."""


class SampledEndpoint:
    """An endpoint of servers that are not ours, whose /metrics are read while it is driven.

    `urls`: the base URL of each replica. What its server is and how it fares on its host is not
    known; its queue, its steps and the stages of its requests are, where it exports them.
    """

    source: Source = "measured"

    def __init__(
        self, http: Endpoint, urls: Sequence[str], headers: Mapping[str, str] | None = None
    ) -> None:
        self._http = http
        self._urls = tuple(urls)
        self._headers = dict(headers or {})
        self._beside = Beside()

    def beside(self) -> Beside:
        """What happened beside the last drive."""
        return self._beside

    def drive(self, plan: DrivePlan, sink: RecordSink, watch: Watch) -> RunFacts:
        """Offer the traffic; see Endpoint.drive."""
        clock = ClockWatch(watch)
        self._beside = Beside()
        probes = [
            EngineProbe(url, _unit(i), headers=self._headers) for i, url in enumerate(self._urls)
        ]
        with Sampling(probes) as sampling:
            facts = self._http.drive(plan, sink, clock)
        if clock.zero_ns is None or not (rows := sampling.rows(clock.zero_ns)):
            return facts
        self._beside = Beside(rows)
        return _with_summary(facts, rows, clock.zero_ns, None)


@dataclass(slots=True)
class Replica:
    """One running server: its process, URL and what its start told.

    `ours` False: it runs in a container or on another host, and its process is only the way there.
    """

    process: EngineProcess
    url: str
    start: dict[str, Any] = field(default_factory=dict)
    ours: bool = True


class StartedEndpoint:
    """The endpoint of processes of ours, watched while it is driven; see the Endpoint port.

    `gpus`: a sampler and the numbers of the GPUs used, None where there are none. `routers`: what
    stands before the replicas, one for each pool of them. `stalled_s`: how long it may take no step
    under load.
    """

    source: Source = "measured"

    def __init__(
        self,
        http: Endpoint,
        replicas: Sequence[Replica],
        gpus: tuple[GpuSampler, Sequence[int]] | None = None,
        routers: Sequence[Replica] = (),
        stalled_s: float | None = None,
    ) -> None:
        self._http = http
        self._stalled_s = stalled_s
        self._replicas = tuple(replicas)
        units = {_unit(i): r for i, r in enumerate(self._replicas)}
        names = ["router"] if len(routers) == 1 else [f"router {i}" for i in range(len(routers))]
        self._processes = {**units, **dict(zip(names, routers, strict=True))}
        self._gpus = gpus
        self._beside = Beside()
        self._stalled: str | None = None

    @property
    def urls(self) -> tuple[str, ...]:
        """The base URL of each replica."""
        return tuple(replica.url for replica in self._replicas)

    def alive(self) -> bool:
        """True while every process runs and the engine takes steps."""
        return self._stalled is None and all(
            one.process.poll() is None for one in self._processes.values()
        )

    def beside(self) -> Beside:
        """What happened beside the last drive."""
        return self._beside

    def drive(self, plan: DrivePlan, sink: RecordSink, watch: Watch) -> RunFacts:
        """Offer the traffic; see Endpoint.drive.

        Raises RunFailed when a process died or stood still meanwhile, and before any traffic when a
        request would not fit into the KV cache.
        """
        self._refuse_longer_than_kv(plan)
        marks = {unit: one.process.log_size() for unit, one in self._processes.items()}
        quiet = Quiet()
        engines = [
            StallProbe(EngineProbe(r.url, _unit(i)), self._stalled_s, quiet=quiet)
            for i, r in enumerate(self._replicas)
        ]
        clock = _StopsWhenStalled(watch, engines, quiet)
        host = HostProbe({u: one.process.pid for u, one in self._processes.items() if one.ours})
        gpu = None if self._gpus is None else GpuProbe(*self._gpus)
        sampling = Sampling([*engines, host, *([] if gpu is None else [gpu])])
        rows: tuple[TelemetryRow, ...] = ()
        facts: RunFacts | None = None
        try:
            with sampling:
                facts = self._http.drive(plan, sink, clock)
        except EndpointError:
            if self.alive() and clock.stalled is None:
                raise
        finally:
            rows = sampling.rows(clock.zero_ns) if clock.zero_ns is not None else ()
            self._beside = Beside(rows, self._log_since(marks))
        self._stalled = clock.stalled
        if facts is None or not self.alive():
            raise self._died()
        return _with_summary(facts, rows, clock.zero_ns, gpu)

    def _log_since(self, marks: Mapping[str, int]) -> str:
        parts = {u: one.process.log_since(marks[u]) for u, one in self._processes.items()}
        if len(parts) == 1:
            return next(iter(parts.values()))
        return "".join(f"== {unit}\n{part}" for unit, part in parts.items())

    def _died(self) -> RunFailed:
        """The first dead process's failure, in the engine's own words."""
        for replica in self._processes.values():
            code = replica.process.poll()
            if code is not None:
                return ended(replica, code, "during the run")
        if self._stalled is not None:
            error = RunFailed(
                f"stalled: {self._stalled}",
                where=str(self._replicas[0].process.log),
                fix="the engine is taken down; see its log",
            )
            error.failure_class = "stalled"  # type: ignore[attr-defined]
            return error
        return RunFailed("the engine ended", where="engine")

    def _refuse_longer_than_kv(self, plan: DrivePlan) -> None:
        """Such a request waits at the head of the queue for ever, with 200 on /health."""
        for replica in self._replicas:
            tokens, share = replica.start.get("kv_tokens"), replica.start.get("max_concurrency")
            if not isinstance(tokens, int) or (longest := plan.schedule.longest) <= tokens:
                continue
            of = f", {share:g} of a request of max_model_len" if share else ""
            error = RunFailed(
                f"kv_too_small: a request of {counted(longest)} tokens can never run: the KV cache"
                f" holds {counted(tokens)}{of}",
                where=str(replica.process.log),
                fix=f"set max_model_len to {tokens} and ask for shorter ones, or give it more KV",
            )
            error.failure_class = "kv_too_small"  # type: ignore[attr-defined]
            raise error


class _StopsWhenStalled(ClockWatch):
    """Ends the drive of an engine that stands still, as the user would."""

    def __init__(self, watch: Watch, probes: Sequence[StallProbe], quiet: Quiet) -> None:
        super().__init__(watch)
        self._probes = probes
        self._quiet = quiet

    def live(self, figures: LiveFigures) -> None:
        """Take the current figures."""
        self._quiet.look(figures.chunks, figures.in_flight)
        told = [probe.now for probe in self._probes]
        waiting = [now["waiting"] for now in told if "waiting" in now]
        if len(waiting) == len(told):  # a replica that is silent has a queue all the same
            use = max((now["kv_use"] for now in told if "kv_use" in now), default=None)
            figures = replace(figures, waiting=sum(waiting), kv_use=use)
        super().live(figures)

    @property
    def stalled(self) -> str | None:
        """How the first replica that stands still does so."""
        return next((p.stalled for p in self._probes if p.stalled is not None), None)

    def stop_asked(self) -> bool:
        """True when the user asks, or an engine stands still."""
        return self.stalled is not None or super().stop_asked()


def ended(replica: Replica, code: int, when: str) -> RunFailed:
    """A process that ended by itself, classed by its log."""
    failure = classify_failure(replica.process.log_text(), code)
    error = RunFailed(
        f"{failure.kind}: the engine ended with exit code {code} {when}: {failure.line}",
        where=str(replica.process.log),
        fix=failure.advice,
    )
    error.failure_class = failure.kind  # type: ignore[attr-defined]
    return error


def _unit(number: int) -> str:
    return f"replica {number}"


def _with_summary(
    facts: RunFacts, rows: Sequence[TelemetryRow], zero_ns: int | None, gpu: GpuProbe | None
) -> RunFacts:
    """The facts with the window's telemetry; what fails in it never costs the measurement."""
    try:
        told = _summary(rows, facts.window, zero_ns, gpu)
    except Exception as error:  # pages and drivers that nobody has seen yet
        why = f"the readings beside the run told nothing: {type(error).__name__}: {error}"
        return replace(facts, notes=(*facts.notes, why))
    return replace(facts, server={**facts.server, "telemetry": told})


def _summary(
    rows: Sequence[TelemetryRow],
    window: Window,
    zero_ns: int | None,
    gpu: GpuProbe | None,
) -> Mapping[str, object]:
    """The window's telemetry in short; a part that was not measured is absent."""
    gpus: tuple[GpuSummary, ...] = ()
    if gpu is not None and zero_ns is not None:
        gpus = gpu.summaries(zero_ns + window.start_ns, zero_ns + window.end_ns, descendants())
    found = {
        "engine": summarise_engine(rows, window),
        "host": summarise_host(rows, window),
        "gpus": [asdict(summary) for summary in gpus],
    }
    return {name: value for name, value in found.items() if value}
