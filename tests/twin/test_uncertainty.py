"""Propagation of what is not known about the constants."""

from dataclasses import fields, replace

import numpy as np
import pytest

from ridgeline.domain.bands import TOKENS
from ridgeline.twin.constants import PRIORS, Constants
from ridgeline.twin.uncertainty import FIXED, Doubt, calibrated_doubt, design, prior_doubt, spread


def test_the_design_propagates_a_linear_figure_exactly() -> None:
    """log figure = 0.5 log a - 2 log b + log c, with a and b moving apart in one direction."""
    directions = (
        {"step_gap_ns": 0.1, "update_ns": -0.05},
        {"receive_ns": 0.3},
        {"receive_ns": 0.1, "step_gap_ns": 0.2},
    )
    seen = []
    for c in design(PRIORS, directions):
        figure = c.step_gap_ns**0.5 * c.update_ns**-2 * c.receive_ns
        seen.append({"ttft_s.mean": figure})
    assert len(seen) == 4
    found = spread(seen, Doubt(directions, {"ttft_s.mean": 0.0}))["ttft_s.mean"]
    moved = (0.5 * 0.1 + 2 * 0.05, 0.3, 0.1 + 0.5 * 0.2)
    assert found == pytest.approx(np.sqrt(np.sum(np.square(moved))), rel=1e-9)


def test_a_model_error_adds_in_squares_and_missing_figures_have_no_error() -> None:
    doubt = Doubt(({"step_gap_ns": 0.3},), {"ttft_s.mean": 0.4, "itl_s.mean": 0.1})
    seen = [{"ttft_s.mean": c.step_gap_ns} for c in design(PRIORS, doubt.directions)]
    assert spread(seen, doubt) == {"ttft_s.mean": pytest.approx(0.5)}


def test_a_gpu_without_measurements_is_less_certain() -> None:
    def width(gpu: str) -> float:
        moved = [c.gemm_bandwidth_share for c in design(PRIORS, prior_doubt(gpu).directions)]
        return float(np.std(np.log(moved)))

    assert width("L40S") > 1.5 * width("H200-SXM")


def test_shares_stay_below_what_any_kernel_reaches() -> None:
    close = replace(PRIORS, gemm_bandwidth_share=0.94)
    assert max(c.gemm_bandwidth_share for c in design(close, prior_doubt("L4").directions)) <= 0.95


def test_every_constant_has_a_spread_or_a_reason_for_none() -> None:
    moved = {n for d in prior_doubt("H200-SXM", drafts=True).directions for n in d}
    known = {f.name for f in fields(Constants)} - {"name"}
    assert moved | set(FIXED) == known
    assert not moved & set(FIXED)
    assert all(len(reason) > 20 for reason in FIXED.values())


def test_what_a_drafter_gets_right_is_in_doubt_where_there_is_one() -> None:
    """A guess for the acceptance is one direction more, and no share of 1 is ever assumed."""
    without, drafting = (prior_doubt("H200-SXM", drafts=d) for d in (False, True))
    assert not any("draft_acceptance" in d for d in without.directions)
    seen = {round(c.draft_acceptance, 3) for c in design(PRIORS, drafting.directions)}
    assert min(seen) < 0.56
    assert 0.85 < max(seen) < 1
    names, matrix = ("step_gap_ns",), ((0.01,),)
    fitted = calibrated_doubt("H200-SXM", names, matrix, {}, drafts=True)
    assert any("draft_acceptance" in d for d in fitted.directions)


def test_a_calibration_replaces_the_priors_of_what_it_fitted() -> None:
    names = ("step_gap_ns", "eager_launch_ns_per_layer")
    covariance = ((0.04, 0.012), (0.012, 0.01))
    doubt = calibrated_doubt("H200-SXM", names, covariance, {TOKENS: 0.03})
    moved = np.log([[getattr(c, n) for n in names] for c in design(PRIORS, doubt.directions)])
    assert np.cov(moved.T, bias=True) == pytest.approx(np.array(covariance), rel=1e-6)
    assert doubt.model[TOKENS] == 0.03
    assert doubt.model["ttft_s.mean"] == prior_doubt("H200-SXM").model["ttft_s.mean"]
