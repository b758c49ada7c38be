"""What verbs say of pools: those that cannot take them refuse with the place."""

import json
from pathlib import Path

import pytest

from ridgeline.cli.main import run
from ridgeline.cli.plan_classes import classes_json, classes_page
from ridgeline.domain.classways import FCFS, POOLS, PRIORITY
from ridgeline.experiment.classplan import price_classes
from ridgeline.experiment.predicting import Predictor
from ridgeline.workload.studyfile import parse_study

TEXT = """\
name: mixed
model: Qwen/Qwen3-4B
hardware: {gpu: H100-SXM, count: 2, price_per_gpu_hour: 4}
workload:
  arrivals: {rate_per_s: 10}
  classes:
    chat: {share: 0.8, output_tokens: 16, slo: {ttft_p95_ms: 500}}
    batch: {share: 0.2, output_tokens: 64}
  duration_s: 15
  warmup_s: 3
slo: {error_rate: 0.01}
"""
POOLED = TEXT + "pools: {chat: {}, batch: {}}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tune", "{file}", "--engine", "twin", "--trials", "1"], "a tuning searches one"),
        (["twin", "{file}", "--port", "1"], "one port serves one pool"),
        (["plan", "{file}"], "a plan searches around a baseline of one pool"),
    ],
)
def test_a_verb_for_one_pool_refuses_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    file = tmp_path / "mixed.yaml"
    file.write_text(POOLED)
    assert run([word.format(file=file) for word in words]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "mixed.yaml: pools" in told
    assert len(told.splitlines()) == 1


def test_a_study_on_the_twin_runs_pools(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "mixed.yaml", tmp_path / "told.json"
    file.write_text(POOLED + "repeats: 1\n")
    assert run(["study", str(file), "--out", str(tmp_path / "out"), "--json", str(out)]) == 0
    (one,) = json.loads(out.read_text())["runs"]
    assert [pool["name"] for pool in one["configuration"]["pools"]] == ["chat", "batch"]
    assert {"chat", "batch"} == set(one["summary"]["classes"])
    assert "classes.chat.ttft_s.p95" in one["summary"]["bands"]
    (limit,) = [s for s in one["summary"]["slo"] if s["traffic_class"] == "chat"]
    assert limit["met"] is True
    capsys.readouterr()


def test_a_plan_tells_the_ways_the_cheapest_and_what_priority_is_not() -> None:
    study = parse_study(TEXT + "baseline: {data_parallel_size: 2}\n", "mixed.yaml")
    plan = price_classes(study.experiments, Predictor(study.slo))
    assert plan is not None
    body = json.loads(json.dumps(classes_json(plan)))
    assert {one["way"] for one in body["alternatives"]} == {FCFS, PRIORITY, POOLS}
    assert body["cheapest"]["gpus"] == 1, "this little traffic fits on one"
    assert body["cheapest"]["inside"] is True
    assert body["groups"] == {"chat": "urgent", "batch": "batch"}
    assert any("no class has a priority" in note for note in body["notes"])
    lines = [line for line in classes_page(plan) if isinstance(line, str)]
    told = "\n".join(lines)
    assert "Cheapest inside the limits: one pool, fcfs (1 replica)" in told
    assert "no ageing" in told
