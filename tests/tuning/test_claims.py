"""One number for one claim: value, ratio and bounds of a contender fit each other."""

import numpy as np
import pytest

from ridgeline.tuning.claims import claim_of, value_of_each
from ridgeline.tuning.duel import DuelPlan, Round, stand
from ridgeline.tuning.saying import claim_words, missed_words
from ridgeline.tuning.trial import Miss

PLAN = DuelPlan(contenders=4)


def rounds(gains: tuple[float, ...], count: int, seed: int, noise: float = 0.02) -> list[Round]:
    rng = np.random.default_rng(seed)
    made: list[Round] = []
    for _ in range(count):
        level = float(np.exp(rng.normal(0, 0.1)))  # what a round has in common
        made.append({i: 100 * g * level * float(np.exp(rng.normal(0, noise)))
                     for i, g in enumerate((1.0, *gains))})  # fmt: skip
    return made


def test_a_value_is_the_baselines_times_the_ratio_that_is_told() -> None:
    seen = rounds((1.5, 1.48, 1.2), 5, seed=3)
    seen[2] = {0: None, **{i: v for i, v in seen[2].items() if i}}  # the baseline's run was void
    values = value_of_each(seen, PLAN)
    for i in (1, 2, 3):
        found = claim_of(seen, PLAN, i)
        assert found is not None
        assert values[i][0] == pytest.approx(values[0][0] * found.ratio)  # type: ignore[operator]
        assert found.rounds == 4, "only the rounds that both were in"
        assert found.low is not None
        assert found.high is not None
        assert found.low <= found.ratio <= found.high


def test_the_ratio_of_the_luckiest_of_equals_is_shrunk() -> None:
    """Over many duels of three equal finalists the leader's told gain is their true one."""
    told, plain = [], []
    for seed in range(200):
        seen = rounds((1.3, 1.3, 1.3), 3, seed, noise=0.05)
        raw = [float(np.mean([np.log(r[i] / r[0]) for r in seen])) for i in (1, 2, 3)]  # type: ignore[operator]
        best = 1 + int(np.argmax(raw))
        found = claim_of(seen, PLAN, best)
        assert found is not None
        told.append(np.log(found.ratio))
        plain.append(max(raw))
    truth = np.log(1.3)
    assert abs(np.mean(told) - truth) < 0.012 < np.mean(plain) - truth


def test_more_rounds_tell_more_and_the_word_is_theirs() -> None:
    seen = rounds((1.5, 1.499, 1.498), 8, seed=1, noise=0.01)
    early, found = claim_of(seen[:3], PLAN, 1), claim_of(seen, PLAN, 1)
    assert early is not None
    assert found is not None
    assert (early.rounds, found.rounds, found.verdict) == (3, 8, "clearly better")
    assert found.high - found.low < early.high - early.low  # type: ignore[operator]


def test_an_early_lead_that_later_rounds_contradict_is_no_lead() -> None:
    """Three quiet rounds at +30 %, then five at -28 %, as of a host that throttles."""
    early: list[Round] = [{0: 100, 1: 130 + d, 2: 131, 3: 129} for d in (0.0, 0.2, -0.2)]
    late: list[Round] = [{0: 100, 1: v, 2: 72, 3: 73} for v in (70.0, 75.0, 72.0, 70.0, 76.0)]
    before, after = claim_of(early, PLAN, 1), claim_of(early + late, PLAN, 1)
    assert before is not None
    assert after is not None
    assert before.verdict == "clearly better"
    assert after.verdict == "no clear difference"
    assert after.ratio < 1
    state = stand(early + late, PLAN)
    assert not any(p.word.startswith("clearly") for p in state.pairs)
    assert 0 not in state.out, "nor is the baseline out of it any more"


def test_one_round_has_a_ratio_and_no_bounds() -> None:
    found = claim_of(rounds((2.0, 1.9, 1.8), 1, seed=1), PLAN, 1)
    assert found is not None
    assert (found.low, found.high, found.rounds) == (None, None, 1)
    assert claim_words(found, "cost").endswith(
        "cheaper than the baseline (1 paired round: no interval)"
    )


def test_a_baseline_that_never_ran_leaves_values_and_no_ratio() -> None:
    seen = [{0: None, 1: 10.0, 2: 9.0, 3: 8.0}, {0: None, 1: 11.0, 2: 9.5, 3: 8.5}]
    assert claim_of(seen, PLAN, 1) is None
    assert value_of_each(seen, PLAN)[1][0] == pytest.approx(10.3, abs=0.3)


def test_an_attainment_is_missed_from_below() -> None:
    assert (
        missed_words(Miss("attainment", 0.95, 0.9, 0.88, 0.92, False)) == "attainment 0.900 < 0.950"
    )
    assert missed_words(Miss("itl_p95_ms", 12, 22.7, 20, 25, False)) == "itl_p95_ms 22.7 > 12.0"
