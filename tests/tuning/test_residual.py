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


def test_the_noise_between_runs_is_what_repeats_of_one_configuration_show() -> None:
    """A host that drifted: 8 390, 7 020 and 6 420 tokens/s of one configuration in six minutes.
    Runs that knew of 3 % each do not bear that out, and one more is as uncertain.
    """
    near = 0.03
    steady = [Reading(3, 9.0 + s, near) for s in (-0.02, 0.01, 0.02, -0.01)]
    drifted = [Reading(3, float(np.log(v)), near) for v in (8390, 7020, 6420, 7600)]
    quiet, loud = Residual(PLACES, WORLD, steady), Residual(PLACES, WORLD, drifted)
    unseen = Residual(PLACES, WORLD, steady[:1])
    assert quiet.between < unseen.between < loud.between
    assert loud.between > 0.1
    assert quiet.between < 0.05
    # so the truth of what was measured once is known less well on such a host
    one = Reading(70, float(WORLD[70]), near)
    after = [Residual(PLACES, WORLD, [*r, one]).predict()[1][70] for r in (steady, drifted)]
    assert after[1] > 1.5 * after[0]


def test_a_bound_moves_what_was_thought_to_be_within_and_not_what_was_far_beyond() -> None:
    seen = read(range(6))
    model = Residual(PLACES, WORLD, seen)
    mean, spread = model.predict()
    row = 40
    within = float(mean[row] + 1.0 * spread[row])
    again = Residual(PLACES, WORLD, [*seen, *model.beyond([row], within)])
    assert again.predict()[0][row] > mean[row] + 0.5 * spread[row]
    beyond = float(mean[row] - 3 * np.hypot(spread[row], model.noise))
    same = Residual(PLACES, WORLD, [*seen, *model.beyond([row], beyond)])
    assert abs(same.predict()[0][row] - mean[row]) < 0.3 * spread[row]
