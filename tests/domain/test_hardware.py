"""The GPU catalogue against published figures, and the errors of a wrong name or row."""

import pytest

from ridgeline.domain.errors import BadInput
from ridgeline.domain.hardware import catalogue, gpu, gpu_from_row


@pytest.mark.parametrize("name", ["H100-SXM", "h100 sxm", "H100_SXM", "h100", "NVIDIA H100-SXM5"])
def test_a_name_is_found_whatever_its_spelling(name):
    assert gpu(name).name == "H100-SXM"


def test_published_dense_figures():
    h100, h200, a100 = gpu("H100-SXM"), gpu("H200-SXM"), gpu("A100-SXM-80GB")
    assert h100.flops == {"bf16": 989e12, "fp8": 1979e12}
    assert h100.bandwidth_bytes_per_s == 3.35e12
    assert h200.bandwidth_bytes_per_s == 4.8e12
    assert h200.memory_bytes == 141_000_000_000
    assert "fp8" not in a100.flops
    # "80 GB" is 79.6 GiB for the driver, and an engine counts in those.
    assert h100.total_memory_bytes == pytest.approx(85.5e9, rel=0.001)
    assert gpu("L40S").total_memory_bytes == 46068 * 2**20


def test_no_row_carries_a_sparse_figure():
    """Resellers print twice the dense figure; per type these are the highest dense ones."""
    ceiling = {"bf16": 2500e12, "fp8": 5000e12, "fp4": 15000e12}
    for row in catalogue():
        assert all(value <= ceiling[kind] for kind, value in row.flops.items()), row.name
        if "fp8" in row.flops:
            assert row.flops["fp8"] / row.flops["bf16"] == pytest.approx(2.0, rel=0.03), row.name
    assert gpu("L40S").flops["fp8"] == 733e12  # often shown as 1466


def test_every_row_names_its_source():
    assert len(catalogue()) >= 15
    for row in catalogue():
        assert row.source
        assert row.confidence in {"high", "medium", "low"}


def test_an_unknown_gpu_names_the_nearest():
    with pytest.raises(BadInput, match=r"unknown GPU 'H10O-SXM'.*did you mean 'H100-SXM'"):
        gpu("H10O-SXM")
    with pytest.raises(BadInput, match="known: H100-SXM"):
        gpu("zzz")


def test_a_missing_precision_is_said():
    with pytest.raises(BadInput, match="A100-SXM-80GB has no fp8"):
        gpu("A100").peak_flops("fp8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bandwidth_bytes_per_s": 0}, "bandwidth_bytes_per_s must be a number above 0"),
        ({"memory_bytes": None}, "memory_bytes is missing"),
        ({"fp8_flop": 1e15}, "unknown key 'fp8_flop'.*fp8_flops"),
    ],
)
def test_a_bad_row_is_refused(change, message):
    row = {"name": "mine", "memory_bytes": 8e10, "bandwidth_bytes_per_s": 1e12, "bf16_flops": 1e14}
    assert gpu_from_row(row).flops == {"bf16": 1e14}
    with pytest.raises(BadInput, match=message):
        gpu_from_row({**row, **change})
