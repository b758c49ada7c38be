"""An engine that stands still is told from one that is idle, slow or silent (C-ST-04)."""

import pytest

from ridgeline.telemetry.sampling import FakeProbe, Reading
from ridgeline.telemetry.stalled import STALLED_CPU_S, Quiet, StallProbe


def readings(**values: float) -> list[Reading]:
    return [Reading("engine", "replica 0", name, value) for name, value in values.items()]


def looked(
    script: list[list[Reading]],
    every_s: float = 30.0,
    limit_s: float | None = None,
    client: list[tuple[int | None, int]] | None = None,
) -> StallProbe:
    """`client`: chunks until then and requests in flight, beside every reading."""
    now = [0.0]
    quiet = Quiet(clock=lambda: now[0])
    probe = StallProbe(FakeProbe(list(script)), limit_s, clock=lambda: now[0], quiet=quiet)
    for i, group in enumerate(script):
        if client is not None:
            quiet.look(*client[i])
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


@pytest.mark.parametrize(("running", "waiting"), [(0.0, 5.0), (3.0, 0.0)])
def test_requests_that_only_wait_or_only_run_are_held_too(running: float, waiting: float) -> None:
    held = readings(running=running, waiting=waiting, steps=7.0)
    said = f"with {running:.0f} requests running and {waiting:.0f} waiting"
    assert said in (looked([held, held]).stalled or "")


def test_the_limit_is_the_launchs_own() -> None:
    """One step of 39 s on a CPU is no standstill."""
    slow = [readings(running=1.0, waiting=0.0, steps=5.0, kv_use=0.3)] * 40
    assert looked(slow, every_s=1.0, limit_s=STALLED_CPU_S).stalled is None
    assert looked(slow, every_s=1.0).stalled is not None
    assert looked(slow * 8, every_s=1.0, limit_s=STALLED_CPU_S).stalled is not None


SILENT: list[list[Reading]] = [readings(**BUSY), *[[]] * 40]


def test_a_page_that_falls_silent_with_the_client_is_a_standstill() -> None:
    probe = looked(SILENT, every_s=1.0, client=[(880, 17)] * 41)
    assert probe.stalled == (
        "its page of counters has been silent for 40 s, and no chunk came for 40 s with 17 requests"
        " in flight"
    )


@pytest.mark.parametrize(
    "client",
    [
        [(n, 17) for n in range(41)],  # chunks come: the page is late, not the engine
        [(n // 20, 17) for n in range(41)],  # the last came 20 s, then 0 s ago
        [(880, 0)] * 41,  # nothing is asked of it
        [(None, 17)] * 41,  # not known
        None,
    ],
)
def test_a_silent_page_alone_is_no_standstill(client: list[tuple[int | None, int]] | None) -> None:
    assert looked(SILENT, every_s=1.0, client=client).stalled is None


def test_a_server_without_a_page_is_not_judged_by_its_silence() -> None:
    assert looked([[]] * 41, every_s=1.0, client=[(880, 17)] * 41).stalled is None


def test_a_wait_that_began_after_the_page_fell_silent_counts_from_its_beginning() -> None:
    client: list[tuple[int | None, int]] = [(880, 0)] * 20 + [(880, 17)] * 21
    assert looked(SILENT, every_s=1.0, client=client).stalled is None


def test_a_page_that_missed_one_reading_is_not_silent_whatever_the_client_waits_for() -> None:
    """Its steps move all the while, and the client's prompts are long."""
    script = [readings(**{**BUSY, "steps": float(n)}) if n % 5 else [] for n in range(1, 42)]
    assert looked(script, every_s=1.0, client=[(880, 17)] * 41).stalled is None


def test_a_client_with_nothing_in_flight_is_not_waiting() -> None:
    now = [0.0]
    quiet = Quiet(clock=lambda: now[0])
    assert quiet.seconds == 0.0
    quiet.look(5, 0)
    now[0] = 100.0
    assert quiet.seconds == 0.0
    quiet.look(5, 2)
    now[0] = 103.0
    quiet.look(5, 2)
    now[0] = 107.0
    assert quiet.seconds == 7.0
