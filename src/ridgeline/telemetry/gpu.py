"""GPU counters through NVML: what the chip did, not only whether a kernel was resident.

`utilisation` (nvidia-smi's figure) is the share of time in which any kernel ran and says nothing
about work; it stands only beside the hardware's own activity counters (GPM, from Hopper on).
Everything that the driver does not tell is None, never 0.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ridgeline.domain.means import known_mean
from ridgeline.telemetry.sampling import Reading

# Reasons (bits of nvmlDeviceGetCurrentClocksEventReasons) for which clocks fall below what the
# chip could do. Idle and user-set clocks are not throttling.
THROTTLE_BITS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU at one moment. Shares are 0..1; activity covers the time since the last sample."""

    index: int
    name: str
    memory_used_bytes: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    utilisation: float | None = None
    sm_active: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None
    throttled_by: tuple[str, ...] = ()
    processes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuSummary:
    """One GPU over a window: means, the throttle reasons with their share of samples."""

    index: int
    name: str
    samples: int
    memory_used_max_bytes: int | None
    power_mean_w: float | None
    sm_clock_mean_mhz: float | None
    utilisation: float | None
    sm_active: float | None
    tensor_active: float | None
    dram_active: float | None
    throttled: dict[str, float]
    # processes that are not ours; None = cannot be told (the driver lists none of ours, as in a
    # container that has its own process numbers)
    strangers: tuple[int, ...] | None


class GpuSampler(Protocol):
    """Reads all GPUs once. Implementations: NvmlSampler, FakeSampler."""

    def sample(self) -> Sequence[GpuSample]:
        """The state of every GPU now; an empty sequence where there is none."""


@dataclass(slots=True)
class FakeSampler:
    """Plays back prepared samples, the last one for ever."""

    script: list[Sequence[GpuSample]]

    def sample(self) -> Sequence[GpuSample]:
        """The next prepared samples."""
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]


class NvmlSampler:
    """Samples through NVML; `open_nvml` returns None where there is no driver."""

    def __init__(self, nvml: Any, handles: Sequence[Any]) -> None:
        self._nvml = nvml
        self._handles = handles
        self._last: dict[int, Any] = {}

    def sample(self) -> Sequence[GpuSample]:
        """The state of every GPU now."""
        return [self._one(i, h) for i, h in enumerate(self._handles)]

    def _one(self, index: int, handle: Any) -> GpuSample:
        nvml = self._nvml
        rates = self._ask("nvmlDeviceGetUtilizationRates", handle)
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        power = self._ask("nvmlDeviceGetPowerUsage", handle)
        limit = self._ask("nvmlDeviceGetEnforcedPowerLimit", handle)
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses", handle)
        name = self._ask("nvmlDeviceGetName", handle)
        activity = self._activity(index, handle)
        return GpuSample(
            index=index,
            name=name.decode() if isinstance(name, bytes) else str(name),
            memory_used_bytes=None if memory is None else int(memory.used),
            power_w=None if power is None else power / 1000,
            power_limit_w=None if limit is None else limit / 1000,
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
            max_sm_clock_mhz=self._ask("nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM),
            utilisation=None if rates is None else rates.gpu / 100,
            throttled_by=throttle_reasons(bits or 0),
            processes=tuple(p.pid for p in processes or ()),
            **activity,
        )

    def _ask(self, function: str, *arguments: Any) -> Any:
        """A driver's answer, None where this GPU or driver does not tell."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None

    def _activity(self, index: int, handle: Any) -> dict[str, float]:
        """SM, tensor and DRAM activity since the last call, from the hardware's counters."""
        nvml = self._nvml
        try:
            now = nvml.nvmlGpmSampleAlloc()
            nvml.nvmlGpmSampleGet(handle, now)
        except (nvml.NVMLError, AttributeError):
            return {}
        before = self._last.get(index)
        self._last[index] = now
        if before is None:
            return {}
        wanted = {
            "sm_active": nvml.NVML_GPM_METRIC_SM_UTIL,
            "tensor_active": nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
            "dram_active": nvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
        }
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(wanted)
        request.sample1, request.sample2 = before, now
        for slot, metric in enumerate(wanted.values()):
            request.metrics[slot].metricId = metric
        try:
            nvml.nvmlGpmMetricsGet(request)
        except nvml.NVMLError:
            return {}
        finally:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlGpmSampleFree(before)
        return {
            name: request.metrics[slot].value / 100
            for slot, name in enumerate(wanted)
            if request.metrics[slot].nvmlReturn == nvml.NVML_SUCCESS
        }


def open_nvml() -> NvmlSampler | None:
    """A sampler of the GPUs that CUDA_VISIBLE_DEVICES leaves; None without NVML or a driver."""
    try:
        import pynvml  # noqa: PLC0415  only where GPUs are asked for
    except ImportError:
        return None

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = [g.strip() for g in shown.split(",")] if shown else [str(i) for i in range(count)]
        handles = [
            pynvml.nvmlDeviceGetHandleByUUID(name)
            if name.startswith("GPU-")
            else pynvml.nvmlDeviceGetHandleByIndex(int(name))
            for name in names
            if name.startswith("GPU-") or (name.isdigit() and int(name) < count)
        ]
    except pynvml.NVMLError:
        return None
    return NvmlSampler(pynvml, handles) if handles else None


class GpuProbe:
    """The GPUs of a sampler as a telemetry probe; keeps the samples for `summaries`.

    `gpus`: the numbers of those that the run uses, None for all.
    """

    def __init__(self, sampler: GpuSampler, gpus: Sequence[int] | None = None) -> None:
        self._sampler = sampler
        self._gpus = None if gpus is None else set(gpus)
        self._samples: list[tuple[int, GpuSample]] = []

    def read(self) -> Iterable[Reading]:
        """Every known value of every GPU now."""
        at = time.monotonic_ns()
        for sample in self._sampler.sample():
            if self._gpus is None or sample.index in self._gpus:
                self._samples.append((at, sample))
                yield from _readings(sample)

    def close(self) -> None:
        """Nothing to let go of: the driver's handles are the sampler's, which outlives a run."""

    def summaries(
        self, start_ns: int, end_ns: int, ours: Iterable[int] = ()
    ) -> tuple[GpuSummary, ...]:
        """Each GPU over [start_ns, end_ns) of the monotonic clock, in the order of their numbers.

        Activity counters cover the time since the sample before; the first sample inside is kept.
        """
        known = tuple(ours)
        inside: dict[int, list[GpuSample]] = {}
        for at, sample in self._samples:
            if start_ns <= at < end_ns:
                inside.setdefault(sample.index, []).append(sample)
        found = (summarise_gpu(inside[index], known) for index in sorted(inside))
        return tuple(summary for summary in found if summary is not None)


_NUMBERS = (
    "memory_used_bytes", "power_w", "power_limit_w", "sm_clock_mhz", "max_sm_clock_mhz",
    "utilisation", "sm_active", "tensor_active", "dram_active",
)  # fmt: skip


def _readings(sample: GpuSample) -> Iterable[Reading]:
    unit = f"gpu {sample.index}"
    for name in _NUMBERS:
        value = getattr(sample, name)
        if value is not None:
            yield Reading("gpu", unit, name, float(value))
    for reason in sample.throttled_by:
        yield Reading("gpu", unit, f"throttled: {reason}", 1.0)
    yield Reading("gpu", unit, "processes", float(len(sample.processes)))


def throttle_reasons(bits: int) -> tuple[str, ...]:
    """The names of the throttle bits that are set."""
    return tuple(name for bit, name in THROTTLE_BITS.items() if bits & bit)


def summarise_gpu(samples: Iterable[GpuSample], ours: Iterable[int] = ()) -> GpuSummary | None:
    """Reduce the samples of one GPU; `ours` are the process ids that may use it. None if empty."""
    rows = list(samples)
    if not rows:
        return None
    reasons = sorted({reason for row in rows for reason in row.throttled_by})
    known = set(ours)
    seen = {p for r in rows for p in r.processes}
    return GpuSummary(
        index=rows[0].index,
        name=rows[0].name,
        samples=len(rows),
        memory_used_max_bytes=max(
            (r.memory_used_bytes for r in rows if r.memory_used_bytes is not None), default=None
        ),
        power_mean_w=known_mean(r.power_w for r in rows),
        sm_clock_mean_mhz=known_mean(r.sm_clock_mhz for r in rows),
        utilisation=known_mean(r.utilisation for r in rows),
        sm_active=known_mean(r.sm_active for r in rows),
        tensor_active=known_mean(r.tensor_active for r in rows),
        dram_active=known_mean(r.dram_active for r in rows),
        throttled={
            reason: sum(reason in r.throttled_by for r in rows) / len(rows) for reason in reasons
        },
        strangers=tuple(sorted(seen - known)) if seen & known else None,
    )
