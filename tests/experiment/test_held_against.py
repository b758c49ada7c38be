"""A ranking that measurements contradict is not relied on (884 predicted, 192 measured)."""

import json
from pathlib import Path

import pytest

from ridgeline.cli.main import run
from ridgeline.domain.bands import TOKENS
from ridgeline.experiment.heldagainst import Held, demoted

ROOT = Path(__file__).parents[2]
KNOBS = ROOT / "results" / "h200" / "knobs"


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    """The study of the stored runs, with the shape's own name for its model."""
    path = tmp_path_factory.mktemp("plan") / "knobs.yaml"
    text = (ROOT / "studies" / "h200-knobs.yaml").read_text()
    path.write_text(text.replace("models/qwen3-4b-shape", "Qwen/Qwen3-4B"))
    return path


def test_a_measurement_outside_the_band_demotes_and_one_inside_does_not():
    wrong = Held("best", TOKENS, 192.0, 884.0, 700.0, 1100.0)
    right = Held("base", TOKENS, 800.0, 884.0, 700.0, 1100.0)
    assert wrong.outside
    assert not right.outside
    assert demoted([right, wrong])
    assert not demoted([right])
    # a latency outside its band is told; the ranking goes by throughput
    assert not demoted([right, Held("base", "itl_s.p95", 0.09, 0.02, 0.01, 0.04)])
    # what the twin refuses and an engine ran is a contradiction too
    assert demoted([Held("base", TOKENS, 800.0, refused="it does not fit")])


def test_real_runs_of_an_h200_contradict_the_priors_and_the_plan_says_so(study, capsys):
    """64 slots without larger graphs: that host's launches were slower than the priors."""
    out = study.with_suffix(".json")
    arguments = ["plan", str(study), "--runs", str(KNOBS), "--top", "1", "--json", str(out)]
    assert run(arguments) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "The twin is contradicted: throughput of seqs-64 was measured outside" in shown
    assert "in an order that measurements contradict" in shown
    assert "None of them was started" in shown
    body = json.loads(out.read_text())
    assert body["ranking_demoted"] is True
    tokens = {h["experiment"]: h for h in body["measured"] if h["figure"] == TOKENS}
    assert set(tokens) == {"seqs-32", "seqs-64", "seqs-64-capture-1024", "seqs-128", "fp8",
                           "fp8-seqs-64-capture-1024", "eager", "users-250"}  # fmt: skip
    assert tokens["seqs-64"]["measured"] == pytest.approx(3320, rel=0.01)
    assert tokens["seqs-64"]["measured"] < tokens["seqs-64"]["low"]
    assert not tokens["seqs-32"]["outside"]


def test_runs_of_another_gpu_are_refused_in_one_line(study, capsys):
    other = study.with_name("h100.yaml")
    other.write_text(study.read_text().replace("H200-SXM", "H100-SXM"))
    assert run(["plan", str(other), "--runs", str(KNOBS)]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert "the runs are from H200-SXM, the plan is for H100-SXM" in said[0]
