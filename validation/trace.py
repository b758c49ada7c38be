"""A recorded trace of one engine: the same arrivals on the twin, request by request.

The trace has the engine's own time stamps, so the API server and the network of the twin take no
time here, and TTFT counts from the moment at which the scheduler took the request in, as the
source counts it.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.domain.defaults import resolve
from ridgeline.domain.errors import BadInput
from ridgeline.domain.hardware import Gpu
from ridgeline.domain.hardware import gpu as find_gpu
from ridgeline.domain.knobs import Knobs
from ridgeline.domain.model import shape as find_shape
from ridgeline.domain.records import Floats
from ridgeline.twin.calibration import Fitted, fit
from ridgeline.twin.constants import Constants, priors_for
from ridgeline.twin.fleet import Fleet, build_twin
from ridgeline.twin.replica import Replica
from ridgeline.twin.request import Request
from ridgeline.twin.scheduler import Decision

COLUMNS = ("arrival_s", "input_tokens", "output_tokens", "queued_s", "first_token_s",
           "last_token_s")  # fmt: skip
FIGURES = ("TTFT", "TPOT", "latency")
NO_FRONT_END: Mapping[str, Any] = dict.fromkeys(
    (
        "receive_ns", "receive_ns_per_token", "send_step_ns", "detokenise_ns_per_chunk",
        "send_ns_per_chunk", "network_ns",
    ),
    0.0,
)  # fmt: skip
CALIBRATED = ("gemm_bandwidth_share", "gemm_flops_share", "decode_attention_share",
              "step_gap_ns")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of arrival; times in s from the first arrival. Arrays of length n."""

    name: str
    arrival_s: Floats
    prompt: Floats
    output: Floats
    shared: Floats
    queued_s: Floats
    first_s: Floats
    last_s: Floats
    meta: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.arrival_s)


@dataclass(frozen=True, slots=True)
class Figures:
    """Per request, in ms, and the preemptions of the run (None: not known)."""

    ttft: Floats
    tpot: Floats
    latency: Floats
    preemptions: int | None = None

    def means(self, part: slice = slice(None)) -> dict[str, float]:
        """Mean TTFT, TPOT and latency over a part of the requests."""
        columns = (self.ttft, self.tpot, self.latency)
        return {n: float(np.mean(c[part])) for n, c in zip(FIGURES, columns, strict=True)}


def read_trace(path: Path) -> Trace:
    """A trace and its settings (the file beside it that ends in .meta.json).

    Raises BadInput for a missing column, a bad number, or times that run backwards.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
        meta = json.loads(path.with_suffix(".meta.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot be read: {error}", where=str(path)) from None
    reader = csv.DictReader(lines)
    missing = [c for c in COLUMNS if c not in (reader.fieldnames or ())]
    if missing:
        raise BadInput(f"has no column {', '.join(missing)}", where=str(path))
    table: dict[str, list[float]] = {c: [] for c in (*COLUMNS, "shared_prefix_tokens")}
    for line in reader:
        for name, values in table.items():
            try:
                values.append(float(line.get(name) or (0 if name not in COLUMNS else "")))
            except ValueError:
                what = f"{name} is not a number: {line.get(name)!r}"
                raise BadInput(what, where=f"{path}:{reader.line_num}") from None
    columns = {n: np.array(v, dtype=np.float64) for n, v in table.items()}
    _check(columns, str(path))
    return Trace(
        path.stem, columns["arrival_s"], columns["input_tokens"], columns["output_tokens"],
        columns["shared_prefix_tokens"], columns["queued_s"], columns["first_token_s"],
        columns["last_token_s"], meta,
    )  # fmt: skip


def _check(columns: Mapping[str, Floats], where: str) -> None:
    if not len(columns["arrival_s"]):
        raise BadInput("has no requests", where=where)
    order = ("queued_s", "first_token_s", "last_token_s")
    bad = (np.diff(columns["arrival_s"], prepend=0.0) < 0) | (columns["input_tokens"] < 1)
    bad |= columns["output_tokens"] < 1
    for earlier, later in pairwise(order):
        bad |= ~(columns[later] >= columns[earlier])
    if bad.any():
        line = int(np.argmax(bad)) + 2
        raise BadInput("times run backwards or a length is below 1", where=f"{where}:{line}")


def measured(trace: Trace) -> Figures:
    """What the engine did."""
    steps = np.maximum(trace.output - 1, 1)
    return Figures(
        (trace.first_s - trace.queued_s) * 1e3,
        (trace.last_s - trace.first_s) / steps * 1e3,
        (trace.last_s - trace.queued_s) * 1e3,
    )


class _Nobody:
    """Listens to a fleet and keeps nothing: the requests carry their own times."""

    def delivered(self, replica: Replica, decision: Decision, at_ns: int) -> None:
        """Nothing to note."""

    def finished(self, request: Request) -> None:
        """Nothing to note."""


def predict(trace: Trace, constants: Constants) -> Figures:
    """Simulate the trace's arrivals with its engine's settings."""
    engine, gpu = trace.meta["engine"], gpu_of(trace)
    shape = find_shape(trace.meta["model"])
    knobs = Knobs(
        max_num_seqs=engine["max_num_seqs"],
        max_num_batched_tokens=engine["max_num_batched_tokens"],
        max_model_len=engine["max_model_len"],
        num_gpu_blocks_override=engine["num_gpu_blocks"],
        gpu_memory_utilization=engine["gpu_memory_utilization"],
        enable_prefix_caching=engine["enable_prefix_caching"],
        async_scheduling=engine["async_scheduling"],
        cudagraph_capture_sizes=tuple(engine["cudagraph_capture_sizes"]),
    )
    twin = build_twin(shape, gpu, resolve(knobs, gpu, shape), replace(constants, **NO_FRONT_END))
    fleet = Fleet(twin, _Nobody())
    requests = []
    lengths = zip(trace.prompt.astype(int).tolist(), trace.output.astype(int).tolist(),
                  trace.shared.astype(int).tolist(), strict=True)  # fmt: skip
    for number, (prompt, output, shared) in enumerate(lengths):
        at = round(float(trace.arrival_s[number]) * 1e9)
        # Which prompt it shares with is not recorded: one group stands for all of them.
        group = 0 if shared else None
        request = Request(number, prompt, output, group=group, shared_tokens=shared, sent_ns=at)
        requests.append(request)
        fleet.at(at, partial(fleet.submit, request))
    fleet.run_until(None)
    return _figures(requests, fleet)


def _figures(requests: Sequence[Request], fleet: Fleet) -> Figures:
    times = np.array([(r.queued_ns, r.first_ns, r.last_ns) for r in requests], dtype=np.float64)
    queued, first, last = times.T / 1e6
    steps = np.maximum([r.output - 1 for r in requests], 1)
    preemptions = sum(r.scheduler.preemptions for r in fleet.replicas)
    return Figures(first - queued, (last - first) / steps, last - queued, preemptions)


def gpu_of(trace: Trace) -> Gpu:
    """The trace's GPU, with the memory that its driver showed."""
    name = str(trace.meta["gpu"]).removeprefix("NVIDIA ").removeprefix("GeForce ")
    total = trace.meta.get("gpu_total_memory_bytes")
    gpu = find_gpu(name)
    return gpu if total is None else replace(gpu, driver_memory_bytes=int(total))


def calibrate(trace: Trace, share: float = 1 / 3) -> Fitted:
    """Fit `CALIBRATED` to the requests that arrived first (`share` of them).

    All arrivals are offered, since they are input; only the times of the first part are looked at.
    """
    part, base = slice(0, round(len(trace) * share)), priors_for(gpu_of(trace).name)
    truth = measured(trace)

    def residuals(constants: Constants) -> Floats:
        found = predict(trace, constants)
        tpot = np.log(found.tpot[part] / truth.tpot[part]) / 0.1
        late = (found.latency[part] - truth.latency[part]) / truth.latency[part].mean() / 0.1
        return np.concatenate([tpot, late])

    return fit(replace(base, name="calibrated"), CALIBRATED, residuals)
