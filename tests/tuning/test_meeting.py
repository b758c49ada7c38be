"""Limits of a duel's contenders: what their common noise shows, and that it shows no more."""

import math

import numpy as np
import pytest

from benchmarks.tuning.ending import ReplayDuel, _run, setting_of
from benchmarks.tuning.ground import ReplayGround
from benchmarks.tuning.settings import SETTINGS
from ridgeline.tuning.choosing import choose
from ridgeline.tuning.finalists import contenders
from ridgeline.tuning.journal import AIM
from ridgeline.tuning.meeting import mean_bounds
from ridgeline.tuning.trial import Candidate, History, Miss, State, Trial

LIMITS = {"ttft_p95_ms": 2500.0, "itl_p95_ms": 60.0}
ERRORS = (0.1, 0.1, 0.1)
FASTER = Candidate({"quantization": "fp8"})
OTHER = Candidate({"max_num_seqs": 24})


def fought(*runs: tuple[Candidate, list[float], list[float]], aim: int | None = None) -> ReplayDuel:
    """A duel that is over: of each contender its values and its p95 ITL in ms, a pair a round."""
    ground = ReplayGround(SETTINGS[6], 0)
    assert ground.limits == LIMITS
    duel = ReplayDuel.of(ground, setting_of(ground), [c for c, _, _ in runs[1:]], 100.0)
    for candidate, values, latencies in runs:
        duel._runs[duel.name(candidate)] = {
            n: _run(LIMITS, (value, 900.0, itl), ERRORS)
            for n, (value, itl) in enumerate(zip(values, latencies, strict=True), 1)
        }
    if aim is not None:
        duel.quiet.write(AIM, rounds=aim, of=[c.words for c in duel.candidates])
    return duel


@pytest.mark.parametrize(
    ("shared", "own"), [(0.0, 0.12), (0.06, 0.10), (0.12, 0.04), (0.25, 0.05)],
)  # fmt: skip
@pytest.mark.parametrize(("contenders", "rounds"), [(2, 3), (4, 3), (3, 5)])
def test_what_is_just_at_its_limit_is_seldom_called_met_or_missed(
    shared: float, own: float, contenders: int, rounds: int
) -> None:
    """2.5 % each way, whether a round's noise is its own or the hour's of all."""
    random = np.random.default_rng(contenders + rounds)
    met = missed = 0
    for _ in range(600):
        level = shared * random.standard_normal((rounds, 1))
        figures = np.exp(level + own * random.standard_normal((rounds, contenders)))
        bounds = mean_bounds([dict(enumerate(row)) for row in figures.tolist()], 0, contenders)
        assert bounds is not None
        met += bounds[1] < 1
        missed += bounds[0] > 1
    print(f"met {met}, missed {missed} of 600 at the limit")
    assert max(met, missed) / 600 <= 0.025 + 3 * math.sqrt(0.025 / 600)


def test_three_misses_by_half_are_a_miss_beside_threethat_tell_the_noise() -> None:
    """Alone, three runs at 1.4 to 2 times a limit were "may miss": two degrees of freedom."""
    base = (Candidate(), [100.0, 95.0, 90.0], [85.0, 106.0, 123.0])
    duel = fought(
        base,
        (FASTER, [160.0, 166.0, 171.0], [22.0, 24.0, 21.0]),
        (OTHER, [150.0, 161.0, 149.0], [33.0, 31.0, 36.0]),
    )
    assert duel.meets(Candidate()) is False
    assert duel.meets(FASTER) is True
    (_, itl) = duel.judged(Candidate())[1]
    assert itl.low is not None
    assert 60 < itl.low < 85
    assert itl.value == pytest.approx(123)


def test_a_host_that_drifts_shows_less_and_one_bad_run_is_never_called_met() -> None:
    drift = [1.0, 1.3, 1.6]
    duel = fought(
        (Candidate(), [100 / d for d in drift], [40 * d for d in drift]),
        (FASTER, [150 / d for d in drift], [30 * d for d in drift]),
    )
    assert duel.meets(Candidate()) is None  # 40, 52 and 64 ms
    assert duel.meets(FASTER) is None  # 30, 39 and 48 ms, and nobody knows where that ends
    calm = fought(
        (Candidate(), [100.0, 101.0, 99.0, 100.0, 100.0], [50.0, 50.5, 49.5, 50.2, 49.9]),
        (FASTER, [150.0, 151.0, 149.0, 150.0, 152.0], [50.0, 49.5, 60.1, 49.8, 50.2]),
    )
    assert calm.meets(Candidate()) is True
    assert calm.meets(FASTER) is None


def test_what_is_shown_to_meet_goes_before_a_baseline_that_is_not() -> None:
    baseline = (Candidate(), [100.0, 104.0, 96.0], [58.0, 62.0, 60.0])
    duel = fought(baseline, (FASTER, [105.0, 101.0, 108.0], [40.0, 42.0, 38.0]))
    assert duel.meets(Candidate()) is None
    choice = choose(duel, ())
    assert choice.winner == FASTER
    assert not choice.clear
    assert "which the baseline is not shown to meet" in choice.why
    dearer = fought(baseline, (FASTER, [85.0, 91.0, 88.0], [40.0, 42.0, 38.0]))
    assert choose(dearer, ()).winner == Candidate()


def test_where_nothing_surely_meets_the_targets_the_nearest_is_named_not_the_best() -> None:
    """Both may meet 60 ms; the one that gives a quarter more is 8 to 33 % beyond them."""
    duel = fought(
        (Candidate(), [100.0, 99.0, 101.0], [150.0, 190.0, 120.0]),
        (FASTER, [160.0, 161.0, 159.0], [55.0, 63.0, 59.0]),
        (OTHER, [200.0, 201.0, 199.0], [65.0, 80.0, 58.0]),
    )
    assert [duel.meets(c) for c in duel.candidates] == [False, None, None]
    choice = choose(duel, ())
    assert choice.winner == FASTER
    assert not choice.clear
    assert "of 2 finalists that may, it is nearest to its targets" in choice.why


@pytest.mark.parametrize(("own", "shared"), [(0.10, 0.0), (0.05, 0.12), (0.05, 0.2)])
def test_a_finalist_at_its_limit_is_seldom_dropped_at_any_look(own: float, shared: float) -> None:
    """As the duel does it: after each of three rounds, and dropped is dropped. One round alone had
    dropped 7 to 22 %, all looks 11 to 23 %.
    """
    random, draws = np.random.default_rng(3), 150
    dropped = at_once = 0
    duel = fought((Candidate(), [100.0], [60.0]), (FASTER, [100.0], [60.0]), aim=3)
    for _ in range(draws):
        latencies: tuple[list[float], list[float]] = ([], [])
        for seen in range(1, 4):
            level = shared * random.standard_normal()
            for found in latencies:
                found.append(60 * math.exp(level + own * random.standard_normal()))
            for candidate, found in zip(duel.candidates, latencies, strict=True):
                runs = {n: _run(LIMITS, (100.0, 900.0, x), ERRORS) for n, x in enumerate(found, 1)}
                duel._runs[duel.name(candidate)] = runs
            if duel.meets(FASTER) is False:
                dropped, at_once = dropped + 1, at_once + (seen == 1)
                assert duel.fallen
                break
    print(f"own {own}, of all {shared}: {dropped} of {draws} dropped, {at_once} after one round")
    assert at_once == 0
    assert dropped / draws <= 0.025 + 2.5 * math.sqrt(0.025 / draws)


def test_what_was_dropped_stays_dropped_and_the_baseline_is_judged_by_the_last_look() -> None:
    """Two contenders that stay at 85 of 60 ms for two rounds miss it; then the host recovers."""
    slow = [85.0, 86.0, 40.0, 40.0]
    steady = [30.0, 30.2, 30.1, 29.9]
    values = [100.0, 101.0, 99.0, 100.0]
    duel = fought(
        (Candidate(), values, slow), (FASTER, values, slow), (OTHER, values, steady), aim=4
    )
    assert duel.meets(FASTER) is False
    assert duel.meets(Candidate()) is None


def test_a_fallen_finalists_lucky_trial_keeps_no_near_miss_out() -> None:
    def trial(number: int, candidate: Candidate, state: State, itl: float) -> Trial:
        miss = Miss("itl_p95_ms", 60.0, itl, itl * 0.9, itl * 1.1, state == "feasible")
        return Trial(number, candidate, state, value=100.0, low=90.0, high=110.0, limits=(miss,))

    lucky = trial(2, FASTER, "feasible", 50.0)
    rest = (trial(1, Candidate(), "infeasible", 120.0), trial(3, OTHER, "infeasible", 68.0))
    history = History((rest[0], lucky, rest[1], trial(4, FASTER, "infeasible", 90.0)))
    assert [c for c, _ in contenders([], history, {FASTER.key})] == [OTHER]
    assert contenders([], history, ()) == [], "one that has not fallen is there"


def test_one_round_decides_nothing_and_that_is_said() -> None:
    duel = fought((Candidate(), [100.0], [85.0]), (FASTER, [130.0], [50.0]))
    assert (duel.meets(Candidate()), duel.meets(FASTER)) == (None, None)
    choice = choose(duel, ())
    assert choice.winner == Candidate()
    assert not choice.clear
    assert "one round of the duel decides nothing" in choice.why
    worse = fought((Candidate(), [100.0], [40.0]), (FASTER, [130.0], [240.0]))
    assert worse.meets(FASTER) is None
    assert not worse.fallen
