"""Situations staged on the twin in simulated time: what its /metrics would have said, as pages.

A simulation is driven as `ridgeline plan` drives it; its events are counted into the twin server's
own metrics, and every second a page is rendered, as a scrape would have got it. Beside that a page
of GPU counters, worked out from the steps. `noise` moves the twin's constants away from the priors
that a diagnosis assumes, by as much as they are said to be uncertain.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ridgeline.diagnosis.evidence import Evidence, Known
from ridgeline.diagnosis.gathering import Snapshot, gather
from ridgeline.diagnosis.known import with_configuration
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.records import STEP_PARTS
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, SharedPrefix, Workload
from ridgeline.engines.twin import constants_of, twin_of
from ridgeline.engines.twin_server.histogram import Histogram
from ridgeline.engines.twin_server.live import ITERATION_TOKENS
from ridgeline.engines.twin_server.metrics import EngineMetrics, ServerMetrics
from ridgeline.engines.twin_server.pacer import EngineState
from ridgeline.telemetry.prometheus import parse_metrics
from ridgeline.twin.calibration import MOST
from ridgeline.twin.constants import Constants
from ridgeline.twin.fleet import Fleet, Twin
from ridgeline.twin.offer import Offer
from ridgeline.twin.replica import PACKED_STEPS, Replica
from ridgeline.twin.request import Request
from ridgeline.twin.results import step_table
from ridgeline.twin.scheduler import Decision
from ridgeline.twin.uncertainty import prior_doubt
from ridgeline.workload.schedule import draw_schedule


@dataclass
class _Seen:
    """One request as the front end counts it: engine-side and client-side times, ns."""

    first_end: int = 0
    last_end: int = 0
    last_at: int = 0
    done: int = 0


class _Metered(Offer):
    """The client, and the front end's counters beside it."""

    def __init__(self, schedule: Any, twin: Twin, model: str) -> None:
        super().__init__(schedule)
        self.twin = twin
        ranks = twin.knobs.data_parallel
        self.metrics = ServerMetrics(model, twin.knobs.max_model_len, ranks, 1.7e9)
        self.steps = [Histogram(ITERATION_TOKENS) for _ in range(ranks)]
        self.place = [0] * ranks
        self.accepted = [0] * ranks
        self.seen: dict[int, _Seen] = {}
        # of the window: (when, tokens), (when, wait), (when, gap), ns
        self.made: list[tuple[int, int]] = []
        self.waits: list[tuple[int, int]] = []
        self.gaps: list[tuple[int, int]] = []

    def delivered(self, replica: Replica, decision: Decision, at_ns: int) -> None:
        number = replica.number
        metrics = self.metrics.engines[number]
        end = _step_end(replica, self.place[number])
        self.place[number] += 1
        assert decision.trace is not None
        ended = {r.number for r in decision.firsts}
        unfinished = {r.number for r, _, _ in decision.prefills} - ended
        if decision.outputs:
            self.steps[number].observe(decision.tokens)
        gaps = metrics.histograms["inter_token_latency_seconds"]
        inside = self.window_start <= at_ns < self.window_end
        before = metrics.generation_tokens
        for index in decision.trace:
            if index in unfinished or index not in self.open:
                continue
            row = self.seen.setdefault(index, _Seen())
            if row.done:
                gaps.observe((at_ns - row.last_at) / 1e9)
                if inside:
                    self.gaps.append((at_ns, at_ns - row.last_at))
            else:
                request = self.open[index]
                row.first_end = end
                metrics.prompt_tokens += request.prompt
                metrics.histograms["time_to_first_token_seconds"].observe(
                    (at_ns - request.sent_ns) / 1e9
                )
                if inside:
                    self.waits.append((at_ns, at_ns - request.sent_ns))
            row.done += 1
            row.last_end, row.last_at = end, at_ns
            metrics.generation_tokens += 1
        self._accepted(replica, metrics)
        if inside:
            self.made.append((at_ns, metrics.generation_tokens - before))

    def _accepted(self, replica: Replica, metrics: EngineMetrics) -> None:
        """Tokens that came on top of a step's own, by speculation."""
        accepted = getattr(replica.scheduler, "accepted", 0)
        metrics.generation_tokens += accepted - self.accepted[replica.number]
        self.accepted[replica.number] = accepted

    def finished(self, request: Request) -> None:
        metrics = self.metrics.engines[request.replica]
        row = self.seen.pop(request.number, None)
        if request.failure is not None or row is None:
            metrics.finished["error"] += 1
        else:
            metrics.finished["length"] += 1
            self._observe(request, row)
        super().finished(request)

    def _observe(self, request: Request, row: _Seen) -> None:
        metrics = self.metrics.engines[request.replica]
        assert request.queued_ns is not None
        assert request.scheduled_ns is not None
        assert request.last_ns is not None
        seconds = {
            "e2e_request_latency_seconds": request.last_ns - request.sent_ns,
            "request_queue_time_seconds": request.scheduled_ns - request.queued_ns,
            "request_prefill_time_seconds": row.first_end - request.scheduled_ns,
            "request_decode_time_seconds": row.last_end - row.first_end,
        }
        for name, nanos in seconds.items():
            metrics.histograms[name].observe(max(0, nanos) / 1e9)
        if request.output > 1:
            per_token = (row.last_end - row.first_end) / (request.output - 1) / 1e9
            metrics.histograms["request_time_per_output_token_seconds"].observe(per_token)
        metrics.histograms["request_prompt_tokens"].observe(request.prompt)
        metrics.histograms["request_generation_tokens"].observe(request.output)

    def page(self, fleet: Fleet) -> str:
        """What /metrics says now."""
        states, drafts = [], ""
        for replica, steps in zip(fleet.replicas, self.steps, strict=True):
            s = replica.scheduler
            states.append(
                EngineState(
                    running=len(s.running), waiting=len(s.waiting),
                    kv_usage=s.pool.used / s.pool.capacity,
                    prefix_queried_tokens=s.queried_tokens if s.knobs.prefix_caching else None,
                    prefix_hit_tokens=s.hit_tokens if s.knobs.prefix_caching else None,
                    preemptions=s.preemptions, iteration_tokens=steps,
                )
            )  # fmt: skip
            drafts += _drafts(replica)
        knobs = self.twin.knobs
        labels = {
            "block_size": str(knobs.block_size), "cache_dtype": knobs.kv_cache_dtype,
            "num_gpu_blocks": str(self.twin.memory.usable_blocks + 1),
            "enable_prefix_caching": str(knobs.prefix_caching),
        }  # fmt: skip
        text = self.metrics.render(states, labels) + drafts
        if len(fleet.servers) == 1:
            text += f"process_cpu_seconds_total {fleet.servers[0].busy_ns / 1e9}\n"
        return text


def _drafts(replica: Replica) -> str:
    """The counters of speculation; an accepted token is generated as well."""
    drafted = getattr(replica.scheduler, "drafted", None)
    if drafted is None:
        return ""
    k = replica.scheduler.knobs.drafts
    accepted = replica.scheduler.accepted  # type: ignore[attr-defined]
    label = f'{{engine="{replica.number}"}}'
    return "".join(
        f"vllm:spec_decode_num_{name}_total{label} {value}\n"
        for name, value in (("drafts", drafted / k), ("draft_tokens", drafted),
                            ("accepted_tokens", accepted))
    )  # fmt: skip


def _step_end(replica: Replica, place: int) -> int:
    packed = replica._packed
    part, row = divmod(place, PACKED_STEPS)
    if part < len(packed):
        return int(packed[part][row][1])
    return int(replica.rows[place - PACKED_STEPS * len(packed)][1])


@dataclass
class Staged:
    """What was staged and what could be scraped of it."""

    configuration: Configuration
    workload: Workload
    pages: list[tuple[float, str]]
    gpu_page: str
    figures: dict[str, float]

    def snapshots(self) -> list[Snapshot]:
        """As if they had been scraped."""
        return [Snapshot(at, parse_metrics(text), 200) for at, text in self.pages]

    def evidence(self, *, known: bool = True, gpu: bool = True) -> Evidence:
        """What a diagnosis is given: with the study file and GPU counters, or without."""
        told = Known()
        if known:
            told = with_configuration(told, self.configuration, self.workload, "the study file")
        pages = [parse_metrics(self.gpu_page)] if gpu else []
        return gather(self.snapshots(), told, pages)


def moved(constants: Constants, gpu: str, seed: int, *, front: bool = True) -> Constants:
    """Constants drawn from what is not known of them; without `front` the API server is left."""
    rng = np.random.default_rng(seed)
    shift: dict[str, float] = {}
    for direction in prior_doubt(gpu).directions:
        z = float(np.clip(rng.normal(), -2, 2))
        if not front and "receive_ns" in direction:
            continue
        for name, size in direction.items():
            shift[name] = shift.get(name, 0.0) + z * size
    values: dict[str, Any] = {
        n: min(getattr(constants, n) * float(np.exp(s)), MOST.get(n, np.inf))
        for n, s in shift.items()
    }
    return replace(constants, **values)


class _Lot:
    """A router that draws lots and looks at no load."""

    def __init__(self, weights: Sequence[float]) -> None:
        self._rng = np.random.default_rng(5)
        self._shares = np.array(weights) / sum(weights)

    def choose(self, group: int | None) -> int:
        return int(self._rng.choice(len(self._shares), p=self._shares))

    def ended(self, replica: int) -> None:
        """Forgotten."""


def load(
    *, users: int | None = None, rate: float | None = None, prompt: float = 512,
    output: float = 128, spread: float = 0.5, shared: int = 0, groups: int = 1, seed: int = 1,
    classes: Sequence[Any] = (), warmup: float = 15.0, duration: float = 20.0,
) -> Workload:  # fmt: skip
    prefix = SharedPrefix(shared, groups) if shared else None
    return Workload(
        Arrivals(users=users, rate_per_s=rate), Prompts(Lengths(prompt, spread), prefix),
        Outputs(Lengths(output, spread)), duration_s=duration, warmup_s=warmup, seed=seed,
        classes=tuple(classes),
    )  # fmt: skip


def serving(
    model: str = "Qwen/Qwen3-4B", gpu: str = "H100-SXM", routing: str = "round-robin",
    **knobs: Any,
) -> Configuration:  # fmt: skip
    made = Knobs(**knobs)
    return Configuration(model, made, gpu=gpu, gpus=made.gpus, routing=routing)


def stage(
    configuration: Configuration, workload: Workload, *, noise: int | None = None,
    period_s: float = 1.0, weights: Sequence[float] = (), front: bool = True,
    **constants: float,
) -> Staged:  # fmt: skip
    """Simulate it; scrape every `period_s` from the warm-up's end to the window's.

    weights: how a router spreads requests over the replicas, by lot. noise: seed of the
    constants' displacement, None for the priors. `constants`: factors on top.
    """
    made = constants_of(configuration)
    if noise is not None:
        made = moved(made, configuration.gpu or "", noise, front=front)
    factors: dict[str, Any] = {n: getattr(made, n) * v for n, v in constants.items()}
    twin = twin_of(configuration, replace(made, **factors))
    offer = _Metered(draw_schedule(workload), twin, configuration.model)
    fleet = Fleet(twin, offer, routing=configuration.routing, trace=True)
    if weights:
        fleet._router = _Lot(weights)  # type: ignore[assignment]
    pages: list[tuple[float, str]] = []
    at = offer.window_start
    while at <= offer.window_end:
        fleet.at(at, lambda now: pages.append((now / 1e9, offer.page(fleet))))
        at += round(period_s * 1e9)
    offer.begin(fleet)
    fleet.run_until(offer.window_end + 1)
    return _staged(configuration, workload, fleet, offer, pages)


def _staged(
    configuration: Configuration, workload: Workload, fleet: Fleet, offer: _Metered,
    pages: list[tuple[float, str]],
) -> Staged:  # fmt: skip
    table = step_table(fleet)
    inside = (table.end_ns >= offer.window_start) & (table.end_ns < offer.window_end)
    span = (offer.window_end - offer.window_start) / 1e9
    ranks = fleet.twin.knobs.tensor_parallel
    replicas = len(fleet.replicas)
    gpu = fleet.twin.gpu
    whole = span * replicas * 1e9
    work = sum(
        float(table.parts[p][inside].sum()) for p in STEP_PARTS
        if p in table.parts and p not in ("launch", "cpu")
    )  # fmt: skip
    busy = float((table.end_ns - table.start_ns)[inside].sum())
    gpus = replicas * ranks
    dram = float(table.bytes_read[inside].sum()) / gpu.bandwidth_bytes_per_s / span / gpus
    tensor = float(table.flops[inside].sum()) / gpu.peak_flops("bf16") / span / gpus
    rows = {
        "DCGM_FI_DEV_GPU_UTIL": 100 * min(1.0, busy / whole),
        "DCGM_FI_PROF_SM_ACTIVE": min(1.0, work / whole),
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": min(1.0, tensor),
        "DCGM_FI_PROF_DRAM_ACTIVE": min(1.0, dram),
        "DCGM_FI_DEV_POWER_USAGE": 200.0 + 400.0 * min(1.0, work / whole),
    }
    text = "".join(
        f'{name}{{gpu="0",modelName="NVIDIA {gpu.name}"}} {value}\n' for name, value in rows.items()
    )
    return Staged(configuration, workload, pages, text, _figures(pages, offer, span))


def _figures(pages: list[tuple[float, str]], offer: _Metered, span: float) -> dict[str, float]:
    """What truly came out in the window, from the simulation and not from the pages."""
    found = {"output_tokens_per_s": sum(n for _, n in offer.made) / span}
    waits = np.array([wait for at, wait in offer.waits]) / 1e9
    gaps = np.array([gap for _, gap in offer.gaps]) / 1e9
    for name, values in (("ttft", waits), ("itl", gaps)):
        if len(values):
            found |= {f"{name}_mean_s": float(values.mean()),
                      f"{name}_p50_s": float(np.quantile(values, 0.5)),
                      f"{name}_p95_s": float(np.quantile(values, 0.95)),
                      f"{name}_p99_s": float(np.quantile(values, 0.99))}  # fmt: skip
    return found
