"""`ridgeline doctor` from the command line: a served twin, saved pages, bad input."""

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ridgeline.cli.main import run as ridgeline
from ridgeline.workload.schemas import schema_of
from support.mock_server import MockServer, page, plain_stream

STUDY = """\
name: four-slots
model: Qwen/Qwen3-4B
hardware: {gpu: H100-SXM, count: 1}
engine: twin
workload:
  arrivals: {users: 24}
  prompts: {tokens: {mean: 64, spread: 0.2}}
  output_tokens: {max: 200}
baseline: {max_num_seqs: 4, max_num_batched_tokens: 2048}
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    file = tmp_path / "study.yaml"
    file.write_text(STUDY)
    return file


@pytest.fixture
def loaded_twin(study: Path, tmp_path: Path) -> Iterator[str]:
    """A twin with four slots, and 24 users that ask it."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    twin = [sys.executable, "-m", "ridgeline.cli.main", "twin", str(study), "--port", str(port)]
    load = [
        sys.executable, "-m", "ridgeline.cli.main", "bench", url, "--users", "24", "--duration",
        "60", "--prompt-tokens", "64", "--output-tokens", "200", "--quiet", "--no-calibration",
        "--out", str(tmp_path / "bench"),
    ]  # fmt: skip
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(twin, **quiet) as server:  # type: ignore[call-overload]
        try:
            _wait(lambda: urllib.request.urlopen(f"{url}/health", timeout=1).close())
            with subprocess.Popen(load, **quiet) as client:  # type: ignore[call-overload]
                try:
                    _wait(lambda: _waiting(url))
                    yield url
                finally:
                    client.kill()
        finally:
            server.kill()


def free_port() -> int:
    """A loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(attempt: Any) -> None:
    end = time.monotonic() + 30
    while True:
        try:
            attempt()
        except (OSError, AssertionError):
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return


def _waiting(url: str) -> None:
    page = urllib.request.urlopen(f"{url}/metrics", timeout=2).read().decode()
    row = next(r for r in page.splitlines() if r.startswith("vllm:num_requests_waiting{"))
    assert float(row.rsplit(" ", 1)[1]) >= 8


def test_a_served_twin_with_few_slots(
    loaded_twin: str, study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, pages = tmp_path / "d.json", tmp_path / "pages"
    arguments = ["doctor", loaded_twin, "--seconds", "4", "--study", str(study)]
    assert ridgeline([*arguments, "--json", str(out), "--save", str(pages)]) == 0
    text = capsys.readouterr().out
    assert "the slots are full: 4 requests run" in text
    assert "try max_num_seqs -> 32" in text
    assert "predictions of the digital twin, not measurements" in text
    body = json.loads(out.read_text())
    jsonschema.validate(body, schema_of("diagnosis"))
    first = body["findings"][0]
    assert (first["id"], first["confidence"]) == ("batch-ceiling", "high")
    gain = first["try"]["expected_gain"][0]
    assert gain["source"] == "twin"
    assert 1 < gain["low"] < gain["ratio"] < gain["high"]
    assert body["readings"] == 5
    # and from the pages alone, as somebody would send them, without the study
    files = sorted(pages.iterdir())
    named = [word for file in files for word in ("--from", str(file))]
    assert ridgeline(["doctor", *named, "--json", "-"]) == 0
    again = json.loads(capsys.readouterr().out)
    jsonschema.validate(again, schema_of("diagnosis"))
    assert again["findings"][0]["id"] == "batch-ceiling"
    assert again["span_s"] == pytest.approx(body["span_s"], abs=0.5)
    assert again["findings"][0]["try"]["no_gain"].startswith("model and GPU are not known")


@contextmanager
def _process(*words: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_proxy_that_holds_requests_back_is_seen_by_the_probe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """150 ms in a proxy, in front of a server whose requests take about 60."""
    port, out = free_port(), tmp_path / "d.json"
    module = (sys.executable, "-m", "ridgeline.cli.main")
    proxy = Path(__file__).parents[1] / "support" / "slow_proxy.py"
    with ExitStack() as stack:
        fixed = ("--fixed-ttft-ms", "20", "--fixed-itl-ms", "5")
        stack.enter_context(_process(*module, "twin", "--port", str(port), *fixed))
        direct = f"http://127.0.0.1:{port}"
        _wait(lambda: urllib.request.urlopen(f"{direct}/health", timeout=1).close())
        slow = stack.enter_context(_process(sys.executable, str(proxy), str(port), "0.15"))
        assert slow.stdout is not None
        behind = f"http://127.0.0.1:{int(slow.stdout.readline())}"
        for url, named in ((direct, False), (behind, True)):
            arguments = ["doctor", url, "--seconds", "1", "--probe", "--json", str(out)]
            assert ridgeline(arguments) == 0
            found = {f["id"]: f for f in json.loads(out.read_text())["findings"]}
            assert ("between" in found) == named, found
            _probe_is_shown(json.loads(out.read_text())["probe"], behind=named)
            line = next(r for r in capsys.readouterr().out.splitlines() if r.startswith("probe: "))
            assert "5 of 5 small requests answered, mean TTFT " in line
        share = found["between"]["share"]
        assert found["between"]["confidence"] == "high"
        assert 0.4 < share < 0.95


def _probe_is_shown(probe: dict[str, Any], *, behind: bool) -> None:
    """Of a server that takes 20 ms to the first token and 5 ms to each of the next seven."""
    assert (probe["sent"], probe["ok"], probe["output_tokens"]) == (5, 5, 40)
    assert (probe["health"], probe["trouble"]) == (200, None)
    assert 0.02 <= probe["ttft_s"] < (1.0 if behind else 0.15)
    assert probe["ttft_s"] + 7 * probe["itl_s"] <= probe["e2e_s"] + 0.002
    if not behind:
        assert 0.004 < probe["itl_s"] < 0.05


def test_a_probe_that_fails_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    """Metrics are served, and every request is refused."""
    models = page(200, "application/json", b'{"data": [{"id": "m"}]}')
    refused = page(500, "application/json", b'{"error": {"message": "out of cheese"}}')
    metrics = page(200, "text/plain", PAGE.format(r=0, w=0).encode())
    pages = {"/metrics": metrics, "/v1/models": models, "/health": page(503, "text/plain", b"")}
    with MockServer([refused], pages) as mock:
        arguments = ["doctor", mock.url, "--seconds", "1", "--probe", "--json", "-"]
        assert ridgeline(arguments) == 0
    shown = capsys.readouterr()
    probe = json.loads(shown.out)["probe"]
    jsonschema.validate(json.loads(shown.out), schema_of("diagnosis"))
    assert (probe["sent"], probe["ok"], probe["health"], probe["ttft_s"]) == (5, 0, 503, None)
    assert "HTTP 500: out of cheese" in probe["trouble"]
    assert "0 of 5 small requests answered" in shown.err.replace("\n", " ")


PAGE = 'vllm:num_requests_running{{engine="0"}} {r}\nvllm:num_requests_waiting{{engine="0"}} {w}\n'


def test_secrets_in_labels_are_masked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key, named = "sk-" + "a1B2" * 8, "hunter2-hunter2"
    file = tmp_path / "page.txt"
    label = f'{{model_name="{key}",api_key="{named}",gpu_cache_usage="x"}}'
    file.write_text(PAGE.format(r=8, w=9) + f"vllm:cache_config_info{label} 1\n")
    out = tmp_path / "o.json"
    assert ridgeline(["doctor", "--from", str(file), "--json", str(out)]) == 0
    shown = capsys.readouterr()
    for text in (shown.out, shown.err, out.read_text()):
        assert key not in text
        assert named not in text
    from ridgeline.diagnosis.saved import stamped  # noqa: PLC0415

    kept = stamped(file.read_text(), 1.0)
    assert key not in kept
    assert named not in kept
    assert 'gpu_cache_usage="x"' in kept
    odd = (
        "# api_key=topsecret9\n# HELP x of AKIAIOSFODNN7EXAMPLE\n"
        'x_info{api_key = "hunter2hunter2"} 1\n'
    )
    kept = stamped(odd, 1.0)
    assert not [s for s in ("topsecret9", "AKIA", "hunter2hunter2") if s in kept]
    assert kept.splitlines()[-1].startswith("x_info{api_key = ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give the URL of a running server, or saved pages"),
        (["--log", "PAGE", "NOISE"], "NOISE: is a file, and the URL of a server belongs here"),
        (["http://127.0.0.1:1", "--from", "x"], "give the URL of a running server, or saved pages"),
        (["--from", "absent.txt"], "absent.txt: cannot be read"),
        (["--from", "PAGE", "--probe"], "need a running server"),
        (["--from", "PAGE", "--model", "Qwen/Qwen3-4B"], "--model and --gpu go together"),
        (["--from", "PAGE", "--model", "Qwen/Qwen3-4B", "--gpu", "H100-SXN"], "unknown GPU"),
        (["--from", "PAGE", "--gpu-metrics", "nowhere"], "no such file, and no URL"),
        (["--from", "PAGE", "--log", "absent.log"], "absent.log: cannot be read"),
        (["--from", "NOISE"], "is no page of metrics"),
        (["--from", "EMPTY"], "holds no metrics"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contents = {"PAGE": PAGE.format(r=1, w=0), "NOISE": "<html>no {\n", "EMPTY": ""}
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    given = [str(tmp_path / a) if a in contents else a for a in arguments]
    assert ridgeline(["doctor", *given]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.strip().splitlines()) == 1


def test_nobody_there_is_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert ridgeline(["doctor", url, "--seconds", "1", "--json", "-"]) == 3
    shown = capsys.readouterr()
    (only,) = json.loads(shown.out)["findings"]
    assert (only["id"], only["title"]) == ("nothing-listens", f"nothing listens at {url}")
    assert "refused" in shown.err
    assert "metrics" not in shown.err, "it is no question of metrics"


def test_a_server_without_metrics_is_told_by_its_health(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with MockServer([plain_stream(4)], {"/health": page(200, "text/plain", b"ok")}) as mock:
        assert ridgeline(["doctor", mock.url, "--seconds", "1"]) == 3
    shown = capsys.readouterr()
    assert "/metrics could not be read; /health says 200" in shown.out
