"""One prediction: a twin's figures for a configuration, and how it ranks among others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ridgeline.domain.bands import bands_of
from ridgeline.domain.errors import RidgelineError
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.metrics import summarise
from ridgeline.domain.parts import with_parts
from ridgeline.domain.records import MemorySink, RunRecords
from ridgeline.domain.run import RunFacts, SilentWatch
from ridgeline.domain.slo import Slo
from ridgeline.domain.summary import Summary, VerdictFigures
from ridgeline.domain.workload import Workload
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.twin import TwinEngine, constants_of
from ridgeline.experiment.calibrating import longer
from ridgeline.experiment.protocol import bounds_of
from ridgeline.experiment.verdict import Evidence, Rule, judge, nothing_to_measure
from ridgeline.workload.schedule import draw_schedule

SAME = 0.005  # a share: what differs less reads alike in three digits
FAR = 10.0  # a limit that is missed by more than ten times counts as missed by ten times


@dataclass(frozen=True, slots=True)
class Prediction:
    """A twin's figures for one configuration; `refused` says why there are none.

    `preemptions` of the whole run, None without one. A void one has figures that are not to be
    believed, as a void run has.
    """

    change: Mapping[str, Any]
    configuration: Configuration
    summary: Summary | None
    refused: str | None = None
    preemptions: int | None = None

    @property
    def void(self) -> tuple[str, ...]:
        """Why its figures are none to rely on; empty where they are, and where there are none."""
        judged = None if self.summary is None else self.summary.verdict
        return () if judged is None or judged.valid else judged.reasons

    @property
    def missed(self) -> int:
        """Limits that are not met (or not known to be)."""
        return 0 if self.summary is None else sum(r.met is not True for r in self.summary.slo)

    @property
    def per_gpu(self) -> float:
        """Output tokens per second and GPU."""
        found = None if self.summary is None else self.summary.throughput
        return (found and found.per_gpu_output_tokens_per_s) or 0.0

    @property
    def rank(self) -> tuple[float, ...]:
        """Smaller is better: what runs, what is not void, what meets more limits, what gives more
        per GPU and $.
        """
        if self.summary is None:
            return (1.0, 0.0, 0.0, 0.0)
        cost = self.summary.cost.usd_per_million_output_tokens
        over = sum(_over(r.value, r.met, r.limit) for r in self.summary.slo)
        return (
            0.5 if self.void else 0.0,
            float(self.missed),
            round(over, 6),
            -self.per_gpu if cost is None else cost,
        )


def alike(one: Prediction, other: Prediction) -> bool:
    """Whether no figure of two predictions differs by SAME or more: tokens/s per GPU, cost, and the
    p95 of TTFT and ITL (failures as infinite); the same limits are missed. What has no figures, or
    none to rely on, is like nothing.
    """
    if one.summary is None or other.summary is None or one.void or other.void:
        return False
    pairs = [
        (one.per_gpu, other.per_gpu),
        (
            one.summary.cost.usd_per_million_output_tokens,
            other.summary.cost.usd_per_million_output_tokens,
        ),
        *(
            (found.p95, one.summary.failures_as_infinite[name].p95)
            for name, found in other.summary.failures_as_infinite.items()
            if name in ("ttft_s", "itl_s")
        ),
    ]
    missed = [
        [r.limit for r in p.summary.slo if r.met is not True] for p in (one, other) if p.summary
    ]
    return missed[0] == missed[1] and all(_near(a, b) for a, b in pairs)


def _near(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return one == other or abs(one - other) < SAME * min(abs(one), abs(other))


@dataclass(frozen=True, slots=True)
class Predictor:
    """Predicts under one set of targets.

    `other_bytes` is added to the memory that the plan sets aside beside weights, activations and
    graphs: what an engine's log showed to be missing from it (negative: what it left).
    """

    slo: Slo
    other_bytes: float = 0.0

    def engine(self, configuration: Configuration) -> TwinEngine:
        """A twin engine with the configuration's constants and this memory."""
        if not self.other_bytes:
            return TwinEngine()
        known = constants_of(configuration)
        other = known.other_memory_bytes + self.other_bytes
        return TwinEngine(replace(known, other_memory_bytes=other))

    def __call__(
        self,
        configuration: Configuration,
        workload: Workload,
        change: Mapping[str, Any],
        *,
        bands: bool = False,
        prompt_extra: int = 0,
        in_full: bool = False,
        also: Sequence[Rule] = (),
    ) -> Prediction:
        """Simulate one configuration; one that the engine or the memory refuses says so.

        prompt_extra: tokens that every prompt has beyond what the workload says. in_full: it is
        judged as a run of a study is. A look is shorter than its targets need: of it is asked
        only whether anything succeeded, and what `also` asks.
        """
        sink = MemorySink()
        try:
            with self.engine(configuration).start(configuration) as endpoint:
                schedule = longer(draw_schedule(workload), prompt_extra)
                plan = DrivePlan(
                    schedule, "plan", timeouts=workload.client.timeouts,
                    routing=configuration.routing, bands=bands,
                )  # fmt: skip
                facts = endpoint.drive(plan, sink, SilentWatch())
        except RidgelineError as error:
            return Prediction(change, configuration, None, str(error))
        rules = None if in_full else (nothing_to_measure, *also)
        summary = self._summary(configuration, workload, sink.records(), facts, rules)
        preempted = None if facts.counters is None else int(facts.counters.preemptions or 0)
        return Prediction(change, configuration, summary, None, preempted)

    def _summary(
        self, configuration: Configuration, workload: Workload, records: RunRecords,
        facts: RunFacts, rules: Sequence[Rule] | None,
    ) -> Summary:  # fmt: skip
        """Figures, bands and the verdict by these rules, None: by all."""
        summary = summarise(
            records,
            facts.window,
            facts=facts,
            configuration=configuration,
            slo=self.slo,
            open_loop=not workload.arrivals.closed_loop,
            bounds=bounds_of(configuration),
        )
        summary = with_parts(summary, records, facts.window, workload, configuration.gpus)
        summary = replace(summary, bands=bands_of(summary, facts.errors))
        evidence = Evidence(records, facts, summary, workload, self.slo)
        found = judge(evidence, rules)
        judged = VerdictFigures(found.valid, found.reasons, found.warnings)
        return replace(summary, verdict=judged)


def _over(value: float | None, met: bool | None, limit: str) -> float:
    """How far a limit is missed, as a share of it; 0 when met, the most when it is not known."""
    if met:
        return 0.0
    target = float(limit.rsplit("=", 1)[1])
    if value is None or not target:
        return FAR
    return min(FAR, abs(value / target - 1))
