"""Priorities that order nothing, or the wrong way round, are told with the run."""

import json
from pathlib import Path

import pytest

from ridgeline.cli.main import run

STUDY = """\
name: mixed
model: Qwen/Qwen3-4B
engine: twin
hardware: {{gpu: H100-SXM, count: 2}}
workload:
  arrivals: {{rate_per_s: 8}}
  classes:
    chat: {{share: 0.5, prompts: {{tokens: 64}}, output_tokens: {{max: 16}}, {chat}}}
    batch: {{share: 0.3, prompts: {{tokens: 64}}, output_tokens: {{max: 32}}, {batch}}}
    night: {{share: 0.2, prompts: {{tokens: 64}}, output_tokens: {{max: 32}}, {batch}}}
  duration_s: 10
baseline: {{data_parallel_size: 2, scheduling_policy: {policy}}}
{pools}
repeats: 1
"""
LIMIT = "slo: {ttft_p95_ms: 500}"
POOLS = """pools:
  chat: {set: {data_parallel_size: 1}}
  rest: {classes: [batch, night], set: {data_parallel_size: 1}}"""
NOTHING = "scheduling_policy priority orders nothing: "


@pytest.mark.parametrize(
    ("chat", "batch", "policy", "pools", "words"),
    [
        (LIMIT, "priority: null", "priority", "", [f"{NOTHING}no class has a priority"]),
        (f"{LIMIT}, priority: 0", "priority: null", "priority", "", [f"{NOTHING}all classes have"]),
        (f"{LIMIT}, priority: 10", "priority: 0", "priority", "",
         ["batch (priority 0, no limit) goes before chat (priority 10, which has one)",
          "night (priority 0, no limit) goes before chat (priority 10, which has one)"]),
        (f"{LIMIT}, priority: 0", "priority: 10", "priority", POOLS, [f"pool rest: {NOTHING}all"]),
        (f"{LIMIT}, priority: 0", "priority: 10", "priority", "", []),
        (f"{LIMIT}, priority: 10", "priority: 0", "fcfs", "", []),
    ],
)  # fmt: skip
def test_priorities_that_do_not_what_they_are_for_are_told(
    chat: str, batch: str, policy: str, pools: str, words: list[str], tmp_path: Path
) -> None:
    file, told = tmp_path / "mixed.yaml", tmp_path / "told.json"
    file.write_text(STUDY.format(chat=chat, batch=batch, policy=policy, pools=pools))
    run(["study", str(file), "--out", str(tmp_path / "out"), "--json", str(told), "--quiet"])
    (one,) = json.loads(told.read_text())["runs"]
    warnings = [w for w in one["summary"]["verdict"]["warnings"] if "priorit" in w]
    assert len(warnings) == len(words)
    for warning, word in zip(warnings, words, strict=True):
        assert warning.startswith(word)
