"""What binds a measured run: one party named, and what its step time is bound by.

The order of the rules is the order of the path: a client that sends late or a proxy that delays
holds back everything behind it, and a queue in front of the engine says nothing about the engine's
steps. Thresholds are shares of a mean request's time; each is stated where it stands.
"""

from collections.abc import Mapping

from ridgeline.domain.defaults import resolve
from ridgeline.domain.errors import RidgelineError
from ridgeline.domain.hardware import gpu
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.model import shape
from ridgeline.domain.roofline import floor_s, weights_read_bytes

CLIENT_SHARE = 0.05  # of a request's time, spent before it was sent
BETWEEN_SHARE = 0.10  # of it, spent between client and server
FRONT_SHARE = 0.10  # of it, spent in the API server (or outside the engine)
API_SERVER_CORES = 0.8  # one event loop: from here on it is full
SLOTS_FULL = 0.9  # running requests over the slots
KV_FULL = 0.95  # blocks in use at the peak
GPU_WAITS = 0.5  # below this share of the time at work the GPU waits for its host
ABOVE_GRAPHS = 0.25  # of the steps: enough for their launches to set the pace


def measured_limit(
    steps: Mapping[str, float], configuration: Configuration, seconds: Mapping[str, float]
) -> str | None:
    """What binds, in words; None when the readings do not show it.

    `steps` and `seconds` are those of `account_measured`.
    """
    party = _party(steps, configuration, seconds)
    step = _step_limit(steps, configuration)
    if party is not None and step is not None:
        return f"{party}; step time bound by {step}"
    if step is not None and steps.get("mean_running", 0.0) >= 1:
        return f"step time, bound by {step}"
    return party


def _party(
    steps: Mapping[str, float], configuration: Configuration, seconds: Mapping[str, float]
) -> str | None:
    """Who holds requests back before they are in a step."""
    whole = sum(value for name, value in seconds.items() if name != "client")
    late = steps.get("client_share", 0.0)
    if late >= CLIENT_SHARE:
        return f"client: requests left late, {late:.0%} of their time"
    between = seconds.get("network_http", 0.0)
    if whole and between >= BETWEEN_SHARE * whole:
        return (
            f"network or proxy: {between / whole:.0%} of a request's time passes between client"
            " and server"
        )
    front = _front_end(steps, seconds, whole)
    queue = _queue(steps, configuration)
    return "; ".join(filter(None, (front, queue))) or None


def _front_end(
    steps: Mapping[str, float], seconds: Mapping[str, float], whole: float
) -> str | None:
    """The API server, when its one event loop is full and requests spend time there."""
    cores = steps.get("api_server_cores")
    told = seconds.get("api_server", seconds.get("outside_engine", 0.0))
    if not whole or told < FRONT_SHARE * whole:
        return None
    if cores is None and "outside_engine" in seconds:
        return None  # network, proxy and API server in one figure convict nobody
    if cores is not None and cores < API_SERVER_CORES:
        return None
    of = "" if cores is None else f" takes {cores:.2f} cores and"
    return f"API server CPU: the API server{of} holds requests for {told / whole:.0%} of their time"


def _queue(steps: Mapping[str, float], configuration: Configuration) -> str | None:
    """Why requests wait in front of the batch; None when hardly any does."""
    slots = configuration.knobs.max_num_seqs
    running, waiting = steps.get("mean_running"), steps.get("mean_waiting", 0.0)
    if running is None or waiting < 1:
        return None
    behind = f"with {waiting:.0f} waiting per replica"
    if slots is not None and running >= SLOTS_FULL * slots:
        return f"batch ceiling: max_num_seqs {slots} is full {behind}"
    if steps.get("kv_use_max", 0.0) >= KV_FULL:
        return f"KV memory: {steps['kv_use_max']:.0%} of the blocks in use {behind}"
    return f"prompts: admission waits for room in the step {behind}"


def _step_limit(steps: Mapping[str, float], configuration: Configuration) -> str | None:
    """What sets the time of a step: the GPU, or its host."""
    at_work, words = _gpu_at_work(steps, configuration)
    if at_work is None:
        return None
    if at_work < GPU_WAITS:
        return f"{_host_limit(steps, configuration)} ({words})"
    dram, tensor = steps.get("gpu_dram_active"), steps.get("gpu_tensor_active")
    if dram is not None and tensor is not None:
        return f"{'GPU bandwidth' if dram >= tensor else 'GPU compute'} ({words})"
    return f"the GPU ({words})"


def _gpu_at_work(
    steps: Mapping[str, float], configuration: Configuration
) -> tuple[float | None, str]:
    """Share of the time in which the GPU works, and how that is known.

    The hardware's counter where it was read; else how much of the mean step reading the weights
    takes at the least (a floor: the true share is larger, for attention and prompts add to it).
    """
    active = steps.get("gpu_sm_active")
    if active is not None:
        return active, f"SMs active {active:.0%} of the time"
    step, floor = steps.get("mean_step_s"), _weights_floor_s(configuration)
    if step is None or floor is None or "prompt_tokens_per_step" not in steps:
        return None, ""
    return floor / step, f"reading the weights takes {floor / step:.0%} of the mean step"


def _weights_floor_s(configuration: Configuration) -> float | None:
    if configuration.gpu is None:
        return None
    try:
        found = gpu(configuration.gpu)
        weights = resolve(configuration.knobs, found, shape(configuration.model)).weight_bytes
        read = weights_read_bytes(shape(configuration.model), 1, weights)
    except RidgelineError:
        return None
    return floor_s(found, 0.0, read / (configuration.knobs.tensor_parallel_size or 1))


def _host_limit(steps: Mapping[str, float], configuration: Configuration) -> str:
    """Why the GPU waits: launches one by one, or what the engine core does between steps."""
    if configuration.knobs.enforce_eager:
        return "kernel launch: no CUDA graphs (enforce_eager)"
    above = steps.get("above_graphs_share")
    if above is not None and above >= ABOVE_GRAPHS:
        return (
            f"kernel launch: about {above:.0%} of the steps are larger than the largest captured"
            " graph"
        )
    return "engine core CPU"
