"""The figures of the quality gate, against whole distributions and values worked out by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from ridgeline.domain.readings import GreedyAnswer, Likelihoods, QualityPrompt, Reading
from ridgeline.tuning.quality_answers import decode_kl, greedy_agreement, parting
from ridgeline.tuning.quality_divergence import TIE_NATS, kl_bound, preference
from ridgeline.tuning.quality_figures import compare
from ridgeline.tuning.quality_stats import Figure, ratio, wilson
from support.invented_model import VOCABULARY, likelihoods, log_softmax


def listed(ids: list[int], rows: list[dict[int, float]]) -> Likelihoods:
    """From probabilities by token, the likeliest first."""
    return Likelihoods(
        tuple(ids),
        np.array([math.log(row[t]) for t, row in zip(ids[1:], rows, strict=True)]),
        np.array([list(row) for row in rows]),
        np.log(np.array([list(row.values()) for row in rows])),
    )


def test_kl_of_lists_that_agree_is_that_of_the_tokens_and_one_remainder() -> None:
    ours = listed([0, 1], [{1: 0.5, 2: 0.3}])
    theirs = listed([0, 1], [{1: 0.4, 2: 0.4}])
    expected = 0.5 * math.log(0.5 / 0.4) + 0.3 * math.log(0.3 / 0.4) + 0.2 * math.log(0.2 / 0.2)
    assert kl_bound(ours, theirs) == pytest.approx([expected], abs=1e-12)


def test_kl_of_lists_without_a_common_token_is_not_nothing() -> None:
    """Garbage lists other tokens than the reference, whose tokens are then unlikely there."""
    ours = listed([0, 1], [{1: 0.9, 2: 0.05}])
    theirs = replace(listed([0, 3], [{3: 0.6, 4: 0.1}]), ids=(0, 1), logprobs=np.log([0.001]))
    # Of the token that stands there both tell it: 0.9 and 0.001. Token 2 has at most 0.1 there, and
    # the other 0.05 has the 0.899 that are left.
    by_hand = 0.9 * math.log(900) + 0.05 * math.log(0.05 / 0.1) + 0.05 * math.log(0.05 / 0.899)
    assert kl_bound(ours, theirs) == pytest.approx([by_hand], abs=1e-9)
    # Without it: 0.95 has at most 0.2 there, and 0.05 has 0.8.
    by_hand = 0.95 * math.log(0.95 / 0.2) + 0.05 * math.log(0.05 / 0.8)
    assert kl_bound(ours, theirs, standing=False) == pytest.approx([by_hand], abs=1e-9)


@pytest.mark.parametrize("size", [0.0, 0.01, 0.3, 1.0, 4.0])
def test_kl_never_exceeds_that_over_the_vocabulary(size: float) -> None:
    draw = np.random.default_rng(3)
    ids = draw.integers(0, VOCABULARY, 301)
    logits = draw.normal(0, 3, (300, VOCABULARY))
    p, q = log_softmax(logits), log_softmax(logits + draw.normal(0, 1, logits.shape) * size)
    whole = (np.exp(p) * (p - q)).sum(axis=1)
    bound = kl_bound(likelihoods(ids, p), likelihoods(ids, q))
    assert (bound >= 0).all()
    assert (bound <= whole + 1e-6).all()
    if size == 0.0:
        assert (bound == 0).all()
    else:
        assert bound.mean() > 0.35 * whole.mean(), "and it is worth something"


def test_top1_agreement_puts_near_ties_aside() -> None:
    ours = listed([0, 1, 1, 1], [{1: 0.40, 2: 0.36}, {1: 0.6, 2: 0.2}, {1: 0.6, 2: 0.2}])
    theirs = listed([0, 1, 1, 1], [{2: 0.41, 1: 0.35}, {2: 0.5, 1: 0.3}, {9: 0.5, 1: 0.3}])
    gaps = preference(ours, theirs)
    assert gaps[0] == pytest.approx(math.log(0.40 / 0.36))
    assert gaps[1] == pytest.approx(math.log(3))
    assert gaps[2] >= math.log(3), "an unlisted token is no likelier than the last listed one"
    prompt = QualityPrompt("one", "text")
    found = compare([Reading(prompt, ours)], [Reading(prompt, theirs)])
    assert (found.top1.value, found.agreement.value) == (0.0, pytest.approx(1 / 3))
    assert found.agreement.low is None, "one prompt makes no interval"


def test_recovery_is_the_ratio_of_perplexities_over_all_tokens() -> None:
    a = listed([0, 1], [{1: 0.5, 2: 0.1}])
    b = listed([0, 1, 1, 1], [{1: 0.25, 2: 0.1}] * 3)
    a_bad = listed([0, 1], [{1: 0.25, 2: 0.1}])
    readings = [Reading(QualityPrompt("a", ""), a), Reading(QualityPrompt("b", ""), b)]
    changed = [Reading(QualityPrompt("a", ""), a_bad), Reading(QualityPrompt("b", ""), b)]
    found = compare(readings, changed)
    assert found.recovery.value == pytest.approx(0.5 ** (1 / 4)), "one of four tokens halved"
    assert found.to_json()["perplexity_reference"] == pytest.approx(2 ** (1 / 4) * 4 ** (3 / 4))


def test_other_tokens_are_refused() -> None:
    a, b = listed([0, 1], [{1: 0.5, 2: 0.1}]), listed([0, 2], [{2: 0.5, 1: 0.1}])
    with pytest.raises(ValueError, match="'x' as different tokens"):
        compare([Reading(QualityPrompt("x", ""), a)], [Reading(QualityPrompt("x", ""), b)])


def test_the_interval_of_a_ratio_covers_in_95_of_100() -> None:
    draw = np.random.default_rng(5)
    inside = 0
    for _ in range(1000):
        n = draw.integers(80, 200, 24).astype(float)
        above = n * (0.02 + draw.normal(0, 0.01, 24))
        found = ratio(above, n)
        assert found.low is not None
        assert found.high is not None
        inside += found.low <= 0.02 <= found.high
    assert 930 <= inside <= 970


def test_a_few_prompts_that_hold_most_tokens_do_not_narrow_the_interval() -> None:
    """The bundled mix: 24 short prompts and four that hold most of the tokens."""
    draw = np.random.default_rng(0)
    n = np.array([200.0] * 24 + [4096.0] * 4)
    outside = above = 0
    for _ in range(4000):
        unit, token = draw.normal(0, 0.004, 28), draw.normal(0, 0.15, 28)
        found = ratio(n * (0.01 + unit) + token * np.sqrt(n), n)
        assert found.low is not None
        assert found.high is not None
        outside += not found.low <= 0.01 <= found.high
        above += found.high < 0.01  # a bad candidate that would pass
    assert outside / 4000 < 0.055
    assert above / 4000 < 0.03
    assert outside / 4000 > 0.02, "and it is no wider than it must be"


def test_one_prompt_that_is_nearly_everything_has_no_interval() -> None:
    n = np.array([10.0] * 6 + [1e6])
    assert ratio(n * 0.5, n).low is None
    equal = ratio(np.array([1.0, 2, 3, 4, 5]), np.ones(5))
    assert equal.high == pytest.approx(3 + 2.776 * math.sqrt(2.5 / 5), abs=1e-3)


def test_the_worst_prompt_is_one_with_enough_tokens() -> None:
    draw = np.random.default_rng(2)
    pairs = []
    for name, tokens, size in (("fine", 100, 0.1), ("bad", 40, 1.0), ("tiny", 5, 3.0)):
        ids = draw.integers(0, VOCABULARY, tokens)
        logits = draw.normal(0, 3, (tokens - 1, VOCABULARY))
        both = (logits, logits + draw.normal(0, size, logits.shape))
        pairs.append([
            Reading(QualityPrompt(name, ""), likelihoods(ids, log_softmax(x))) for x in both
        ])  # fmt: skip
    found = compare(*zip(*pairs, strict=True))
    assert found.worst_prompt == "bad"
    assert found.kl_worst_prompt == pytest.approx(
        kl_bound(pairs[1][0].likelihoods, pairs[1][1].likelihoods).mean()
    )
    assert compare(*zip(pairs[2], strict=True)).kl_worst_prompt is None


def test_a_followed_answer_is_held_against_the_reference_to_its_end() -> None:
    top = ({1: -0.6, 2: -0.7}, {3: -0.1, 4: -3.0}, {5: -0.6, 6: -0.7})
    ours = GreedyAnswer((1, 3, 5), "", top)
    near = GreedyAnswer((2, 3, 6), "", top, followed=True)
    clear = GreedyAnswer((2, 4, 5), "", top, followed=True)
    left = GreedyAnswer((2,), "", top[:1], followed=True)
    ended = GreedyAnswer((2, 3), "", top[:2], followed=True)
    assert parting(ours, near) == pytest.approx(0.1)
    assert parting(ours, clear) == pytest.approx(2.9)
    assert parting(ours, left) == pytest.approx(0.1)
    assert parting(ours, ended) == math.inf
    found = greedy_agreement([(ours, near), (ours, clear), (ours, left), (ours, ended)])
    assert (found.same, found.near_ties, found.parted) == (0, 2, 2)
    assert found.compared == pytest.approx(3 + 1 / 3)
    whole = decode_kl([(ours, near)])
    assert whole is not None
    assert whole.value == pytest.approx(0.0, abs=1e-9), "of three places, all the same"


def test_answers_part_where_the_first_token_differs() -> None:
    top = ({1: -0.1, 2: -3.0}, {3: -0.7, 4: -0.8})
    ours = GreedyAnswer((1, 3), "", top)
    assert parting(ours, GreedyAnswer((1, 3), "")) is None
    assert parting(ours, GreedyAnswer((2, 3), "")) == pytest.approx(2.9)
    assert parting(ours, GreedyAnswer((1, 4), "")) == pytest.approx(0.1)
    assert parting(ours, GreedyAnswer((1, 9), "")) == math.inf
    assert parting(ours, GreedyAnswer((1,), "")) == math.inf
    assert parting(GreedyAnswer((1, 3), ""), GreedyAnswer((2, 3), "")) == math.inf
    found = greedy_agreement([
        (ours, GreedyAnswer((1, 3), "")), (ours, GreedyAnswer((1, 4), "")),
        (ours, GreedyAnswer((2, 3), "")),
    ])  # fmt: skip
    assert (found.same, found.near_ties, found.parted) == (1, 1, 1)
    assert found.agreement.value == pytest.approx(2 / 3)
    assert 0.1 < TIE_NATS < 2.9


def test_decode_is_compared_up_to_where_the_answers_part() -> None:
    tops = (
        {1: math.log(0.5), 2: math.log(0.3)},
        {3: math.log(0.6), 4: math.log(0.2)},
        {5: -0.1, 6: -3},
    )
    ours = GreedyAnswer((1, 3, 5), "", tops)
    changed = ({1: math.log(0.4), 2: math.log(0.4)}, *tops[1:])
    first = 0.5 * math.log(0.5 / 0.4) + 0.3 * math.log(0.3 / 0.4)
    whole = decode_kl([(ours, GreedyAnswer((1, 3, 5), "", changed))])
    parted = decode_kl([(ours, GreedyAnswer((1, 4, 9), "", changed))])
    assert whole is not None
    assert parted is not None
    assert whole.value == pytest.approx(first / 3)
    assert parted.value == pytest.approx(first / 2), "the third place has other tokens before it"
    assert decode_kl([(ours, ours)]) == Figure(0.0)
    assert decode_kl([(GreedyAnswer((1,), ""), ours)]) is None


def test_wilson_as_tabulated() -> None:
    """22 of 40: 0.3983 to 0.6929 (Newcombe's method 3)."""
    found = wilson(22, 40)
    assert (found.low, found.high) == (
        pytest.approx(0.3983, abs=5e-4),
        pytest.approx(0.6929, abs=5e-4),
    )
