"""Measured rows of vLLM under closed loops, and the same load on the twin.

The rows state model, GPU, precision, tensor-parallel size, nominal lengths and concurrency, and
leave the engine's settings and the client's out. What is assumed instead stands in `assumptions`,
one function, from the model's and the GPU's name only; nothing in it depends on a row's times.
"""

import csv
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ridgeline.domain.defaults import resolve
from ridgeline.domain.errors import BadInput
from ridgeline.domain.hardware import Gpu
from ridgeline.domain.hardware import gpu as find_gpu
from ridgeline.domain.knobs import Knobs
from ridgeline.domain.model import shape as find_shape
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.twin.constants import Constants
from ridgeline.twin.fleet import Fleet, Twin, build_twin
from ridgeline.twin.offer import Offer
from ridgeline.workload.schedule import Schedule, draw_lengths, stream

COLUMNS = ("model", "gpu", "precision", "tp", "isl", "osl", "concurrency", "ttft_ms", "tpot_ms")
GPUS = {"h100_sxm": "H100-SXM", "h200_sxm": "H200-SXM", "b200_sxm": "B200-SXM"}
MODELS = {
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Llama-3.1-8B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B-Instruct": "meta-llama/Llama-3.1-70B",
}
WEIGHTS = {"bf16": None, "fp8": "modelopt", "fp4": "modelopt_fp4"}
SALT = "ridgeline-validation-1:"


@dataclass(frozen=True, slots=True)
class Row:
    """One measured point; times in ms. A cell is a whole sweep over the concurrency."""

    number: int
    model: str
    gpu: str
    precision: str
    version: str
    tensor_parallel: int
    prompt: int
    output: int
    users: int
    ttft_ms: float
    tpot_ms: float
    id: str

    @property
    def group(self) -> str:
        """Model, GPU and precision."""
        return f"{self.model.split('/')[-1]} {self.gpu} {self.precision}"

    @property
    def cell(self) -> str:
        """Everything but the concurrency."""
        place = (self.model, self.gpu, self.precision)
        return "|".join(map(str, (*place, self.tensor_parallel, self.prompt, self.output)))

    @property
    def name(self) -> str:
        """For a person."""
        shape = f"tp{self.tensor_parallel} {self.prompt}/{self.output}"
        return f"{self.group} {shape} c{self.users}"


@dataclass(frozen=True, slots=True)
class Setting:
    """What the rows leave out: the engine's settings and how the client offered the load."""

    knobs: Knobs
    low_share: float
    rounds: int
    why: str


def read_rows(path: Path) -> list[Row]:
    """The rows of a CSV file. Raises BadInput with the line for a column or value that is wrong."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot be read: {error}", where=str(path)) from None
    reader = csv.DictReader(text.splitlines())
    missing = [c for c in COLUMNS if c not in (reader.fieldnames or ())]
    if missing:
        raise BadInput(f"has no column {', '.join(missing)}", where=str(path))
    rows = [_row(f"{path}:{reader.line_num}", n, line) for n, line in enumerate(reader)]
    if not rows:
        raise BadInput("has no rows", where=str(path))
    return rows


def _row(where: str, number: int, line: dict[str, str]) -> Row:
    try:
        counts = [int(line[c]) for c in ("tp", "isl", "osl", "concurrency")]
        times = [float(line[c]) for c in ("ttft_ms", "tpot_ms")]
    except (ValueError, TypeError) as error:
        raise BadInput(str(error), where=where) from None
    if min(counts) < 1 or not all(np.isfinite(times)) or min(times) <= 0:
        raise BadInput("counts must be at least 1 and times above 0", where=where)
    if line["gpu"] not in GPUS:
        find_gpu(line["gpu"])
    if line["precision"] not in WEIGHTS:
        raise BadInput(f"unknown precision {line['precision']!r} (bf16, fp8, fp4)", where=where)
    tp, prompt, output, users = counts
    return Row(
        number, line["model"], line["gpu"], line["precision"], line.get("vllm_version") or "",
        tp, prompt, output, users, times[0], times[1], line.get("id") or "",
    )  # fmt: skip


def fitting_cells(rows: Iterable[Row]) -> set[str]:
    """The cells on which constants may be fitted: in each group the first half by a hash.

    Whole cells, so that no sweep lies on both sides. Groups that are not scored with the others
    (see `apart`) are never fitted.
    """
    groups: dict[str, set[str]] = {}
    for row in rows:
        if apart(row) is None:
            groups.setdefault(row.group, set()).add(row.cell)
    chosen: set[str] = set()
    for cells in groups.values():
        ordered = sorted(cells, key=lambda c: hashlib.sha256((SALT + c).encode()).hexdigest())
        chosen.update(ordered[: (len(ordered) + 1) // 2])
    return chosen


def apart(row: Row) -> str | None:
    """Why a row is scored apart from the others, None when it is not."""
    if "Llama-3.1-8B" in row.model:
        return "implies more prompt tokens a second than the chip can compute"
    return None


def assumptions(row: Row) -> Setting:
    """The settings that a row leaves out, by its model and GPU.

    Llama-3.1-70B has the grid of a public nightly benchmark, whose scripts give the values.
    The others: what `vllm serve` takes by itself. Releases before 0.14 scheduled synchronously
    unless asked; the release is taken where it is stated.
    """
    nightly = "70B" in row.model
    weights = WEIGHTS[row.precision]
    seqs: int | None = None
    kv: str | None = None
    if nightly:
        seqs = 512 if row.gpu == "b200_sxm" else row.users
        kv = None if row.gpu == "h100_sxm" else "fp8"
    knobs = Knobs(
        max_num_seqs=seqs,
        max_num_batched_tokens=8192,
        max_model_len=row.prompt + row.output + 256,
        gpu_memory_utilization=0.90,
        enable_prefix_caching=False,
        quantization=weights,
        kv_cache_dtype=kv,
        async_scheduling=nightly,
        tensor_parallel_size=row.tensor_parallel,
    )
    if nightly:
        return Setting(knobs, 0.8, 10, "the public nightly benchmark with this grid")
    return Setting(knobs, 0.9, 10, "the engine's own defaults; lengths within 10 %")


def gpu_of(row: Row) -> Gpu:
    """The row's GPU in the catalogue."""
    return find_gpu(GPUS.get(row.gpu, row.gpu))


def twin_of(row: Row, constants: Constants) -> Twin:
    """The row's configuration as a twin."""
    gpu = gpu_of(row)
    shape = find_shape(MODELS.get(row.model, row.model))
    return build_twin(shape, gpu, resolve(assumptions(row).knobs, gpu, shape), constants)


def offered(row: Row, seed: int = 1, *, rounds: int | None = None) -> Schedule:
    """The row's load: all users at once, `rounds` requests each, lengths as assumed."""
    setting = assumptions(row)
    requests = row.users * (rounds or setting.rounds)
    prompts, outputs = (_lengths(n, setting.low_share) for n in (row.prompt, row.output))
    workload = Workload(
        Arrivals(users=row.users), Prompts(prompts), Outputs(outputs, ignore_eos=True),
        duration_s=86_400.0, warmup_s=0.0, requests=requests, seed=seed,
    )  # fmt: skip
    return Schedule(
        workload=workload,
        prompt_tokens=draw_lengths(prompts, requests, stream(seed, "prompt-lengths")),
        output_tokens=draw_lengths(outputs, requests, stream(seed, "output-lengths")),
        prefix_group=np.full(requests, -1, dtype=np.int32),
        users=row.users,
        user_start_ns=np.zeros(row.users, dtype=np.int64),
    )


def _lengths(nominal: int, low_share: float) -> Lengths:
    """Uniform from low_share of the nominal length to all of it."""
    low = nominal * low_share
    return Lengths((low + nominal) / 2, (nominal - low) / (nominal + low))


@dataclass(frozen=True, slots=True)
class Predicted:
    """The twin's means over all requests of a row, in ms."""

    ttft_ms: float
    tpot_ms: float


def predict(row: Row, constants: Constants) -> Predicted:
    """Simulate a row. Raises RidgelineError when its configuration does not fit in memory."""
    return means(simulate(row, constants))


def simulate(row: Row, constants: Constants, *, rounds: int | None = None) -> tuple[Fleet, Offer]:
    """The row's load on its twin, to the end of the last request."""
    offer = Offer(offered(row, rounds=rounds))
    fleet = Fleet(twin_of(row, constants), offer)
    offer.begin(fleet)
    fleet.run_until(None)
    return fleet, offer


def means(run: tuple[Fleet, Offer]) -> Predicted:
    """Mean TTFT and mean TPOT of a run's requests."""
    offer = run[1]
    requests = [request for request, _ in (*offer.take_ended(), *offer.take_open())]
    waits = [r.first_ns - r.sent_ns for r in requests if r.first_ns is not None]
    gaps = [
        (r.last_ns - r.first_ns) / (r.output - 1)
        for r in requests
        if r.last_ns is not None and r.first_ns is not None and r.output > 1
    ]
    return Predicted(float(np.mean(waits)) / 1e6, float(np.mean(gaps)) / 1e6)
