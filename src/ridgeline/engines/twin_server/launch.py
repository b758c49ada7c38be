"""From a study's experiment to a server that is ready to open."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.domain.errors import BadInput
from ridgeline.engines.twin_server.pacer import FixedPacer, Pacer
from ridgeline.engines.twin_server.protocol import Served
from ridgeline.engines.twin_server.server import Options, TwinServer
from ridgeline.workload.study import ExperimentSpec

if TYPE_CHECKING:
    from ridgeline.domain.defaults import ResolvedKnobs

DOUBLE_MODEL = "twin"
DOUBLE_LENGTH = 32768


@dataclass(frozen=True, slots=True)
class Listen:
    """Where to listen (port 0: a free one) and where to log sends."""

    host: str = "127.0.0.1"
    port: int = 0
    log_sends: Path | None = None


@dataclass(frozen=True, slots=True)
class FixedLatency:
    """The same times for every stream, whatever the load, in ns."""

    ttft_ns: int
    itl_ns: int


def fixed_server(
    listen: Listen,
    latency: FixedLatency,
    spec: ExperimentSpec | None = None,
    *,
    model: str | None = None,
    max_model_len: int | None = None,
) -> TwinServer:
    """A server with fixed latencies; the model's name and limits are the study's, if any."""
    length = max_model_len or DOUBLE_LENGTH
    stop_after = Served(DOUBLE_MODEL, length).stop_after_tokens
    if spec is not None:
        model = model or spec.configuration.model
        length = max_model_len or spec.configuration.knobs.max_model_len or DOUBLE_LENGTH
        stop_after = _stop_after(spec)
    served = Served(model or DOUBLE_MODEL, length, stop_after)
    return _server(listen, served, FixedPacer(latency.ttft_ns, latency.itl_ns))


def twin_server(listen: Listen, spec: ExperimentSpec, *, model: str | None = None) -> TwinServer:
    """A server that behaves as the simulated engine does under the experiment's configuration.

    Raises BadInput for what cannot be simulated and RunFailed when it does not fit in memory.
    """
    from ridgeline.engines.twin import DEFAULT_RELEASE, twin_of  # noqa: PLC0415  read when needed
    from ridgeline.engines.twin_server.live import TwinPacer  # noqa: PLC0415

    configuration = spec.configuration
    twin = twin_of(configuration)
    knobs = twin.knobs
    version = configuration.engine_version or DEFAULT_RELEASE
    _refuse_unserved(knobs)
    served = Served(
        model or configuration.model,
        knobs.max_model_len,
        _stop_after(spec),
        prompt_tokens_details=bool(configuration.knobs.enable_prompt_tokens_details),
        image_grid=twin.shape.image_grid,
    )
    cache = {
        "block_size": str(knobs.block_size),
        "cache_dtype": knobs.kv_cache_dtype,
        "enable_prefix_caching": str(knobs.prefix_caching),
        "gpu_memory_utilization": str(knobs.gpu_memory_utilization),
        "num_gpu_blocks": str(twin.memory.usable_blocks + 1),  # the null block included
    }
    return _server(listen, served, TwinPacer(twin, routing=configuration.routing), version, cache)


def _refuse_unserved(knobs: "ResolvedKnobs") -> None:
    """The server sends one token a chunk, one a step: what changes that is refused by name."""
    if knobs.stream_interval > 1:
        raise BadInput(
            f"the served twin sends every token by itself, not every {knobs.stream_interval}th",
            where="stream_interval",
            fix="leave it out, or use `ridgeline plan` or `study`, which model it",
        )
    if knobs.drafts:
        raise BadInput(
            "the served twin does not model drafted tokens",
            where="speculative_config",
            fix="leave it out, or use `ridgeline plan` or `study`, which model it",
        )


def _server(
    listen: Listen,
    served: Served,
    pacer: Pacer,
    version: str | None = None,
    cache: dict[str, str] | None = None,
) -> TwinServer:
    options = Options(
        served=served,
        host=listen.host,
        port=listen.port,
        engine_version=version,
        cache_config=cache,
        log_sends=listen.log_sends,
    )
    return TwinServer(options, pacer)


def _stop_after(spec: ExperimentSpec) -> int:
    """An answer without a limit is as long as the study's mean one."""
    return max(1, round(spec.workload.outputs.tokens.mean))
