"""The certificate: distance to the bounds, and what searching on would bring."""

from ridgeline.experiment.capacity import Bound
from ridgeline.tuning.certificate import Basis, certify
from ridgeline.tuning.search import Outlook

SURE = Basis("the twin, calibrated on four runs", 0.001)
OWN, ANY = Bound(64, 0.005, 10_000.0), Bound(128, 0.008, 16_000.0, {"quantization": "fp8"})


def test_a_search_that_is_done_says_how_near_which_bounds_it_is_and_what_is_left() -> None:
    found = certify(
        8300.0, OWN, ANY, Outlook(0.002, -0.01, None, 0.95, 310, 0.03, 0.03), basis=SURE
    )
    assert found.complete
    bounds, left = found.sentences()
    assert "are 52% of the roofline bound over all weights and KV types (16\u2009000:" in bounds
    assert "83% of the scheduling bound of its own settings (10\u2009000:" in bounds
    assert "by the GPU's data sheet" in bounds
    assert "Neither bound is calibrated" in bounds
    assert left == (
        "By the twin, calibrated on four runs no setting is expected to give more than 0.2 %"
        " over the one named here among 310 looked at; each is known within its error only, and"
        " that any of them gives 2 % more inside the targets than the one named here has a"
        " probability of 3%."
    )


def test_no_more_is_claimed_than_the_twins_error_allows() -> None:
    """A twin that errs by a quarter cannot say that nothing is worth more than 0.2 %."""
    rough = Basis("the twin, its constants prior", 0.22)
    _, left = certify(
        8300.0, OWN, ANY, Outlook(0.002, -0.01, None, 0.95, 310, 0.03, 0.03), basis=rough
    ).sentences()
    assert "known within ±25 % only (nine times of ten), so a smaller gain" in left
    _, wide = certify(
        8300.0, OWN, ANY, Outlook(0.4, 0.4, None, 0.95, 310, 0.9, 0.9), basis=rough
    ).sentences()
    assert "±" not in wide, "what it expects is above its error"


def test_a_budget_that_ended_it_and_a_contradicted_twin_are_said() -> None:
    outlook = Outlook(0.05, 0.08, None, 0.2, 310, 0.6, 0.6)
    found = certify(8300.0, OWN, ANY, outlook, ended="its budget is used")
    assert not found.complete
    _, words = found.sentences()
    assert words.startswith("By the measurements (the twin is contradicted by them) no setting")
    assert "more than 8.3 %" in words
    assert words.endswith("; the search had more to try: its budget is used.")
    (_, silent) = certify(8300.0, OWN, ANY, outlook).sentences()
    assert "budget" not in silent, "what did not end it is not blamed"


def test_a_share_above_one_is_not_hidden() -> None:
    assert (
        certify(12_000.0, OWN, ANY, Outlook(0.0, 0.0, None, 1.0, 3, 0.0, 0.0)).share_of_own == 1.2
    )


def test_the_chance_is_over_the_one_that_is_named_also_where_the_search_has_no_answer() -> None:
    """Without an answer the search's own chance is 1: beside "no setting gives more" it was read
    as one over the one named.
    """
    outlook = Outlook(0.3, 0.01, None, 0.95, 309, 1.0, 0.12, answered=False)
    found = certify(8300.0, OWN, ANY, outlook, basis=SURE, ended="its budget is used")
    assert not found.complete
    _, words = found.sentences()
    assert "more than 1.0 % over the one named here" in words, "a gain over nothing is none over it"
    assert "2 % more inside the targets than the one named here has a probability of 12%" in words
    assert "100%" not in words
    assert "nothing that the search measured meets the targets for sure; the search had" in words
    free = certify(8300.0, OWN, ANY, Outlook(0.0, 0.0, None, 1.0, 3, 0.0, 0.0, targets=False))
    assert "the targets" not in free.sentences()[1]
