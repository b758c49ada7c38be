"""A host that changes its speed during a tuning is told, ordinary noise is not."""

import math
import random
from pathlib import Path

import numpy as np
import pytest

from ridgeline.store.run_directory import is_finished, read_run
from ridgeline.tuning.drifting import Drift, Reading, drift_of, reading_of

H200 = Path(__file__).parents[2] / "results/h200"
VISITS = ("one-gpu", "knobs", "prompts", "prompts-again", "two-gpus")
SHUFFLES = 200


def stored(name: str) -> list[Reading]:
    folders = [f for f in sorted((H200 / name).iterdir()) if f.is_dir() and is_finished(f)]
    runs = [read_run(f) for f in folders]
    found = [reading_of(run, run.meta.experiment, 0.0) for run in runs]
    return [one for one in found if one is not None]


def shuffled(readings: list[Reading], draw: random.Random) -> list[Reading]:
    """The same runs at each other's times, within each configuration: no trend is left."""
    found = []
    for words in {r.words: None for r in readings}:
        own = [r for r in readings if r.words == words]
        tokens = [r.tokens for r in own]
        draw.shuffle(tokens)
        found += [Reading(words, r.minute, t) for r, t in zip(own, tokens, strict=True)]
    return found


def test_the_noise_of_real_hosts_is_called_a_drift_in_no_more_than_a_tenth() -> None:
    draw, alarms, by_visit = random.Random(3), 0, {}
    for name in VISITS:
        readings = stored(name)
        assert len(readings) >= 8
        told = sum(drift_of(shuffled(readings, draw)) is not None for _ in range(SHUFFLES))
        by_visit[name], alarms = told / SHUFFLES, alarms + told
    print(by_visit, alarms / SHUFFLES / len(VISITS))
    assert alarms / SHUFFLES / len(VISITS) <= 0.1 + 3 * math.sqrt(0.09 / SHUFFLES / len(VISITS))
    assert max(by_visit.values()) <= 0.2


# Minutes at which a baseline and a finalist are measured: search and duel with equal windows; with
# other windows; and the few repeats of a small budget.
PLANS = {
    "equal windows": [("b", 10.0, (0, 0.5, 1, 6, 8, 10)), ("f", 10.0, (3, 6.5, 8.5, 10.5))],
    "other windows": [("b", 5.0, (0, 0.5, 1)), ("b", 10.0, (6, 8, 10)), ("f", 10.0, (6.5, 8, 10))],
    "few": [("b", 10.0, (0, 3.4)), ("f", 10.0, (2.5, 3, 3.6))],
}


def drawn(plan: str, noise: float, random: np.random.Generator, duel: float = 0.0) -> list[Reading]:
    """No drift: independent noise about 1000 tokens/s; duel: what 10 s windows have more (log)."""
    return [
        Reading(w, m, 1000 * math.exp(noise * random.standard_normal() + duel * (s > 9)), s)
        for w, s, minutes in PLANS[plan]
        for m in minutes
    ]


@pytest.mark.parametrize("noise", [0.05, 0.1, 0.15, 0.2, 0.3])
@pytest.mark.parametrize("plan", PLANS)
def test_whatever_the_noise_is_a_tenth_without_a_drift_is_told_one(plan: str, noise: float) -> None:
    random = np.random.default_rng(7)
    told = sum(drift_of(drawn(plan, noise, random)) is not None for _ in range(1500))
    print(f"{plan}, noise {noise:.0%}: told in {told / 1500:.1%}")
    assert told / 1500 <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / 1500)


def test_a_duel_with_longer_windows_is_no_drift() -> None:
    """They had 10 % less, by their length: a level of their own."""
    random = np.random.default_rng(8)
    draws = [drawn("other windows", 0.06, random, duel=-0.1) for _ in range(600)]
    told = sum(drift_of(d) is not None for d in draws)
    assert told / 600 <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / 600)


# A visit to an H200 host in December 2026: output tokens/s of two configurations, by the minute.
VISIT = [
    Reading("baseline", 0.0, 3494.2), Reading("a", 2.5, 8395.0), Reading("a", 3.0, 7018.0),
    Reading("baseline", 3.4, 2819.0), Reading("a", 3.6, 6417.5),
]  # fmt: skip
SLOWED = [
    *VISIT, Reading("baseline", 5.0, 2600.0), Reading("a", 5.3, 5900.0),
    Reading("baseline", 6.6, 2350.0), Reading("a", 6.9, 5400.0),
]  # fmt: skip


def test_five_runs_that_scatter_by_a_tenth_do_not_show_that_the_host_slowed() -> None:
    """t = 2.0 with two degrees of freedom: as much in 18 of 100 tunings without a drift."""
    assert drift_of(VISIT) is None


def test_a_host_that_slowed_is_told_with_each_configurations_factor() -> None:
    found = drift_of(SLOWED)
    assert isinstance(found, Drift)
    text = found.sentence()
    assert "seems to have slowed" in text
    assert "baseline × 0.67 between minute 0 and 7" in text
    assert "a × 0.64 between minute 2 and 7" in text
    assert "cancels as far as both runs of a round have it" in text
    assert "worst run" not in text
    back = [Reading(r.words, -r.minute, r.tokens) for r in SLOWED]
    faster = drift_of(back)
    assert faster is not None
    assert "became faster" in faster.sentence()
    assert "in blocks, so pairs carry it in full" in faster.sentence(in_blocks=True)


def test_what_moves_by_two_percent_is_no_news() -> None:
    calm = [Reading("b", m, 1000 * (1 - 0.002 * m)) for m in range(10)]
    assert drift_of(calm) is None


def test_one_run_each_tells_nothing() -> None:
    assert drift_of([Reading(w, i, 1000.0 / (1 + i)) for i, w in enumerate("abc")]) is None
    assert drift_of([]) is None
