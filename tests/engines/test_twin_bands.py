"""Every prediction says how far it may be off."""

from dataclasses import replace
from math import exp

import pytest

from ridgeline.domain.bands import TOKENS, Z, bands_of, value_at
from ridgeline.domain.knobs import Calibration, Configuration, Knobs
from ridgeline.domain.records import MemorySink
from ridgeline.domain.run import RunFacts, SilentWatch
from ridgeline.domain.summary import Percentiles, Throughput
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.base import DrivePlan
from ridgeline.engines.twin import FREE, TwinEndpoint, TwinEngine, known_constants, twin_of
from ridgeline.twin.uncertainty import prior_doubt
from ridgeline.workload.schedule import draw_schedule

LOAD = Workload(
    Arrivals(users=8), Prompts(Lengths(128, 0.5)), Outputs(Lengths(32, 0.5)),
    duration_s=2.0, warmup_s=1.0, seed=3,
)  # fmt: skip
HOST = Configuration("Qwen3-4B", Knobs(max_model_len=4096, max_num_seqs=16), gpu="H200-SXM")


def drive(configuration: Configuration, *, bands: bool = True, load: Workload = LOAD) -> RunFacts:
    with TwinEngine().start(configuration) as endpoint:
        plan = DrivePlan(draw_schedule(load), "b", bands=bands)
        return endpoint.drive(plan, MemorySink(), SilentWatch())


def test_errors_come_with_a_prediction_when_asked_for() -> None:
    assert drive(HOST, bands=False).errors == {}
    errors = drive(HOST).errors
    assert {TOKENS, "ttft_s.mean", "ttft_s.p95", "itl_s.p95", "tpot_s.mean", "e2e_s.p99"} <= set(
        errors
    )
    assert all(0.03 < e < 1 for e in errors.values())
    assert drive(HOST, load=replace(LOAD, seed=9)).errors == errors  # a property, not of a seed


def test_a_calibration_narrows_the_band_and_an_uncertain_one_does_not() -> None:
    def made(size: float) -> Configuration:
        some = range(len(FREE))
        matrix = tuple(tuple(size if i == j else 0.0 for j in some) for i in some)
        values = {n: getattr(known_constants(HOST), n) for n in FREE}
        return replace(
            HOST, calibration=Calibration("H200-SXM", values, FREE, matrix, {TOKENS: 0.02})
        )

    prior, sure, unsure = (drive(c).errors[TOKENS] for c in (HOST, made(1e-4), made(0.3)))
    assert sure < 0.7 * prior
    assert unsure > prior


def test_a_launch_bound_configuration_is_as_uncertain_as_its_launches() -> None:
    # In eager mode a step waits for its launches, which are known to 30 %.
    eager = replace(HOST, knobs=HOST.knobs.with_changes({"enforce_eager": True}))
    assert drive(eager).errors["itl_s.p50"] == pytest.approx(0.30, abs=0.06)


def test_a_drafters_acceptance_and_quantisation_are_in_the_bands() -> None:
    """Three drafts of which 0.55 or 0.9 are right give 2.13 or 3.43 tokens a step: 0.24."""
    long = replace(LOAD, arrivals=Arrivals(users=1), outputs=Outputs(Lengths(300)))
    drafted = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}
    drafting = replace(HOST, knobs=HOST.knobs.with_changes(drafted))
    known = TwinEndpoint(twin_of(drafting), prior_doubt("H200-SXM"))  # of its acceptance, too
    sure = known.drive(DrivePlan(draw_schedule(long), "b", bands=True), MemorySink(), SilentWatch())
    with_guess = drive(drafting, load=long).errors[TOKENS]
    assert with_guess**2 - sure.errors[TOKENS] ** 2 == pytest.approx(0.24**2, rel=0.25)
    # Of FP8 at one user a seventh is quantisation's own kernels, known to a factor.
    one = replace(LOAD, arrivals=Arrivals(users=1))
    bf16, fp8 = (
        drive(replace(HOST, knobs=HOST.knobs.with_changes(k)), load=one).errors["itl_s.p50"]
        for k in ({}, {"quantization": "fp8"})
    )
    assert fp8 > 1.1 * bf16


def test_a_band_is_log_normal_around_the_figure() -> None:
    facts = drive(HOST, bands=False)
    sink = MemorySink()
    with TwinEngine().start(HOST) as endpoint:
        facts = endpoint.drive(DrivePlan(draw_schedule(LOAD), "b"), sink, SilentWatch())
    from ridgeline.domain.metrics import summarise  # noqa: PLC0415
    from ridgeline.domain.slo import Slo  # noqa: PLC0415

    priced = replace(HOST, price_per_gpu_hour=4.0)
    summary = summarise(sink.records(), facts.window, facts=facts, configuration=priced, slo=Slo())
    bands = bands_of(summary, {TOKENS: 0.1, "ttft_s.mean": 0.2})
    rate = summary.throughput.output_tokens_per_s
    assert rate is not None
    assert bands[TOKENS].low == pytest.approx(rate * exp(-0.1 * Z))
    assert bands["ttft_s.mean"].high == pytest.approx(summary.ttft_s.mean * exp(0.2 * Z))
    cost = value_at(summary, "cost.usd_per_million_output_tokens")
    assert cost is not None
    assert bands["cost.usd_per_million_output_tokens"].high == pytest.approx(cost * exp(0.1 * Z))
    assert "itl_s.p95" not in bands
    # No figure, no band; among failures it is infinite, and so no band either.
    bare = replace(summary, ttft_s=Percentiles(mean=float("inf")), throughput=Throughput())
    assert set(bands_of(bare, {TOKENS: 0.1, "ttft_s.mean": 0.2})) == {
        "cost.usd_per_million_output_tokens", "cost.usd_per_thousand_requests"
    }  # fmt: skip


def test_two_cards_of_one_name_have_each_their_own_errors() -> None:
    """One waits for its memory and one for its launches: they are kept under their figures."""
    row = {"name": "My-GPU", "memory_bytes": 80e9, "bf16_flops": 900e12}
    slow, quick = (
        replace(HOST, gpu="My-GPU", gpu_figures={**row, "bandwidth_bytes_per_s": rate})
        for rate in (0.5e12, 50e12)
    )
    first, other = drive(slow).errors, drive(quick).errors
    assert first["itl_s.p50"] != pytest.approx(other["itl_s.p50"], rel=0.01)
