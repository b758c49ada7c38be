"""What a plan of classes claims, held against runs of the same twin that the plan did not make."""

from dataclasses import replace

import pytest

from ridgeline.cli.plan_classes import classes_page
from ridgeline.domain.classways import FCFS, POOLS, PRIORITY, odd_priorities, one_pool
from ridgeline.experiment.classplan import Alternative, ClassPlan, price_classes
from ridgeline.experiment.predicting import Predictor
from ridgeline.workload.study import Study
from ridgeline.workload.studyfile import parse_study

TEXT = """\
name: mixed
model: Qwen/Qwen3-4B
hardware: {{gpu: H100-SXM, count: 2, price_per_gpu_hour: 4}}
workload:
  classes:
    chat: {{rate_per_s: 16, prompts: {{tokens: 128}}, output_tokens: {{max: 32}}{chat}}}
    batch: {{rate_per_s: 4, prompts: {{tokens: 256}}, output_tokens: {{max: 512}}{batch}}}
  duration_s: {seconds}
  warmup_s: 5
  seed: 7
baseline: {{{layout}, max_num_seqs: 8}}
experiments:
{experiments}
"""
SIX_OF_NO_USE = "\n".join(
    f"  - {{name: n{n}, set: {{max_num_batched_tokens: {n}}}}}"
    for n in (1024, 2048, 4096, 8192, 16384, 3072)
)
WIDE = "  - {name: wide, set: {max_num_seqs: 32}}"
LIMIT = ", slo: {ttft_p95_ms: 150}"
RANKED = ", priority: 0", ", priority: 10"


def study(
    *, limit: str = LIMIT, ranks: tuple[str, str] = RANKED, layout: str = "data_parallel_size: 2",
    experiments: str = WIDE, seconds: int = 15,
) -> Study:  # fmt: skip
    text = TEXT.format(
        chat=ranks[0] + limit,
        batch=ranks[1],
        layout=layout,
        experiments=experiments,
        seconds=seconds,
    )
    return parse_study(text, "s.yaml")


def priced(made: Study) -> ClassPlan:
    found = price_classes(
        made.experiments, Predictor(made.slo), host_gpus=made.tune.host_gpus
    )  # fmt: skip
    assert found is not None
    return found


def told(plan: ClassPlan) -> str:
    return "\n".join(line for line in classes_page(plan) if isinstance(line, str))


def test_a_setting_that_stands_seventh_in_the_file_is_tried_as_well() -> None:
    """Only 32 slots carry this mix, and one GPU does then."""
    plan = priced(
        study(layout="data_parallel_size: 1", experiments=f"{SIX_OF_NO_USE}\n{WIDE}", seconds=8)
    )  # fmt: skip
    best = plan.cheapest
    assert best is not None
    assert best.configuration.knobs.max_num_seqs == 32
    assert best.configuration.gpus == 1
    assert any(a.way == POOLS for a in plan.alternatives), "the file has two GPUs"


def test_no_more_gpus_are_priced_than_the_file_has() -> None:
    other = "  - {name: dp, set: {tensor_parallel_size: 1, data_parallel_size: 2}}"
    plan = priced(study(layout="tensor_parallel_size: 2", experiments=other))
    assert {a.configuration.gpus for a in plan.alternatives} == {2}
    assert "pools were not tried: 2 GPUs hold one replica of 2 GPUs" in told(plan)


def test_no_limit_is_nothing_to_be_inside_of() -> None:
    plan = priced(study(limit=""))
    assert plan.cheapest is None
    assert not any(a.surely for a in plan.alternatives)
    assert "No class has a limit" in told(plan)


@pytest.fixture(scope="module")
def tight() -> ClassPlan:
    """No experiment helps: eight slots on two GPUs, where who goes first matters."""
    other = "  - {name: n, set: {max_num_batched_tokens: 4096}}"
    return priced(study(experiments=other, seconds=30))


def test_the_priority_way_is_priced_with_priorities(tight: ClassPlan) -> None:
    """Eight slots are nearly full all the time: who goes first is a third of chat's p95."""
    waits = {}
    for one in tight.alternatives:
        assert one.prediction.summary is not None
        if one.configuration.gpus == 2:
            waits[one.way] = one.prediction.summary.classes["chat"].ttft_s.p95 or 0.0
        if one.way == PRIORITY:
            assert one.configuration.knobs.scheduling_policy == "priority"
    assert waits[PRIORITY] < 0.65 * waits[FCFS]


def test_the_cheapest_is_what_looking_at_every_configuration_finds() -> None:
    made = study()
    base, load = made.baseline.configuration, made.baseline.workload
    predict, found = Predictor(made.slo), []
    for replicas in (1, 2):
        for slots in (8, 32):
            for policy in ("fcfs", "priority"):
                one = one_pool(base, replicas, policy)
                one = replace(one, knobs=replace(one.knobs, max_num_seqs=slots))
                run = predict(one, load, {}, in_full=True)
                assert run.summary is not None
                if not run.void and not run.missed:
                    found.append(run.summary.cost.usd_per_million_output_tokens or 0.0)
    best = priced(made).cheapest
    assert best is not None
    assert best.cost <= 1.01 * min(found)


def alternative(limit_ms: float) -> Alternative:
    """Two replicas of 32 slots under this limit of chat's p95 TTFT."""
    made = study(limit=f", slo: {{ttft_p95_ms: {limit_ms:.3f}}}")
    wide, load = made.experiments[1].configuration, made.baseline.workload
    found = Predictor(made.slo)(wide, load, {}, bands=True, in_full=True)
    return Alternative(FCFS, "", found, draws=3, held=3)


def test_a_limit_at_the_figure_itself_is_inside_and_not_surely() -> None:
    free = alternative(10_000)
    assert free.inside
    assert free.surely
    assert not replace(free, held=2).surely, "another draw of the arrivals was outside"
    summary = free.prediction.summary
    assert summary is not None
    p95 = summary.classes["chat"].ttft_s.p95
    assert p95 is not None
    near = alternative(1000 * p95 * 1.001)
    assert near.inside
    assert not near.surely


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ((", priority: 10", ", priority: 0"), ["batch (priority 0) goes before chat (10)"]),
        ((", priority: 0", ""), ["all classes have the same priority"]),
        (RANKED, []),
        (("", ""), []),
    ],
)
def test_priorities_that_are_the_wrong_way_round_or_order_nothing_are_told(
    ranks: tuple[str, str], words: list[str]
) -> None:
    notes = list(odd_priorities(study(ranks=ranks).baseline.workload))
    assert len(notes) == len(words)
    for note, begin in zip(notes, words, strict=True):
        assert note.startswith(begin)
