"""The twin fitted to the first two configurations of a tuning, on a host that it does not know."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.twin import known_constants
from ridgeline.experiment.calibrating import Observation, simulate
from ridgeline.tuning import expecting
from ridgeline.tuning.expecting import Oracle
from ridgeline.tuning.journal import read_journal
from ridgeline.tuning.refitting import refit
from ridgeline.tuning.setting import setting_of
from ridgeline.workload.calibrationfile import read_calibration
from ridgeline.workload.studyfile import load_study

ROOT = Path(__file__).parents[2]

LOAD = Workload(
    Arrivals(users=64), Prompts(Lengths(256, 0.5)), Outputs(Lengths(48, 0.5)),
    duration_s=4.0, warmup_s=1.0, seed=3,
)  # fmt: skip
BASE = Configuration("Qwen/Qwen3-4B", Knobs(max_num_seqs=16), engine="vllm", gpu="H200-SXM")
KNOBS = (
    Knobs(max_num_seqs=16), Knobs(max_num_seqs=64, max_num_batched_tokens=512),
    Knobs(max_num_seqs=32, max_num_batched_tokens=8192), Knobs(max_num_seqs=24),
)  # fmt: skip
PRIOR = known_constants(BASE)
# A host whose CPU is slower at everything, the API server most.
HOST = replace(
    PRIOR, piecewise_launch_ns_per_layer=1.35 * PRIOR.piecewise_launch_ns_per_layer,
    prompt_step_ns=1.7 * PRIOR.prompt_step_ns,
    update_ns_per_request=1.7 * PRIOR.update_ns_per_request,
    receive_ns=1.9 * PRIOR.receive_ns, send_ns_per_chunk=1.9 * PRIOR.send_ns_per_chunk,
    receive_ns_per_token=1.9 * PRIOR.receive_ns_per_token,
)  # fmt: skip


def measured(knobs: Knobs, seed: int) -> Observation:
    """As the host gives it, on other draws of the load than the fit looks at, with noise."""
    asked = Observation("run", replace(BASE, knobs=knobs), replace(LOAD, seed=seed), {})
    noise = np.random.default_rng(seed)
    found = {n: v * float(np.exp(0.03 * noise.standard_normal()))
             for n, v in simulate(asked, HOST).items()}  # fmt: skip
    return replace(asked, figures=found, workload=LOAD)


def error(seen: Observation, twin: Mapping[str, float]) -> float:
    names = ("output_tokens_per_s", "ttft_p95_s", "itl_p95_s")
    return float(np.mean([abs(np.log(twin[n] / seen.figures[n])) for n in names]))


def test_two_configurations_make_it_right_about_others_of_the_same_host(tmp_path: Path) -> None:
    seen = [measured(k, 11 + i) for i, k in enumerate(KNOBS)]
    found = refit(seen[:2])
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(found.to_json()))
    constants = dict(read_calibration(path).constants)  # it is a calibration file
    after = replace(PRIOR, **constants)  # type: ignore[arg-type]
    for other in seen[2:]:
        before = error(other, simulate(other, PRIOR))
        assert before > 0.08, "else this shows nothing"
        assert error(other, simulate(other, after)) < 0.5 * before


def test_what_the_runs_do_not_tell_stays_at_its_prior_with_its_width() -> None:
    """No graph is left out in these runs, so eager launches are only known by their host."""
    seen = [measured(k, 11 + i) for i, k in enumerate(KNOBS[:2])]
    right = [replace(o, figures=simulate(o, PRIOR)) for o in seen]
    found = refit(right)
    for name, value in found.constants.items():
        assert value == pytest.approx(getattr(PRIOR, name), rel=0.02), name
        assert 0 < found.errors[name] < 0.6, name
    told = refit(seen)
    assert told.errors["prompt_step_ns"] < 0.5  # its prior's


def test_after_its_first_question_a_tuning_goes_by_a_twin_that_was_fitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two configurations of a stored H200 tuning; the word of the certificate follows."""
    monkeypatch.chdir(tmp_path)  # where the runs' model is a folder with its shape
    shape = tmp_path / "models" / "qwen3-4b-shape"
    subprocess.run([sys.executable, str(ROOT / "scripts" / "make_dummy_model.py"), str(shape)],
                   check=True, capture_output=True)  # fmt: skip
    folder = ROOT / "results" / "h200" / "tune" / "h200-tune-32"
    told = read_journal(folder / "tune.jsonl")
    tuned = setting_of(load_study(folder / "study.yaml"))
    tokens = {1: 3661.8, 2: 11234.7}
    runs = tmp_path / "trials"
    for trial in told.trials[:2]:
        shutil.copytree(folder / "trials" / str(trial.run), runs / str(trial.run))
    # the fit runs in a thread here: a process of its own starts slowly beside other tests
    monkeypatch.setattr(expecting, "FIRST_FIT_S", 240.0)
    with closing(Oracle(tuned, tmp_path, cores=4)) as oracle, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(oracle, "_workers", lambda: pool)
        asked = [t.candidate for t in told.trials[:2]]
        oracle.learn(told.trials[:2], runs, tokens)
        assert oracle.notes == ["the twin was calibrated on 2 measured configurations"]
        assert "on this tuning's own trials" in oracle.basis().words
        found = oracle.expect(asked)
    for expected, trial in zip(found, told.trials, strict=False):
        assert expected.value == pytest.approx(trial.value, rel=0.15)
