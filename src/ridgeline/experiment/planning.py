"""What a configuration will do before a GPU is rented: predictions, candidates, bounds.

Everything comes from twins. A candidate differs from the baseline in the knobs that it names; the
search first looks at each change alone in a short run, then combines those that helped, and
predicts the best in full.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ridgeline.domain import roofline
from ridgeline.domain.errors import RidgelineError
from ridgeline.domain.hardware import catalogue
from ridgeline.domain.hardware import gpu as find_gpu
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.metrics import summarise
from ridgeline.domain.parts import with_parts
from ridgeline.domain.records import MemorySink
from ridgeline.domain.run import SilentWatch
from ridgeline.domain.slo import Slo
from ridgeline.domain.summary import Summary
from ridgeline.domain.workload import Arrivals, Workload
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.twin import TwinEngine, twin_of
from ridgeline.experiment.protocol import bounds_of
from ridgeline.workload.schedule import draw_schedule

SHORT_S = 10.0  # window of a first look
LOADS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)  # of the study's load, for the knee
PLATEAU = 0.95
FAR = 10.0  # a limit that is missed by more than ten times counts as missed by ten times
WHAT_IF = ("H100-SXM", "H200-SXM", "B200-SXM", "A100-SXM-80GB", "L40S", "MI300X")
# Twice the mean absolute error of the priors on ten measured rows of one host (docs/twin.md).
BANDS: Mapping[str, float] = {"output_tokens_per_s": 0.08, "itl_p95": 0.30, "ttft_p95": 0.32}
Said = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Prediction:
    """A twin's figures for one configuration; `refused` says why there are none."""

    change: Mapping[str, Any]
    configuration: Configuration
    summary: Summary | None
    refused: str | None = None

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
        """Smaller is better: what runs, what meets more limits, what gives more per GPU and $."""
        if self.summary is None:
            return (1.0, 0.0, 0.0, 0.0)
        cost = self.summary.cost.usd_per_million_output_tokens
        over = sum(_over(r.value, r.met, r.limit) for r in self.summary.slo)
        return (0.0, float(self.missed), round(over, 6), -self.per_gpu if cost is None else cost)


@dataclass(frozen=True, slots=True)
class Memory:
    """One rank's memory in bytes, what its KV pool holds, and what gives way first."""

    parts: Mapping[str, float]
    kv_tokens: int
    requests: float
    first_limit: str


@dataclass(frozen=True, slots=True)
class Bound:
    """What no knob can beat: the shortest step at the batch ceiling, and tokens/s per GPU."""

    batch: int
    step_s: float
    tokens_per_s_per_gpu: float


@dataclass(frozen=True, slots=True)
class PlanResult:
    """All that `ridgeline plan` says. `candidates` are ranked, best first."""

    baseline: Prediction
    memory: Memory
    bound: Bound
    candidates: tuple[Prediction, ...]
    knee: tuple[tuple[Arrivals, float, float | None], ...] = ()
    hardware: tuple[Prediction, ...] = ()
    looked_at: int = 0
    constants: str = "prior"
    notes: tuple[str, ...] = field(default=())


def predict(
    configuration: Configuration, workload: Workload, slo: Slo, change: Mapping[str, Any]
) -> Prediction:
    """Simulate one configuration; one that the engine or the memory refuses says so."""
    sink = MemorySink()
    try:
        with TwinEngine().start(configuration) as endpoint:
            schedule = draw_schedule(workload)
            plan = DrivePlan(schedule, "plan", routing=configuration.routing)
            facts = endpoint.drive(plan, sink, SilentWatch())
    except RidgelineError as error:
        return Prediction(change, configuration, None, str(error))
    summary = summarise(
        sink.records(),
        facts.window,
        facts=facts,
        configuration=configuration,
        slo=slo,
        open_loop=not workload.arrivals.closed_loop,
        bounds=bounds_of(configuration),
    )
    summary = with_parts(summary, sink.records(), facts.window, workload, configuration.gpus)
    return Prediction(change, configuration, summary)


def plan(
    configuration: Configuration,
    workload: Workload,
    slo: Slo,
    *,
    top: int = 10,
    said: Said = lambda what, done, of: None,
) -> PlanResult:
    """Predict the baseline and search for better knobs. Raises what the baseline's twin raises."""
    twin = twin_of(configuration)
    baseline = predict(configuration, workload, slo, {})
    short = replace(
        workload,
        duration_s=min(workload.duration_s, SHORT_S),
        warmup_s=min(workload.warmup_s, SHORT_S / 2),
    )

    seen: set[str] = {repr(twin.knobs)}
    one, its_load = _one_replica(configuration, short)

    def look(changes: Sequence[Mapping[str, Any]], what: str) -> list[Prediction]:
        found = []
        for number, change in enumerate(changes):
            said(what, number, len(changes))
            if _is_new(with_changes(configuration, change), seen):
                found.append(predict(with_changes(one, change), its_load, slo, change))
        return found

    first = predict(one, its_load, slo, {})
    singles = look(_singles(configuration, workload), "single changes")
    # What only gives more tokens may well be half of what also meets the limits.
    helps = (p for p in singles if p.rank < first.rank or p.per_gpu > 1.02 * first.per_gpu)
    better = sorted(helps, key=lambda p: p.rank)
    pairs = look(_combined([p.change for p in better[:6]]), "combinations")
    ranked = sorted((p for p in (*singles, *pairs) if p.summary), key=lambda p: p.rank)
    finals = []
    for number, candidate in enumerate(ranked[:top]):
        said("the best in full", number, min(top, len(ranked)))
        changed = with_changes(configuration, candidate.change)
        finals.append(predict(changed, workload, slo, candidate.change))
    return PlanResult(
        baseline=baseline,
        memory=memory_of(configuration, workload),
        bound=_bound(configuration, workload),
        candidates=tuple(sorted(finals, key=lambda p: p.rank)),
        knee=tuple(_knee(configuration, short, slo, said)),
        hardware=tuple(_what_if(configuration, short, slo, said)),
        looked_at=len(singles) + len(pairs),
        constants=twin.constants.name,
        notes=(
            f"first looks: one replica with its share of the load, {short.duration_s:g} s;"
            f" other loads and GPUs: {short.duration_s:g} s; candidates: as in the study file",
        ),
    )


def with_changes(configuration: Configuration, change: Mapping[str, Any]) -> Configuration:
    """The configuration with some knobs changed."""
    return replace(configuration, knobs=configuration.knobs.with_changes(change))


def _is_new(configuration: Configuration, seen: set[str]) -> bool:
    """False when the engine would run with exactly the same settings as one that was seen.

    A configuration that is refused is new: it is told why.
    """
    try:
        key = repr(twin_of(configuration).knobs)
    except RidgelineError:
        return True
    new = key not in seen
    seen.add(key)
    return new


def _one_replica(configuration: Configuration, load: Workload) -> tuple[Configuration, Workload]:
    """One of several equal replicas with its share of the load; enough to rank by."""
    copies = configuration.knobs.data_parallel_size or 1
    if copies == 1 or configuration.knobs.api_server_count not in (None, copies):
        return configuration, load
    arrivals = load.arrivals.scaled(1 / copies)
    knobs = replace(configuration.knobs, data_parallel_size=1)
    alone = replace(configuration, knobs=knobs, gpus=max(1, configuration.gpus // copies))
    return alone, replace(load, arrivals=arrivals)


def _singles(configuration: Configuration, load: Workload) -> list[dict[str, Any]]:
    """One knob at a time, around the baseline; the same as the baseline is left out."""
    knobs = twin_of(configuration).knobs
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
    if knobs.weights == "bf16":
        options.append({"quantization": "fp8"})
    if knobs.kv_element_bytes > 1:
        options.append({"kv_cache_dtype": "fp8"})
    if knobs.eager:
        options.append({"enforce_eager": False})
    if not knobs.chunked_prefill:
        options.append({"enable_chunked_prefill": True})
    options.append({"enable_prefix_caching": not knobs.prefix_caching})
    if not knobs.max_num_queued_reqs and knobs.version == "0.33":
        options.append({"max_num_queued_reqs": 2 * knobs.max_num_seqs * knobs.data_parallel})
    return options


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


def memory_of(configuration: Configuration, workload: Workload) -> Memory:
    """Where one rank's memory goes, and what limits how many requests run."""
    twin = twin_of(configuration)
    plan, knobs = twin.memory, twin.knobs
    length = _mean_lengths(workload)[0] + _mean_lengths(workload)[1]
    requests = plan.kv_tokens / length
    users = workload.arrivals.peak_users
    per_replica = None if users is None else users / knobs.data_parallel
    if requests < min(knobs.max_num_seqs, per_replica or knobs.max_num_seqs):
        limit = f"KV memory: {requests:.0f} requests of {length:.0f} tokens fit, then preemption"
    elif per_replica is not None and per_replica <= knobs.max_num_seqs:
        limit = f"load: {per_replica:.0f} users per replica, {knobs.max_num_seqs} may run"
    else:
        limit = f"the batch ceiling: max_num_seqs {knobs.max_num_seqs} of {requests:.0f} that fit"
    names = ("total", "budget", "weights", "activation", "graph", "other", "kv")
    return Memory(
        {n: float(getattr(plan, f"{n}_bytes")) for n in names}, plan.kv_tokens, requests, limit
    )


def _mean_lengths(workload: Workload) -> tuple[float, float]:
    return workload.mean_prompt_tokens, workload.mean_output_tokens


def _bound(configuration: Configuration, workload: Workload) -> Bound:
    """Per request: its prompt at the dense peak, its answer in steps at the roofline."""
    twin = twin_of(configuration)
    shape, gpu, knobs = twin.shape, twin.gpu, twin.knobs
    ranks = knobs.tensor_parallel
    prompt, output = _mean_lengths(workload)
    batch = knobs.max_num_seqs
    users = workload.arrivals.peak_users
    if users is not None:
        batch = min(batch, max(1, -(-users // knobs.data_parallel)))
    context = prompt + output / 2
    moved = roofline.decode_bytes(
        shape, batch, context, weight_bytes=knobs.weight_bytes,
        kv_element_bytes=knobs.kv_element_bytes,
    )  # fmt: skip
    flops = roofline.decode_flops(shape, batch, context)
    step = roofline.floor_s(gpu, flops / ranks, moved / ranks, knobs.weights)
    # A whole request on the compute side, its answer's share of the steps on the memory side.
    work = roofline.prefill_flops(shape, round(prompt)) + output * flops / batch
    seconds = max(output * step / batch, work / ranks / gpu.peak_flops(knobs.weights))
    return Bound(batch, step, output / seconds / ranks)


def _knee(
    configuration: Configuration, load: Workload, slo: Slo, said: Said
) -> Iterable[tuple[Arrivals, float, float | None]]:
    """(arrivals, output tokens/s, p95 TTFT in s) over several loads, ascending."""
    for number, factor in enumerate(LOADS):
        said("other loads", number, len(LOADS))
        arrivals = load.arrivals.scaled(factor)
        found = predict(configuration, replace(load, arrivals=arrivals), slo, {}).summary
        if found is not None:
            rate = found.throughput.output_tokens_per_s or 0.0
            yield arrivals, rate, found.failures_as_infinite["ttft_s"].p95


def knee_of(points: Sequence[tuple[Arrivals, float, float | None]]) -> Arrivals | None:
    """The lowest load that reaches 95 % of the highest throughput seen."""
    best = max((rate for _, rate, _ in points), default=0.0)
    return next((a for a, rate, _ in points if rate >= PLATEAU * best), None)


def _what_if(
    configuration: Configuration, load: Workload, slo: Slo, said: Said
) -> Iterable[Prediction]:
    """The baseline's knobs on other GPUs (without a price, which is not known)."""
    known = {g.name for g in catalogue()}
    names = [n for n in WHAT_IF if n in known and n != find_gpu(configuration.gpu or "").name]
    for number, name in enumerate(names):
        said("other GPUs", number, len(names))
        changed = replace(configuration, gpu=name, price_per_gpu_hour=None)
        yield predict(changed, load, slo, {"gpu": name})


def _over(value: float | None, met: bool | None, limit: str) -> float:
    """How far a limit is missed, as a share of it; 0 when met, the most when it is not known."""
    if met:
        return 0.0
    target = float(limit.rsplit("=", 1)[1])
    if value is None or not target:
        return FAR
    return min(FAR, abs(value / target - 1))
