"""A host that changes its speed during a tuning is told, ordinary noise is not."""

import random
from pathlib import Path

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
    assert alarms / SHUFFLES / len(VISITS) <= 0.1
    assert max(by_visit.values()) <= 0.2


# A visit to an H200 host in December 2026: output tokens/s of two configurations, by the minute.
SLOWED = [
    Reading("baseline", 0.0, 3494.2), Reading("a", 2.5, 8395.0), Reading("a", 3.0, 7018.0),
    Reading("baseline", 3.4, 2819.0), Reading("a", 3.6, 6417.5),
]  # fmt: skip


def test_a_host_that_slowed_is_told_with_each_configurations_factor() -> None:
    found = drift_of(SLOWED)
    assert isinstance(found, Drift)
    text = found.sentence()
    assert "seems to have slowed" in text
    assert "baseline × 0.81 between minute 0 and 3" in text
    assert "a × 0.76 between minute 2 and 4" in text
    back = [Reading(r.words, -r.minute, r.tokens) for r in SLOWED]
    faster = drift_of(back)
    assert faster is not None
    assert "became faster" in faster.sentence()


def test_one_run_each_tells_nothing() -> None:
    assert drift_of([Reading(w, i, 1000.0 / (1 + i)) for i, w in enumerate("abc")]) is None
    assert drift_of([]) is None
