"""When a replica counts as hung or unwell, and when as busy."""

from ridgeline.serving.pulse import Limits, Pulse

LIMITS = Limits(hung_s=10.0, probe_s=2.0, page_s=1.0)
BUSY = {"running": 16.0, "waiting": 5.0, "steps": 100.0, "generation_tokens": 900.0, "kv_use": 0.4}


def looked(pulse: Pulse, begin: int, end: int) -> str | None:
    """What it says at the end, asked every second, as its owner does."""
    said = None
    for second in range(begin, end + 1):
        said = pulse.trouble(float(second))
    return said


def test_no_answer_and_no_step_is_hung_whatever_health_says() -> None:
    pulse = Pulse(LIMITS, 0.0)
    pulse.answered(1.0, 0.02)
    for second in range(1, 11):
        pulse.health(200)
        pulse.page(float(second), BUSY, own=1)  # the first one is news, then it is frozen
    assert looked(pulse, 1, 10) is None
    assert looked(pulse, 11, 11) == "hung: no completion and no step for 10.0 s, 20 requests in it"


def test_moving_counters_are_life_though_no_completion_comes() -> None:
    pulse = Pulse(LIMITS, 0.0)
    for second in range(1, 60):
        pulse.page(float(second), {**BUSY, "generation_tokens": 900.0 + second // 8}, own=1)
        assert pulse.trouble(float(second)) is None


def test_a_long_prompt_moves_the_kv_cache_only() -> None:
    pulse = Pulse(LIMITS, 0.0)
    for second in range(1, 60):
        pulse.page(float(second), {**BUSY, "kv_use": 0.4 + second / 200}, own=1)
        assert pulse.trouble(float(second)) is None


def test_a_server_without_such_counters_lives_by_its_answers() -> None:
    pulse = Pulse(LIMITS, 0.0)
    for second in range(1, 30):
        pulse.page(float(second), {}, own=0)
        if second % 2:
            pulse.answered(float(second), 0.5)
        assert pulse.trouble(float(second)) is None
    assert pulse.running is None
    assert "hung" in (looked(pulse, 30, 40) or "")


def test_errors_are_no_life_and_are_quoted() -> None:
    pulse = Pulse(LIMITS, 0.0)
    for second in range(1, 10):
        pulse.refused("500 Internal Server Error: EngineDeadError")
        assert pulse.trouble(float(second)) is None
    said = looked(pulse, 10, 10)
    assert said is not None
    assert said.endswith("last it answered 500 Internal Server Error: EngineDeadError")


def test_health_must_fail_twice() -> None:
    pulse = Pulse(LIMITS, 0.0)
    pulse.health(503)
    assert pulse.trouble(1.0) is None
    pulse.health(200)
    pulse.health(None)
    assert pulse.trouble(2.0) is None
    pulse.health(None)
    assert pulse.trouble(3.0) == "unwell: /health: nobody listens, 2 times in a row"


def test_time_in_which_nobody_looked_is_not_held_against_it() -> None:
    pulse = Pulse(LIMITS, 0.0)
    assert looked(pulse, 1, 5) is None
    assert pulse.trouble(3600.0) is None  # the machine slept
    assert looked(pulse, 3601, 3602) is None
    assert looked(pulse, 3603, 3607) is not None


def test_our_own_completion_is_not_counted_as_a_request() -> None:
    pulse = Pulse(LIMITS, 0.0)
    pulse.page(1.0, {"running": 1.0, "waiting": 0.0}, own=1)
    assert pulse.running == 0.0
    pulse.page(2.0, {"running": 1.0, "waiting": 1.0}, own=1)
    assert pulse.running == 1.0


def test_it_is_empty_only_by_pages_without_a_completion_of_ours() -> None:
    """Or a request of somebody would be taken for ours that is still on its way."""
    pulse = Pulse(LIMITS, 0.0)
    pulse.page(1.0, {"running": 1.0, "waiting": 0.0}, own=1)
    assert pulse.empty_pages == 0
    pulse.page(2.0, {"running": 0.0, "waiting": 0.0}, own=0)
    pulse.page(3.0, {"running": 1.0, "waiting": 0.0}, own=1)
    pulse.page(4.0, {"running": 0.0, "waiting": 0.0}, own=0)
    assert pulse.empty_pages == 2
    pulse.page(5.0, {"running": 1.0, "waiting": 0.0}, own=0)
    assert pulse.empty_pages == 0


def test_without_counters_a_full_queue_is_not_hung_and_a_silent_health_is() -> None:
    pulse = Pulse(LIMITS, 0.0)
    for second in range(1, 60):
        pulse.page(float(second), {}, own=1)
        pulse.health(200)
        pulse.well(float(second))
        assert pulse.trouble(float(second)) is None
    said = looked(pulse, 60, 69)
    assert said is not None
    assert said.startswith("hung: no completion and no step for")
