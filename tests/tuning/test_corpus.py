"""The corpus of benchmarks/tuning: its truth is not its belief, its noise is real, and a subset."""

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.tuning import landscape, real
from benchmarks.tuning.ground import ReplayGround
from benchmarks.tuning.h200 import RealGround
from benchmarks.tuning.score import Score, run
from benchmarks.tuning.settings import SETTINGS
from benchmarks.tuning.tables import BEGIN, END, Bars, markdown, put
from ridgeline.tuning.port import Ask
from ridgeline.tuning.trial import Candidate


def test_every_setting_has_a_truth_that_is_not_what_the_search_believes() -> None:
    assert len(SETTINGS) >= 6
    assert landscape.FILE.stat().st_size < 1_000_000
    for setting in SETTINGS:
        ground = ReplayGround(setting, 1)
        believed, truth = ground.landscape.believed, ground.truth.figures
        assert len(truth) > 200, setting.name
        off = np.log(truth[:, 0] / believed[:, 0])
        assert np.std(off) > 0.04, setting.name
        assert math.isfinite(ground.truth.best), setting.name
        assert ground.crashing.any(), setting.name
        assert not ground.crashing[0], setting.name  # the baseline runs
        other = ReplayGround(setting, 2).truth.figures
        assert np.std(np.log(truth[:, 0] / other[:, 0])) > 0.03, setting.name


def test_noise_and_starts_are_those_of_the_stored_runs() -> None:
    noise, starts = real.noise(), real.starts()
    assert noise.freedom >= 40
    assert 0.08 < math.sqrt(noise.covariance[0, 0]) < 0.12
    assert noise.covariance[0, 1] < 0  # a slow run has long latencies
    assert 90 < starts.alone_s < 130
    assert 0 < starts.beside_s < 20
    ground = ReplayGround(SETTINGS[0], 3)
    drawn = np.array([ground.one(Candidate(), n, real.WINDOW_S)[0] for n in range(300)])
    seen = np.cov(np.log(drawn).T)
    assert np.allclose(np.sqrt(np.diag(seen)), np.sqrt(np.diag(noise.covariance)), rtol=0.2)


def test_a_start_beside_others_is_cheaper_and_a_crash_has_no_figure() -> None:
    ground = ReplayGround(SETTINGS[0], 3)
    two = [Candidate(), Candidate({"max_num_seqs": 64})]
    assert ground.cost_s(two, 10) < 1.6 * ground.cost_s(two[:1], 10)
    dead = next(c for c, crash in zip(ground.landscape.candidates, ground.crashing, strict=True)
                if crash)  # fmt: skip
    (trial,) = ground.measure(Ask((dead,), 10.0, ("",)), 1)
    assert trial.state == "crashed"
    assert trial.value is None
    assert trial.gpu_s > 100


def test_a_subset_of_the_corpus() -> None:
    """Two settings, three seeds: near the optimum in less than a third of random search's time, for
    the same GPU seconds a better answer than its, and none that does not hold. An answer that
    misses a limit in truth is worth nothing. Where all finalists are at a limit, the duel's three
    rounds may bar them all and leave the baseline: in one of these six, and no more.
    """
    ours: list[Score] = []
    lost: dict[str, list[float]] = {"ours": [], "random": []}
    for setting in (SETTINGS[2], SETTINGS[4]):
        own = [run(ReplayGround(setting, seed), "ours", seed) for seed in range(3)]
        free = [run(ReplayGround(setting, seed), "random", seed) for seed in range(3)]
        reached = [float(np.median([s.reach_s for s in found])) for found in (own, free)]
        assert reached[0] < 0.3 * reached[1], setting.name
        same = [run(ReplayGround(setting, s.seed), "random", s.seed, most_s=s.spent_s) for s in own]
        ours += own
        for score in (*own, *same):
            bad = score.infeasible or score.regret is None
            lost[score.policy].append(1.0 if bad else score.regret or 0.0)
    assert not any(s.infeasible or s.crashed for s in ours)
    assert sorted(lost["ours"])[-2] < 0.05
    assert max(s.crashes for s in ours) <= 2
    assert np.mean(lost["ours"]) < 0.5 * np.mean(lost["random"])


def test_tpe_and_grid_run_and_the_real_trials_end_with_the_best_real_configuration() -> None:
    assert run(RealGround(0), "tpe", 0).regret == 0.0
    assert run(RealGround(0), "grid", 0).trials > 2
    ours = run(RealGround(0), "ours", 0)
    assert ours.regret == 0.0
    assert ours.error is not None
    assert abs(ours.error) < 0.15


def score(policy: str, seed: int, reach: float, error: float = 0.0) -> Score:
    return Score("a", policy, seed, reach, 900.0, 0.01, False, False, error, 0, 9)


def test_bars_and_tables_tell_who_came_there_and_who_never_did(tmp_path: Path) -> None:
    scores = [score("ours", i, 100.0, e) for i, e in enumerate((0.004, -0.002, 0.001))]
    scores += [score("random", i, r) for i, r in enumerate((600.0, 1000.0, math.inf))]
    scores += [score("tpe", i, r) for i, r in enumerate((150.0, 150.0, math.inf))]
    bars = Bars.of(scores)
    assert bars is not None
    assert bars.of_random == pytest.approx(0.1)
    assert bars.of_tpe == pytest.approx(2 / 3)
    assert bars.bias == pytest.approx(0.001)
    assert not bars.met
    text = markdown(scores)
    assert "| a | 1 000 (67%) | 150 (67%) | 100 (100%) | 0.10 | 0.67 |" in text
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", "utf-8")
    put(page, text)
    assert page.read_text("utf-8").startswith("before")
    assert page.read_text("utf-8").endswith("after\n")
    assert "old" not in page.read_text("utf-8")
