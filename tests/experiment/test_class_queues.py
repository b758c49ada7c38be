"""A class whose own requests pile up voids the run, however few they are among the others."""

from ridgeline.experiment.predicting import Prediction, Predictor
from ridgeline.workload.studyfile import parse_study

TEXT = """\
name: mixed
model: Qwen/Qwen3-4B
hardware: {{gpu: H100-SXM, count: 2, price_per_gpu_hour: 4}}
workload:
  classes:
    chat: {{rate_per_s: 12, prompts: {{tokens: 128}}, output_tokens: 8, priority: 0,
           slo: {{ttft_p95_ms: 400}}}}
    batch: {{rate_per_s: {batch}, prompts: {{tokens: 256}}, output_tokens: 512, priority: 10}}
  duration_s: 120
  warmup_s: 10
  seed: 7
baseline: {{data_parallel_size: 2, max_num_seqs: 8}}
experiments:
  - name: pools
    pools:
      chat: {{set: {{data_parallel_size: 1}}}}
      batch: {{set: {{data_parallel_size: 1, max_num_seqs: 1}}}}
"""


def judged(batch: float) -> Prediction:
    study = parse_study(TEXT.format(batch=batch), "s.yaml")
    one = study.experiments[1]
    return Predictor(study.slo)(one.configuration, one.workload, {}, in_full=True)


def test_a_batch_pool_of_one_slot_beyond_its_capacity_is_void_by_name() -> None:
    """The slot does 0.47 requests/s: at 0.6 its queue grows by one in eight seconds."""
    found = judged(0.6)
    assert found.summary is not None
    (reason,) = found.void  # the mean over all requests does not show it
    assert reason.startswith("class batch: not steady: the queue grew")


def test_the_same_pool_with_half_of_that_load_is_a_run_to_rely_on() -> None:
    assert judged(0.2).void == ()


def test_a_class_with_hardly_any_request_is_told_and_voids_nothing() -> None:
    found = judged(0.03)
    assert found.summary is not None
    assert found.summary.verdict is not None
    assert found.void == ()
    assert any("too few to tell whether its queue grows" in w
               for w in found.summary.verdict.warnings)  # fmt: skip
