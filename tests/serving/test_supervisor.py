"""The supervisor decides as it should, in a made-up world with a made-up clock."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_world import World

from ridgeline.serving.backoff import BackOff
from ridgeline.serving.states import Phase, State, Stop, Wanted
from ridgeline.serving.supervisor import Policy


def opened(**given: object) -> World:
    world = World(**given)  # type: ignore[arg-type]
    world.begin()
    world.run(12.0)
    assert world.supervisor.phase is Phase.SERVING
    return world


def test_all_replicas_start_side_by_side_each_on_its_gpus() -> None:
    world = World(count=2, gpus=["0", "1", "2", "3"], gpus_each=2)
    world.begin()
    assert world.alive == {0: ("0", "1"), 1: ("2", "3")}
    world.run(9.0)
    assert not world.rotation
    world.run(12.0)
    assert world.rotation == {0, 1}
    assert [at for at, _ in world.events("serving")] == [pytest.approx(10.2, abs=0.15)]


@pytest.mark.parametrize(
    ("count", "up", "change"),
    [
        (1, "1 replica is up", "to 1 replica"),
        (2, "2 replicas are up", "to 2 replicas, one at a time"),
    ],
)
def test_one_replica_is_told_as_one(count: int, up: str, change: str) -> None:
    world = opened(count=count)
    assert [tell.words for _, tell in world.events("serving")] == [up]
    world.do(world.supervisor.change(Wanted(1, count, 0), world.now))
    assert [tell.words for _, tell in world.events("changing")] == [change]


def test_too_few_gpus_end_it_with_the_reason() -> None:
    world = World(count=2, gpus=["0"], gpus_each=1)
    world.begin()
    world.run(10.0)
    assert world.supervisor.phase is Phase.ENDED
    assert "fewer free GPUs" in (world.supervisor.failure or "")
    assert not world.alive


def test_a_configuration_that_never_answered_is_not_tried_again() -> None:
    world = World(fails=lambda generation, number: number == 1)
    world.begin()
    world.run(10.0)
    assert world.supervisor.failure == "replica 1 did not start: out of memory"
    assert world.supervisor.phase is Phase.ENDED
    assert not world.alive
    assert len(world.events("starting")) == 2


def test_a_dead_one_leaves_at_once_and_is_back_after_its_start_up_time() -> None:
    world = opened()
    world.run(20.0)
    world.die(0)
    assert world.rotation == {1}
    world.run(33.0)
    assert world.rotation == {1}
    world.run(34.0)  # 2 s to stop, at most 1 s of back-off, 10 s to start, 0.2 s to enter
    assert world.rotation == {0, 1}
    (replica,) = [r for r in world.supervisor.replicas if r.number == 0]
    assert replica.restarts == 1
    assert world.kills == [0]


def test_waits_double_up_to_the_cap_and_it_is_given_up_with_a_line() -> None:
    back_off = BackOff(first_s=1.0, cap_s=4.0, jitter=0.0)
    world = opened(policy=Policy(back_off=back_off, give_up=4))
    broken = {0}
    world.fails = lambda generation, number: number in broken
    world.die(0)
    world.run(60.0)
    waits = [tell.words for _, tell in world.events("waiting")]
    assert waits == [f"it is started again in {s:.1f} s" for s in (1, 2, 4, 4)]
    ((_, given_up),) = world.events("given-up")
    assert given_up.words == "given up after 5 failures in a row, the last: out of memory"
    assert world.states() == {0: State.FAILED, 1: State.UP}
    assert world.supervisor.phase is Phase.SERVING
    broken.add(1)
    world.die(1)
    world.run(120.0)
    assert world.supervisor.phase is Phase.ENDED
    assert "every replica was given up" in (world.supervisor.failure or "")


def test_failures_are_forgotten_once_it_was_up_for_a_while() -> None:
    policy = Policy(BackOff(first_s=1.0, jitter=0.0), give_up=3, stable_s=50.0)
    world = opened(policy=policy)
    for _ in range(6):
        world.run(world.now + 70.0)
        world.die(0)
    world.run(world.now + 20.0)
    assert {tell.words for _, tell in world.events("waiting")} == {"it is started again in 1.0 s"}
    assert not world.events("given-up")


def test_the_jitter_keeps_two_apart_and_never_waits_longer() -> None:
    back_off, stream = BackOff(first_s=2.0, cap_s=60.0, jitter=0.5), random.Random(3)
    waits = [back_off.wait_s(3, stream) for _ in range(200)]
    assert 4.0 < min(waits) < 4.2
    assert 7.8 < max(waits) <= 8.0
    assert back_off.wait_s(10_000, stream) <= 60.0


def test_stop_lets_requests_end_and_a_second_one_does_not() -> None:
    world = opened(drains_s=30.0)
    world.do(world.supervisor.stop(world.now))
    assert not world.rotation  # nothing new is let in
    world.run(20.0)
    assert len(world.alive) == 2
    world.do(world.supervisor.stop_now(world.now))
    assert sorted(world.kills) == [0, 1]
    world.run(23.0)
    assert world.supervisor.phase is Phase.ENDED
    assert not world.alive


def test_a_drain_has_an_end() -> None:
    world = opened(drains_s=1e6, policy=Policy(drain_s=5.0))
    world.do(world.supervisor.stop(world.now))
    world.run(world.now + 8.0)
    assert world.supervisor.phase is Phase.ENDED
    assert len(world.events("cut")) == 2
    assert world.supervisor.failure is None


def test_one_that_is_still_starting_is_ended_by_a_stop() -> None:
    world = World()
    world.begin()
    world.run(3.0)
    world.do(world.supervisor.stop(world.now))
    world.run(6.0)
    assert world.supervisor.phase is Phase.ENDED
    assert not world.alive
    world.run(20.0)  # its late "ready" changes nothing
    assert not world.rotation


def test_a_change_starts_the_new_one_beside_where_a_gpu_is_free() -> None:
    world = opened(gpus=["0", "1", "2"], gpus_each=1)
    world.do(world.supervisor.change(Wanted(1, 2, 1), world.now))
    world.run(world.now + 60.0)
    assert world.fewest_up == 2  # never fewer than before
    assert world.most_alive == 3
    assert {r.generation for r in world.supervisor.replicas} == {1}
    assert world.supervisor.phase is Phase.SERVING
    assert len(world.events("changed")) == 1
    assert not world.kills  # each was drained, none killed


def test_a_change_without_a_free_gpu_takes_one_out_first() -> None:
    world = opened(gpus=["0", "1"], gpus_each=1)
    world.do(world.supervisor.change(Wanted(1, 2, 1), world.now))
    world.run(world.now + 60.0)
    assert (world.fewest_up, world.most_alive) == (1, 2)
    assert {r.generation for r in world.supervisor.replicas} == {1}
    assert not world.events("gap")


def test_a_change_of_a_single_one_says_that_there_is_a_gap() -> None:
    world = opened(count=1, gpus=["0"], gpus_each=1)
    world.do(world.supervisor.change(Wanted(1, 1, 1), world.now))
    world.run(world.now + 60.0)
    assert world.fewest_up == 0
    ((_, gap),) = world.events("gap")
    assert "requests are refused meanwhile" in gap.words


@pytest.mark.parametrize("gpus", [("0", "1"), ("0", "1", "2")])
def test_a_new_configuration_that_fails_is_rolled_back(gpus: tuple[str, ...]) -> None:
    world = opened(gpus=gpus, gpus_each=1, fails=lambda generation, number: generation == 1)
    world.do(world.supervisor.change(Wanted(1, 2, 1), world.now))
    world.run(world.now + 60.0)
    ((_, said),) = world.events("rolling-back")
    assert said.words == "replica 2 did not start: out of memory; the former configuration stays"
    assert len(world.events("rolled-back")) == 1
    assert [r.generation for r in world.supervisor.replicas] == [0, 0]
    assert set(world.states().values()) == {State.UP}
    assert world.fewest_up == len(gpus) - 1
    assert world.supervisor.failure is None


def test_a_second_replica_that_fails_takes_the_first_new_one_back_too() -> None:
    world = opened(gpus=["0", "1"], gpus_each=1,
                   fails=lambda generation, number: generation == 1 and number > 2)  # fmt: skip
    world.do(world.supervisor.change(Wanted(1, 2, 1), world.now))
    world.run(world.now + 120.0)
    assert len(world.events("rolled-back")) == 1
    assert [r.generation for r in world.supervisor.replicas] == [0, 0]
    assert world.fewest_up == 1


def test_a_change_may_have_other_sizes() -> None:
    world = opened(gpus=["0", "1", "2", "3"], gpus_each=1, count=4)
    world.do(world.supervisor.change(Wanted(1, 2, 2), world.now))
    world.run(world.now + 120.0)
    assert [r.gpus for r in world.supervisor.replicas] == [("0", "1"), ("2", "3")]
    assert world.fewest_up >= 1
    assert world.supervisor.phase is Phase.SERVING


def test_no_change_while_it_opens_or_changes() -> None:
    world = World()
    world.begin()
    world.do(world.supervisor.change(Wanted(1, 2), world.now))
    world.run(12.0)
    assert len(world.events("ignored")) == 1
    assert {r.generation for r in world.supervisor.replicas} == {0}


def test_an_old_one_that_dies_in_a_change_is_not_started_again() -> None:
    world = opened()
    world.do(world.supervisor.change(Wanted(1, 2), world.now))
    world.run(world.now + 2.0)
    world.die(1)
    world.run(world.now + 60.0)
    assert [r.generation for r in world.supervisor.replicas] == [1, 1]
    assert sum(tell.replica == 1 for _, tell in world.events("starting")) == 1


def test_an_old_one_that_is_just_starting_is_not_waited_for() -> None:
    world = opened()
    world.die(1)
    world.run(world.now + 5.0)
    assert world.states()[1] is State.STARTING
    world.do(world.supervisor.change(Wanted(1, 2), world.now))
    begun = world.now
    world.run(world.now + 60.0)
    assert [r.generation for r in world.supervisor.replicas] == [1, 1]
    assert world.kills == [1, 1]
    ((changed, _),) = world.events("changed")
    assert changed - begun < 2.1 + 2 * 10.5 + 5.5  # a stop, two starts, one drain


def test_what_is_told_late_changes_nothing() -> None:
    world = opened()
    sup = world.supervisor
    assert sup.left(0, world.now) == sup.idle(0, world.now) == sup.ready(0, world.now) == []
    assert sup.stopped(0, world.now) == sup.entered(99, world.now) == []
    first = sup.lost(0, "it ended", world.now)
    assert [a for a in first if isinstance(a, Stop)] == [Stop(0, kill=True)]
    assert sup.lost(0, "it hangs", world.now) == []  # once is enough


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32), count=st.integers(1, 4), spare=st.integers(0, 2),
    beside=st.booleans(),
)  # fmt: skip
def test_whatever_happens_it_ends_with_nothing_left(
    seed: int, count: int, spare: int, beside: bool
) -> None:
    """Deaths, failing starts, changes and stops at random; the world checks what must hold."""
    chance = random.Random(seed)
    world = World(
        count=count, gpus=[str(i) for i in range(count + spare)], gpus_each=1,
        policy=Policy(beside=beside, give_up=3, drain_s=10.0), starts_s=4.0,
        drains_s=chance.choice([0.5, 1e6]),
        fails=lambda generation, number: generation > 0 and chance.random() < 0.3,
    )  # fmt: skip
    world.begin()
    generation = 0
    for _ in range(12):
        world.run(world.now + chance.uniform(0.0, 15.0))
        match chance.randrange(4):
            case 0 | 1:
                if world.alive:
                    world.die(chance.choice(sorted(world.alive)))
            case 2:
                generation += 1
                world.do(world.supervisor.change(Wanted(generation, count, 1), world.now))
        assert len(world.alive) <= count + spare
    world.run(world.now + 200.0)
    if world.supervisor.phase is Phase.SERVING:  # it has settled: all that can be is up
        kept = world.states()
        assert len(kept) == count
        assert set(kept.values()) <= {State.UP, State.FAILED}
    world.do(world.supervisor.stop(world.now))
    world.run(world.now + 30.0)
    assert world.supervisor.phase is Phase.ENDED
    assert not world.alive
    assert not world.rotation


def test_a_second_stop_hurries_what_is_already_being_ended() -> None:
    world = World(drains_s=1.0, stops_s=30.0)
    world.begin()
    world.run(15.0)
    world.do(world.supervisor.stop(world.now))
    world.run(20.0)
    assert set(world.states().values()) == {State.STOPPING}
    world.do(world.supervisor.stop_now(world.now))
    assert world.hurried == [0, 1]
    world.run(60.0)
    assert world.supervisor.phase is Phase.ENDED


def test_a_change_for_which_gpus_are_missing_is_rolled_back_and_not_the_end() -> None:
    world = World(gpus=("0", "1"), gpus_each=1)
    world.begin()
    world.run(15.0)
    world.do(world.supervisor.change(Wanted(1, 3, 1), world.now))
    world.run(200.0)
    assert world.supervisor.phase is Phase.SERVING
    assert world.supervisor.failure is None
    assert len(world.events("rolled-back")) == 1
    assert {r.generation for r in world.supervisor.replicas} == {0}
