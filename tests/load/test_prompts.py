"""Prompts: right length, never the same beginning twice, the same again for the same arguments."""

import time

import numpy as np
import pytest

from ridgeline.domain.workload import Arrivals, Lengths, Prompts, SharedPrefix, Workload
from ridgeline.workload.prompts import WORDS, PromptMaker, TokenFit, fit_tokens
from ridgeline.workload.schedule import Segment

BLOCK = 16  # tokens that a server caches as one


def workload(tokens: float = 256, prefix: int | None = None, seed: int = 0) -> Workload:
    shared = SharedPrefix(prefix, 4) if prefix else None
    return Workload(Arrivals(users=1), Prompts(Lengths(tokens), shared), seed=seed)


def common_words(a: str, b: str) -> int:
    """Length of the common beginning, in words."""
    count = 0
    for x, y in zip(a.split(), b.split(), strict=False):
        if x != y:
            break
        count += 1
    return count


def test_words_are_plain_and_distinct() -> None:
    assert len(set(WORDS)) == 256
    assert all(w.isascii() and w.isalpha() and w.islower() for w in WORDS)


@pytest.mark.parametrize("tokens", [1, 3, 8, 9, 16, 100, 777, 5000, 40_000, 200_000])
def test_one_word_a_token_by_default(tokens: int) -> None:
    maker = PromptMaker(workload(), "salt")
    assert len(maker.text(7, tokens).split()) == tokens


def test_same_arguments_same_text() -> None:
    texts = [PromptMaker(workload(seed=3), "s").text(5, 300) for _ in range(2)]
    assert texts[0] == texts[1]
    other_order = PromptMaker(workload(seed=3), "s")
    other_order.text(99, 100_000)
    assert other_order.text(5, 300) == texts[0]
    assert PromptMaker(workload(seed=4), "s").text(5, 300) != texts[0]


def test_no_two_requests_share_a_block() -> None:
    maker = PromptMaker(workload(), "salt")
    heads = [tuple(maker.text(i, 64).split()[:BLOCK]) for i in range(20_000)]
    assert len(set(heads)) == len(heads)
    # not even the first words: a cache that works by single tokens finds next to nothing
    assert np.mean([common_words(maker.text(i, 64), maker.text(i + 1, 64)) for i in range(500)]) < 1


def test_no_two_runs_share_a_block() -> None:
    first = PromptMaker(workload(), "run-1")
    second = PromptMaker(workload(), "run-2")
    heads = {tuple(first.text(i, 64).split()[:BLOCK]) for i in range(5000)}
    assert not heads & {tuple(second.text(i, 64).split()[:BLOCK]) for i in range(5000)}
    assert max(common_words(first.text(i, 64), second.text(i, 64)) for i in range(500)) < 4


def group(key: int) -> tuple[Segment, ...]:
    return (Segment(key, 256),)


def test_a_group_shares_exactly_its_prefix() -> None:
    maker = PromptMaker(workload(512, prefix=256), "salt")
    a, b = maker.text(1, 512, group(2)), maker.text(2, 512, group(2))
    assert len(a.split()) == len(b.split()) == 512
    assert 256 <= common_words(a, b) <= 258
    assert common_words(a, maker.text(3, 512, group(1))) < 4  # another group
    assert (
        common_words(a, PromptMaker(workload(512, prefix=256), "other").text(1, 512, group(2))) < 4
    )
    assert common_words(a, maker.text(1, 512)) < 4  # without a group


def test_fit_makes_up_for_template_and_tokenizer() -> None:
    fit = TokenFit(tokens_per_word=1.25, overhead_tokens=20)
    maker = PromptMaker(workload(), "salt", fit)
    for tokens in (64, 500, 4000):
        words = len(maker.text(1, tokens).split())
        assert abs(20 + 1.25 * words - tokens) <= 0.7


def test_fitting() -> None:
    fit = fit_tokens([(32, 32 * 2 + 9), (100, 209), (900, 1809)])
    assert fit.tokens_per_word == pytest.approx(2)
    assert fit.overhead_tokens == pytest.approx(9)
    assert fit.drift_tokens == pytest.approx(0, abs=1e-6)
    noisy = fit_tokens([(32, 50), (100, 130), (900, 918)])
    assert noisy.drift_tokens > 1
    with pytest.raises(ValueError, match="two different"):
        fit_tokens([(32, 50), (32, 51)])


@pytest.mark.parametrize(
    "samples",
    [
        [(32, 50), (64, 50)],
        [(32, 50), (64, 49)],
        # a constant count: rounding leaves a slope of 1e-16, and prompts of 1e16 words would follow
        [(32, 10), (8, 10), (25, 10)],
        [(32, 7), (900, 7), (77, 7)],
        [(32, 50), (256, 52), (1000, 61)],  # seven words a token, and more
        [(32, 5000), (64, 12000)],
    ],
)
def test_a_count_that_does_not_depend_on_the_prompt_fits_nothing(
    samples: list[tuple[int, int]],
) -> None:
    with pytest.raises(ValueError, match="does not depend on the prompt") as caught:
        fit_tokens(samples)
    assert f"{samples[0][1]} for {samples[0][0]} words" in str(caught.value)


def test_long_prompts_cost_little() -> None:
    """1000 prompts of 32 000 tokens: the first at once, all in a second or two."""
    start = time.perf_counter()
    maker = PromptMaker(workload(32_000), "salt")
    first = maker.encoded(0, 32_000)
    assert time.perf_counter() - start < 2
    assert len(first.split()) == 32_000
    start = time.process_time()
    for i in range(1, 1000):
        maker.encoded(i, 32_000)
    assert time.process_time() - start < 2
