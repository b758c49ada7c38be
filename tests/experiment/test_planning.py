"""A plan against worked figures, its own bounds and what it must refuse."""

import json
from dataclasses import replace

import pytest

from ridgeline.cli.main import run
from ridgeline.domain.errors import RidgelineError
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.slo import parse_slo
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, SharedPrefix, Workload
from ridgeline.engines.twin import twin_of
from ridgeline.experiment.capacity import bound_of, highest_bound, memory_of
from ridgeline.experiment.planning import knee_of, plan, with_changes

LOAD = Workload(
    Arrivals(users=24), Prompts(Lengths(96, 0.5)), Outputs(Lengths(32, 0.5)),
    duration_s=4.0, warmup_s=1.0, seed=3,
)  # fmt: skip
SLO = parse_slo("ttft_p95_ms=100,itl_p95_ms=30")
STUDY = """
name: planned
model: {model}
engine: twin
hardware: {{gpu: H100-SXM, price_per_gpu_hour: 3.6}}
workload:
  arrivals: {{users: 16}}
  prompts: {{tokens: {{min: 64, max: 128}}}}
  output_tokens: {{min: 16, max: 32}}
  duration_s: 3
  warmup_s: 1
slo: {{itl_p95_ms: 30}}
baseline: {{max_num_seqs: 8, max_model_len: 4096}}
"""


def configuration(gpu="H100-SXM", model="Qwen3-4B", **knobs):
    given = {"max_model_len": 4096, "max_num_seqs": 8, **knobs}
    return Configuration(model, Knobs(**given), gpu=gpu, price_per_gpu_hour=3.6)


def twin(**knobs):
    return twin_of(configuration(**knobs))


@pytest.fixture(scope="module")
def result():
    return plan(configuration(enforce_eager=True), LOAD, SLO, top=4)


def test_the_bound_is_that_of_the_worked_example():
    """Qwen3-4B, 64 sequences at a context of 608 on an H100: 13.78 GB, so 4.11 ms a step."""
    load = Workload(
        Arrivals(users=64), Prompts(Lengths(560)), Outputs(Lengths(96)),
        duration_s=2.0, warmup_s=0.5,
    )  # fmt: skip
    found = plan(configuration(max_num_seqs=64), load, SLO, top=1)
    assert found.own_bound.step_s == pytest.approx(4.11e-3, rel=0.003)
    assert found.own_bound.batch == 64
    # 64 tokens a step: 15.6 k tokens/s would be the memory side; prompts make compute the limit.
    assert found.own_bound.tokens_per_s_per_gpu < 64 / 4.11e-3
    assert found.baseline.per_gpu < found.own_bound.tokens_per_s_per_gpu
    # The same with a byte a weight (3.63 G of them, the head's 0.78 GB stay) and a byte a KV value
    # (64 x 608 x 73.7 kB): 7.28 GB, at 3.35 TB/s 2.17 ms.
    assert found.bound.change == {"quantization": "fp8", "kv_cache_dtype": "fp8"}
    assert found.bound.batch == 64
    assert found.bound.step_s == pytest.approx(2.17e-3, rel=0.005)


def test_no_candidate_beats_the_bound(result):
    """Candidates with more slots pass the bound at the baseline's 8: the one over all holds."""
    best = max(c.per_gpu for c in result.candidates)
    assert result.own_bound.batch == 8
    assert result.bound.batch == 24  # the users there are
    assert best < result.bound.tokens_per_s_per_gpu
    fewer = plan(configuration(max_num_seqs=1), LOAD, SLO, top=4)
    assert max(c.per_gpu for c in fewer.candidates) > fewer.own_bound.tokens_per_s_per_gpu
    assert max(c.per_gpu for c in fewer.candidates) < fewer.bound.tokens_per_s_per_gpu
    assert len(fewer.candidates) == 4


def test_the_bound_counts_on_a_prompt_that_a_cache_may_spare():
    """Of 2000 prompt tokens 1900 are shared: only 100 need computing under some setting."""
    shared = replace(
        LOAD, prompts=Prompts(Lengths(100), SharedPrefix(1900, 1)), arrivals=Arrivals(users=256)
    )
    own = replace(LOAD, prompts=Prompts(Lengths(2000)), arrivals=Arrivals(users=256))
    base = configuration(max_num_seqs=256, enable_prefix_caching=False)
    with_share = highest_bound(twin_of(base), base, shared, ())
    without = highest_bound(twin_of(base), base, own, ())
    assert with_share.tokens_per_s_per_gpu > 2 * without.tokens_per_s_per_gpu
    at_own = bound_of(twin_of(base), shared)  # caching off: every prompt is computed
    assert at_own.tokens_per_s_per_gpu < with_share.tokens_per_s_per_gpu / 2


def test_an_open_loop_is_bounded_by_what_memory_holds():
    """85.5 GB less 4.4 of fp8 weights at 147 kB a token, 112 tokens a request: 4 910."""
    load = replace(LOAD, arrivals=Arrivals(rate_per_s=50.0))
    base = configuration()
    bound = highest_bound(twin_of(base), base, load, ())
    assert bound.batch == pytest.approx(4910, rel=0.005)
    assert bound_of(twin_of(base), load).batch == 8


def test_graphs_and_more_slots_beat_an_eager_baseline(result):
    best = result.candidates[0]
    assert best.change.get("enforce_eager") is False
    assert best.change.get("max_num_seqs", 0) > 8
    assert best.missed == 0
    assert result.baseline.missed > 0
    assert best.per_gpu > 2 * result.baseline.per_gpu


def test_candidates_are_ranked_and_differ_in_what_the_engine_would_run(result):
    assert list(result.candidates) == sorted(result.candidates, key=lambda c: c.rank)
    missed = [c.missed for c in result.candidates]
    assert missed == sorted(missed)
    base = configuration(enforce_eager=True)
    settings = [repr(twin_of(with_changes(base, c.change)).knobs) for c in result.candidates]
    assert len(set(settings)) == len(settings)


def test_a_change_that_does_nothing_has_no_row(tmp_path, capsys):
    """Two users with prompts that share nothing: a prefix cache has nothing to find, and a larger
    budget and more slots nothing to hold.
    """
    path, out = tmp_path / "study.yaml", tmp_path / "p"
    idle = STUDY.format(model="Qwen/Qwen3-4B").replace("users: 16", "users: 2")
    idle = idle.replace("duration_s: 3", "duration_s: 12")
    path.write_text(idle.replace(", price_per_gpu_hour: 3.6", ""))
    assert run(["plan", str(path), "--top", "20", "--json", str(out)]) == 0
    body = json.loads(out.read_text())
    rows = [c["change"] for c in body["candidates"]]
    for nothing in ({"enable_prefix_caching": False}, {"max_num_batched_tokens": 16384}):
        assert nothing not in rows
    assert {"enable_prefix_caching": False} in body["alike"]
    assert {"max_num_batched_tokens": 16384} in body["alike"]
    base = body["baseline"]["throughput"]["per_gpu_output_tokens_per_s"]
    for row in body["candidates"]:
        rate = row["summary"]["throughput"]["per_gpu_output_tokens_per_s"]
        wait = row["summary"]["failures_as_infinite"]["ttft_s"]["p95"]
        first = body["baseline"]["failures_as_infinite"]["ttft_s"]["p95"]
        assert abs(rate / base - 1) > 0.004 or abs(wait / first - 1) > 0.004, row["change"]
    shown = " ".join(capsys.readouterr().out.split())
    assert "Predicted as the baseline is (within 0.5%), so without a row: " in shown
    assert "No price of the H100-SXM is given" in shown
    assert "give hardware.price_per_gpu_hour" in shown


def test_nothing_beats_the_roofline(result):
    for row in (result.baseline, *result.candidates):
        assert row.summary.roofline.share_of_bound < 1


def test_the_knee_is_the_lowest_load_near_the_plateau():
    loads = [(Arrivals(users=u), r, 0.1) for u, r in ((4, 400.0), (8, 800.0), (16, 970.0),
                                                      (32, 1000.0), (64, 990.0))]  # fmt: skip
    assert knee_of(loads).users == 16
    assert knee_of([]) is None


def test_other_gpus_rank_by_their_bandwidth(result):
    # In eager mode all wait for launches; what differs must not be negative either.
    rates = {p.configuration.gpu: p.per_gpu for p in result.hardware if p.summary}
    assert {"H200-SXM", "B200-SXM", "L40S"} <= set(rates)
    assert rates["H200-SXM"] >= 0.95 * result.baseline.per_gpu
    assert all(p.configuration.price_per_gpu_hour is None for p in result.hardware)


def test_memory_says_what_gives_way_first():
    few = memory_of(twin(num_gpu_blocks_override=300, max_num_seqs=64), LOAD)
    assert few.kv_tokens == 299 * 16
    assert few.requests == pytest.approx(299 * 16 / 128, rel=0.01)
    assert few.first_limit.startswith("load: 24 users per replica, 64 may run")
    fewer = memory_of(twin(num_gpu_blocks_override=257, max_num_seqs=64),
                      replace(LOAD, arrivals=Arrivals(users=40)))  # fmt: skip
    assert fewer.first_limit.startswith("KV memory: 32 requests of 128 tokens fit")
    many = memory_of(twin(), LOAD)
    assert many.first_limit.startswith("the batch ceiling: max_num_seqs 8")


def test_a_model_that_does_not_fit_is_told_before_anything_runs():
    with pytest.raises(RidgelineError, match="not enough GPU memory to load the model"):
        plan(configuration(model="meta-llama/Llama-3.1-70B"), LOAD, SLO)


def test_the_verb_writes_its_json_and_its_table(tmp_path, capsys):
    path = tmp_path / "study.yaml"
    path.write_text(STUDY.format(model="Qwen/Qwen3-4B"))
    assert run(["plan", str(path), "--top", "2", "--explain", "--json", str(tmp_path / "p")]) == 0
    shown = capsys.readouterr().out
    assert "nothing was" in shown
    assert "(baseline)" in shown
    assert "A step's time" in shown
    assert "No price" not in shown
    assert "for the cost on another, plan again" in " ".join(shown.split())
    body = json.loads((tmp_path / "p").read_text())
    assert body["baseline"]["source"] == "twin"
    assert len(body["candidates"]) == 2
    for candidate in body["candidates"]:
        assert {"configuration", "summary", "binding_limit"} <= set(candidate)
        assert candidate["summary"]["cost"]["usd_per_million_output_tokens"] > 0
    assert body["memory"]["weights_bytes"] == pytest.approx(8.045e9, rel=0.001)


def test_the_verb_refuses_what_does_not_fit_in_one_line(tmp_path, capsys):
    path = tmp_path / "study.yaml"
    path.write_text(STUDY.format(model="meta-llama/Llama-3.1-70B"))
    assert run(["plan", str(path)]) in (2, 3)
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert "GPU memory" in said[0]
