"""The accounting of measured runs, from readings as a real H200 gave them."""

import pytest

from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.run import ClientCheck, RunFacts, Window
from ridgeline.experiment.measured import measured_limit, measured_steps


def facts(telemetry: object) -> RunFacts:
    server = {} if telemetry is None else {"telemetry": telemetry}
    return RunFacts("measured", Window(0, 15_000_000_000), ClientCheck("kernel"), server=server)


def configuration(**knobs: object) -> Configuration:
    return Configuration("m", Knobs().with_changes(knobs), engine="vllm")


FULL_SLOTS = {
    "engine": {
        "running_mean": 62.5, "waiting_mean": 35.2, "kv_use_mean": 0.276,
        "steps_per_s": 50.0, "generation_tokens_per_s": 3150.0,
    },
    "gpus": [{"sm_active": 0.22, "tensor_active": 0.10, "dram_active": None}],
}  # fmt: skip


def test_readings_become_the_accounting_of_one_replica() -> None:
    one = measured_steps(facts(FULL_SLOTS), configuration(max_num_seqs=64))
    assert one["mean_step_s"] == pytest.approx(0.020)
    assert one["tokens_per_step"] == pytest.approx(63.0)
    assert one["gpu_sm_active"] == 0.22
    assert "gpu_dram_active" not in one  # not told is not 0
    two = measured_steps(facts(FULL_SLOTS), configuration(max_num_seqs=64, data_parallel_size=2))
    assert two["mean_step_s"] == pytest.approx(0.040)
    assert two["mean_running"] == pytest.approx(31.25)


def test_nothing_sampled_is_nothing_told() -> None:
    for nothing in (None, {}, {"engine": {}, "gpus": []}, {"engine": None, "gpus": None}):
        steps = measured_steps(facts(nothing), configuration(max_num_seqs=64))
        assert steps == {}
        assert measured_limit(steps, configuration(max_num_seqs=64)) is None


def test_full_slots_and_a_waiting_gpu_are_both_named() -> None:
    with_slots = configuration(max_num_seqs=64)
    limit = measured_limit(measured_steps(facts(FULL_SLOTS), with_slots), with_slots)
    assert limit == (
        "batch ceiling: max_num_seqs 64 is full with 35 waiting per replica; "
        "the GPU waits for its host: SMs active 22% of the time"
    )


def test_free_slots_are_no_ceiling() -> None:
    free = configuration(max_num_seqs=128)
    limit = measured_limit(measured_steps(facts(FULL_SLOTS), free), free)
    assert limit == "the GPU waits for its host: SMs active 22% of the time"
