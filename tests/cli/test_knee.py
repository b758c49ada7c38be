"""`ridgeline knee` as it is called: on the twin, over HTTP, and with what it must refuse."""

import inspect
import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from ridgeline.cli.knee import knee
from ridgeline.cli.kneetarget import sweep_of_url
from ridgeline.cli.main import run as ridgeline
from ridgeline.experiment.knee import level_workload
from ridgeline.workload.schemas import schema_of
from support.mock_server import MockServer, Pages, models_page, plain_stream

STUDY = """\
name: small
model: Qwen/Qwen3-4B
hardware: {gpu: H100-SXM, count: 1}
engine: twin
workload:
  arrivals: {users: 8}
  prompts: {tokens: {mean: 128, spread: 0.5}}
  output_tokens: {mean: 32, spread: 0.5}
  duration_s: 20
baseline: {max_num_seqs: 8}
experiments:
  - {name: seqs-32, set: {max_num_seqs: 32}}
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    file = tmp_path / "small.yaml"
    file.write_text(STUDY)
    return file


def test_both_ends_on_the_twin(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, result = tmp_path / "k", tmp_path / "k.json"
    args = ["knee", str(study), "--slo", "ttft_p95_ms=300", "--json", str(result)]
    assert ridgeline([*args, "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert "plan: " in shown.err.splitlines()[0]
    assert "TWIN" in shown.out
    assert "The knee is at" in shown.out
    assert "The capacity is" in shown.out
    body = json.loads(result.read_text())
    jsonschema.validate(body, schema_of("knee"))
    assert body["load"] == "rate"
    assert body["capacity"]["value"] < body["capacity"]["high"]
    assert body["knee"]["low"] < body["knee"]["high"]
    # the same again measures nothing: every level is there
    before = {p: p.stat().st_mtime_ns for p in out.glob("*/requests.parquet")}
    assert ridgeline([*args, "--out", str(out), "--quiet"]) == 0
    assert {p: p.stat().st_mtime_ns for p in out.glob("*/requests.parquet")} == before
    again = json.loads(result.read_text())
    assert {k: v for k, v in again.items() if k != "seconds"} == {
        k: v for k, v in body.items() if k != "seconds"
    }
    page = tmp_path / "k.html"
    capsys.readouterr()
    assert ridgeline(["report", str(out), "--html", str(page)]) == 0
    assert "The capacity is" in capsys.readouterr().out
    text = page.read_text()
    assert "Load, throughput and latency" in text
    assert 'id="chart-knee"' in text


def test_another_experiment_and_users(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four times the slots: the knee of users is about four times as far out."""
    knees = {}
    for name in ("baseline", "seqs-32"):
        args = ["knee", str(study), "--experiment", name, "--quiet", "--json", "-"]
        assert ridgeline([*args, "--out", str(tmp_path / name)]) == 0
        knees[name] = json.loads(capsys.readouterr().out)["knee"]["value"]
    assert 5 <= knees["baseline"] <= 9
    assert 20 <= knees["seqs-32"] <= 34


def test_targets_that_nothing_meets_are_a_missed_gate(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["knee", str(study), "--slo", "ttft_p50_ms=0.01", "--load", "users", "--most", "16"]
    assert ridgeline([*args, "--quiet", "--out", str(tmp_path / "o")]) == 1
    assert "no capacity: not even the lowest load, 1, passes" in capsys.readouterr().err


def test_a_knee_that_was_not_reached_is_not_told(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["knee", str(study), "--most", "2", "--quiet", "--out", str(tmp_path / "o")]
    assert ridgeline(args) == 3
    assert "no knee: throughput still rises at the highest load" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--load", "both"], "--load must be users or rate, not 'both'"),
        (["--resolution", "0"], "--resolution must be 0.01 to 1"),
        (["--resolution", "nan"], "--resolution must be 0.01 to 1"),
        (["--minutes", "0"], "--minutes must be above 0"),
        (["--load", "users", "--most", "0.5"], "--most must be 1 to"),
        (["--load", "users", "--start", "9", "--most", "4"], "--start 9 is above --most 4"),
        (["--slo", "ttft_p95=5"], "unknown SLO key"),
        (["--experiment", "seqs-23"], "there is no experiment 'seqs-23' (did you mean 'seqs-32'?)"),
        (["--requests", "3"], "Invalid value for '--requests'"),
        (["--workers", "2"], "--workers belongs to a URL: a study file says its traffic"),
        (["--chunk-timeout", "5"], "--chunk-timeout belongs to a URL"),
        (["--url", "http://127.0.0.1:1"], "--url belongs to a URL"),
        (["--temperature", "0"], "--temperature belongs to a URL"),
        (["--prompt-tokens", "9"], "--prompt-tokens belongs to a URL"),
    ],
)
def test_bad_input_is_one_line(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    code = ridgeline(["knee", str(study), *options, "--out", str(tmp_path / "o")])
    err = capsys.readouterr().err
    assert code == 2
    assert said in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "o").exists()


def test_nobody_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ridgeline(["knee", "http://127.0.0.1:9", "--out", str(tmp_path / "o")]) == 3
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert ridgeline(["knee", str(tmp_path / "none.yaml"), "--out", str(tmp_path / "o")]) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--workers", "0"], "--workers must be 1 to 256 or auto"),
        (["--chunk-timeout", "nan"], "--chunk-timeout must be 0 to"),
        (["--routing", "least-loaded"], "there is one URL"),
        (["--experiment", "x"], "--experiment belongs to a study file"),
        (["--history", "cumulative"], "--history belongs to a --prompt-file"),
        (["--header", "authorization=Bearer x"], "authorization"),
    ],
)
def test_wrong_options_of_a_url(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ridgeline(["knee", "http://127.0.0.1:1", *options, "--out", str(tmp_path / "o")]) == 2
    assert said in capsys.readouterr().err


def test_every_level_has_the_traffic_and_the_client_that_the_options_say() -> None:
    """Two replicas, two workers, sampling, a header, time-outs, pauses: at users and at a rate."""
    pages: Pages = {"/v1/models": models_page("m", max_model_len=4096)}
    given = {name: p.default for name, p in inspect.signature(knee).parameters.items()}
    with MockServer([plain_stream(4)], pages) as one, MockServer([plain_stream(4)], pages) as two:
        given |= {
            "more_urls": [two.url], "workers": "2", "prompt_tokens": 30, "temperature": 0.5,
            "header": ["X-Team=blue"], "chunk_timeout": 7.0, "think_time": 0.5,
            "think_time_law": "exponential", "process": "gamma", "burstiness": 0.3, "turns": 3,
            "gpu": "h100-sxm", "price_per_gpu_hour": 2.0, "routing": "least-loaded",
        }  # fmt: skip
        sweep = sweep_of_url(one.url, "", given)
    at = sweep.configuration
    assert (at.url, at.more_urls, at.routing) == (one.url, (two.url,), "least-loaded")
    assert (at.gpu, at.price_per_gpu_hour) == ("H100-SXM", 2.0)
    closed = level_workload(sweep, 5.0)
    arrivals = closed.arrivals
    assert (arrivals.users, arrivals.think_time_s, arrivals.think_time) == (5, 0.5, "exponential")
    asked = replace(sweep.asked, load="rate")
    opened = level_workload(replace(sweep, asked=asked), 7.0)
    arrivals = opened.arrivals
    assert (arrivals.users, arrivals.rate_per_s, arrivals.process, arrivals.burstiness) == (
        None, 7.0, "gamma", 0.3,
    )  # fmt: skip
    for level in (closed, opened):
        assert level.client.workers == 2
        assert level.client.timeouts.gap_s == 7.0
        assert level.options.sampling == {"temperature": 0.5}
        assert level.options.headers == {"X-Team": "blue"}
        assert level.prompts.tokens.mean == 30
        assert level.sessions is not None
        assert level.sessions.turns.mean == 3
