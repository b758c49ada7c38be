"""The model without weights: the published shape, and a tokenizer that an engine can take."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ridgeline.domain.model import shape
from ridgeline.workload.prompts import WORDS
from ridgeline.workload.studyfile import load_study

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "qwen3-4b-shape"
    subprocess.run([sys.executable, ROOT / "scripts" / "make_dummy_model.py", folder], check=True)
    return folder


def test_it_has_the_shape_that_ships_under_the_published_name(model: Path) -> None:
    made, published = shape(str(model)), shape("Qwen/Qwen3-4B")
    assert replace(made, name="") == replace(published, name="")


def test_every_entry_is_ascii_and_every_merge_leads_to_one(model: Path) -> None:
    body: dict[str, Any] = json.loads((model / "tokenizer.json").read_text())
    entries, merges = body["model"]["vocab"], body["model"]["merges"]
    special = {t["content"]: t["id"] for t in body["added_tokens"]}
    assert sorted([*entries.values(), *special.values()]) == list(range(151_936))
    # byte-level BPE writes the bytes 0 to 32 and 127 as U+0100 to U+0120 and U+0121
    ascii_letters = {chr(b) for b in range(33, 127)} | {chr(0x100 + n) for n in range(34)}
    assert set("".join(entries)) == ascii_letters
    known = {e for e in entries if len(e) == 1}
    for left, right in merges:
        assert left in known
        assert right in known
        known.add(left + right)
    assert known == set(entries)
    config = json.loads((model / "config.json").read_text())
    assert config["eos_token_id"] == special["<|im_end|>"]


def test_most_words_of_our_prompts_are_one_token_as_in_a_real_vocabulary(model: Path) -> None:
    entries = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    whole = [word for word in WORDS if f"\u0120{word}" in entries]
    assert len(whole) > 0.75 * len(WORDS)


def test_the_h200_study_is_served_by_engines_that_fit_one_gpu() -> None:
    study = load_study(ROOT / "studies" / "h200-one-gpu.yaml")
    engines = {repr(e.configuration): e.configuration for e in study.experiments}
    launch = study.baseline.configuration.launch
    assert launch is not None
    assert launch.resident == len(engines) == 6
    assert sum(c.knobs.gpu_memory_utilization or 9 for c in engines.values()) <= 0.95
    (kv_bytes,) = {c.knobs.kv_cache_memory_bytes for c in engines.values()}
    made = shape("Qwen/Qwen3-4B")
    per_token = 2 * made.layers * made.kv_heads * made.head_dim * 2  # keys and values, bf16
    for e in study.experiments:
        longest = e.workload.prompts.tokens.high + e.workload.outputs.tokens.high
        assert (e.configuration.knobs.max_num_seqs or 0) * longest * per_token < (kv_bytes or 0)
