"""What a configuration will do before a GPU is rented: predictions, candidates, bounds.

Everything comes from twins. A candidate differs from the baseline in the knobs that it names; the
search first looks at each change alone in a short run, then combines those that helped, and
predicts the best in full.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ridgeline.domain.errors import RidgelineError
from ridgeline.domain.hardware import catalogue
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.slo import Slo
from ridgeline.domain.workload import Workload
from ridgeline.engines.twin import Twin, twin_of
from ridgeline.experiment.calibrating import Observation, assumed
from ridgeline.experiment.capacity import (
    Bound,
    Memory,
    bound_of,
    highest_bound,
    memory_of,
    missing_bytes,
)
from ridgeline.experiment.heldagainst import Agreement, Held, agreement, hold
from ridgeline.experiment.planknee import LOADS, Knee, Point, knee_found, knee_of
from ridgeline.experiment.predicting import Prediction, Predictor, alike

__all__ = ["Bound", "Memory", "PlanResult", "Prediction", "knee_of", "plan", "with_changes"]

SHORT_S = 10.0  # window of a first look
WHAT_IF = ("H100-SXM", "H200-SXM", "B200-SXM", "A100-SXM-80GB", "L40S", "MI300X")
Said = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class PlanResult:
    """All that `ridgeline plan` says. `candidates` are ranked, best first.

    alike: changes that promised something in a first look and are predicted as the baseline is.
    bound: over all settings that the plan varies; own_bound: at the baseline's own settings.
    held: predictions beside runs that were measured, with `held_notes` on what is taken for granted
    of them; `demoted`: they contradict the twin. loads: other loads of the baseline in short looks,
    with output tokens/s and p95 TTFT.
    """

    baseline: Prediction
    memory: Memory
    bound: Bound
    own_bound: Bound
    candidates: tuple[Prediction, ...]
    alike: tuple[Prediction, ...] = ()
    loads: tuple[Point, ...] = ()
    knee: Knee | None = None
    hardware: tuple[Prediction, ...] = ()
    looked_at: int = 0
    constants: str = "prior"
    notes: tuple[str, ...] = field(default=())
    held: tuple[Held, ...] = ()
    held_notes: tuple[str, ...] = ()

    @property
    def agreement(self) -> Agreement:
        """How the throughputs of `held` agree with the twin's."""
        return agreement(self.held)

    @property
    def demoted(self) -> bool:
        """Whether measurements contradict the ranking."""
        return self.agreement.demoted


def plan(
    configuration: Configuration,
    workload: Workload,
    slo: Slo,
    *,
    top: int = 10,
    log: tuple[str, str] | None = None,
    measured: Sequence[Observation] = (),
    said: Said = lambda what, done, of: None,
) -> PlanResult:
    """Predict the baseline and search for better knobs. Raises what the baseline's twin raises.

    `log`: (text, name) of an engine's start-up log, whose KV cache size is taken. `measured`: runs
    that the twin's predictions are held against.
    """
    twin = twin_of(configuration)
    other = 0.0 if log is None else missing_bytes(twin, *log)
    held = hold(measured, Predictor(slo), configuration)
    search = _Plan(configuration, workload, Predictor(slo, other), said, from_log=log is not None)
    return replace(search.result(top), held=held, held_notes=assumed(measured))


class _Plan:
    """The search: what is tried, in which order."""

    def __init__(
        self,
        configuration: Configuration,
        workload: Workload,
        predict: Predictor,
        said: Said,
        *,
        from_log: bool = False,
    ) -> None:
        self.from_log = from_log
        self.configuration, self.workload = configuration, workload
        self.predict, self.said = predict, said
        self.short = replace(
            workload,
            duration_s=min(workload.duration_s, SHORT_S),
            warmup_s=min(workload.warmup_s, SHORT_S / 2),
        )
        self.twin = self._twin(configuration)
        self.seen = {repr(self.twin.knobs)}

    def _twin(self, configuration: Configuration) -> Twin:
        with self.predict.engine(configuration).start(configuration) as endpoint:
            return endpoint.twin

    def result(self, top: int) -> PlanResult:
        """Run the whole plan."""
        configuration, workload = self.configuration, self.workload
        self.said("the baseline", 0, 1)
        baseline = self.predict(configuration, workload, {}, bands=True, in_full=True)
        first = self._first_look({})
        singles = self._look(_singles(self.twin, workload), "single changes")
        # What only gives more tokens may well be half of what also meets the limits.
        helps = (p for p in singles if p.rank < first.rank or p.per_gpu > 1.02 * first.per_gpu)
        better = sorted(helps, key=lambda p: p.rank)
        pairs = self._look(_combined([p.change for p in better[:6]]), "combinations")
        seen = (p for p in (*singles, *pairs) if p.summary and not p.void)
        ranked = sorted(seen, key=lambda p: p.rank)
        finals, same = self._in_full([p.change for p in ranked], baseline, top)
        best = min(finals, key=lambda p: p.rank).change if finals else {}
        more, also = self._in_full([{**best, **c} for c in self._routings()], baseline, top)
        finals += more
        loads = tuple(self._loads())
        knee = knee_found(loads, configuration, workload, self.predict, self.said)
        return PlanResult(
            baseline=baseline,
            memory=memory_of(self.twin, workload, from_log=self.from_log),
            bound=highest_bound(self.twin, configuration, workload, _layouts(self.twin)),
            own_bound=bound_of(self.twin, workload),
            candidates=tuple(sorted(finals, key=lambda p: p.rank)[:top]),
            alike=(*same, *also),
            loads=loads,
            knee=knee,
            hardware=tuple(self._what_if()),
            looked_at=len(singles) + len(pairs),
            constants=self.twin.constants.name,
            notes=(
                f"first looks: one replica with its share of the load, {self.short.duration_s:g} s;"
                f" other loads: {self.short.duration_s:g} s; candidates, other GPUs and the knee of"
                " a rate: as in the study file",
            ),
        )

    def _in_full(
        self, changes: Sequence[Mapping[str, Any]], baseline: Prediction, top: int
    ) -> tuple[list[Prediction], list[Prediction]]:
        """Up to `top` that are predicted otherwise than the baseline, with bands, and those on the
        way that are not. At most twice as many are tried: the later ones promised less and less.
        """
        finals: list[Prediction] = []
        same: list[Prediction] = []
        for number, change in enumerate(changes[: 2 * top]):
            if len(finals) == top:
                break
            self.said("the best in full", number, min(2 * top, len(changes)))
            changed = with_changes(self.configuration, change)
            found = self.predict(changed, self.workload, change, in_full=True)
            if alike(found, baseline):
                same.append(found)
                continue
            finals.append(self.predict(changed, self.workload, change, bands=True, in_full=True))
        return finals, same

    def _first_look(self, change: Mapping[str, Any]) -> Prediction:
        one, load = _one_replica(with_changes(self.configuration, change), self.short)
        return self.predict(one, load, change)

    def _look(self, changes: Sequence[Mapping[str, Any]], what: str) -> list[Prediction]:
        found = []
        for number, full in enumerate(changes):
            self.said(what, number, len(changes))
            change = self._real(full)
            if self._is_new(change):
                found.append(self._first_look(change))
        return found

    def _real(self, change: Mapping[str, Any]) -> dict[str, Any]:
        """The change without what the baseline has anyway."""
        given = self.configuration.knobs.given()
        return {n: v for n, v in change.items() if given.get(n) != v}

    def _is_new(self, change: Mapping[str, Any]) -> bool:
        """False when the engine would run with exactly the same settings as one that was seen.

        A configuration that is refused is new: it is told why.
        """
        try:
            key = repr(self._twin(with_changes(self.configuration, change)).knobs)
        except RidgelineError:
            return True
        new = key not in self.seen
        self.seen.add(key)
        return new

    def _routings(self) -> list[dict[str, Any]]:
        """Other routers for the best candidate; one replica has nothing to choose."""
        if self.twin.knobs.data_parallel == 1:
            return []
        load = self.workload
        prompts = (load.prompts, *(c.prompts for c in load.classes))
        shares = load.sessions is not None or any(p.shared_tokens for p in prompts)
        rules = ("least-loaded", "prefix-aware") if shares else ("least-loaded",)
        return [{"routing": r} for r in rules if r != self.configuration.routing]

    def _loads(self) -> Iterable[Point]:
        """(arrivals, output tokens/s, p95 TTFT in s) over several loads, ascending.

        Where nothing succeeds nothing is delivered, whatever tokens came before the client left.
        """
        for number, factor in enumerate(LOADS):
            self.said("other loads", number, len(LOADS))
            arrivals = self.short.arrivals.scaled(factor)
            load = replace(self.short, arrivals=arrivals)
            predicted = self.predict(self.configuration, load, {})
            found = predicted.summary
            if found is not None:
                rate = 0.0 if predicted.void else found.throughput.output_tokens_per_s or 0.0
                yield arrivals, rate, found.failures_as_infinite["ttft_s"].p95

    def _what_if(self) -> Iterable[Prediction]:
        """The baseline's knobs on other GPUs (without a price, which is not known)."""
        known = {g.name for g in catalogue()}
        names = [n for n in WHAT_IF if n in known and n != self.twin.gpu.name]
        for number, name in enumerate(names):
            self.said("other GPUs", number, len(names))
            changed = replace(
                self.configuration, gpu=name, gpu_figures=None, price_per_gpu_hour=None
            )
            yield self.predict(changed, self.workload, {"gpu": name}, bands=True, in_full=True)


def with_changes(configuration: Configuration, change: Mapping[str, Any]) -> Configuration:
    """The configuration with some knobs or its routing changed, on the GPUs it then needs."""
    knobs = configuration.knobs.with_changes({n: v for n, v in change.items() if n != "routing"})
    routing = change.get("routing", configuration.routing)
    same = knobs.gpus == configuration.knobs.gpus
    gpus = configuration.gpus if same else knobs.gpus
    return replace(configuration, knobs=knobs, routing=routing, gpus=gpus)


def _one_replica(configuration: Configuration, load: Workload) -> tuple[Configuration, Workload]:
    """One of several equal replicas with its share of the load; enough to rank by."""
    copies = configuration.knobs.data_parallel_size or 1
    if copies == 1 or configuration.knobs.api_server_count not in (None, copies):
        return configuration, load
    arrivals = load.arrivals.scaled(1 / copies)
    knobs = replace(configuration.knobs, data_parallel_size=1)
    alone = replace(configuration, knobs=knobs, gpus=max(1, configuration.gpus // copies))
    return alone, replace(load, arrivals=arrivals)


def _singles(twin: Twin, load: Workload) -> list[dict[str, Any]]:
    """One knob at a time, around the baseline; the same as the baseline is left out."""
    knobs = twin.knobs
    users = load.arrivals.peak_users
    most = 1024 if users is None else 2 * -(-users // knobs.data_parallel)
    options: list[dict[str, Any]] = [
        *(
            {"max_num_seqs": n}
            for n in (8, 16, 32, 64, 128, 256, 512, 1024)
            if n != knobs.max_num_seqs and (n <= most or n == 8)
        ),
        *(
            {"max_num_batched_tokens": n}
            for n in (1024, 2048, 4096, 8192, 16384)
            if n != knobs.max_num_batched_tokens and n >= knobs.max_num_seqs
        ),
        *(
            {"max_cudagraph_capture_size": n}
            for n in (256, 512, 1024)
            if n > knobs.max_capture_size and not knobs.eager
        ),
    ]
    options += _layouts(twin)
    if knobs.weights == "bf16" and "fp8" in twin.gpu.flops:
        options.append({"quantization": "fp8"})
    if knobs.kv_element_bytes > 1.5:
        options.append({"kv_cache_dtype": "fp8"})
    if knobs.eager:
        options.append({"enforce_eager": False})
    if not knobs.chunked_prefill:
        options.append({"enable_chunked_prefill": True})
    options.append({"enable_prefix_caching": not knobs.prefix_caching})
    if not knobs.max_num_queued_reqs and knobs.version == "0.33":
        options.append({"max_num_queued_reqs": 2 * knobs.max_num_seqs * knobs.data_parallel})
    return options


def _layouts(twin: Twin) -> list[dict[str, Any]]:
    """The same GPUs otherwise divided between tensor and data parallelism."""
    knobs, heads = twin.knobs, twin.shape.heads
    gpus = knobs.tensor_parallel * knobs.data_parallel
    if twin.gpu.link_bytes_per_s is None:
        return []
    return [
        {"tensor_parallel_size": ranks, "data_parallel_size": gpus // ranks}
        for ranks in (1, 2, 4, 8)
        if ranks != knobs.tensor_parallel and gpus % ranks == 0 and heads % ranks == 0
    ]


def _combined(changes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Pairs of changes to different knobs, then each best value of every knob together."""
    found: list[dict[str, Any]] = []
    for i, one in enumerate(changes):
        found.extend({**one, **two} for two in changes[i + 1 :] if not set(one) & set(two))
    together: dict[str, Any] = {}
    for change in changes:
        together = {**change, **together}
    if len(together) > 2:
        found.append(together)
        seqs = together.get("max_num_seqs")
        if seqs is not None:
            found.append({**together, "max_num_seqs": max(1, seqs // 2)})
    return found
