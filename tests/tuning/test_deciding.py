"""What would decide what is left open: held against runs that are really drawn."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ridgeline.experiment.statistics import t_interval
from ridgeline.tuning.concluding import conclude
from ridgeline.tuning.deciding import limits_words, runs_to_decide
from ridgeline.tuning.objective import BETWEEN_RUNS
from ridgeline.tuning.outcome import Side
from ridgeline.tuning.trial import Candidate, Miss
from support.tunedengine import Listed, TunedEngine, session, setting

WIDEN = math.exp(1.959964 * BETWEEN_RUNS)
LIMIT = 12.0


def judged(figures: np.ndarray) -> Miss:
    """As the product judges repeats: Student's interval, the worst one, and its widening."""
    low, _, high = (math.exp(v or 0.0) for v in t_interval(list(np.log(figures))))
    worst = float(figures.max())
    low, high = min(low, worst) / WIDEN, max(high, worst) * WIDEN
    met = True if high <= LIMIT else False if low > LIMIT else None
    return Miss("itl_p95_ms", LIMIT, worst, low, high, met)


@pytest.mark.parametrize(("true", "noise"), [(15.5, 0.06), (16.0, 0.08)])
def test_the_runs_that_it_names_do_decide_about_as_often_as_not(true: float, noise: float) -> None:
    """Drawn tunings that three runs leave open: as many runs as are named settle at least half."""
    draw = np.random.default_rng(5)
    settled = named = 0
    for _ in range(400):
        figures = true * np.exp(noise * draw.standard_normal(8))
        first = judged(figures[:3])
        if first.met is not None:
            continue
        count = runs_to_decide(first, 3)
        if count is None:
            continue
        named += 1
        settled += judged(figures[:count]).met is not None
    assert named >= 20
    assert settled / named >= 0.5


def test_a_target_that_is_too_near_is_said_to_be() -> None:
    near = Miss("itl_p95_ms", LIMIT, 12.3, 11.0, 13.6, None)
    assert runs_to_decide(near, 3) is None
    across = Miss("itl_p95_ms", LIMIT, 12.2, 8.0, 14.0, None)
    assert runs_to_decide(across, 3) is None, "one run is outside, the runs on the whole inside"
    side = Side("a", {"max_num_seqs": 1}, 1, runs=3, limits=(near,))
    assert limits_words(setting(), side) == (
        "more than 8 runs of it would be needed to decide itl_p95_ms: too near the target to tell"
    )


def test_the_budget_that_would_decide_a_target_is_named() -> None:
    """One run with 14.5 of 12: 19 % away; with 10 % noise t(n-1) 0.1 / sqrt(n) + 0.098 is below it
    from seven runs on (2.447 x 0.1 / 2.646 = 0.0925, of 0.189 - 0.098 = 0.0912: eight).
    """
    one = Miss("itl_p95_ms", LIMIT, 14.5, 11.0, 18.0, None)
    assert runs_to_decide(one, 1) == 8
    made = setting()
    text = limits_words(made, Side("a", {"b": 1}, 1, runs=1, limits=(one,)))
    minutes = 7 * made.run_s(made.workload.duration_s) / 60
    assert text == f"about 7 more runs of it ({minutes:.1f} GPU minutes) would decide itl_p95_ms"
    decided = replace(one, met=False)
    assert limits_words(made, Side("a", {}, 1, runs=1, limits=(decided,), meets=False)) == ""


def test_what_would_tell_a_finalist_from_the_baseline_is_in_the_verdict(tmp_path: Path) -> None:
    """105 slots give 5 % more under 4 % noise: no clear winner, and the sentence says what is."""
    listed = Listed([Candidate(), Candidate({"max_num_seqs": 107})])
    with session(tmp_path, listed, TunedEngine(noise=0.045)) as begun:
        result = conclude(begun, begun.run())
    if "no clear winner" not in result.verdict:
        pytest.fail(result.verdict)
    assert "ahead with" in result.verdict
    assert "rounds would not tell" in result.verdict or "GPU minutes) would tell" in result.verdict
