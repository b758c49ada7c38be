"""What the nearest would meet: how often that is wrong, and that few runs promise nothing."""

import math
from functools import cache

import numpy as np
import pytest

from benchmarks.tuning.ending import ReplayDuel, _run, setting_of
from benchmarks.tuning.ground import ReplayGround
from benchmarks.tuning.settings import SETTINGS
from ridgeline.tuning.outcome import Side
from ridgeline.tuning.promised import ERROR, USUAL, had, is_firm, may_be, scatter_of, would_meet
from ridgeline.tuning.setting import Setting
from ridgeline.tuning.trial import Candidate, Miss, State, Trial

DRAWS = 2000
BASE, FASTER, OTHER = (
    Candidate(),
    Candidate({"quantization": "fp8"}),
    Candidate({"max_num_seqs": 24}),
)
LIMITS = {"ttft_p95_ms": 2500.0, "itl_p95_ms": 60.0}


@cache
def replayed() -> tuple[ReplayGround, Setting]:
    ground = ReplayGround(SETTINGS[6], 0)
    assert ground.limits == LIMITS
    return ground, setting_of(ground)


def fought(*latencies: tuple[Candidate, list[float]]) -> ReplayDuel:
    """A duel that is over: of each contender its p95 ITL in ms, round by round."""
    ground, of = replayed()
    duel = ReplayDuel.of(ground, of, [c for c, _ in latencies[1:]], 100.0)
    for candidate, own in latencies:
        duel._runs[duel.name(candidate)] = {
            n: _run(LIMITS, (100.0, 900.0, itl), (0.1, 0.1, 0.1)) for n, itl in enumerate(own, 1)
        }
    return duel


def trial(number: int, candidate: Candidate, value: float, state: State = "infeasible") -> Trial:
    miss = Miss("itl_p95_ms", 12.0, value, value / 1.2, value * 1.2, False)
    return Trial(number, candidate, state, 100.0, window_s=10.0, limits=(miss,))


def side_of(candidate: Candidate, runs: int, limits: tuple[Miss, ...], measured: str) -> Side:
    return Side(candidate.words, candidate.change, 1, limits=limits, runs=runs, measured=measured)


@pytest.mark.parametrize("noise", [0.05, 0.12, 0.25])
@pytest.mark.parametrize("measured", [1, 4, 10])
@pytest.mark.parametrize("repeats", [0, 6])
def test_what_one_run_may_stand_for_is_seldom_too_low(
    measured: int, repeats: int, noise: float
) -> None:
    """Equals with a true p95 of 20 ms and one run each, of which the lowest is taken; repeats: of
    the baseline, from which the search knows the noise.
    """
    random = np.random.default_rng(measured + repeats)
    wrong = 0
    for _ in range(DRAWS):
        again = 20 * np.exp(noise * random.standard_normal(repeats))
        trials = [trial(n, BASE, float(v)) for n, v in enumerate(again, 1)]
        lowest = float((20 * np.exp(noise * random.standard_normal(measured))).min())
        miss = Miss("itl_p95_ms", 12.0, lowest, lowest / 1.1, lowest * 1.1, False)
        most = may_be(miss, scatter_of(trials, "itl_p95_ms"), ERROR / measured)
        assert most is not None
        wrong += most < 20
    print(f"{measured} measured, {repeats} repeats, noise {noise:.0%}: {wrong / DRAWS:.2%} wrong")
    assert wrong / DRAWS <= ERROR + 3 * math.sqrt(ERROR / DRAWS)


@pytest.mark.parametrize(("shared", "own"), [(0.0, 0.12), (0.12, 0.05), (0.0, 0.25)])
def test_what_the_nearest_of_four_in_a_duel_would_meet_is_seldom_missed(
    shared: float, own: float
) -> None:
    """Equals at 20 ms in three rounds: the lowest worst run is named, what it would meet is not
    below the truth in more than `ERROR`.
    """
    random, wrong, draws = np.random.default_rng(4), 0, 150
    for _ in range(draws):
        hour = shared * random.standard_normal((3, 1))
        figures = 20 * np.exp(hour + own * random.standard_normal((3, 4)))
        names = [BASE, FASTER, OTHER, Candidate({"max_num_seqs": 48})]
        duel = fought(*((c, figures[:, i].tolist()) for i, c in enumerate(names)))
        which = int(figures.max(axis=0).argmin())
        limits = tuple(
            Miss(m.key, 1.0, m.value, m.low, m.high, "itl" not in m.key)
            for m in duel.limits(names[which])
        )
        (told,) = would_meet(side_of(names[which], 3, limits, "duel"), duel, 4)
        wrong += float(told.removeprefix("itl_p95_ms ")) < 20
    print(f"shared {shared}, own {own}: {wrong} of {draws} wrong")
    assert wrong / draws <= ERROR + 3 * math.sqrt(ERROR / draws)


def test_two_rounds_or_a_trial_promise_nothing_and_three_do() -> None:
    limits = (Miss("itl_p95_ms", 12.0, 19.3, 16.0, 23.0, False),)
    assert not is_firm(side_of(FASTER, 1, limits, "trial"))
    assert not is_firm(side_of(FASTER, 2, limits, "duel"))
    assert is_firm(side_of(FASTER, 3, limits, "duel"))


def test_the_noise_of_the_search_and_the_number_measured_widen_what_one_run_may_stand_for() -> None:
    limits = (
        Miss("itl_p95_ms", 12.0, 19.3, 17.5, 21.3, False),
        Miss("attainment", 0.99, 0.4, 0.3, 0.5, False),
    )
    side = side_of(FASTER, 1, limits, "trial")

    def most(trials: list[Trial], among: int) -> float:
        itl, share = had(side, trials, among)
        assert share == "attainment 0.400"
        assert itl.startswith("itl_p95_ms 19.3 (up to ")
        return float(itl.removeprefix("itl_p95_ms 19.3 (up to ").removesuffix(")"))

    calm = [trial(n, BASE, 20.0 + 0.1 * n) for n in range(1, 9)]
    voided = [trial(n, BASE, 20.0 * 2**n, "void") for n in range(1, 9)]
    assert 19.3 * math.exp(1.96 * USUAL) < most([], 1) < most([], 10)
    assert 21.3 < most(calm, 1) < most([], 1)
    assert most(voided, 1) == most([], 1), "what is void tells no noise"
