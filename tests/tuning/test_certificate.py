"""The certificate: distance to the bounds, and what searching on would bring."""

from ridgeline.experiment.capacity import Bound
from ridgeline.tuning.certificate import certify
from ridgeline.tuning.search import Outlook

OWN, ANY = Bound(64, 0.005, 10_000.0), Bound(128, 0.008, 16_000.0, {"quantization": "fp8"})


def test_a_search_that_is_done_says_how_near_the_bounds_it_is_and_what_is_left() -> None:
    found = certify(8300.0, OWN, ANY, Outlook(0.002, -0.01, None, 0.95, 310))
    assert found.complete
    assert found.sentence() == (
        "at 52% of the bound of any setting and 83% of its own settings'; the twin sees no setting"
        " worth more than 0.2 % among 310 looked at"
    )


def test_a_budget_that_ended_it_and_a_contradicted_twin_are_said() -> None:
    found = certify(8300.0, OWN, ANY, Outlook(0.05, 0.08, None, 0.2, 310))
    assert not found.complete
    words = found.sentence()
    assert (
        "the measurements (the twin is contradicted) show no setting worth more than 8.3 %" in words
    )
    assert words.endswith("the budget ended the search before it was done")


def test_a_share_above_one_is_not_hidden() -> None:
    assert certify(12_000.0, OWN, ANY, Outlook(0.0, 0.0, None, 1.0, 3)).share_of_own == 1.2
