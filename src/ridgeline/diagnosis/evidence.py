"""All that a diagnosis rests on: figures of one span, as frozen values. None: not told, never 0.

`gathering.py` makes it from scrapes; the rules read it and nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ridgeline.diagnosis.distribution import Distribution
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.workload import Workload

WORKS = 0.05  # of the time: a GPU that does less is idle


@dataclass(frozen=True, slots=True)
class Level:
    """A gauge over the scrapes that told it: mean, least, most, first, last, how many.

    half: of the 95 % interval of the mean; None where too few readings tell it.
    """

    mean: float
    low: float
    high: float
    first: float
    last: float
    n: int
    half: float | None = None

    @property
    def steady(self) -> bool:
        """Three readings or more, within 2 % of each other."""
        return self.n >= 3 and self.high - self.low <= 0.02 * self.high


@dataclass(frozen=True, slots=True)
class EngineLevels:
    """One engine core (a data-parallel rank, or a replica). kv_use 0..1; tokens of the span.

    deferred: of the waiting ones those that wait for something else than room.
    running_queued: requests running in those readings in which others waited. stood_still_s: how
    long it has held requests and nothing of it moved. lagged: its gauges as they were read, where
    they lag and `running` and `waiting` are by Little's law (see `lagging.py`).
    """

    name: str
    running: Level | None = None
    waiting: Level | None = None
    kv_use: Level | None = None
    generation_tokens: float | None = None
    preemptions: float | None = None
    deferred: Level | None = None
    running_queued: Level | None = None
    stood_still_s: float = 0.0
    lagged: "Lagged | None" = None


@dataclass(frozen=True, slots=True)
class Lagged:
    """What gauges said that lagged behind the histograms: mean requests running and waiting."""

    running: float
    waiting: float


@dataclass(frozen=True, slots=True)
class Histograms:
    """The server's histograms of the span. Times in s, lengths in tokens.

    `step_tokens`: tokens of a step that had output (a prompt counts whole, when it is complete).
    """

    ttft: Distribution | None = None
    itl: Distribution | None = None
    tpot: Distribution | None = None
    e2e: Distribution | None = None
    queue: Distribution | None = None
    prefill: Distribution | None = None
    decode: Distribution | None = None
    prompt_lengths: Distribution | None = None
    output_lengths: Distribution | None = None
    step_tokens: Distribution | None = None


@dataclass(frozen=True, slots=True)
class GpuEvidence:
    """One GPU over the span, shares 0..1. `name` as the driver says it."""

    index: str
    name: str | None = None
    utilisation: float | None = None
    sm_active: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None
    power_w: float | None = None
    throttled: Mapping[str, float] = field(default_factory=dict)

    @property
    def works(self) -> bool:
        """Whether anything runs on it."""
        return max(self.utilisation or 0.0, self.sm_active or 0.0) >= WORKS


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of the configuration, and from where (`sources`: field -> words).

    kv_tokens: of one engine's pool. capture: the largest captured batch, 0 without graphs.
    priorities: the plan's classes declare some; no page tells whether requests carry them.
    """

    configuration: Configuration | None = None
    workload: Workload | None = None
    version: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    eager: bool | None = None
    capture: int | None = None
    block_size: int | None = None
    kv_tokens: int | None = None
    kv_dtype: str | None = None
    prefix_caching: bool | None = None
    drafts: int | None = None
    draft_method: str | None = None
    scheduling_policy: str | None = None
    api_servers: int | None = None
    priorities: bool | None = None
    routing: str | None = None
    stats_off: bool = False
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoraSlots:
    """Adapters that a step can hold, and the names of those that run and that wait."""

    most: int
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()

    @property
    def full(self) -> bool:
        """Whether adapters wait for others to leave."""
        return bool(self.waiting) and len(self.running) >= self.most


@dataclass(frozen=True, slots=True)
class RouterSigns:
    """What a router's log says: its policy, and where it asked for loads in vain (URL -> times)."""

    policy: str | None = None
    failed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A handful of own requests: client and server means in s; None where they cannot be told.

    `alone`: no other request ended meanwhile, so that both means are of the same requests.
    `silent_s`: how long the first one was waited for in vain, where no answer came at all. ttft_s,
    itl_s: means of the ones answered, by the clock here; output_tokens: of all of them, by the
    server's count. health: the status of /health afterwards. trouble: why one failed. server: the
    URL that was asked; target: its place among several, as its engines' names begin.
    """

    sent: int
    ok: int
    client_e2e_s: float | None = None
    server_e2e_s: float | None = None
    alone: bool = False
    silent_s: float | None = None
    ttft_s: float | None = None
    itl_s: float | None = None
    output_tokens: int | None = None
    health: int | None = None
    trouble: str | None = None
    server: str | None = None
    target: str | None = None

    @property
    def silent(self) -> bool:
        """Whether no answer came at all."""
        return self.silent_s is not None

    def to_json(self) -> dict[str, Any]:
        """As plain values; what is not known is null."""
        return {
            "sent": self.sent, "ok": self.ok, "ttft_s": self.ttft_s, "itl_s": self.itl_s,
            "e2e_s": self.client_e2e_s, "server_e2e_s": self.server_e2e_s,
            "output_tokens": self.output_tokens, "health": self.health, "trouble": self.trouble,
            "server": self.server,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Evidence:
    """Figures of `span_s` seconds. Counts are of the span and of all engines together.

    restarts: times the server began anew in between. lost: scrapes that could not be had.
    requests ended well, `aborted` were given up, `failed` ended in an error. Of `servers` asked,
    `unread` told no page to the end and the /health of `sick` says 500 or more.
    mixed: the readings are of several servers in turn. stood_still_s: the longest of its engines'.
    several_fronts: the page is one that several API servers share; fronts_untold: or a Prometheus
    dropped what would tell. host_idle: of the host's CPU.
    rates_known: two readings or more, at known times. aliases: present name -> older one found.
    transferred: bytes that KV connectors brought. cores: role -> CPU cores taken.
    probes: of several servers one each, of those that were asked. twin: some page is a twin's.
    """

    server: str | None
    span_s: float
    scrapes: int
    known: Known = Known()
    engines: tuple[EngineLevels, ...] = ()
    running: Level | None = None
    waiting: Level | None = None
    waiting_capacity: Level | None = None
    waiting_deferred: Level | None = None
    kv_use: Level | None = None
    requests: float | None = None
    aborted: float | None = None
    failed: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    steps: float | None = None
    preemptions: float | None = None
    cache_queries: float | None = None
    cache_hits: float | None = None
    drafts: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    prompt_by_source: Mapping[str, float] = field(default_factory=dict)
    transferred: float | None = None
    histograms: Histograms = Histograms()
    cores: Mapping[str, float] = field(default_factory=dict)
    gpus: tuple[GpuEvidence, ...] = ()
    gpu_page: bool = False
    health: int | None = None
    restarts: int = 0
    lost: int = 0
    stood_still_s: float = 0.0
    mixed: bool = False
    several_fronts: bool = False
    fronts_untold: bool = False
    host_idle: float | None = None
    unread: tuple[str, ...] = ()
    sick: tuple[str, ...] = ()
    closed: Mapping[str, str] = field(default_factory=dict)
    servers: int = 1
    aliases: Mapping[str, str] = field(default_factory=dict)
    lora: LoraSlots | None = None
    router: RouterSigns | None = None
    probe: ProbeResult | None = None
    probes: tuple[ProbeResult, ...] = ()
    twin: bool = False

    def probe_of(self, engine: EngineLevels) -> ProbeResult | None:
        """What was asked of the server that the engine is behind."""
        if self.servers == 1 and not self.probes:
            return self.probe
        target = engine.name.partition("/")[0] if "/" in engine.name else None
        return next((p for p in self.probes if p.target == target), None)

    @property
    def rates_known(self) -> bool:
        """Whether counters can be told a second."""
        return self.scrapes >= 2 and self.span_s > 0 and not self.mixed

    def per_s(self, count: float | None) -> float | None:
        """A count of the span as a rate."""
        return count / self.span_s if count is not None and self.rates_known else None

    @property
    def lagged(self) -> Lagged | None:
        """The gauges' means over all engines, where those of one or more lag."""
        told = [g.lagged for g in self.engines]
        if not any(told):
            return None
        rows = [
            (g.running.mean if g.running else 0.0, g.waiting.mean if g.waiting else 0.0)
            if g.lagged is None
            else (g.lagged.running, g.lagged.waiting)
            for g in self.engines
        ]
        return Lagged(sum(r for r, _ in rows), sum(w for _, w in rows))

    @property
    def api_servers(self) -> int | None:
        """How many API servers share the page; None where that is not told.

        One, unless the configuration or the page says otherwise: as vLLM starts one engine.
        """
        if self.known.api_servers is not None:
            return self.known.api_servers
        targets = [g.name.partition("/")[0] for g in self.engines if "/" in g.name]
        alone = self.replicas == 1 or len(set(targets)) == self.replicas  # a server each
        return 1 if alone and not (self.several_fronts or self.fronts_untold) else None

    @property
    def replicas(self) -> int:
        """Engine cores on the page, at least one."""
        return max(1, len(self.engines))

    @property
    def in_flight(self) -> float | None:
        """Mean requests running and waiting."""
        if self.running is None:
            return None
        return self.running.mean + (0.0 if self.waiting is None else self.waiting.mean)

    @property
    def queue_share(self) -> float | None:
        """Share of the requests in flight, hence of their time, that waits."""
        flight = self.in_flight
        if not flight or self.waiting is None:
            return None
        return self.waiting.mean / flight

    @property
    def step_s(self) -> float | None:
        """Mean seconds of an engine's step while it works.

        The gap between a request's outputs, which is a step: it does not count idle time, nor
        depend on how many API servers count the steps. Without that histogram, from the counter of
        steps (of an engine that never idles).
        """
        gap = self.histograms.itl
        if gap is not None and gap.mean:
            return gap.mean
        if not self.steps or not self.rates_known:
            return None
        return self.span_s * self.replicas / self.steps

    @property
    def hit_rate(self) -> float | None:
        """Share of the looked-up prompt tokens that the prefix cache had."""
        if not self.cache_queries or self.cache_hits is None:
            return None
        return self.cache_hits / self.cache_queries

    @property
    def acceptance(self) -> float | None:
        """Share of the drafted tokens that were accepted."""
        if not self.draft_tokens or self.accepted_tokens is None:
            return None
        return self.accepted_tokens / self.draft_tokens

    @property
    def own_gpus(self) -> tuple[GpuEvidence, ...]:
        """The GPUs of the page that are this server's; none where that cannot be told.

        A page of dcgm-exporter is of a whole node. Of more GPUs than the configuration has those at
        work are taken, if they are as many; without a configuration all, if all do the same.
        """
        working = tuple(g for g in self.gpus if g.works)
        found = self.known.configuration
        if found is not None and len(self.gpus) <= found.knobs.gpus:
            return self.gpus
        if found is not None:
            return working if len(working) == found.knobs.gpus else ()
        return self.gpus if len(working) in (0, len(self.gpus)) else ()

    def gpu_mean(self, name: str) -> float | None:
        """A figure of GpuEvidence, averaged over this server's GPUs that tell it."""
        told = [v for g in self.own_gpus if (v := getattr(g, name)) is not None]
        return sum(told) / len(told) if told else None
