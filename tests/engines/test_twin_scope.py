"""A calibration says when what it is applied to is not what it was fitted on."""

import json
from dataclasses import asdict, replace
from math import hypot
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.main import run
from ridgeline.domain.bands import TOKENS
from ridgeline.domain.errors import BadInput
from ridgeline.domain.knobs import Calibration, Configuration, Knobs, Served
from ridgeline.domain.records import MemorySink
from ridgeline.domain.run import RunFacts, SilentWatch
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.twin import FREE, TwinEngine, known_constants
from ridgeline.engines.twin_scope import scope_notes, scope_of
from ridgeline.experiment.calibrating import read_observations
from ridgeline.twin.uncertainty import ELSEWHERE
from ridgeline.workload.calibrationfile import read_calibration
from ridgeline.workload.schedule import draw_schedule

ROOT = Path(__file__).parents[2]
STORED = ROOT / "validation" / "data" / "h200-probe.json"
LOAD = Workload(
    Arrivals(users=8), Prompts(Lengths(128, 0.5)), Outputs(Lengths(32, 0.5)),
    duration_s=2.0, warmup_s=1.0, seed=3,
)  # fmt: skip
KNOBS = Knobs(max_model_len=4096, max_num_seqs=16)
HOST = Configuration("Qwen3-4B", KNOBS, gpu="H200-SXM")
FITTED = Served("Qwen/Qwen3-4B", "bf16", 1, "0.21")


def made(*fitted_on: Served, gpu: str = "H200-SXM") -> Calibration:
    some = range(len(FREE))
    matrix = tuple(tuple(1e-4 if i == j else 0.0 for j in some) for i in some)
    values = {n: getattr(known_constants(HOST), n) for n in FREE}
    return Calibration(gpu, values, FREE, matrix, {}, fitted_on)


def drive(configuration: Configuration) -> RunFacts:
    with TwinEngine().start(configuration) as endpoint:
        plan = DrivePlan(draw_schedule(LOAD), "b", bands=True)
        return endpoint.drive(plan, MemorySink(), SilentWatch())


def test_nothing_is_said_where_it_is_what_was_fitted(tmp_path: Path) -> None:
    assert scope_notes(HOST) == ()
    here = replace(HOST, calibration=made(FITTED))
    assert scope_notes(here) == ()
    assert drive(here).notes == ()
    # a folder with that model's config.json is that model
    own = {"model_type": "qwen3", "hidden_size": 2560, "num_hidden_layers": 36, "head_dim": 128,
           "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 9728,
           "vocab_size": 151936, "max_position_embeddings": 40960,
           "tie_word_embeddings": True}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(own))
    assert scope_notes(replace(here, model=str(tmp_path))) == ()


@pytest.mark.parametrize(
    ("changes", "differs", "wider"),
    [
        ({"model": "Qwen/Qwen3-0.6B"}, "model Qwen/Qwen3-4B (here Qwen/Qwen3-0.6B)", True),
        ({"knobs": {"quantization": "fp8"}}, "weights bf16 (here fp8)", True),
        ({"knobs": {"tensor_parallel_size": 2}}, "tensor parallelism 1 (here 2)", False),
        ({"engine_version": "0.33.0"}, "release 0.21 (here 0.33)", False),
    ],
)
def test_what_differs_is_said_and_the_bands_are_wider_or_not_validated(
    changes: dict[str, Any], differs: str, wider: bool
) -> None:
    given = {n: KNOBS.with_changes(v) if n == "knobs" else v for n, v in changes.items()}
    other = replace(HOST, calibration=made(FITTED), **given)
    [note] = scope_notes(other)
    assert f"the calibration was fitted on something else: {differs};" in note
    assert ("bands are wider" in note) == wider
    assert ("bands are not validated for a change of" in note) == (not wider)
    facts = drive(other)
    assert note in facts.notes
    # The same constants, fitted on this very thing: the width that is added is the one stated.
    scope = scope_of(other)
    assert scope is not None
    same = drive(replace(other, calibration=made(scope.ours)))
    assert same.notes == ()
    for path in (TOKENS, "ttft_s.mean", "itl_s.p95", "tpot_s.mean"):
        adds = ELSEWHERE[path.split(".")[0]] if wider else 0.0
        assert facts.errors[path] == pytest.approx(hypot(same.errors[path], adds), rel=1e-6)


def test_of_several_that_were_fitted_all_count() -> None:
    """Their constants are pooled: one that is the same does not make the others so."""
    big = Served("meta-llama/Llama-3.1-70B", "fp8", 4, "0.33")
    [note] = scope_notes(replace(HOST, calibration=made(big, FITTED)))
    assert "was fitted on something else too: model meta-llama/Llama-3.1-70B (here" in note
    mixed = replace(HOST, knobs=KNOBS.with_changes({"quantization": "fp8"}))
    [note] = scope_notes(replace(mixed, calibration=made(big, FITTED)))
    assert "was fitted on something else: model meta-llama/Llama-3.1-70B (here" in note
    assert "weights bf16 (here fp8)," in note


def test_a_file_that_does_not_say_is_said_to_and_another_gpus_is_not_applied() -> None:
    old = replace(HOST, calibration=made(Served("Qwen/Qwen3-4B")))
    [note] = scope_notes(old)
    assert "does not say its weights (here bf16), tensor parallelism (here 1), release" in note
    assert "bands are wider" in note
    [note] = scope_notes(replace(HOST, calibration=made(FITTED, gpu="H100-SXM")))
    assert note == "the calibration is of H100-SXM: H200-SXM is predicted with its priors"


def test_what_the_runs_served_goes_into_the_file_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stored calibration, and the runs that it was made of."""
    monkeypatch.chdir(tmp_path)  # the checkout may have the folder that the runs' model was in
    stored = read_calibration(STORED)
    assert stored.fitted_on == (FITTED,)
    probe = ROOT / "results" / "h200"
    runs = [probe / "probe" / "one-short-r1", probe / "knobs" / "fp8-r1"]
    seen = [o.served for o in read_observations(runs, "Qwen/Qwen3-4B")]
    assert seen == [FITTED, replace(FITTED, weights="fp8")]
    body = json.loads(STORED.read_text())
    path = tmp_path / "host.json"
    path.write_text(json.dumps({**body, "fitted_on": [asdict(s) for s in seen]}))
    assert read_calibration(path).fitted_on == tuple(seen)
    del body["fitted_on"]
    path.write_text(json.dumps(body))
    assert read_calibration(path).fitted_on == (Served("Qwen/Qwen3-4B"),)
    for bad in ("x", [{}], [{"model": 3}], [{"model": "m", "tensor_parallel": 0}], [7]):
        path.write_text(json.dumps({**body, "fitted_on": bad}))
        with pytest.raises(BadInput, match="fitted_on needs"):
            read_calibration(path)


STUDY = f"""
name: small
model: Qwen/Qwen3-4B
engine: twin
hardware: {{gpu: H200-SXM}}
twin: {{calibration: {STORED}}}
workload:
  arrivals: {{users: 8}}
  prompts: {{tokens: {{min: 64, max: 192}}}}
  output_tokens: {{min: 16, max: 32}}
  duration_s: 3
  warmup_s: 1
baseline: {{max_num_seqs: 16, max_model_len: 4096, quantization: fp8}}
experiments: []
repeats: 1
"""
SAID = "fitted on something else: weights bf16 (here fp8)"


def test_plan_and_study_say_it_on_page_console_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, out = tmp_path / "s.yaml", tmp_path / "out.json"
    study.write_text(STUDY)
    assert run(["plan", str(study), "--top", "1", "--json", str(out)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"Baseline: the calibration was {SAID}" in shown
    # other GPUs are predicted with their priors, and that is said
    assert "gpu H100-SXM: the calibration is of H200-SXM: H100-SXM is predicted" in shown
    body = json.loads(out.read_text())
    assert any(SAID in note for note in body["baseline"]["notes"])
    folder = tmp_path / "runs"
    page = tmp_path / "page.html"
    assert run(["study", str(study), "--out", str(folder), "--json", str(out)]) == 0
    assert SAID in " ".join(capsys.readouterr().out.split())
    body = json.loads(out.read_text())
    assert any(SAID in note for note in body["runs"][0]["summary"]["notes"])
    assert run(["report", str(folder), "--html", str(page)]) == 0
    assert SAID in page.read_text()
