"""A plan says what a study would say: a void prediction is no prediction."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.main import run
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.slo import parse_slo
from ridgeline.domain.workload import (
    Arrivals,
    Client,
    Lengths,
    Outputs,
    Prompts,
    Timeouts,
    Workload,
)
from ridgeline.engines.twin import known_constants, twin_of
from ridgeline.engines.twin_bands import figures
from ridgeline.experiment.calibrating import Observation, simulate
from ridgeline.experiment.capacity import missing_bytes
from ridgeline.experiment.heldagainst import Held, agreement, hold
from ridgeline.experiment.planning import knee_of
from ridgeline.experiment.predicting import Predictor
from ridgeline.workload.studyfile import load_study

# 64 users, 16 slots: a request stays for about 7 s, of which 5 are waited for at most.
STUDY = """
name: waits
model: meta-llama/Llama-3.1-8B-Instruct
engine: twin
engine_version: "0.21.0"
hardware: {gpu: H200-SXM, price_per_gpu_hour: 4}
workload:
  arrivals: {users: 64}
  prompts: {tokens: 2000}
  output_tokens: {mean: 200}
  warmup_s: 2
  duration_s: 8
  client: {timeouts: {total_s: 5}}
slo: {ttft_p95_ms: 2000}
baseline: {max_num_seqs: 16, max_model_len: 4096, max_num_batched_tokens: 4096}
"""
LOAD = Workload(
    Arrivals(users=24), Prompts(Lengths(128, 0.5)), Outputs(Lengths(32, 0.5)),
    duration_s=4.0, warmup_s=1.0, seed=3,
)  # fmt: skip
HOST = Configuration("Qwen3-4B", Knobs(max_model_len=4096, max_num_seqs=16), gpu="H200-SXM")


def patient(total_s: float) -> Workload:
    return replace(LOAD, client=Client(timeouts=Timeouts(total_s=total_s)))


def planned(tmp_path: Path, text: str) -> tuple[int, dict[str, Any]]:
    path, out = tmp_path / "s.yaml", tmp_path / "out.json"
    path.write_text(text)
    return run(["plan", str(path), "--top", "1", "--json", str(out)]), json.loads(out.read_text())


def test_a_baseline_whose_requests_all_fail_is_void_in_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, body = planned(tmp_path, STUDY)
    assert code == 3
    assert body["baseline"]["requests"]["ok"] == 0
    assert body["baseline"]["verdict"]["valid"] is False
    assert "failed (timeout_total" in body["baseline"]["verdict"]["reasons"][0]
    told = capsys.readouterr()
    shown = " ".join(told.out.split())
    assert "Baseline: void: every one of the" in shown
    assert "of the bound at its own settings" not in shown.replace("Bound at", "")
    row = next(line for line in told.out.splitlines() if line.startswith("(baseline)"))
    assert "void" in row
    assert "$" not in row
    assert "the baseline is void" in told.err
    # at the full load nothing succeeds: what its failed requests brought is no throughput
    own = next(one for one in body["loads"] if one["users"] == 64)
    assert own["output_tokens_per_s"] == 0
    assert body["knee"]["users"] < 64


def test_a_plan_too_short_for_its_targets_is_void_as_its_study_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = STUDY.replace("total_s: 5", "total_s: 600").replace("users: 64", "users: 4")
    code, body = planned(tmp_path, short)
    assert code == 3
    reasons = body["baseline"]["verdict"]["reasons"]
    assert any("ttft_p95_ms needs" in reason for reason in reasons)
    assert run(["study", str(tmp_path / "s.yaml"), "--out", str(tmp_path / "runs")]) != 0
    stored = json.loads((tmp_path / "runs" / "baseline-r1" / "run.json").read_text())
    assert stored["summary"]["verdict"]["reasons"] == reasons
    capsys.readouterr()


def test_short_runs_for_a_band_have_the_clients_limits() -> None:
    twin = twin_of(HOST)
    free, waits = figures(twin, LOAD), figures(twin, patient(0.01))
    assert free["e2e_s.p95"] > 0.01
    assert not any(path.startswith(("e2e_s", "ttft_s")) for path in waits)


def test_a_calibration_simulates_the_client_that_gave_up() -> None:
    observed = Observation("x", replace(HOST, engine="vllm"), LOAD, {})
    start = known_constants(HOST)
    free = simulate(observed, start)
    cut = simulate(replace(observed, workload=patient(0.01)), start)
    assert free["ttft_p95_s"] > 0
    assert "ttft_p95_s" not in cut


def test_where_nothing_succeeds_on_the_twin_and_an_engine_served_it_is_contradicted() -> None:
    figures = {"output_tokens_per_s": 1000.0, "ttft_p95_s": 0.5, "itl_p95_s": 0.01}
    observed = Observation("x", replace(HOST, engine="vllm"), patient(0.01), figures)
    held = hold([observed], Predictor(parse_slo("ttft_p95_ms=100")), HOST)
    assert len(held) == 3
    assert all(one.outside for one in held)
    assert all(one.predicted is None for one in held)
    assert agreement(held).demoted


@pytest.mark.parametrize(
    ("held", "outside", "demoted"),
    [
        (Held("x", "ttft_s.p95", 0.5, 0.0, 0.0, 0.0), True, True),
        (Held("x", "ttft_s.p95", 0.5, 0.0), True, True),
        (Held("x", "ttft_s.p95", 0.5, 0.4, 0.4, 0.4), True, True),
        (Held("x", "ttft_s.p95", 0.5, 0.4, 0.0, 0.45), True, True),
        (Held("x", "ttft_s.p95", 0.4, 0.4, 0.4, 0.4), False, False),
        (Held("x", "ttft_s.p95", 0.5), True, True),
        (Held("x", "ttft_s.p95", 0.5, 0.4), None, False),
        (Held("x", "ttft_s.p95", 0.5, too_few=True), None, False),
    ],
)
def test_a_prediction_of_nothing_or_without_width_that_is_missed_is_infinitely_far(
    held: Held, outside: bool | None, demoted: bool
) -> None:
    assert held.outside is outside
    assert agreement([held]).demoted is demoted


def test_loads_at_which_nothing_succeeds_have_no_knee() -> None:
    assert knee_of([(Arrivals(users=8), 0.0, None), (Arrivals(users=16), 0.0, None)]) is None


LOG = """\
INFO 01-01 00:00:00 [kv_cache_utils.py:1] GPU KV cache size: {tokens:,} tokens
"""


def test_a_log_that_says_what_was_planned_is_a_log_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, log, out = tmp_path / "s.yaml", tmp_path / "log", tmp_path / "out.json"
    given = "max_num_seqs: 16, kv_cache_memory_bytes: 8589934592"
    study.write_text(STUDY.replace("users: 64", "users: 4").replace("max_num_seqs: 16", given))
    # 8 GiB in blocks of 16 tokens of 128 KiB each
    log.write_text(LOG.format(tokens=65_536))
    assert (
        missing_bytes(twin_of(load_study(study).baseline.configuration), log.read_text(), "") == 0
    )
    run(["plan", str(study), "--top", "1", "--log", str(log), "--json", str(out)])
    assert "no engine's log was given" not in " ".join(capsys.readouterr().out.split())
    assert json.loads(out.read_text())["memory"]["from_log"] is True
