"""The router's rules, by hand."""

from ridgeline.domain.routing import AHEAD, Router


def test_round_robin_takes_turns_whatever_is_on_the_way() -> None:
    router = Router("round-robin", 3)
    assert [router.choose() for _ in range(4)] == [0, 1, 2, 0]
    router.ended(2)
    assert router.choose() == 1
    assert router.in_flight == [2, 2, 0]


def test_least_loaded_goes_to_the_fewest_and_in_turn_among_equals() -> None:
    router = Router("least-loaded", 3)
    assert [router.choose() for _ in range(6)] == [0, 1, 2, 0, 1, 2]
    router.ended(1)
    router.ended(1)
    assert router.choose() == 1  # 2, 0, 2
    assert router.choose() == 1  # 2, 1, 2
    assert router.choose() == 2  # all have two: the next in turn after 1


def test_prefix_aware_keeps_a_prefix_together() -> None:
    router = Router("prefix-aware", 2)
    first, second = router.choose("a"), router.choose("b")
    assert {first, second} == {0, 1}
    assert {router.choose("a") for _ in range(AHEAD - 1)} == {first}
    # 16 against 1 is not yet too far; one more is: 17 - 1 = 16
    assert router.choose("a") == first
    assert router.choose("a") == second
    assert router.choose("a") == second  # which knows it now, and has fewer


def test_prefix_aware_sends_what_shares_nothing_to_the_least_loaded() -> None:
    router = Router("prefix-aware", 2)
    for _ in range(5):
        router.choose("a")
    assert router.choose(None) == 1
    assert router.in_flight == [5, 1]


def test_prefix_aware_stays_with_a_large_fleet_that_is_evenly_busy() -> None:
    router = Router("prefix-aware", 2)
    router.in_flight = [99, 100]
    assert router.choose("a") == 0
    router.in_flight = [130, 100]  # 30 more, but not half as many again
    assert router.choose("a") == 0
