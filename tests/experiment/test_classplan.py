"""Which way to serve a mix is the cheapest inside its limits: the ways, and what decides."""

from dataclasses import replace

import pytest

from ridgeline.domain.classways import BATCH, FCFS, POOLS, PRIORITY, URGENT, groups_of, splits
from ridgeline.domain.slo import Slo, parse_slo
from ridgeline.domain.workload import Lengths, Outputs, Prompts, TrafficClass
from ridgeline.experiment.classplan import ClassPlan, price_classes
from ridgeline.experiment.predicting import Predictor
from ridgeline.workload.study import Study
from ridgeline.workload.studyfile import parse_study

NONE = Slo()
TEXT = """\
name: mixed
model: Qwen/Qwen3-4B
hardware: {{gpu: H100-SXM, count: 2, price_per_gpu_hour: 4}}
workload:
  classes:
    chat: {{rate_per_s: 12, prompts: {{tokens: 128}}, output_tokens: 32, priority: 0,
           slo: {{ttft_p95_ms: {limit}}}}}
    batch: {{rate_per_s: 1.6, prompts: {{tokens: 256}}, output_tokens: 512, priority: 10}}
  duration_s: 30
  warmup_s: 10
baseline: {{data_parallel_size: {replicas}, max_num_seqs: 8}}
experiments:
  - {{name: wide, set: {{max_num_seqs: 64}}}}
"""


def study(limit: float, replicas: int = 2) -> Study:
    return parse_study(TEXT.format(limit=limit, replicas=replicas), "mixed.yaml")


def priced(limit: float, replicas: int = 2) -> ClassPlan:
    made = study(limit, replicas)
    found = price_classes(made.experiments, Predictor(made.slo))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def strict() -> ClassPlan:
    """On one GPU eight slots are too few for both under FCFS."""
    return priced(60.0)


def test_all_three_ways_are_run_in_full_on_all_replicas(strict: ClassPlan) -> None:
    ways = {(a.way, a.configuration.gpus) for a in strict.alternatives}
    assert {(FCFS, 2), (PRIORITY, 2), (POOLS, 2)} <= ways
    for one in strict.alternatives:
        summary = one.prediction.summary
        assert summary is not None
        assert summary.window_s == pytest.approx(30.0)
        assert "classes.chat.ttft_s.p95" in summary.bands
        assert one.inside == (not one.prediction.void and not one.prediction.missed)


def test_the_cheapest_is_inside_and_no_cheaper_one_is(strict: ClassPlan) -> None:
    best = strict.cheapest
    assert best is not None
    assert best.inside
    for one in strict.alternatives:
        assert not one.inside or one.cost >= best.cost * 0.99


def test_a_pool_takes_the_studys_knobs_where_they_help_it(strict: ClassPlan) -> None:
    told = [a.words for a in strict.alternatives if a.way == POOLS]
    assert any("max_num_seqs 64" in words for words in told), told


def test_an_impossible_limit_has_no_cheapest() -> None:
    plan = priced(1.0, replicas=1)
    assert plan.cheapest is None
    assert {a.way for a in plan.alternatives} == {FCFS, PRIORITY}  # one replica has no second pool


def test_what_priority_cannot_do_is_said(strict: ClassPlan) -> None:
    told = " ".join(strict.cannot)
    assert "takes no slot from a running request" in told
    assert "no ageing" in told


def test_one_class_is_no_mix() -> None:
    made = study(100.0)
    (base, *_) = made.experiments
    alone = replace(base, workload=replace(base.workload, classes=base.workload.classes[:1]))
    assert price_classes([alone], Predictor(made.slo)) is None


def kind(name: str, output: int, slo: Slo = NONE, priority: int | None = None) -> TrafficClass:
    return TrafficClass(
        name, 0.5, Prompts(Lengths(100)), Outputs(Lengths(output)), slo, priority
    )  # fmt: skip


def test_who_is_urgent_is_told_by_limits_then_priorities_then_work() -> None:
    limited = parse_slo("ttft_p95_ms=100")
    assert groups_of([kind("a", 500, limited), kind("b", 10, priority=-1)]) == {
        "a": URGENT, "b": BATCH,
    }  # fmt: skip
    assert groups_of([kind("a", 500, priority=0), kind("b", 10, priority=5)])["b"] == BATCH
    assert groups_of([kind("a", 500), kind("b", 10)]) == {"a": BATCH, "b": URGENT}


def test_splits_are_all_and_leave_nobody_without() -> None:
    assert list(splits(4, ["a", "b"])) == [{"a": n, "b": 4 - n} for n in (1, 2, 3)]
    assert len(list(splits(6, ["a", "b", "c"]))) == 10
    assert list(splits(1, ["a", "b"])) == []
