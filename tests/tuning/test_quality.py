"""The verdicts of the quality gate, on readings of invented models."""

import json
from collections.abc import Callable

import numpy as np
import pytest

from ridgeline.tuning.quality import Change, Limits, QualityVerdict, judge_readings
from ridgeline.tuning.quality_prompts import bundled_prompts
from ridgeline.tuning.quality_tasks import compare_task
from support.invented_model import Logits, server


def noise(size: float, seed: int = 1, only: str = "") -> Callable[[Logits, str], Logits]:
    draw = np.random.default_rng(seed)

    def change(logits: Logits, name: str) -> Logits:
        return logits + draw.normal(0, size, logits.shape) * name.startswith(only)

    return change


EXACT = server()
ROUNDED = server(noise(0.02))


def test_a_small_change_passes() -> None:
    found = judge_readings(EXACT, ROUNDED, repeat=EXACT, change=Change(acts=True))
    assert found.outcome == "pass", found.reasons
    assert found.may_win
    assert found.acted is True
    assert all(c.met for c in found.criteria)
    assert found.candidate is not None
    assert 0.99 < found.candidate.recovery.value < 1.01
    assert 0 < found.candidate.kl.value < 0.001


def test_a_large_change_fails_with_its_figures() -> None:
    found = judge_readings(EXACT, server(noise(1.0)), repeat=EXACT, change=Change(acts=True))
    assert found.outcome == "fail"
    assert not found.may_win
    assert "likelihood recovery 0." in found.sentence()
    assert "is below 0.99" in found.sentence()


def test_the_threshold_is_the_users() -> None:
    """The same candidate passes and fails by what is asked of it."""
    candidate = server(noise(0.25))
    strict = judge_readings(EXACT, candidate, limits=Limits(recovery=0.99))
    mild = judge_readings(EXACT, candidate, limits=Limits(recovery=0.90))
    assert (strict.outcome, mild.outcome) == ("fail", "pass")


def test_an_interval_that_holds_the_threshold_decides_nothing() -> None:
    candidate = server(noise(0.25))
    first = judge_readings(EXACT, candidate).candidate
    assert first is not None
    least = min(first.recovery.value, first.agreement.value)
    found = judge_readings(EXACT, candidate, limits=Limits(recovery=least))
    assert found.outcome == "unknown"
    assert "cannot be told from" in found.sentence()


def test_a_change_that_must_act_and_does_not_is_named() -> None:
    change = Change(acts=True, names=("quantization=int8_per_channel_weight_only",))
    found = judge_readings(EXACT, EXACT, repeat=EXACT, change=change)
    assert found.outcome == "no-op"
    assert found.acted is False
    assert "quantization=int8_per_channel_weight_only did nothing" in found.sentence()


def test_a_change_that_need_not_act_passes_with_a_remark() -> None:
    found = judge_readings(EXACT, EXACT, repeat=EXACT, change=Change(acts=None))
    assert found.outcome == "pass"
    assert "it is exact, or it did nothing" in found.remarks[0]


def test_a_difference_within_the_servers_own_noise_is_not_seen_to_act() -> None:
    repeat, candidate = server(noise(0.02, 2)), server(noise(0.02, 3))
    found = judge_readings(EXACT, candidate, repeat=repeat, change=Change(acts=True))
    assert found.acted is None or found.acted is True
    smaller = judge_readings(EXACT, server(noise(0.002, 3)), repeat=repeat)
    assert smaller.acted is None
    assert "cannot be told from the reference asked twice" in smaller.remarks[0]


def test_a_reference_that_does_not_repeat_itself_judges_nothing() -> None:
    found = judge_readings(EXACT, ROUNDED, repeat=server(noise(1.0)))
    assert found.outcome == "unknown"
    assert "does not repeat itself" in found.sentence()


def test_what_the_noise_floor_loses_is_not_the_candidates_loss() -> None:
    floor, candidate = server(noise(0.25, 7)), server(noise(0.25, 8))
    without = judge_readings(EXACT, candidate, limits=Limits(recovery=0.98))
    with_it = judge_readings(EXACT, candidate, floor=floor, limits=Limits(recovery=0.98))
    assert without.agreement_recovery is not None
    assert with_it.agreement_recovery is not None
    assert without.agreement_recovery.value < 0.96
    assert with_it.agreement_recovery.value == pytest.approx(1.0, abs=0.01)


def test_random_weights_have_no_quality() -> None:
    def forget(_: Logits, name: str) -> Logits:
        return np.random.default_rng(len(name)).normal(0, 0.01, _.shape)

    random = server(forget)
    found = judge_readings(random, random)
    assert found.outcome == "not applicable"
    assert "only exact changes may win" in found.sentence()


def test_answers_that_part_fail_whatever_the_likelihoods_say() -> None:
    """C-DI-09: 40 prompts, 5 of them long; the new engine agrees on 22."""
    reference = server(prompts=35, long=5)
    candidate = server(noise(0.005), prompts=35, long=5, departs=18)
    found = judge_readings(reference, candidate, repeat=reference)
    assert found.outcome == "fail"
    # three tokens an answer: 0.99 ** 3 = 0.9703
    assert found.candidate is not None
    assert found.candidate.greedy is not None
    assert (found.candidate.greedy.same, found.candidate.greedy.prompts) == (22, 40)
    assert found.reasons == ("greedy agreement 0.5500 (0.3983 to 0.6929) is below 0.9703",)
    for name in ("candidate_version", "candidate_kv_cache_dtype", "model"):
        assert name in found.to_json()["evidence"]


def test_the_limit_of_greedy_answers_follows_from_their_length() -> None:
    reference, candidate = server(prompts=36), server(prompts=36, departs=2)
    found = {
        limit: judge_readings(reference, candidate, limits=Limits(*limit)).outcome
        for limit in ((0.99, None), (0.9, None), (0.99, 0.85), (0.99, 0.999))
    }
    assert found == {
        (0.99, None): "unknown",  # 38 of 40 cannot be told from 0.97
        (0.9, None): "pass",
        (0.99, 0.85): "pass",
        (0.99, 0.999): "fail",
    }


def test_a_loss_on_long_contexts_alone_fails() -> None:
    """C-DI-09: damage that short prompts do not show."""
    found = judge_readings(EXACT, server(noise(1.0, only="long")), change=Change(kv_quantised=True))
    assert found.outcome == "fail"
    assert any(reason.startswith("likelihood recovery on long") for reason in found.reasons)
    short = judge_readings(EXACT, server(noise(1.0, only="short")))
    assert not any(reason.startswith("likelihood recovery on long") for reason in short.reasons)


def test_a_kv_type_that_the_engine_does_not_report_is_remarked() -> None:
    found = judge_readings(EXACT, ROUNDED, change=Change(acts=True, kv_quantised=True))
    assert "its KV cache has the type auto, as before" in found.remarks[0]


def test_a_change_that_shows_in_decode_only_is_seen_and_said() -> None:
    """An engine may read its KV cache in decode only; the prompts' probabilities are the same."""
    candidate = server(departs=2, gap=0.2)
    change = Change(acts=True, kv_quantised=True, names=("kv_cache_dtype=fp8",))
    found = judge_readings(EXACT, candidate, repeat=EXACT, change=change)
    assert found.candidate is not None
    assert found.candidate.prompts_identical
    assert not found.candidate.identical
    assert found.acted is True
    assert "kv_cache_dtype=fp8 shows in decode only" in found.remarks[0]


def test_too_few_prompts_decide_nothing() -> None:
    few = server(noise(0.001), prompts=4, long=1)
    assert judge_readings(server(prompts=4, long=1), few).outcome == "unknown"


def test_a_task_counts_in_pairs() -> None:
    ours = {str(i): float(i % 4 != 0) for i in range(400)}
    same = compare_task("toy", "acc", ours, ours)
    worse = compare_task("toy", "acc", ours, {k: v * (int(k) % 3 != 0) for k, v in ours.items()})
    assert (same.recovery.value, same.flipped, worse.flipped) == (1.0, 0, 100)
    assert worse.recovery.value == pytest.approx(200 / 300)
    found = judge_readings(EXACT, ROUNDED, tasks=[worse])
    assert found.outcome == "fail"
    assert found.reasons[0].startswith("task toy (acc) 0.6667")
    with pytest.raises(ValueError, match="different documents"):
        compare_task("toy", "acc", ours, {"1": 1.0})


def test_a_verdict_is_plain_json() -> None:
    found = judge_readings(EXACT, ROUNDED, repeat=EXACT, floor=EXACT)
    body = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert body["outcome"] == "pass"
    assert body["candidate"]["recovery"]["low"] <= body["candidate"]["recovery"]["value"]
    assert isinstance(found, QualityVerdict)


def test_the_bundled_prompts_are_varied_and_always_the_same() -> None:
    prompts = bundled_prompts()
    long = [p for p in prompts if p.long]
    assert len({p.name for p in prompts}) == len(prompts) == 28
    assert len(long) == 4
    assert all(len(p.text) > 20_000 for p in long)
    assert bundled_prompts.__wrapped__() == prompts
    assert sum(p.name.startswith("code") for p in prompts) == 2
