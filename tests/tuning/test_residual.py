"""The residual model: what measurements say about a twin's predictions."""

import numpy as np

from ridgeline.tuning.residual import Reading, Residual

RANDOM = np.random.default_rng(3)
PLACES = RANDOM.uniform(0, 1, (150, 4))
WORLD = 8.0 + 1.2 * PLACES[:, 0] - 0.9 * PLACES[:, 1] + 0.5 * np.sin(5 * PLACES[:, 2])


def read(rows: range, noise: float = 0.03) -> list[Reading]:
    return [Reading(r, float(WORLD[r] + noise * RANDOM.standard_normal()), noise) for r in rows]


def test_without_measurements_the_twin_is_what_is_believed() -> None:
    mean, spread = Residual(PLACES, WORLD, ()).predict()
    assert np.corrcoef(mean, WORLD)[0, 1] > 0.99
    assert (spread > 0.3).all()  # a host may be quite another


def test_a_twin_that_is_right_but_for_the_host_needs_one_measurement() -> None:
    model = Residual(PLACES, WORLD - 0.35, read(range(1)))
    mean, _ = model.predict()
    assert np.abs(mean - WORLD).mean() < 0.1


def test_an_error_of_one_setting_is_learnt_from_a_few_measurements() -> None:
    fast = PLACES[:, 3] > 0.5
    twin = WORLD + 0.3 * fast  # believes in a gain of this setting that is not there
    mean, _ = Residual(PLACES, twin, read(range(12))).predict()
    off = (mean - WORLD)[20:]
    assert abs(off[fast[20:]].mean() - off[~fast[20:]].mean()) < 0.15  # of 0.3


def test_a_contradicted_twin_loses_its_weight_and_a_right_one_keeps_it() -> None:
    right = Residual(PLACES, WORLD, read(range(12)))
    shuffled = np.random.default_rng(8).permutation(WORLD)
    wrong = Residual(PLACES, shuffled, read(range(12)))
    assert right.belief > 0.9
    assert wrong.belief < 0.2
    alone = Residual(PLACES, np.full(150, np.nan), read(range(30)))
    misled = Residual(PLACES, shuffled, read(range(30)))
    errors = [np.abs(m.predict()[0] - WORLD)[30:].mean() for m in (misled, alone)]
    assert errors[0] < 1.5 * errors[1]  # no worse off than a search without a twin


def test_the_spread_holds_the_truth() -> None:
    bent = WORLD + 0.15 * np.cos(4 * PLACES[:, 1]) + 0.1
    mean, spread = Residual(PLACES, bent, read(range(15), 0.05)).predict()
    z = (mean - WORLD)[15:] / spread[15:]
    assert 0.85 < (np.abs(z) < 1.96).mean() <= 1.0


def test_draws_have_the_mean_and_spread_of_the_prediction() -> None:
    model = Residual(PLACES, WORLD, read(range(5)))
    mean, spread = model.predict()
    drawn = model.draws(range(10, 20), 4000, np.random.default_rng(1))
    assert np.allclose(drawn.mean(axis=0), mean[10:20], atol=0.02)
    assert np.allclose(drawn.std(axis=0), spread[10:20], rtol=0.1)
