"""The verdicts of the quality gate, on readings of invented models."""

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ridgeline.domain.readings import GreedyAnswer, Likelihoods, Reading, ServerReading
from ridgeline.tuning.quality import Change, Limits, QualityVerdict, change_of, judge_readings
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
    assert found.reasons[0] == "greedy agreement 0.5500 (0.3983 to 0.6929) is below 0.9703"
    assert all("greedy" in reason or "in decode" in reason for reason in found.reasons)
    for name in ("candidate_version", "candidate_kv_cache_dtype", "model"):
        assert name in found.to_json()["evidence"]


def test_the_limit_of_greedy_answers_follows_from_their_length() -> None:
    reference, candidate = server(prompts=36), server(noise(0.001), prompts=36, departs=2, gap=0.3)
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


# Damage that the gate once let pass.


def mixed(change: Callable[[Logits, str], Logits], *, own: int = 20) -> ServerReading:
    """Few own prompts of 100 tokens beside four of 4,096."""
    return server(change, prompts=own, tokens=100, long_tokens=4096)


@pytest.mark.parametrize(("size", "limit"), [(0.6, 0.95), (0.7, 0.95), (0.3, 0.99)])
def test_damage_to_the_users_own_prompts_does_not_drown_in_the_long_ones(
    size: float, limit: float
) -> None:
    reference = mixed(lambda logits, _: logits)
    candidate = mixed(noise(size, 3, only="short"))
    found = judge_readings(reference, candidate, repeat=reference, limits=Limits(limit))
    assert found.outcome == "fail", found.reasons
    assert found.short is not None
    assert found.short.prompts == 20
    assert any("on short prompts" in reason for reason in found.reasons)
    assert found.to_json()["short"]["recovery"]["value"] < limit


@pytest.mark.parametrize("size", [0.4, 0.7])
def test_two_ruined_prompts_do_not_drown_in_the_others(size: float) -> None:
    """A language, or a format."""
    damage = noise(size, 3)

    def two(logits: Logits, name: str) -> Logits:
        return damage(logits, name) if name in ("short-3", "short-4") else logits

    found = judge_readings(server(), server(two), repeat=server())
    assert found.outcome == "fail", found.reasons
    assert any("of the worst prompt (short-" in reason for reason in found.reasons), found.reasons


def answering(
    which: Callable[[str], bool], answer: GreedyAnswer, *, base: ServerReading = EXACT
) -> ServerReading:
    """`base` with another answer to some prompts."""
    return replace(base, readings=tuple(
        replace(r, answer=answer) if which(r.prompt.name) else r for r in base.readings
    ))  # fmt: skip


GOOD = GreedyAnswer((5, 6, 7) * 10 + (5, 6), "", ({5: -0.9, 6: -1.2, 7: -1.4},) * 32)
GARBAGE = GreedyAnswer((9,) * 32, "!!!!", ({5: -0.9, 9: -0.8},) * 32)
KV = Change(acts=True, kv_quantised=True, names=("kv_cache_dtype=fp8",))


def test_garbage_on_all_long_prompts_alone_fails() -> None:
    """The prompts' probabilities are the same numbers: the KV cache is read in decode only."""
    reference = answering(lambda _: True, GOOD)
    candidate = answering(lambda name: name.startswith("long"), GARBAGE, base=reference)
    found = judge_readings(reference, candidate, repeat=reference, change=KV)
    assert found.outcome == "fail", found.reasons
    assert any("greedy agreement on long prompts 0.0000" in reason for reason in found.reasons)
    damaged = answering(
        lambda name: name.startswith("long"), GARBAGE, base=server(noise(1.0, only="long"))
    )
    assert judge_readings(EXACT, damaged).outcome == "fail", "and with damaged likelihoods"


def test_where_answers_are_the_only_judge_their_interval_decides() -> None:
    """7 of 28 are garbage: the estimate 0.75 reaches 0.725, its interval does not."""
    reference = answering(lambda _: True, GOOD)
    names = [r.prompt.name for r in EXACT.readings[:7]]
    candidate = answering(lambda name: name in names, GARBAGE, base=reference)
    found = judge_readings(reference, candidate, repeat=reference, change=KV)
    assert not found.may_win, found.reasons


@pytest.mark.parametrize("damage", [0.1, 0.3])
def test_a_changed_distribution_in_decode_counts_though_no_answer_parts(damage: float) -> None:
    other = ({5: -0.9 - damage, 6: -1.2, 7: -1.4 + damage},) * 32
    reference = answering(lambda _: True, GOOD)
    candidate = answering(lambda _: True, replace(GOOD, top=other), base=reference)
    found = judge_readings(reference, candidate, repeat=reference, change=KV)
    kept = next(c for c in found.criteria if c.name == "exp(-KL) in decode")
    assert found.candidate is not None
    assert found.candidate.greedy is not None
    assert found.candidate.greedy.same == 28
    assert (found.outcome, kept.met) == (("pass", True) if damage < 0.2 else ("fail", False))


def near_ties(place: int, *, after: int = 0) -> tuple[ServerReading, ServerReading]:
    """All answers part at `place` by 0.1 nats; the candidate then says token `after`."""
    same = tuple(range(20, 20 + place))
    tops = tuple({t: -0.1, 99: -3.0} for t in same)
    first = GreedyAnswer(
        (*same, 5, *range(60, 91 - place)), "good",
        (*tops, {5: -0.7, 6: -0.8}, *({t: -0.1, 99: -3.0} for t in range(60, 91 - place))),
    )  # fmt: skip
    second = GreedyAnswer(
        (*same, 6, *(after,) * (31 - place)), "!!!!",
        (*tops, {6: -0.7, 5: -0.8}, *({after: -0.1, 99: -3.0},) * (31 - place)),
    )  # fmt: skip
    return answering(lambda _: True, first), answering(lambda _: True, second)


def test_after_a_near_tie_nothing_is_known_of_an_answer_that_was_not_followed() -> None:
    reference, candidate = near_ties(0)
    found = judge_readings(reference, candidate, repeat=reference, change=Change(acts=True))
    assert found.outcome == "unknown"
    assert "answers part early at near ties: 0.9 of 28 could be compared" in found.remarks[-1]
    late = judge_readings(*near_ties(24), repeat=near_ties(24)[0], limits=Limits(0.98))
    assert late.candidate is not None
    assert late.candidate.greedy is not None
    assert late.candidate.greedy.compared == pytest.approx(28 * 25 / 32)


@pytest.mark.parametrize(("says", "outcome"), [("garbage", "fail"), ("the same", "pass")])
def test_an_answer_that_was_followed_is_judged_to_its_end(says: str, outcome: str) -> None:
    reference, candidate = near_ties(0)
    ours = reference.readings[0].answer
    assert ours is not None
    rest = ours.ids[1:] if says == "the same" else (0,) * 31
    tops = ({6: -0.7, 5: -0.8}, *({t: -0.1, 99: -3.0} for t in rest))
    along = GreedyAnswer((6, *rest), "", tops, followed=True)
    followed = replace(
        candidate, readings=tuple(replace(r, followed=along) for r in candidate.readings)
    )
    found = judge_readings(reference, followed, repeat=reference, change=Change(acts=True))
    assert found.outcome == outcome, found.reasons


def test_a_bad_noise_floor_excuses_nothing() -> None:
    bad, candidate = server(noise(0.6, 9)), server(noise(0.15, 1))
    assert not judge_readings(EXACT, candidate).may_win
    found = judge_readings(EXACT, candidate, floor=bad)
    assert found.outcome == "unknown"
    assert "the noise floor is not the same model in exact numerics" in found.sentence()
    assert found.agreement_recovery is not None
    assert found.agreement_recovery.value == 1.0
    assert found.agreement_recovery.high == 1.0


def test_the_candidate_itself_is_no_noise_floor() -> None:
    candidate = server(noise(0.1))
    found = judge_readings(EXACT, candidate, floor=candidate)
    assert found.outcome == "unknown"
    assert "the candidate's very numbers" in found.sentence()


def test_a_type_of_16_bits_need_not_act_where_the_models_own_is_not_known() -> None:
    for knobs in ({"kv_cache_dtype": "float16"}, {"dtype": "bfloat16"}):
        found = judge_readings(EXACT, EXACT, repeat=EXACT, change=change_of(knobs, None))
        assert found.outcome == "pass", found.reasons
    known = judge_readings(EXACT, EXACT, change=change_of({"kv_cache_dtype": "float16"}))
    assert known.outcome == "no-op", "of a bfloat16 model"
    assert change_of({"kv_cache_dtype": "float16", "quantization": "fp8"}, None).acts is True
    assert change_of({"max_num_seqs": 4}, None).acts is False


def test_a_kv_type_is_not_called_a_no_op_where_it_would_not_show() -> None:
    silent = replace(EXACT, readings=tuple(replace(r, answer=None) for r in EXACT.readings))
    found = judge_readings(
        silent, silent, repeat=silent, change=change_of({"kv_cache_dtype": "fp8"})
    )
    assert found.outcome == "unknown"
    assert "may show in decode only, and no answers were compared" in found.sentence()
    weights = judge_readings(silent, silent, change=change_of({"quantization": "fp8"}))
    assert weights.outcome == "no-op"


def test_a_candidate_with_less_context_is_compared_up_to_there() -> None:
    def shorter(reading: Reading) -> Reading:
        told, n = reading.likelihoods, 500
        if len(told.ids) <= n:
            return reading
        first = Likelihoods(
            told.ids[:n], told.logprobs[: n - 1], told.top_ids[: n - 1], told.top_logprobs[: n - 1]
        )
        return replace(reading, likelihoods=first)

    candidate = replace(ROUNDED, readings=tuple(map(shorter, ROUNDED.readings)))
    found = judge_readings(EXACT, candidate, repeat=EXACT, change=Change(acts=True))
    assert found.outcome == "pass", found.reasons
    assert found.long is not None
    assert found.long.tokens == 4 * 499
    assert found.candidate is not None
    assert found.candidate.greedy is not None
    assert found.candidate.greedy.prompts == 24, "an answer after other tokens is another one"
    assert "one server read less of these" in found.remarks[-1]
    decode = judge_readings(EXACT, candidate, change=KV)
    assert decode.outcome == "pass"
    other = replace(EXACT, readings=EXACT.readings[:-1])
    assert judge_readings(EXACT, other).outcome == "unknown"
