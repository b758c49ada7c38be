"""A small study that identifies the twin's free constants, in under three minutes of GPU time.

One engine is started, and five kinds of traffic go to it. Each makes other constants large, so
that they can be told apart:

- one user, short prompts: a decode step is weights and the step's fixed gap; TTFT is the API
  server, the prompt step's host cost and one piecewise launch
- one user, long prompts: the GEMMs' share of the peak, tokenising per token
- a few users, prompts above the largest captured size: steps without a graph, which wait for
  kernel launches; at the same time decodes run in full graphs
- many users, short prompts: most steps are small mixed ones and run in piecewise graphs
- a crowd with short prompts: what each request costs the engine core and each chunk the API server
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ridgeline.domain.errors import BadInput
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.twin import twin_of

WARMUP_S, WINDOW_S = 3.0, 10.0
START_S = 100.0  # a usual start of vLLM with a model of a few billion parameters
LONGEST = 3000  # tokens, or what max_model_len leaves room for
SLOTS, CROWD = 256, 200


# Free constant of the twin -> the traffic that makes it large enough to be seen.
TOLD_BY: Mapping[str, str] = {
    "gemm_bandwidth_share": "one user with short prompts (a decode step is reading the weights)",
    "gemm_flops_share": "one user with long prompts (a prompt step is multiplying)",
    "step_gap_ns": "one user with short prompts, with graphs",
    "piecewise_launch_ns_per_layer": "a few dozen users with short prompts (small mixed steps)",
    "eager_launch_ns_per_layer": "prompts above the largest captured size, or enforce_eager",
    "prompt_step_ns": "the time to the first token of one user with short prompts",
    "update_ns_per_request": "a crowd of 100 users or more with short prompts",
    "receive_ns": "the time to the first token of one user with short prompts",
    "receive_ns_per_token": "the time to the first token of one user with long prompts",
    "send_ns_per_chunk": "a crowd of 100 users or more with short prompts",
}


@dataclass(frozen=True, slots=True)
class Load:
    """One kind of traffic of the probe: closed loop, lengths between low and high."""

    name: str
    users: int
    prompt: tuple[int, int]
    output: tuple[int, int]
    why: str

    def workload(self, seed: int = 7) -> Workload:
        """As a run offers it."""
        return Workload(
            Arrivals(users=self.users),
            Prompts(_lengths(*self.prompt)),
            Outputs(_lengths(*self.output), ignore_eos=True),
            duration_s=WINDOW_S,
            warmup_s=WARMUP_S,
            seed=seed,
        )


def _lengths(low: int, high: int) -> Lengths:
    return Lengths((low + high) / 2, (high - low) / (high + low))


def probed(configuration: Configuration) -> Configuration:
    """The configuration with room for a crowd: its constants are the host's, not its settings'."""
    knobs = configuration.knobs
    changes: dict[str, Any] = {"enable_prefix_caching": False}
    if (knobs.max_num_seqs or 0) < SLOTS:
        changes["max_num_seqs"] = SLOTS
    if knobs.max_num_batched_tokens is not None and knobs.max_num_batched_tokens < LONGEST:
        changes["max_num_batched_tokens"] = LONGEST
    return replace(configuration, knobs=knobs.with_changes(changes))


def probe_loads(configuration: Configuration) -> tuple[Load, ...]:
    """The traffic for one configuration, sized by its limits.

    Raises what its twin raises, and BadInput where the limits leave no room for a probe.
    """
    knobs = twin_of(replace(configuration, engine="twin")).knobs
    longest = min(LONGEST, knobs.max_model_len - 64)
    captured = knobs.max_capture_size
    uncaptured = min(captured + captured // 4 + 64, longest)
    if longest < 512:
        raise BadInput(
            f"a probe needs prompts of 512 tokens and max_model_len is {knobs.max_model_len}",
            where="max_model_len",
        )
    crowd = min(CROWD, knobs.max_num_seqs)
    return (
        Load("one-short", 1, (48, 80), (96, 96), "one user, short prompts"),
        Load("one-long", 1, (longest - 200, longest), (16, 16), "one user, long prompts"),
        Load("no-graph", 6, (uncaptured - 50, uncaptured), (48, 80),
             "prompts above the largest captured size"),
        Load("piecewise", min(24, crowd), (24, 72), (32, 64), "small mixed steps"),
        Load("crowd", crowd, (24, 40), (64, 128), "many requests a step"),
    )  # fmt: skip


def probe_seconds(loads: tuple[Load, ...]) -> float:
    """GPU time that the probe takes: one start, and every load after its warm-up and its drain."""
    return START_S + sum(WARMUP_S + WINDOW_S + 2 for _ in loads)


def probe_study(configuration: Configuration, *, name: str = "probe") -> str:
    """The study file (YAML) that probes a configuration. Errors as in `probe_loads`."""
    import yaml  # noqa: PLC0415  heavy

    configuration = probed(configuration)
    loads = probe_loads(configuration)
    first = loads[0]
    body: dict[str, Any] = {"name": name, "model": configuration.model, "engine": "vllm"}
    if configuration.engine_version is not None:
        body["engine_version"] = configuration.engine_version
    body["hardware"] = {"gpu": configuration.gpu, "count": configuration.gpus}
    launch = _launch(configuration)
    if launch:
        body["launch"] = launch
    body["workload"] = _body(first) | {"warmup_s": WARMUP_S, "duration_s": WINDOW_S, "seed": 7}
    body["baseline_name"] = first.name
    body["baseline"] = {
        n: list(v) if isinstance(v, tuple) else v for n, v in configuration.knobs.given().items()
    }
    body["experiments"] = [{"name": load.name, "workload": _body(load)} for load in loads[1:]]
    body["repeats"] = 1
    about = "\n".join(f"#   {load.name}: {load.why}" for load in loads)
    return (
        f"# Probe of the digital twin's constants: about {probe_seconds(loads) / 60:.1f} minutes of"
        f" GPU time.\n#\n{about}\n#\n"
        "#   ridgeline study THIS --out runs/probe\n"
        "#   ridgeline calibrate runs/probe --json host.json\n"
        "# and in the studies of this host: twin: {calibration: host.json}\n"
        + yaml.safe_dump(body, sort_keys=False, width=100)
    )


def _body(load: Load) -> dict[str, Any]:
    def span(low: int, high: int) -> dict[str, int]:
        return {"min": low, "max": high}

    return {
        "arrivals": {"users": load.users},
        "prompts": {"tokens": span(*load.prompt)},
        "output_tokens": {**span(*load.output), "ignore_eos": True},
    }


def _launch(configuration: Configuration) -> Mapping[str, Any]:
    """How the engine is started, where the study says so; no cold run beside the loads."""
    launch, found = configuration.launch, {}
    if launch is not None:
        found = {
            "command": None if launch.command is None else list(launch.command),
            "arguments": list(launch.arguments),
            "environment": dict(launch.environment),
            "ready_s": launch.ready_s,
            "stalled_s": launch.stalled_s,
        }
    return {n: v for n, v in found.items() if v} | {"cold_s": 0}
