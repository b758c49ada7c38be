"""An engine that stands still is told from one that is idle, slow or silent (C-ST-04)."""

import pytest

from ridgeline.telemetry.sampling import FakeProbe, Reading
from ridgeline.telemetry.stalled import StallProbe


def readings(**values: float) -> list[Reading]:
    return [Reading("engine", "replica 0", name, value) for name, value in values.items()]


def looked(script: list[list[Reading]], every_s: float = 30.0) -> StallProbe:
    now = [0.0]
    probe = StallProbe(FakeProbe(list(script)), clock=lambda: now[0])
    for group in script:
        assert list(probe.read()) == group  # passed on as they are
        now[0] += every_s
    return probe


BUSY = {"running": 12.0, "waiting": 5.0, "steps": 88_100.0}


def test_busy_without_a_step_for_30_s_is_stalled() -> None:
    probe = looked([readings(**BUSY), readings(**BUSY)])
    assert probe.stalled == ("no step and no token for 30 s with 12 requests running and 5 waiting")
    assert looked([readings(**BUSY)] * 30, every_s=1.0).stalled is None  # 29 s


@pytest.mark.parametrize(
    "second",
    [
        {**BUSY, "steps": 88_101.0},
        {**BUSY, "running": 0.0, "waiting": 0.0},
        {"running": 12.0, "waiting": 5.0},  # counters of another version: nothing is known
        {"running": 12.0, "waiting": 5.0, "generation_tokens": 7.0},
        {},
    ],
)
def test_what_moves_idles_or_does_not_say_is_not_stalled(second: dict[str, float]) -> None:
    idle = {"running": 0.0, "waiting": 0.0, "steps": 88_100.0}
    assert looked([readings(**BUSY), readings(**second)]).stalled is None
    assert looked([readings(**idle)] * 4).stalled is None


def test_a_prompt_that_takes_minutes_is_not_a_stall() -> None:
    """Steps that only carry a part of a prompt are not counted; its KV cache grows all the same."""
    script = [readings(**BUSY, kv_use=0.1 * n) for n in range(5)]
    assert looked(script).stalled is None
    assert looked([*script, script[-1]]).stalled is not None


def test_an_engine_that_counts_tokens_at_a_requests_end_is_not_judged() -> None:
    """llama.cpp: a long answer moves no counter until it is complete."""
    long = readings(running=1.0, waiting=0.0, prompt_tokens=40.0, generation_tokens=0.0)
    assert looked([long] * 10).stalled is None


def test_a_page_that_comes_back_is_judged_from_where_it_was() -> None:
    probe = looked([readings(**BUSY), [], readings(**BUSY)])
    assert probe.stalled is not None
    probe.close()
