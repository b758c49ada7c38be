"""The page of a tuning: headline, tables and winner.yaml say the same number by the same rule."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.cli.main import run
from ridgeline.report.html import render
from ridgeline.report.load import load_report
from ridgeline.report.markdown import render as markdown
from ridgeline.report.sentence import answer
from ridgeline.report.table import table_rows
from ridgeline.report.tunetext import duel_rows, history_rows, trials_words
from ridgeline.tuning.outcome import TuneResult, read_result

STUDY = """\
name: told-once
model: Qwen/Qwen3-4B
hardware: {gpu: H200-SXM, count: 1, price_per_gpu_hour: 4.5}
workload:
  arrivals: {users: 40}
  prompts: {tokens: {min: 100, max: 300}}
  output_tokens: {min: 20, max: 60, ignore_eos: true}
  duration_s: 4
  warmup_s: 2
  seed: 1
SLO
baseline: {max_num_seqs: 8, enable_prefix_caching: false}
tune: {only: true, finalists: 2, space: {max_num_seqs: [8, 64, 48]}}
"""
TARGETS = "slo: {ttft_p95_ms: 400, itl_p95_ms: 30, attainment: 0.9}"


def tuned(folder: Path, slo: str) -> tuple[Path, TuneResult]:
    (folder / "study.yaml").write_text(STUDY.replace("SLO\n", f"{slo}\n" if slo else ""))
    out = folder / "out"
    assert run(["tune", str(folder / "study.yaml"), "--trials", "4", "--quiet",
                "--out", str(out)]) == 0  # fmt: skip
    found = read_result(out)
    assert found is not None
    return out, found


@pytest.fixture(scope="module")
def with_targets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TuneResult]:
    return tuned(tmp_path_factory.mktemp("targets"), TARGETS)


def price_and_span(text: str) -> str:
    """The first "0.399 (0.347 to 0.459)" of a text."""
    found = re.search(r"[\d.]+ \([\d.]+ to [\d.]+\)", text)
    assert found, text
    return found[0]


def test_every_place_tells_the_winners_price_with_the_same_interval(
    with_targets: tuple[Path, TuneResult],
) -> None:
    folder, result = with_targets
    page = load_report(folder)
    told = price_and_span(result.verdict)
    (row,) = [r for r in duel_rows(result) if r[0] == result.winner.words]
    assert price_and_span(row[1]) == told
    assert told in " ".join(re.sub(r"^# ?", "", x) for x in
                            (folder / "winner.yaml").read_text().splitlines()[:7])  # fmt: skip
    assert told in answer(page).text
    name = answer(page).row
    (line,) = [r for r in table_rows(page) if r.name == name]
    low, high = re.findall(r"[\d.]+", told.split("(")[1])
    assert line.cost.value == f"${told.split()[0]}"
    assert line.cost.interval.replace("$", "").replace("–", " ").split() == [low, high]


def test_a_pair_has_one_interval_on_the_page(with_targets: tuple[Path, TuneResult]) -> None:
    folder, result = with_targets
    report = load_report(folder)
    duel = result.duel
    assert duel is not None
    for one in duel.duelists[1:]:
        row = report.row(one.experiment)
        assert row is not None
        told = row.against_baseline["cost.usd_per_million_output_tokens"]
        assert one.low is not None
        assert one.ratio is not None
        assert told.delta == pytest.approx(1 / one.ratio - 1)
        assert told.high == pytest.approx(1 / one.low - 1)
        assert told.pairs == one.pairs
        runs = [r for r in row.runs if r.state == "valid"]
        base = report.row("baseline")
        assert base is not None
        both = {r.repeat for r in runs} & {r.repeat for r in base.runs if r.state == "valid"}
        assert one.pairs == len(both)
    assert "all looks of the duel together" in render(report)


def test_without_targets_nothing_is_met(tmp_path: Path) -> None:
    folder, result = tuned(tmp_path, "")
    assert {row[3] for row in duel_rows(result)} == {"none set"}
    assert not any("meets" in row[3] for row in history_rows(result))
    assert "targets" not in result.verdict
    assert "✓ met" not in render(load_report(folder))


def test_what_may_meet_its_targets_is_nowhere_inside_them(
    with_targets: tuple[Path, TuneResult], tmp_path: Path
) -> None:
    """The H200's own result: p95 ITL 11.9 ms of 12, its interval to 16.4."""
    stored = Path(__file__).parents[2] / "results/h200/tune/h200-tune-32"
    report = load_report(stored)
    assert report.tune is not None
    assert report.tune.winner.meets is None
    found = answer(report)
    assert "inside the SLO" not in found.text
    assert "may meet" in found.text
    assert {r.state for r in table_rows(report) if r.name == found.row} == {"not judged"}


def test_a_missed_attainment_is_below_its_target(with_targets: tuple[Path, TuneResult]) -> None:
    _, result = with_targets
    words = [row[3] for row in history_rows(result) if row[1] == "baseline"]
    assert any(re.search(r"attainment 0(\.\d+)? < 0\.900", w) for w in words), words


def test_the_markdown_has_the_whole_tuning(with_targets: tuple[Path, TuneResult]) -> None:
    folder, result = with_targets
    text = markdown(load_report(folder), {})
    for head in ("## The duel", "## What each knob bought", "## How far the traffic may move",
                 "## The search: ", "## How far from the bounds", "## Serve it"):  # fmt: skip
        assert head in text, head
    assert "The tokens that take 10 GPUs now take" in text
    for trial in result.trials:
        assert trial.why in text
    assert json.dumps(result.winner.command)[1:-1] in text


def test_an_old_result_without_intervals_of_values_is_still_shown(
    with_targets: tuple[Path, TuneResult],
) -> None:
    _, result = with_targets
    assert result.duel is not None
    bare = tuple(replace(d, value_low=None, value_high=None) for d in result.duel.duelists)
    rows = duel_rows(replace(result, duel=replace(result.duel, duelists=bare)))
    assert all("(" not in row[1] for row in rows)


def test_no_line_of_the_headline_breaks_inside_a_number() -> None:
    stored = Path(__file__).parents[2] / "results/h200/tune/h200-tune-32"
    page = render(load_report(stored, details=False))
    headline = page.split('<p class="answer', 1)[1].split("</p>", 1)[0]
    assert "10\u202f800 tokens/s per GPU" in headline
    assert "\u2009" not in headline


def test_trials_are_counted_with_the_configurations_that_they_are_of() -> None:
    """Seven windows of three configurations are not seven candidates."""
    stored = read_result(Path(__file__).parents[2] / "results/h200/tune/h200-tune-32")
    assert stored is not None
    one = stored.trials[:1]
    assert trials_words(replace(stored, trials=one)) == "1 trial"
    again = (*stored.trials[:2], stored.trials[1], stored.trials[1])
    assert trials_words(replace(stored, trials=again)) == "4 trials of 2 configurations"
