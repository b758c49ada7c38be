"""Engine knobs under the engine's own names, and the configuration that a run measures.

A knob that is None was not given: the engine's default applies (see `defaults.py` for what that
resolves to). Nothing is dropped in silence: an unknown name is an error that names the nearest one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ridgeline.domain.errors import BadInput, nearest
from ridgeline.domain.hardware import Gpu, gpu_from_row
from ridgeline.domain.hardware import gpu as known_gpu


@dataclass(frozen=True, slots=True)
class Knobs:
    """vLLM's serving options, by their argument names. None = not given, the default applies."""

    # batching and scheduling
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_scheduled_tokens: int | None = None
    max_num_active_seqs: int | None = None
    max_model_len: int | None = None
    enable_chunked_prefill: bool | None = None
    long_prefill_token_threshold: int | None = None
    prefill_schedule_interval: int | None = None
    scheduling_policy: str | None = None
    scheduler_reserve_full_isl: bool | None = None
    async_scheduling: bool | None = None
    stream_interval: int | None = None
    watermark: float | None = None
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    # KV cache and memory
    enable_prefix_caching: bool | None = None
    block_size: int | None = None
    kv_cache_dtype: str | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    # graphs and compilation
    enforce_eager: bool | None = None
    max_cudagraph_capture_size: int | None = None
    cudagraph_capture_sizes: tuple[int, ...] | None = None
    optimization_level: int | None = None
    performance_mode: str | None = None
    # numbers
    dtype: str | None = None
    quantization: str | None = None
    speculative_config: Mapping[str, Any] | None = None
    attention_backend: str | None = None
    # layout
    data_parallel_size: int | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    enable_expert_parallel: bool | None = None
    api_server_count: int | None = None
    # what the server tells
    enable_prompt_tokens_details: bool | None = None
    load_format: str | None = None

    def given(self) -> dict[str, Any]:
        """The knobs that were set, in declaration order."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) is not None}

    def with_changes(self, changes: Mapping[str, Any]) -> "Knobs":
        """Return a copy with `changes` applied; raises BadInput for an unknown name."""
        check_knob_names(changes)
        return replace(self, **changes)

    @property
    def gpus(self) -> int:
        """GPUs that this layout occupies: data x tensor x pipeline parallel."""
        return (
            (self.data_parallel_size or 1)
            * (self.tensor_parallel_size or 1)
            * (self.pipeline_parallel_size or 1)
        )


KNOB_NAMES: tuple[str, ...] = tuple(f.name for f in fields(Knobs))


def check_knob_names(names: Mapping[str, Any], where: str | None = None) -> None:
    """Raise BadInput for the first name that is not a knob, naming the nearest known one."""
    for name in names:
        if name not in KNOB_NAMES:
            raise BadInput(f"unknown knob {name!r}{nearest(name, KNOB_NAMES)}", where=where)


@dataclass(frozen=True, slots=True)
class Router:
    """A balancer that makes one URL of the replicas, in place of the client's own balancing.

    command: its program, one argument a place. policy: its own name of one; None: its default.
    """

    command: tuple[str, ...] = ("vllm-router",)
    policy: str | None = "round_robin"
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Launch:
    """How an engine is started. Every part that is not given is the engine's own way.

    command: one argument a place, "{model}" stands for the model. environment: added to ours; an
    empty value takes the variable away, None leaves it as it is where the engine is started (in
    this process, at SSH's login there; a container is given it). ready_s: how long a start may
    take, in seconds. resident:
    how many engines stay up side by side, one of them loaded at a time (None: one after another);
    start_together: those are started side by side. cold_s: length of the first run of a fresh
    engine, which is kept apart (None: as long as a measured run with its warm-up, 0: none).
    stalled_s: seconds under load without a step after which it stands still (None: 30, without a
    GPU 300).

    image: it is run in a container of this image, with `container` as more words of `docker run`.
    host: it is run there over SSH (a name that ssh knows, or user@name), reached through a tunnel
    or, with `tunnel` False, at its own address. router: stands before the replicas.
    """

    command: tuple[str, ...] | None = None
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str | None] = field(default_factory=dict)
    ready_s: float = 900.0
    stalled_s: float | None = None
    resident: int | None = None
    start_together: bool = True
    cold_s: float | None = None
    image: str | None = None
    container: tuple[str, ...] = ()
    host: str | None = None
    tunnel: bool = True
    router: Router | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """What the runs of a calibration served. None = the file does not say.

    weights: "bf16", "fp8" or "fp4". release: of the engine, as "0.21".
    """

    model: str
    weights: str | None = None
    tensor_parallel: int | None = None
    release: str | None = None


@dataclass(frozen=True, slots=True)
class Calibration:
    """Constants of the twin that were fitted to runs on a host with this GPU.

    `covariance` is that of the logarithms of the constants in `names`, empty where the file has
    none. `residuals`: what the fit left over by figure (a path in a Summary), as the standard
    deviation of logarithms. `fitted_on`: each combination that its runs served, once.
    `gpu_figures`: the catalogue row of a user's own card, None where `gpu` is a catalogue name (or
    an older file does not tell).
    """

    gpu: str
    constants: Mapping[str, float]
    names: tuple[str, ...] = ()
    covariance: tuple[tuple[float, ...], ...] = ()
    residuals: Mapping[str, float] = field(default_factory=dict)
    fitted_on: tuple[Served, ...] = ()
    gpu_figures: Mapping[str, Any] | None = None

    def device(self) -> Gpu | None:
        """The GPU that it was made on; None for a card of whose figures the file says nothing."""
        if self.gpu_figures is not None:
            return gpu_from_row(self.gpu_figures)
        try:
            return known_gpu(self.gpu)
        except BadInput:
            return None


@dataclass(frozen=True, slots=True)
class Pool:
    """Servers for some classes of requests alone, with knobs of their own.

    classes: names of the workload's. knobs: complete, nothing is left to inherit; the pool has
    `data_parallel_size` servers. urls: of servers that run already, for engine "endpoint".
    """

    name: str
    classes: tuple[str, ...]
    knobs: Knobs
    urls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Configuration:
    """What one run serves: a model on some GPUs under some knobs.

    `gpu` is a name of the GPU catalogue, None for an endpoint whose hardware is not known; where
    `gpu_figures` is given, a catalogue row of the user's own, it is the name in there. `gpus` are
    the GPUs used (priced), `price_per_gpu_hour` in USD, None when not known. `launch`: how the
    engine is started, None = in its default way (or it is not started by us).
    `calibration`: of a twin, None = the GPU's priors. `routing`: how requests are spread over
    data-parallel replicas, a rule of `domain.routing`. `more_urls`: of further servers that serve
    the same as `url`. `pools`: the servers are divided by classes of requests; `knobs` are then
    what the pools' own were changed from, and start nothing.
    """

    model: str
    knobs: Knobs
    engine: str = "twin"
    engine_version: str | None = None
    gpu: str | None = None
    gpus: int = 1
    price_per_gpu_hour: float | None = None
    url: str | None = None
    launch: Launch | None = None
    calibration: Calibration | None = None
    gpu_figures: Mapping[str, Any] | None = None
    routing: str = "round-robin"
    more_urls: tuple[str, ...] = ()
    pools: tuple[Pool, ...] = ()

    @property
    def parts(self) -> "tuple[Configuration, ...]":
        """Each pool as a configuration of its own; without pools this one itself."""
        if not self.pools:
            return (self,)
        return tuple(
            replace(
                self, knobs=pool.knobs, gpus=pool.knobs.gpus, pools=(),
                url=pool.urls[0] if pool.urls else self.url, more_urls=pool.urls[1:],
            )
            for pool in self.pools
        )  # fmt: skip

    def pool_of(self, kinds: Sequence[str]) -> tuple[int, ...]:
        """The place of the pool that serves each of these classes; 0 without pools."""
        places = {kind: i for i, pool in enumerate(self.pools) for kind in pool.classes}
        return tuple(places[kind] if self.pools else 0 for kind in kinds)

    @property
    def layout_gpus(self) -> int:
        """GPUs that the layout occupies, of all pools together."""
        return sum(part.knobs.gpus for part in self.parts)

    @property
    def replicas(self) -> int:
        """Servers (data-parallel replicas), of all pools together."""
        return sum(part.knobs.data_parallel_size or 1 for part in self.parts)

    def device(self) -> Gpu | None:
        """The GPU's figures, None when it is not known. Raises BadInput for an unknown name."""
        if self.gpu_figures is not None:
            return gpu_from_row(self.gpu_figures)
        return None if self.gpu is None else known_gpu(self.gpu)
