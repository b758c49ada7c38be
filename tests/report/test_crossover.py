"""Speculation over load: where it stops paying, and what is not monotone."""

from pathlib import Path

import pytest

from ridgeline.cli.main import run
from ridgeline.experiment.crossover import Gain, breaks_of, crossover, crossover_words


def gains(*pairs: tuple[float, float], half: float = 0.02) -> list[Gain]:
    return [Gain(n, r, r * (1 - half), r * (1 + half)) for n, r in pairs]


def test_it_is_off_above_the_crossover_which_has_an_interval() -> None:
    """C-TU-03: gain 1.9 at 1 stream, 1.3 at 16, 0.95 at 64, 0.8 at 256."""
    found = crossover(gains((256, 0.8), (1, 1.9), (64, 0.95), (16, 1.3)))
    assert found.kind == "crosses"
    assert (found.low, found.high) == (16, 64)
    assert found.at == pytest.approx(51.1, abs=0.2)  # ln 1.3 / (ln 1.3 - ln 0.95) of the way
    words = crossover_words("ngram, 3 drafts", found)
    assert words[0] == (
        "ngram, 3 drafts: pays up to 16 streams and costs from 64 on; the crossover is at about 51"
        " (between 16 and 64): leave it off above 64, and between them measure"
    )


def test_a_wide_interval_moves_the_bounds_and_not_the_words() -> None:
    found = crossover([Gain(1, 1.9, 1.5, 2.3), Gain(16, 1.3, 0.9, 1.7), Gain(64, 0.95, 0.8, 1.1),
                       Gain(256, 0.8, 0.7, 0.9)])  # fmt: skip
    assert (found.low, found.high) == (1, 256)


def test_what_gains_or_costs_everywhere_has_no_crossover() -> None:
    assert crossover(gains((1, 1.5), (64, 1.2))).kind == "gains"
    assert crossover(gains((1, 0.9), (64, 0.7))).kind == "costs"
    undecided = crossover(gains((1, 1.01), (64, 0.99)))
    assert undecided.kind == "not decided"
    assert "not decided" in crossover_words("x", undecided)[0]


def test_a_schedule_that_falls_at_its_threshold_is_flagged_and_not_interpolated() -> None:
    """C-TU-04: tokens/s of a stream at 1, 4, 5, 8 streams: 232, 210, 24, 157."""
    levels = ((1, 232.0), (4, 210.0), (5, 24.0), (8, 157.0))
    assert breaks_of(levels) == ((4, 5),)
    found = crossover([Gain(n, s / 150, speed=s) for n, s in levels])
    assert found.breaks == ((4, 5),)
    assert found.at is None
    words = " ".join(crossover_words("dynamic", found))
    assert (
        "not monotone in load: 232 tokens/s a stream at 1, 210 at 4, 24.0 at 5, 157 at 8" in words
    )
    assert "nothing is interpolated between 4 and 5" in words
    assert "prefer a static setting" in words


def test_a_curve_that_falls_evenly_has_no_break() -> None:
    assert breaks_of(((1, 232), (4, 210), (8, 157), (16, 90), (64, 20))) == ()
    assert breaks_of(((1, 100), (64, 1), (128, 0.9))) == (), "it fell and stayed down"


LOADS = """\
name: spec
model: Qwen/Qwen3-4B
engine_version: "0.21.0"
hardware: {gpu: H200-SXM, count: 1, price_per_gpu_hour: 4.5}
workload:
  arrivals: {users: 16}
  prompts: {tokens: {min: 100, max: 300}}
  output_tokens: {min: 40, max: 60, ignore_eos: true}
  duration_s: 4
  warmup_s: 1
  seed: 1
repeats: 3
baseline: {max_num_seqs: 256, enable_prefix_caching: false, enforce_eager: true}
experiments:
  - {name: few, set: {speculative_config: {method: ngram, num_speculative_tokens: 16}}}
  - {name: many-off, workload: {arrivals: {users: 256}}}
  - name: many
    set: {speculative_config: {method: ngram, num_speculative_tokens: 16}}
    workload: {arrivals: {users: 256}}
"""


def test_a_study_over_loads_says_where_speculation_ends_to_pay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sixteen drafts a step on the twin: cheap beside 16 streams, a flood of rows beside 256."""
    (tmp_path / "spec.yaml").write_text(LOADS)
    out = tmp_path / "out"
    assert run(["study", str(tmp_path / "spec.yaml"), "--engine", "twin", "--out", str(out),
                "--quiet"]) == 0  # fmt: skip
    capsys.readouterr()
    assert run(["report", str(out), "--markdown", str(tmp_path / "page.md"),
                "--html", str(tmp_path / "page.html")]) == 0  # fmt: skip
    shown = " ".join(capsys.readouterr().out.split())
    page = " ".join((tmp_path / "page.md").read_text().split())
    for text in (shown, page):
        assert "peculation (ngram, 16 drafts): pays up to 16 streams and costs from 256 on" in text
        assert "leave it off above 256" in text
        assert "turned asynchronous scheduling off (as this release does)" in text
    assert "leave it off above 256" in (tmp_path / "page.html").read_text()
