"""A ranking that measurements contradict is not relied on (884 predicted, 192 measured)."""

import json
import math
import random
import shutil
from pathlib import Path

import pytest

from ridgeline.cli.main import run
from ridgeline.domain.bands import TOKENS
from ridgeline.experiment.heldagainst import Agreement, Held, agreement

ROOT = Path(__file__).parents[2]
KNOBS = ROOT / "results" / "h200" / "knobs"


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    """The study of the stored runs, with the shape's own name for its model."""
    path = tmp_path_factory.mktemp("plan") / "knobs.yaml"
    text = (ROOT / "studies" / "h200-knobs.yaml").read_text()
    path.write_text(text.replace("models/qwen3-4b-shape", "Qwen/Qwen3-4B"))
    return path


def honest(measured: float) -> Held:
    """A throughput whose prediction is 1 with an error of a factor e at one sigma."""
    z = 1.6449
    return Held("x", TOKENS, measured, 1.0, math.exp(-z), math.exp(z))


def test_a_measurement_that_no_chance_explains_demotes_and_one_inside_does_not():
    wrong = Held("best", TOKENS, 192.0, 884.0, 700.0, 1100.0)  # 11 sigma off
    right = Held("base", TOKENS, 800.0, 884.0, 700.0, 1100.0)
    assert wrong.outside
    assert not right.outside
    assert agreement([right, wrong]) == Agreement(1, 2, True)
    assert not agreement([right]).demoted
    # a latency outside its band is told; the ranking goes by throughput
    assert not agreement([right, Held("base", "itl_s.p95", 0.09, 0.02, 0.01, 0.04)]).demoted
    # what the twin refuses and an engine ran is a contradiction too
    assert agreement([Held("base", TOKENS, 800.0, refused="it does not fit")]).demoted


def test_a_prediction_without_a_band_is_not_known():
    bare = Held("base", TOKENS, 800.0, 884.0)
    assert bare.outside is None
    assert agreement([bare]) == Agreement(0, 0, False)
    assert agreement([]) == Agreement(0, 0, False)


@pytest.mark.parametrize(("outside", "of", "demotes"), [
    (1, 1, False), (1, 8, False), (2, 8, False), (3, 8, True), (2, 3, True), (1, 3, False),
    (3, 12, False), (4, 12, True),
])  # fmt: skip
def test_how_many_outside_are_too_many(outside, of, demotes):
    """Binomial with a tenth each, by hand: 3 or more of 8 come in 3.8 %, 2 or more in 18.7 %; 2 or
    more of 3 in 2.8 %; 4 or more of 12 in 2.6 %, 3 or more in 11.1 %.
    """
    just_outside = [honest(math.exp(1.7)) for _ in range(outside)]
    inside = [honest(1.0) for _ in range(of - outside)]
    found = agreement([*just_outside, *inside])
    assert found == Agreement(outside, of, demotes)
    assert found.expected == pytest.approx(of / 10)


@pytest.mark.parametrize("experiments", [3, 7, 12])
def test_an_honest_twin_is_seldom_demoted_and_a_biased_one_mostly(experiments):
    rng = random.Random(1)

    def share(bias: float) -> float:
        studies = 2000
        return sum(
            agreement(
                [honest(math.exp(rng.gauss(bias, 1))) for _ in range(experiments)]
            ).demoted
            for _ in range(studies)
        ) / studies  # fmt: skip

    assert share(0.0) < 0.1  # one outside was enough before: 27, 53 and 72 %
    assert share(2.5) > 0.9


def test_real_runs_of_an_h200_with_one_of_eight_outside_do_not_contradict_the_priors(study, capsys):
    """64 slots without larger graphs: that host's launches were slower than the priors."""
    out = study.with_suffix(".json")
    arguments = ["plan", str(study), "--runs", str(KNOBS), "--top", "1", "--json", str(out)]
    assert run(arguments) == 0
    shown = " ".join(capsys.readouterr().out.split())
    said = "Not contradicted: 1 of 8 throughputs outside their 90 % band, 0.8 expected."
    assert said in shown
    assert "in an order that measurements contradict" not in shown
    assert "None of them was started" in shown
    body = json.loads(out.read_text())
    assert body["ranking_demoted"] is False
    assert body["throughputs_held"] == {"outside": 1, "of": 8, "expected": pytest.approx(0.8)}
    tokens = {h["experiment"]: h for h in body["measured"] if h["figure"] == TOKENS}
    assert set(tokens) == {"seqs-32", "seqs-64", "seqs-64-capture-1024", "seqs-128", "fp8",
                           "fp8-seqs-64-capture-1024", "eager", "users-250"}  # fmt: skip
    assert tokens["seqs-64"]["measured"] == pytest.approx(3320, rel=0.01)
    assert tokens["seqs-64"]["measured"] < tokens["seqs-64"]["low"]
    assert not tokens["seqs-32"]["outside"]


def test_real_runs_that_are_far_off_contradict_the_plan_and_it_says_so(study, capsys, tmp_path):
    """The same runs with a throughput of a tenth of what was measured at 32 slots."""
    copy = tmp_path / "knobs"
    shutil.copytree(KNOBS, copy)
    for path in copy.glob("seqs-32-r*/run.json"):
        body = json.loads(path.read_text())
        for name in ("output_tokens_per_s", "chunks_per_s"):
            body["summary"]["throughput"][name] /= 10
        path.write_text(json.dumps(body))
    out = study.with_suffix(".json")
    arguments = ["plan", str(study), "--runs", str(copy), "--top", "1", "--json", str(out)]
    assert run(arguments) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "The twin is contradicted: 2 of 8 throughputs outside their 90 % band" in shown
    assert "in an order that measurements contradict" in shown
    assert json.loads(out.read_text())["ranking_demoted"] is True


def test_runs_of_another_gpu_are_refused_in_one_line(study, capsys):
    other = study.with_name("h100.yaml")
    other.write_text(study.read_text().replace("H200-SXM", "H100-SXM"))
    assert run(["plan", str(other), "--runs", str(KNOBS)]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert "the runs are from H200-SXM, the plan is for H100-SXM" in said[0]
