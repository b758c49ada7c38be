"""The knee that a plan names is a load that the same twin carries as a study."""

from dataclasses import replace

import pytest

from ridgeline.experiment.planknee import LOADS, Knee, Point, knee_found
from ridgeline.experiment.predicting import Prediction, Predictor
from ridgeline.workload.study import ExperimentSpec
from ridgeline.workload.studyfile import parse_study

RATE, MEAN_OUTPUT = 10.0, 128
TEXT = """\
name: one
model: Qwen/Qwen3-4B
hardware: {{gpu: H100-SXM, price_per_gpu_hour: 4}}
workload:
  arrivals: {{rate_per_s: {rate}}}
  prompts: {{tokens: {{mean: 150, spread: 0.5}}}}
  output_tokens: {{mean: 128, spread: 0.9}}
  duration_s: {seconds}
  warmup_s: 10
  seed: 7
baseline: {{max_num_seqs: 8}}
"""
PREDICT = Predictor(parse_study(TEXT.format(rate=1, seconds=20), "s.yaml").slo)


def spec(rate: float, seconds: float) -> ExperimentSpec:
    return parse_study(TEXT.format(rate=rate, seconds=seconds), "s.yaml").baseline


def found(rate: float, seconds: float = 60) -> Knee | None:
    """As a plan finds it: looks of 10 s at other loads, then in full."""
    base = spec(rate, seconds)
    points: list[Point] = []
    for factor in LOADS:
        arrivals = base.workload.arrivals.scaled(factor)
        look = replace(base.workload, arrivals=arrivals, duration_s=10.0, warmup_s=5.0)
        summary = PREDICT(base.configuration, look, {}).summary
        assert summary is not None
        points.append((arrivals, summary.throughput.output_tokens_per_s or 0.0, None))
    return knee_found(points, base.configuration, base.workload, PREDICT, lambda *_: None)


def judged(rate: float) -> Prediction:
    """By all rules of a study, over twice the time that the plan looked at."""
    one = spec(rate, 120)
    return PREDICT(one.configuration, one.workload, {}, in_full=True)


@pytest.fixture(scope="module")
def knee() -> Knee:
    one = found(RATE)
    assert one is not None
    return one


def test_a_study_at_the_knee_is_steady_and_one_well_above_is_not(knee: Knee) -> None:
    rate = knee.arrivals.rate_per_s
    assert rate is not None
    assert judged(rate).void == ()
    assert any("the queue grew" in reason for reason in judged(1.25 * rate).void)


def test_the_tokens_at_the_knee_are_its_rate_times_its_mean_answer(knee: Knee) -> None:
    rate = knee.arrivals.rate_per_s
    assert rate is not None
    assert knee.output_tokens_per_s == pytest.approx(rate * MEAN_OUTPUT, rel=0.001)
    assert knee.share == pytest.approx(RATE / rate)
    assert knee.ttft_p95_s is not None


def test_the_knee_does_not_hang_on_the_load_that_the_file_states(knee: Knee) -> None:
    other = found(2.5 * RATE)
    assert other is not None
    assert other.arrivals.peak == pytest.approx(knee.arrivals.peak, rel=0.12)


def test_where_four_times_the_load_is_carried_there_is_no_knee() -> None:
    assert found(1.0, 20) is None
