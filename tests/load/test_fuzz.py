"""Damaged replies: no crash, no hang, no wrong success. More of it: tests/acceptance."""

import random
from collections import Counter

import pytest
from fuzzing import check, feed, good_replies, mutated, oracle, split
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize("number", range(15))
def test_the_oracle_and_the_client_agree_on_good_replies_cut_at_every_byte(number: int) -> None:
    data = good_replies()[number]
    truth = oracle(data)
    assert truth is not None
    for cut in range(0, len(data) + 1, 1 if number in (0, 9) else 7):
        found = feed([data[:cut], data[cut:]])
        assert (found.failure, found.chunks) == (None, truth)
    found = feed([data[i : i + 1] for i in range(len(data))])
    assert (found.failure, found.chunks) == (None, truth)


def test_damaged_replies_are_no_successes() -> None:
    rng = random.Random(20)
    replies = good_replies()
    seen: Counter[str] = Counter()
    for _ in range(3000):
        data = mutated(rng.choice(replies), rng)
        seen[check(data, split(data, rng))] += 1
    assert seen["good"] > 100  # a changed word is none of the client's business
    assert seen["bad"] > 1000


@given(st.binary(max_size=400), st.integers(0, 14), st.data())
@settings(max_examples=300, deadline=None)
def test_any_bytes_in_a_reply(noise: bytes, number: int, data: st.DataObject) -> None:
    reply = good_replies()[number]
    at = data.draw(st.integers(0, len(reply)))
    end = data.draw(st.integers(at, len(reply)))
    whole = reply[:at] + noise + reply[end:]
    cut = data.draw(st.integers(0, len(whole)))
    check(whole, [whole[:cut], whole[cut:]])
