"""dcgm-exporter's pages -> evidence of each GPU."""

from collections.abc import Iterable
from math import isfinite

from ridgeline.diagnosis.evidence import GpuEvidence
from ridgeline.telemetry.prometheus import Scrape

_FIELDS = {
    "DCGM_FI_DEV_GPU_UTIL": "utilisation",
    "DCGM_FI_PROF_SM_ACTIVE": "sm_active",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "tensor_active",
    "DCGM_FI_PROF_DRAM_ACTIVE": "dram_active",
    "DCGM_FI_DEV_POWER_USAGE": "power_w",
}
GPU_FIELDS = tuple(_FIELDS)


def gpus_of(pages: Iterable[Scrape]) -> tuple[GpuEvidence, ...]:
    """The GPUs of dcgm-exporter's pages, each figure the mean over them.

    Utilisation is in percent always; the profiling fields are shares of 0..1, or of 0..100 in some
    exporters, which a value above 1 gives away.
    """
    values: dict[str, dict[str, list[float]]] = {}
    names: dict[str, str] = {}
    for page in pages:
        for metric, field in _FIELDS.items():
            for series in page.series(metric):
                index = series.labels.get("gpu") or series.labels.get("UUID") or "0"
                host = series.labels.get("Hostname")
                index = index if host is None else f"{host}/{index}"
                names.setdefault(index, series.labels.get("modelName", ""))
                if isfinite(series.value):
                    values.setdefault(field, {}).setdefault(index, []).append(series.value)
    percent = {
        field for field, told in values.items()
        if field == "utilisation"
        or (field != "power_w" and max(max(v) for v in told.values()) > 1.0)
    }  # fmt: skip
    return tuple(
        GpuEvidence(index, names[index] or None, **{
            field: sum(told[index]) / len(told[index]) / (100 if field in percent else 1)
            for field, told in values.items() if index in told
        })  # type: ignore[arg-type]
        for index in sorted(names)
    )  # fmt: skip
