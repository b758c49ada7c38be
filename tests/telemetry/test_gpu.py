"""GPU counters: unknown is None, throttling has a reason, strangers are named."""

import sys
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from ridgeline.telemetry.gpu import (
    GpuSample,
    NvmlSampler,
    open_nvml,
    summarise_gpu,
    throttle_reasons,
)


class NoSuchThing(Exception):
    """Stands for NVMLError."""


class PartialDriver:
    """A driver that knows power and clocks but no activity counters and no processes."""

    NVMLError = NoSuchThing
    NVML_CLOCK_SM = 1

    def nvmlDeviceGetName(self, _: Any) -> bytes:  # noqa: N802  NVML's own name
        return b"NVIDIA H200"

    def nvmlDeviceGetPowerUsage(self, _: Any) -> int:  # noqa: N802
        return 480_000

    def nvmlDeviceGetUtilizationRates(self, _: Any) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=100)

    def nvmlDeviceGetCurrentClocksEventReasons(self, _: Any) -> int:  # noqa: N802
        return 0x04 | 0x01

    def nvmlDeviceGetMemoryInfo(self, _: Any) -> Any:  # noqa: N802
        raise NoSuchThing


def test_what_the_driver_does_not_tell_is_none_never_zero() -> None:
    (sample,) = NvmlSampler(PartialDriver(), ["handle"]).sample()
    assert sample.name == "NVIDIA H200"
    assert sample.power_w == 480.0
    assert sample.utilisation == 1.0
    assert sample.sm_active is None
    assert sample.tensor_active is None
    assert sample.memory_used_bytes is None
    assert sample.throttled_by == ("power cap",)


def test_idle_and_user_clocks_are_not_throttling() -> None:
    assert throttle_reasons(0x01 | 0x02 | 0x10 | 0x100) == ()
    assert throttle_reasons(0x08 | 0x40) == ("hardware slowdown", "hardware thermal slowdown")


def test_a_summary_means_only_what_was_measured_and_names_strangers() -> None:
    samples = [
        GpuSample(0, "H200", power_w=400.0, tensor_active=None, processes=(11, 12)),
        GpuSample(0, "H200", power_w=600.0, tensor_active=0.4, processes=(11,)),
        GpuSample(0, "H200", power_w=500.0, throttled_by=("power cap",), processes=(11,)),
        GpuSample(0, "H200", power_w=500.0, processes=(11,)),
    ]
    summary = summarise_gpu(samples, ours=[11])
    assert summary is not None
    assert summary.power_mean_w == 500.0
    assert summary.tensor_active == 0.4
    assert summary.dram_active is None
    assert summary.throttled == {"power cap": 0.25}
    assert summary.strangers == (12,)
    assert summarise_gpu([]) is None


def test_without_nvml_there_is_no_gpu_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    assert open_nvml() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not even the Python side of it
    assert open_nvml() is None


@pytest.mark.parametrize(
    ("shown", "found"),
    [(None, ["0", "1", "2"]), ("2,0,7", ["2", "0"]), ("GPU-ab, GPU-cd", ["GPU-ab", "GPU-cd"])],
)
def test_the_gpus_are_those_that_cuda_shows(
    monkeypatch: pytest.MonkeyPatch, shown: str | None, found: list[str]
) -> None:
    driver = SimpleNamespace(
        NVMLError=NoSuchThing, nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 3,
        nvmlDeviceGetHandleByIndex=str, nvmlDeviceGetHandleByUUID=str,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    if shown is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    sampler = open_nvml()
    assert isinstance(sampler, NvmlSampler)
    assert sampler._handles == found
