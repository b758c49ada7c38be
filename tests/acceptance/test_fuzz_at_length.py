"""100 000 damaged replies: no crash, no hang, no wrong success."""

import random
import sys
from collections import Counter
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "load")]
from fuzzing import check, good_replies, mutated, split  # noqa: E402

pytestmark = pytest.mark.acceptance
CASES = 100_000


def test_no_wrong_success_among_100_000_damaged_replies() -> None:
    rng = random.Random(1)
    replies = good_replies()
    seen: Counter[str] = Counter()
    for _ in range(CASES):
        data = mutated(rng.choice(replies), rng)
        seen[check(data, split(data, rng))] += 1
    print(f"\n{CASES} damaged replies: {dict(seen)}")
    assert seen["good"] > CASES // 30
    assert seen["bad"] > CASES // 3
