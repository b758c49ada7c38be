"""GPUs of one's own, and routing, in a study file."""

from pathlib import Path

import pytest

from ridgeline.domain.errors import BadInput
from ridgeline.engines.twin import twin_of
from ridgeline.workload.studyfile import load_study

STUDY = """\
name: own
model: Qwen3-4B
hardware: {gpu: %s, count: 4}
routing: least-loaded
workload: {arrivals: {users: 4}}
baseline: {data_parallel_size: 4, max_model_len: 4096}
experiments:
  - {name: by-prefix, routing: prefix-aware}
  - {name: known, hardware: {gpu: H100-SXM}}
"""
CARD = """\
name: Half-H100
compute_capability: "9.0"
memory_bytes: 80e9
bandwidth_bytes_per_s: 1.675e12
bf16_flops: 494.5e12
"""


def study(folder: Path, gpu: str, card: str | None = CARD) -> Path:
    if card is not None:
        (folder / "card.yaml").write_text(card)
    (folder / "study.yaml").write_text(STUDY % gpu)
    return folder / "study.yaml"


def test_a_gpu_from_a_file_is_what_the_twin_computes_with(tmp_path: Path) -> None:
    own, by_prefix, known = load_study(study(tmp_path, "./card.yaml")).experiments
    assert own.configuration.gpu == by_prefix.configuration.gpu == "Half-H100"
    assert known.configuration.gpu == "H100-SXM"
    assert twin_of(own.configuration).gpu.bandwidth_bytes_per_s == 1.675e12
    assert twin_of(known.configuration).gpu.bandwidth_bytes_per_s == 3.35e12
    assert own.configuration.routing == known.configuration.routing == "least-loaded"
    assert by_prefix.configuration.routing == "prefix-aware"
    assert by_prefix.change == "routing least-loaded -> prefix-aware"
    assert known.change == "gpu Half-H100 -> H100-SXM"


@pytest.mark.parametrize(
    ("card", "words"),
    [
        (None, "cannot be read"),
        ("- a list", "describes no GPU; it needs name"),
        ("name: x", "memory_bytes is missing"),
        (CARD.replace("1.675e12", "3.35"), "3.35 is no GPU's: plain bytes"),
        (CARD + "cores: 5\n", "unknown key 'cores'"),
        ("name: [", "cannot be read"),
        (CARD.replace("80e9", "lots"), "must be a number above 0"),
    ],
)
def test_a_bad_gpu_file_is_told_in_one_line(tmp_path: Path, card: str | None, words: str) -> None:
    with pytest.raises(BadInput) as error:
        load_study(study(tmp_path, "./card.yaml", card))
    assert words in str(error.value)
    assert "study.yaml:3: " in str(error.value)
    assert "\n" not in str(error.value)


def test_an_endpoint_has_nothing_to_balance(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "name: s\nmodel: m\nengine: endpoint\nurl: http://127.0.0.1:1\nrouting: least-loaded\n"
        "workload: {arrivals: {users: 1}}\n"
    )
    with pytest.raises(BadInput, match="one address"):
        load_study(path)
    path.write_text(STUDY.replace("least-loaded", "random") % "H100-SXM")
    with pytest.raises(BadInput, match="routing"):
        load_study(path)
