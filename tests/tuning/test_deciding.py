"""What would decide what is left open: held against rounds that are really drawn and judged."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.tuning.ending import ReplayDuel, _run, setting_of
from benchmarks.tuning.ground import ReplayGround
from benchmarks.tuning.settings import SETTINGS
from ridgeline.tuning.concluding import conclude
from ridgeline.tuning.deciding import limits_words
from ridgeline.tuning.duelresult import result_of
from ridgeline.tuning.meeting import mean_of
from ridgeline.tuning.outcome import Side
from ridgeline.tuning.trial import Candidate, Miss
from ridgeline.tuning.undecided import runs_of, runs_of_one
from support.tunedengine import Listed, TunedEngine, session, setting

LIMIT = 12.0
ONE = Candidate({"max_num_seqs": 64})


def judged(rows: np.ndarray) -> bool | None:
    """As the product judges the second contender's limit: its bounds and its worst run."""
    mean = mean_of([dict(enumerate(row)) for row in rows.tolist()], 1, 2)
    assert mean is not None
    worst = float(rows[:, 1].max())
    low, high = min(mean.bounds[0], worst), max(mean.bounds[1], worst)
    return True if high <= LIMIT else False if low > LIMIT else None


@pytest.mark.parametrize(("noise", "hour"), [(0.08, 0.0), (0.12, 0.0), (0.1, 0.1)])
def test_the_runs_that_it_names_do_decide_and_what_is_too_near_does_not(
    noise: float, hour: float
) -> None:
    """Duels of two whose truth lies anywhere within a third of the limit, where three rounds leave
    it open: what is named settles most, one round less far fewer, and of what is called too near
    all eight rounds settle the smaller part.
    """
    draw = np.random.default_rng(5)
    seen: dict[str, list[bool]] = {"named": [], "earlier": [], "near": []}
    for _ in range(4000):
        true = LIMIT * np.exp(draw.uniform(-0.3, 0.3))
        level = hour * draw.standard_normal((8, 1))
        rows = np.array([37.0, true]) * np.exp(level + noise * draw.standard_normal((8, 2)))
        mean = mean_of([dict(enumerate(row)) for row in rows[:3].tolist()], 1, 2)
        assert mean is not None
        if judged(rows[:3]) is not None:
            continue
        count = runs_of(mean, float(rows[:3, 1].max()), LIMIT, 8)
        if count is None:
            seen["near"].append(judged(rows) is not None)
            continue
        seen["named"].append(judged(rows[:count]) is not None)
        seen["earlier"].append(judged(rows[: count - 1]) is not None)
    shares = {k: (round(float(np.mean(v)), 2), len(v)) for k, v in seen.items()}
    print(f"noise {noise}, of the hour {hour}: {shares} settled")
    assert min(len(v) for v in seen.values()) > 200
    assert 0.5 <= shares["named"][0] <= 0.85
    assert shares["earlier"][0] < shares["named"][0] - 0.2
    assert shares["near"][0] < 0.5


def test_a_target_that_is_too_near_is_said_to_be() -> None:
    rows = [{0: 30.0, 1: 12.1}, {0: 33.0, 1: 12.9}, {0: 27.0, 1: 12.3}]
    mean = mean_of(rows, 1, 2)
    assert mean is not None
    assert runs_of(mean, 12.9, LIMIT, 8) is None
    inside = mean_of([{0: 30.0, 1: 9.0}, {0: 30.5, 1: 12.2}, {0: 29.5, 1: 9.1}], 1, 2)
    assert inside is not None
    assert runs_of(inside, 12.2, LIMIT, 8) is None, "one run is outside, the runs on the whole not"
    near = Miss("itl_p95_ms", LIMIT, 12.3, 11.0, 13.6, None)
    side = Side("a", {"max_num_seqs": 1}, 1, runs=1, limits=(near,))
    assert limits_words(setting(), side) == (
        "more than 8 runs of it would be needed to decide itl_p95_ms: too near the target to tell"
    )


def test_the_budget_that_would_decide_a_target_is_named() -> None:
    """One run with 14.5 of 12: 0.189 away. With 10 % of noise and two contenders t(2(n - 1)) 0.1 /
    sqrt(n) is 4.303 x 0.0707 = 0.304 after two runs and 2.776 x 0.0577 = 0.160 after three.
    """
    one = Miss("itl_p95_ms", LIMIT, 14.5, 11.0, 18.0, None)
    assert runs_of_one(one, 2, 8) == 3
    made = setting()
    text = limits_words(made, Side("a", {"b": 1}, 1, runs=1, limits=(one,)))
    minutes = 2 * made.run_s(made.workload.duration_s) / 60
    assert text == f"about 2 more runs of it ({minutes:.1f} GPU minutes) would decide itl_p95_ms"
    decided = Miss("itl_p95_ms", LIMIT, 14.5, 13.0, 18.0, met=False)
    assert limits_words(made, Side("a", {}, 1, runs=1, limits=(decided,), meets=False)) == ""


def h200(itl: list[float]) -> ReplayDuel:
    """Three rounds on an H200: tokens/s per GPU and p95 TTFT as they were, of a baseline that
    misses 500 ms and 12 ms, and of the one finalist, with these p95 ITL.
    """
    ground = ReplayGround(SETTINGS[6], 0)
    duel = ReplayDuel.of(ground, setting_of(ground), [ONE], 100.0)
    limits = {"ttft_p95_ms": 500.0, "itl_p95_ms": 12.0}
    runs = {
        "baseline": ([2808, 2424, 3341], [2535, 2828, 2626], [37.2, 36.4, 31.6]),
        "finalist-1": ([8253, 7549, 8036], [320, 331, 317], itl),
    }
    for name, figures in runs.items():
        duel._runs[name] = {
            n: _run(limits, row, (0.1, 0.1, 0.1))
            for n, row in enumerate(zip(*figures, strict=True), 1)
        }
    return duel


def test_a_lone_finalist_is_measured_on_while_that_can_decide() -> None:
    """Its rounds ended with minutes left, although its target and the pair were open."""
    open_ = h200([13.6, 11.6, 13.9])
    assert open_.meets(Candidate()) is False
    assert open_.meets(ONE) is None
    assert open_.standing().best
    assert not open_.is_over
    ended = result_of(open_, 3, {}).ended
    assert ended == "its budget is used", "what ended it, where it was not over"


def test_what_ended_the_duel_of_one_is_not_called_clearly_the_best() -> None:
    near = h200([12.1, 11.9, 12.0])
    clear = near.against(ONE, Candidate())
    assert clear is not None
    state = near.standing()
    assert state.best
    assert state.reason == (
        "one contender is left: the baseline misses a target, died or is disqualified"
    )
    counts = near.runs_to_decide(ONE)
    assert counts["itl_p95_ms"] is None


def test_what_would_tell_a_finalist_from_the_baseline_is_in_the_verdict(tmp_path: Path) -> None:
    """105 slots give 5 % more under 4 % noise: no clear winner, and the sentence says what is."""
    listed = Listed([Candidate(), Candidate({"max_num_seqs": 107})])
    with session(tmp_path, listed, TunedEngine(noise=0.045)) as begun:
        result = conclude(begun, begun.run())
    if "no clear winner" not in result.verdict:
        pytest.fail(result.verdict)
    assert "ahead with" in result.verdict
    assert "rounds would not tell" in result.verdict or "GPU minutes) would tell" in result.verdict
