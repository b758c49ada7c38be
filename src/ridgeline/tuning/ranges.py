"""Rules that say which values of which knob a search may try, for this hardware, model and load.

Each rule gives a dimension, or the reason in words why the knob is not varied. A user's own list
for a knob stands in place of the rule.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline.domain.defaults import ONLY_FROM_033
from ridgeline.domain.errors import BadInput, RidgelineError
from ridgeline.domain.knobs import Configuration, check_knob_names
from ridgeline.domain.numerals import counted
from ridgeline.domain.routing import ROUTINGS
from ridgeline.domain.slo import Slo
from ridgeline.domain.workload import Workload
from ridgeline.engines.knobs import Catalogue
from ridgeline.engines.twin import Twin, twin_of
from ridgeline.experiment.capacity import Memory, memory_of
from ridgeline.experiment.planning import with_changes
from ridgeline.tuning.space import LAYOUT, Dimension, Resolved, Restart, Space
from ridgeline.workload.study import Choice, Span

KV_FULL = 0.9  # of the pool in use: above it the next request may not fit
OVER_FIT = 1.15  # how far a ceiling may be above what the pool holds on average
SMALLEST_SEQS, MOST_SEQS = 8, 1024
TOKENS = (512, 1024, 2048, 4096, 8192, 16384)
CAPTURES = (128, 256, 512, 1024, 2048)
THRESHOLDS = (256, 512, 1024, 2048, 4096)
UTILISATIONS = (0.85, 0.92, 0.95)  # 0.98 starts and dies under load
BUSY_USERS = 32  # streams of one replica from which its API server may be what binds
LONG_PROMPT = 512  # tokens; a cap on shorter chunks only costs steps
LAYOUT_KNOBS = ("tensor_parallel_size", "data_parallel_size")


@dataclass(frozen=True, slots=True)
class Seen:
    """What runs of the baseline showed: the KV pool's highest use (0..1), preemptions a second."""

    kv_use_max: float
    preemptions_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Setting:
    """What the rules look at."""

    configuration: Configuration
    workload: Workload
    slo: Slo
    twin: Twin
    memory: Memory
    gpus: int
    seen: Seen | None = None
    cores: int | None = None

    @property
    def users(self) -> float | None:
        """Users of one replica in a closed loop."""
        users = self.workload.arrivals.peak_users
        return None if users is None else -(-users // self.twin.knobs.data_parallel)

    @property
    def kv_binds(self) -> bool:
        """Whether the KV pool limits how many requests run: as seen, else by arithmetic."""
        if self.seen is not None:
            return self.seen.kv_use_max >= KV_FULL or self.seen.preemptions_per_s > 0
        return self.users is not None and self.users > self.memory.running


Rule = Callable[[Setting], tuple[Any, ...] | str]


def space_of(
    configuration: Configuration,
    workload: Workload,
    slo: Slo | None = None,
    *,
    gpus: int | None = None,
    known: Catalogue | None = None,
    wanted: Mapping[str, Choice] | None = None,
    only: bool = False,
    seen: Seen | None = None,
    cores: int | None = None,
) -> Space:
    """The space around a baseline. Raises what the baseline's twin raises, and BadInput for a bad
    `wanted`.

    gpus: that the host has (default: those of the configuration). known: the engine's own options;
    a knob that it lacks is left out. wanted, only: as in the study file's `tune:` section (a list
    of values, a span, or None to keep the baseline's). seen: what the baseline's runs showed.
    cores: of the host's CPU.
    """
    twin = twin_of(configuration)
    setting = Setting(
        configuration, workload, slo or Slo(), twin, memory_of(twin, workload),
        gpus or configuration.gpus, seen, cores,
    )  # fmt: skip
    chosen = dict(wanted or {})
    _check(chosen)
    dimensions, left_out, own = [], {}, {}
    for name in (*_RULES, *(n for n in chosen if n not in _RULES and n not in LAYOUT_KNOBS)):
        now = _own(setting, name)
        found: tuple[Any, ...] | str
        if only and name not in chosen and not (name == LAYOUT and set(LAYOUT_KNOBS) & set(chosen)):
            found = "the study file names the only options to vary"
        else:
            found = _values(setting, name, chosen, known)
        values = found if isinstance(found, str) else _with_own(found, now)
        if isinstance(values, str) or len(values) < 2:
            left_out[name] = values if isinstance(values, str) else "there is one value only"
            continue
        restart, ordered = _KINDS.get(name, ("compile", False))
        why = "the user's values" if name in chosen else _WHY.get(name, "")
        dimensions.append(Dimension(name, values, ordered, restart, why))
        own[name] = now
    return Space(tuple(dimensions), own, _Look(setting), left_out)


def start_estimate(memory: Memory) -> int:
    """Where to start with max_num_seqs: requests that fit half-way through their answers."""
    return max(1, int(memory.running))


@dataclass(frozen=True)
class _Look:
    """Resolves a change; refuses what the engine, the memory or the arithmetic refuses."""

    setting: Setting

    def __call__(self, change: Mapping[str, Any]) -> Resolved:
        base = self.setting.configuration
        try:
            changed = with_changes(base, change)
            twin = twin_of(changed)
        except RidgelineError as error:
            return Resolved(None, str(error))
        knobs, routing = twin.knobs, changed.routing
        refused = None
        memory = memory_of(twin, self.setting.workload)
        if knobs.tensor_parallel * knobs.data_parallel > self.setting.gpus:
            refused = (
                f"{knobs.data_parallel} x {knobs.tensor_parallel} GPUs are more than the"
                f" {self.setting.gpus} of this host"
            )
        elif self._too_many(knobs.max_num_seqs, knobs.data_parallel, memory):
            tokens = memory.kv_tokens / memory.running
            refused = (
                f"max_num_seqs {knobs.max_num_seqs} x {tokens:.0f} tokens are"
                f" {counted(knobs.max_num_seqs * tokens)}, the KV pool holds"
                f" {counted(memory.kv_tokens)}: {memory.running:.0f} requests, the others"
                " would be preempted"
            )
        elif "max_cudagraph_capture_size" in change and knobs.eager:
            refused = "a capture size without CUDA graphs (enforce_eager) does nothing"
        return Resolved(knobs, refused, routing)

    def _too_many(self, ceiling: int, replicas: int, memory: Memory) -> bool:
        """A ceiling that the load fills and the pool does not hold. Shared prefixes need no room
        of their own, and an open loop may never fill the ceiling: there the twin tells.
        """
        users, load = self.setting.workload.arrivals.peak_users, self.setting.workload
        if users is None or load.shared_share > 0 or load.sessions is not None:
            return False
        return min(ceiling, -(-users // replicas)) > OVER_FIT * memory.running


def _check(wanted: Mapping[str, Choice]) -> None:
    for name, values in wanted.items():
        if name != "routing":
            check_knob_names({name: None}, where="tune.space")
        elif isinstance(values, tuple) and (bad := [v for v in values if v not in ROUTINGS]):
            known = ", ".join(ROUTINGS)
            raise BadInput(f"unknown rule {bad[0]!r} ({known})", where=f"tune.space.{name}")


def _chosen(choice: Choice) -> tuple[Any, ...] | str:
    """A user's choice as values; a span by doublings of whole numbers, by quarters of others."""
    if choice is None:
        return "fixed in the study file"
    if not isinstance(choice, Span):
        return choice
    low, high = choice.low, choice.high
    if isinstance(low, int) and isinstance(high, int):
        return (*(n for n in _doubled(max(low, 1), high) if n < high), high)
    return tuple(low + (high - low) * i / 4 for i in range(5))


def _own(setting: Setting, name: str) -> Any:
    """The baseline's value: as given, else what the engine takes where that is one number."""
    knobs, configuration = setting.twin.knobs, setting.configuration
    if name == LAYOUT:
        return knobs.tensor_parallel, knobs.data_parallel
    if name == "routing":
        return configuration.routing
    given = getattr(configuration.knobs, name)
    if given is not None or name not in _RESOLVED:
        return given
    return _RESOLVED[name](setting)


def _values(
    setting: Setting, name: str, chosen: Mapping[str, Choice], known: Catalogue | None
) -> tuple[Any, ...] | str:
    if name in ONLY_FROM_033 and setting.twin.knobs.version == "0.21":
        return f"release {setting.twin.knobs.version} has no --{name.replace('_', '-')}"
    if name not in (LAYOUT, "routing") and known is not None:
        flag = f"--{name.replace('_', '-')}"
        if flag not in known.flags:
            return f"vLLM {known.version} has no {flag}"
    if name in chosen:
        return _chosen(chosen[name])
    found = _RULES[name](setting)
    if name == LAYOUT and not isinstance(found, str):
        for i, knob in enumerate(LAYOUT_KNOBS):
            if knob in chosen:
                kept = _chosen(chosen[knob])
                own = setting.twin.knobs.tensor_parallel, setting.twin.knobs.data_parallel
                allowed = (own[i],) if isinstance(kept, str) else kept
                found = tuple(v for v in found if v[i] in allowed)
    return found


def _with_own(values: tuple[Any, ...], own: Any) -> tuple[Any, ...]:
    """With the baseline's value among them, numbers in their order and None in front."""
    found = list(dict.fromkeys((*values, own))) if own not in values else list(values)
    if all(v is None or (isinstance(v, int | float) and not isinstance(v, bool)) for v in found):
        found.sort(key=lambda v: -1.0 if v is None else float(v))
    return tuple(found)


def _seqs(s: Setting) -> tuple[Any, ...] | str:
    fit = int(min(s.memory.requests, s.memory.running))
    load = MOST_SEQS if s.users is None else int(s.users)
    shared = s.workload.shared_share > 0 or s.workload.sessions is not None
    most = min(MOST_SEQS, load if shared else min(load, max(fit, SMALLEST_SEQS)))
    values = [n for n in _doubled(SMALLEST_SEQS, MOST_SEQS) if n < most]
    above = next((n for n in _doubled(SMALLEST_SEQS, MOST_SEQS) if n >= load), MOST_SEQS)
    # The pool's own number where memory ends the range, else the first ceiling that never binds.
    return (*values, most if most < load else above)


def _tokens(s: Setting) -> tuple[Any, ...] | str:
    least = 0 if s.twin.knobs.chunked_prefill else s.twin.knobs.max_model_len
    return tuple(n for n in TOKENS if n >= least)


def _captures(s: Setting) -> tuple[Any, ...] | str:
    return (None, *CAPTURES)


def _threshold(s: Setting) -> tuple[Any, ...] | str:
    longest = s.workload.longest_own_part
    if longest <= LONG_PROMPT:
        return f"no prompt is longer than {LONG_PROMPT} tokens: there is nothing to cap"
    return (0, *(n for n in THRESHOLDS if n < longest))


def _prefix(s: Setting) -> tuple[Any, ...] | str:
    return (True, False)


def _kv_type(s: Setting) -> tuple[Any, ...] | str:
    if not s.kv_binds:
        seen = f" (its highest use was {s.seen.kv_use_max:.0%})" if s.seen is not None else ""
        return (
            f"KV is not binding{seen}: fp8 KV cannot raise throughput here; costs prefill;"
            " marked as changing numerics"
        )
    if "fp8" not in s.twin.gpu.flops:
        return f"{s.twin.gpu.name} has no fp8"
    return ("auto", "fp8")


def _weights(s: Setting) -> tuple[Any, ...] | str:
    if s.twin.knobs.weights != "bf16" or s.twin.shape.weight_format is not None:
        return "the weights are quantised already"
    if "fp8" not in s.twin.gpu.flops:
        return f"{s.twin.gpu.name} has no fp8 tensor cores"
    return (None, "fp8")


def _utilisation(s: Setting) -> tuple[Any, ...] | str:
    knobs = s.configuration.knobs
    if knobs.kv_cache_memory_bytes is not None or knobs.num_gpu_blocks_override is not None:
        return "the KV pool's size is given"
    if not s.kv_binds:
        return "KV is not binding: more memory for it does nothing"
    return UTILISATIONS


def _api_servers(s: Setting) -> tuple[Any, ...] | str:
    if s.users is not None and s.users < BUSY_USERS:
        return f"{s.users:.0f} streams do not fill one API server"
    most = 4 if s.cores is None else max(1, (s.cores - 1) // 2)
    return tuple(n for n in (1, 2, 4) if n <= most)


def _stream(s: Setting) -> tuple[Any, ...] | str:
    if s.users is not None and s.users < BUSY_USERS:
        return f"{s.users:.0f} streams do not fill one API server"
    if not any(limit.metric == "itl" for limit in s.slo.limits):
        return "no ITL limit says how coarse a stream may be"
    return (1, 2, 4)


def _speculation(s: Setting) -> tuple[Any, ...] | str:
    if all(kind.prompts.file is None for kind in s.workload.kinds):
        return "guesses come true on real text only: give prompts from a file"
    drafts = {"method": "ngram", "prompt_lookup_max": 4}
    return (None, *({**drafts, "num_speculative_tokens": n} for n in (2, 4)))


def _policy(s: Setting) -> tuple[Any, ...] | str:
    if len({c.priority for c in s.workload.classes}) < 2:
        return "the requests have no priorities"
    return ("fcfs", "priority")


def _eager(s: Setting) -> tuple[Any, ...] | str:
    if not s.twin.knobs.eager:
        return "CUDA graphs are on: without them every step pays its launches"
    return (False, True)


def _watermark(s: Setting) -> tuple[Any, ...] | str:
    return (0.0, 0.02, 0.05) if s.kv_binds else "KV is not binding: nothing is preempted"


def _layout(s: Setting) -> tuple[Any, ...] | str:
    if s.gpus == 1:
        return "there is one GPU"
    ranks = (1, 2, 4, 8) if s.twin.gpu.link_bytes_per_s is not None else (1,)
    return tuple(
        (tensor, data)
        for tensor in ranks
        for data in (1, 2, 4, 8)
        if tensor * data <= s.gpus and s.twin.shape.heads % tensor == 0
    )


def _routing(s: Setting) -> tuple[Any, ...] | str:
    if s.gpus == 1:
        return "one replica has nothing to choose"
    shares = s.workload.sessions is not None or s.workload.shared_share > 0
    return ROUTINGS if shares else ("round-robin", "least-loaded")


def _doubled(low: int, high: int) -> list[int]:
    found = [low]
    while found[-1] * 2 <= high:
        found.append(found[-1] * 2)
    return found


_RULES: Mapping[str, Rule] = {
    "max_num_seqs": _seqs,
    "max_num_batched_tokens": _tokens,
    "max_cudagraph_capture_size": _captures,
    "long_prefill_token_threshold": _threshold,
    "enable_prefix_caching": _prefix,
    "kv_cache_dtype": _kv_type,
    "quantization": _weights,
    "gpu_memory_utilization": _utilisation,
    "api_server_count": _api_servers,
    "async_scheduling": lambda s: (True, False),
    "speculative_config": _speculation,
    "scheduling_policy": _policy,
    "enforce_eager": _eager,
    "watermark": _watermark,
    "stream_interval": _stream,
    LAYOUT: _layout,
    "routing": _routing,
}
# Restart class (what is in the engine's compile hash compiles anew) and whether values are ordered.
_KINDS: Mapping[str, tuple[Restart, bool]] = {
    "max_num_seqs": ("compile", True),  # through the capture sizes; from 0.33 on by itself
    "max_num_batched_tokens": ("compile", True),
    "max_cudagraph_capture_size": ("compile", True),
    "long_prefill_token_threshold": ("cached", True),
    "enable_prefix_caching": ("cached", False),
    "kv_cache_dtype": ("compile", False),
    "quantization": ("compile", False),
    "gpu_memory_utilization": ("cached", True),
    "api_server_count": ("cached", True),
    "async_scheduling": ("cached", False),
    "speculative_config": ("compile", False),
    "scheduling_policy": ("cached", False),
    "enforce_eager": ("cached", False),
    "watermark": ("cached", True),
    "stream_interval": ("cached", True),
    LAYOUT: ("compile", False),
    "routing": ("live", False),
}
_RESOLVED: Mapping[str, Callable[[Setting], Any]] = {
    "max_num_seqs": lambda s: s.twin.knobs.max_num_seqs,
    "max_num_batched_tokens": lambda s: s.twin.knobs.max_num_batched_tokens,
    "long_prefill_token_threshold": lambda s: s.twin.knobs.long_prefill_token_threshold,
    "enable_prefix_caching": lambda s: s.twin.knobs.prefix_caching,
    "kv_cache_dtype": lambda s: s.twin.knobs.kv_cache_dtype,
    "gpu_memory_utilization": lambda s: s.twin.knobs.gpu_memory_utilization,
    "api_server_count": lambda s: s.twin.knobs.api_servers,
    "async_scheduling": lambda s: s.twin.knobs.async_depth == 2,
    "scheduling_policy": lambda s: s.twin.knobs.scheduling_policy,
    "enforce_eager": lambda s: s.twin.knobs.eager,
    "watermark": lambda s: s.twin.knobs.watermark,
    "stream_interval": lambda s: s.twin.knobs.stream_interval,
}
_WHY: Mapping[str, str] = {
    "max_num_seqs": "doublings up to what the load brings and the KV pool holds",
    "max_num_batched_tokens": "doublings up to twice the device's default; at least max_num_seqs",
    "max_cudagraph_capture_size": "the engine's rule, and doublings up to 2048 tokens a step",
    "long_prefill_token_threshold": "off, and doublings below the longest prompt",
    "gpu_memory_utilization": "KV is binding; above 0.95 an engine that starts may die under load",
    "kv_cache_dtype": "KV is binding",
    "quantization": "the GPU has fp8 tensor cores",
    LAYOUT: "tensor parallel sizes that divide the heads, replicas on the GPUs that are there",
    "watermark": "KV is binding: admission that keeps blocks free spares preemptions",
}
