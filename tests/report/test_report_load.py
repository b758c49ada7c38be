"""From a directory on disk to the report: a small study on the twin, and a server that fails."""

import json
import shutil
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ridgeline.domain.errors import StoreError
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.records import RequestRecord
from ridgeline.domain.run import ClientCheck, RunFacts, Window
from ridgeline.domain.slo import parse_slo
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.base import DrivePlan
from ridgeline.experiment.engines import engine_named
from ridgeline.experiment.plan import Plan, PlannedExperiment, plan_of
from ridgeline.experiment.runner import SilentStudyWatch, run_plan
from ridgeline.report.html import render
from ridgeline.report.load import load_report
from ridgeline.report.model import COST
from ridgeline.report.sentence import answer
from ridgeline.store.run_directory import read_run
from ridgeline.store.study_directory import StudyDirectory
from ridgeline.workload.studyfile import parse_study

STUDY = """
name: small
model: Qwen/Qwen3-4B
hardware: {gpu: H100-SXM, price_per_gpu_hour: 4}
workload:
  arrivals: {users: 24}
  prompts: {tokens: {min: 16, max: 32}}
  output_tokens: {min: 16, max: 32}
  warmup_s: 2
  duration_s: 12
  seed: 3
slo: {ttft_p95_ms: 2000, error_rate: 0.001}
baseline_name: eight
baseline: {max_num_seqs: 8, max_model_len: 2048}
experiments:
  - {name: thirty-two, set: {max_num_seqs: 32}}
repeats: 3
published:
  source: a public article
  runs:
    eight: {ttft_p95_ms: 123}
findings:
  - id: more-slots
    claim: More slots give more tokens
    compare: [thirty-two, eight]
    ratio: [{metric: throughput.output_tokens_per_s, is: higher}]
    twin: reproduced
    because: the users wait for slots
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("study")
    study = parse_study(STUDY, "small.yaml")
    run_plan(
        plan_of(study),
        StudyDirectory(path),
        engine_named,
        SilentStudyWatch(),
        command="ridgeline study small.yaml",
        study_text=STUDY,
        cores=1,
    )
    return path


@pytest.fixture(scope="module")
def report(folder):
    return load_report(folder)


def test_figures_are_those_of_the_store(report, folder):
    stored = [read_run(folder / f"eight-r{r}").summary for r in (1, 2, 3)]
    shown = report.row("eight").summary
    rates = [s.throughput.output_tokens_per_s for s in stored]
    assert shown.throughput.output_tokens_per_s == pytest.approx(sum(rates) / 3)
    assert shown.requests.sent == sum(s.requests.sent for s in stored)


def test_the_report_knows_where_it_comes_from(report):
    assert report.badge.word == "TWIN"
    assert report.badge.explanation.startswith("prediction, prior for H100-SXM")
    assert (report.baseline, report.load, report.gpus) == ("eight", "24 users", "1 H100-SXM")
    assert report.study_yaml == STUDY
    assert report.reproduce == "ridgeline study small.yaml"
    assert report.row("eight").published == {"ttft_p95_ms": 123}
    assert [run.state for run in report.row("thirty-two").runs] == ["valid"] * 3


def test_more_slots_win_and_the_finding_carries_its_reason(report):
    row = report.row("thirty-two")
    assert row.against_baseline[COST].verdict == "clearly better"
    assert answer(report).row == "thirty-two"
    (finding,) = report.findings
    assert (finding.mark, finding.expected, finding.as_expected) == (
        "reproduced", "reproduced", True,
    )  # fmt: skip
    assert finding.ours.startswith("output tokens/s × ")
    assert "thirty-two over eight" in finding.ours
    assert row.marks == ("reproduced",)


def test_evidence_agrees_with_the_figures(report):
    row = report.row("eight")
    first_run_p95 = row.ttft.values_s[np.searchsorted(row.ttft.shares, 0.95)]
    assert first_run_p95 == pytest.approx(row.summary.ttft_s.p95, rel=0.25)
    decode = next(p for p in row.roofline if p.phase == "decode")
    assert decode.intensity == pytest.approx(row.summary.roofline.decode_intensity, rel=0.1)
    # Nothing may lie above its roof.
    for each in report.rows:
        for point in each.roofline:
            assert 0 < point.flops_per_s <= each.roof.attainable(point.intensity)
    window = row.series.window_s
    inside = [
        v for t, v in zip(row.series.t_s, row.series.values["output_tokens_per_s"], strict=True)
        if window[0] <= t < window[1]
    ]  # fmt: skip
    assert sum(inside) / len(inside) == pytest.approx(
        row.summary.throughput.output_tokens_per_s, rel=0.1
    )
    assert max(v for v in row.series.values["running"]) <= 8
    assert sum(row.step_parts.values()) == pytest.approx(1, abs=0.01)


def test_the_seconds_close_to_the_mean_e2e(report):
    for row in report.rows:
        total = sum(row.summary.accounting.values())
        assert total == pytest.approx(row.summary.e2e_s.mean, rel=0.01)


def test_how_it_was_measured_is_told(report):
    how = dict(report.how)
    assert how["Warm-up and window"].startswith("2\u2009000 ms of the same traffic, then 12.0 s")
    assert how["Repeats and order"] == (
        "3 each, in the order eight, thirty-two, then backwards, and so on; seeds 3, 4, 5"
    )
    assert how["Client"] == "simulated clock: the client cannot be the limit"
    assert "max_num_seqs=8" in how["Flags given"]


def test_what_an_engine_was_started_with_is_told_without_its_secrets(folder, tmp_path):
    """Beyond knobs: arguments, image, host, router and variables decide what was measured."""
    copy = tmp_path / "started"
    shutil.copytree(folder, copy)
    path = copy / "eight-r1" / "run.json"
    body = json.loads(path.read_text())
    body["run"]["configuration"]["launch"] = {
        "arguments": ["--swap-space", "8", "--api-key", "abcdefgh"], "image": "vllm/vllm:v0.9",
        "host": "user@box", "container": ["--ipc=host"], "tunnel": False,
        "environment": {"VLLM_USE_V1": "1", "HF_TOKEN": "hf_thetoken", "PASSED": None},
        "router": {"policy": "power_of_two", "arguments": ["--disable-retries"]},
    }  # fmt: skip
    path.write_text(json.dumps(body))
    how = dict(load_report(copy, details=False).how)
    assert how["Started as"] == (
        "arguments --swap-space 8 --api-key ***; container options --ipc=host;"
        " router's command vllm-router; router's arguments --disable-retries;"
        " environment VLLM_USE_V1=1, HF_TOKEN=***, PASSED; image vllm/vllm:v0.9;"
        " on user@box, without a tunnel; behind vllm-router (power_of_two)"
    )


def test_a_copied_folder_makes_the_same_page(report, folder, tmp_path):
    copy = tmp_path / "elsewhere"
    shutil.copytree(folder, copy)
    assert render(load_report(copy)) == render(report)


def test_without_the_tables_the_figures_stay(folder, tmp_path):
    copy = tmp_path / "thin"
    shutil.copytree(folder, copy)
    for table in copy.rglob("*.parquet"):
        table.unlink()
    thin = load_report(copy)
    assert thin.row("eight").summary == load_report(folder).row("eight").summary
    assert thin.row("eight").ttft is None
    assert "eight" in render(thin)


def test_a_folder_that_is_none(tmp_path):
    with pytest.raises(StoreError, match="holds no study"):
        load_report(tmp_path)


class HalfBroken:
    """Answers every second request; the others get an error page."""

    source = "measured"

    def drive(self, plan: DrivePlan, sink, watch) -> RunFacts:
        for index in range(100):
            sent = index * 50_000_000
            failed = index % 2 == 1
            chunks = np.arange(sent + 100_000_000, sent + 200_000_000, 10_000_000)
            sink.request(
                RequestRecord(
                    index=index, user=0, intended_ns=sent, sent_ns=sent,
                    first_ns=None if failed else int(chunks[0]),
                    last_ns=None if failed else int(chunks[-1]),
                    end_ns=sent + 201_000_000,
                    planned_prompt_tokens=8, planned_output_tokens=10,
                    prompt_tokens=None if failed else 8,
                    output_tokens=None if failed else 10,
                    failure="http_status" if failed else None,
                    failure_detail="503: <b>no</b>\n upstream" if failed else None,
                    http_status=503 if failed else 200,
                    finish_reason=None if failed else "length",
                    chunk_ns=np.empty(0, np.int64) if failed else chunks.astype(np.int64),
                    chunk_shared=np.zeros(0 if failed else len(chunks), np.bool_),
                )
            )  # fmt: skip
        return RunFacts("measured", Window(0, 5_000_000_000), ClientCheck("kernel"),
                        server={"engine": "vLLM", "version": "9.9"})  # fmt: skip


class HalfBrokenEngine:
    name = "endpoint"

    @contextmanager
    def start(self, configuration):
        yield HalfBroken()


def test_half_failed_is_told_in_the_servers_words(tmp_path):
    workload = Workload(
        Arrivals(users=1), Prompts(Lengths(8)), Outputs(Lengths(10)), duration_s=5, warmup_s=0
    )
    configuration = Configuration("tiny", Knobs(), engine="endpoint", url="http://127.0.0.1:1")
    plan = Plan(
        "bench", "bench", None, (PlannedExperiment("run", configuration, workload),),
        parse_slo("error_rate=0.1"),
    )  # fmt: skip
    run_plan(
        plan,
        StudyDirectory(tmp_path),
        lambda _: HalfBrokenEngine(),
        SilentStudyWatch(),
        command="ridgeline bench http://127.0.0.1:1",
    )
    found = load_report(tmp_path, details=False)
    row = found.rows[0]
    assert (row.summary.requests.failed, row.summary.requests.error_rate) == (50, 0.5)
    (line,) = row.errors
    assert (line.kind, line.count, line.message) == ("http_status", 50, "503: <b>no</b> upstream")
    said = answer(found)
    assert said.tone == "bad"
    assert any("50 of 100 requests failed (error rate 0.50)" in n for n in said.notes)
    whole = load_report(tmp_path)
    assert whole.badge.explanation.startswith("vLLM 9.9, hardware not known")
    page = render(whole)
    assert "&lt;b&gt;no&lt;/b&gt;" in page
    assert "<b>no</b>" not in page
    assert whole.rows[0].series.values["in_flight"]
    assert replace(whole, rows=()).row("run") is None


def test_the_page_says_of_which_run_its_pictures_are_and_how_limits_are_judged(report):
    assert {row.details_of for row in report.rows} == {"eight-r1", "thirty-two-r1"}
    page = render(replace(report, warnings=("pairs lie far apart",)))
    told = "Of repeat 1 alone; the figures of the table are over all valid repeats."
    assert page.count(told) == page.count('<section aria-labelledby="h-roofline"') + page.count(
        '<section aria-labelledby="h-ecdf'
    ) + page.count('<section aria-labelledby="h-time"')
    assert page.count(told) >= 3
    assert "A limit is met when every valid repeat meets it" in page
    assert "pairs lie far apart." in page


def test_what_an_earlier_study_file_left_is_shown_apart(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    edited = STUDY.replace("thirty-two", "forty").replace("max_num_seqs: 32", "max_num_seqs: 40")
    edited = edited.replace("repeats: 3", "repeats: 1")
    run_plan(
        plan_of(parse_study(edited, "small.yaml")),
        StudyDirectory(copy),
        engine_named,
        SilentStudyWatch(),
        command="ridgeline study small.yaml",
        study_text=edited,
        cores=1,
    )
    report = load_report(copy)
    assert [row.name for row in report.rows] == ["eight", "forty", "thirty-two"]
    old = report.row("thirty-two")
    assert old.void
    assert old.summary is not None
    assert [run.state for run in old.runs] == ["left out"] * 3
    assert [run.state for run in report.row("eight").runs] == ["valid"] * 3
    assert answer(report).row != "thirty-two"
    page = render(report)
    assert "measured under an earlier study file or version" in page
    assert "4 of 7 runs valid, 3 left out" in page
