"""Other tools' result files beside ours: real files of a server with known times.

The server of the fixtures answers after 100 ms, then 50 chunks every 10 ms, 40 requests, 4 at a
time; in `stall` every reply stops for 1 s after its tenth chunk.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from ridgeline.cli.main import run as ridgeline
from ridgeline.domain.conversions import time_per_token, total_over_tokens
from ridgeline.domain.errors import BadInput
from ridgeline.report.foreign import ToolResult, read_results
from ridgeline.report.sidebyside import html, markdown, printed_lines, side_by_side

FIXTURES = Path(__file__).parent / "fixtures"
FILES = {
    "vllm": "vllm_bench_{}.json",
    "guidellm": "guidellm_{}.json",
    "aiperf": "aiperf_{}/profile_export_aiperf.json",
}


def fixture(tool: str, case: str = "plain") -> Path:
    return FIXTURES / FILES[tool].format(case)


def read(tool: str, case: str = "plain") -> ToolResult:
    (found,) = read_results(fixture(tool, case))
    return found


def cell(results: list[ToolResult], row: str) -> tuple[str, ...]:
    return next(r[1:] for r in side_by_side(results).rows if r[0] == row)


def ms(text: str) -> float:
    return float(text.replace("\u2009", "").removesuffix(" ms"))


def test_one_request_by_two_definitions() -> None:
    """E2E 2000 ms, TTFT 500 ms, 101 tokens."""
    assert time_per_token(2.0, 0.5, 101) == pytest.approx(0.015)
    assert total_over_tokens(2.0, 101) == pytest.approx(0.0198, abs=1e-5)
    assert time_per_token(2.0, 0.5, 1) is None
    assert total_over_tokens(2.0, 0) is None


@pytest.mark.parametrize("tool", FILES)
def test_each_tool_is_read_in_our_definitions(tool: str) -> None:
    found = read(tool)
    assert (found.ok, found.failed) == (40, 0)
    assert found.model == "mock"
    assert np.median(found.samples["ttft_s"]) == pytest.approx(0.1, abs=0.02)
    assert np.median(found.samples["tpot_s"]) == pytest.approx(0.01, abs=0.0005)
    assert np.median(found.samples["e2e_s"]) == pytest.approx(0.59, abs=0.02)
    assert len(found.samples["ttft_s"]) == 40
    assert found.tokens_per_s == pytest.approx(40 * 50 / 6.05, rel=0.05)


@pytest.mark.parametrize("tool", ["vllm", "aiperf"])
def test_gaps_show_the_stall_that_the_printed_itl_hides(tool: str) -> None:
    found = read(tool, "stall")
    assert found.samples["itl_s"].max() == pytest.approx(1.01, abs=0.05)
    assert found.samples["itl_s"].mean() == pytest.approx(0.0304, abs=0.002)
    assert ms(cell([found], "ITL largest")[0]) == pytest.approx(1010, abs=50)


def test_what_is_not_in_a_file_is_said_and_not_made_up() -> None:
    found = read("guidellm", "stall")
    assert "itl_s" not in found.samples
    assert cell([found], "ITL p50") == ("the file has no time of single chunks",)
    assert cell([found], "TTFT p95") == ("n too small (40)",)


def test_printed_figures_keep_their_names_and_definitions() -> None:
    page = side_by_side([read(tool) for tool in FILES])
    by_name = {(tool.split()[0], name): (value, about) for tool, name, value, about in page.printed}
    value, about = by_name["GuideLLM", "time_per_output_token_ms mean"]
    assert ms(value) == pytest.approx(11.87, abs=0.05)
    assert "contains TTFT" in about
    value, about = by_name["AIPerf", "inter_token_latency avg"]
    assert ms(value) == pytest.approx(10.04, abs=0.05)
    assert "Ridgeline calls it TPOT" in about
    value, about = by_name["vllm", "mean_tpot_ms"]
    assert ms(value) == pytest.approx(10.01, abs=0.05)
    # 11.87 against 10.0 is the definition's doing, not the server's: in one definition they agree
    tpots = [ms(text) for text in cell([read(tool) for tool in FILES], "TPOT mean")]
    assert max(tpots) - min(tpots) < 0.2
    assert ms(cell([read("guidellm")], "E2E / n mean")[0]) == pytest.approx(11.87, abs=0.05)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("not json", "is no JSON"),
        ("[]", "is no result file that is known"),
        ('{"a": 1}', "give one of vllm bench serve"),
        ('{"mean_ttft_ms": 1, "request_throughput": 2}', "lacks 'output_throughput'"),
        ('{"aiperf_version": "0.13.0"}', "lacks 'output_token_throughput'"),
        (
            '{"metadata": {"guidellm_version": "1"}, "benchmarks": [{"metrics": 5}]}',
            "is damaged or of another version",
        ),
    ],
)
def test_files_that_are_none_of_them(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "r.json"
    file.write_text(text)
    with pytest.raises(BadInput, match=r"r\.json") as error:
        read_results(file)
    assert said in str(error.value)


def test_a_file_without_single_requests_still_has_what_it_prints(tmp_path: Path) -> None:
    body = json.loads(fixture("vllm").read_text())
    for key in ("ttfts", "itls", "output_lens", "errors"):
        del body[key]
    file = tmp_path / "r.json"
    file.write_text(json.dumps(body))
    (found,) = read_results(file)
    assert cell([found], "TPOT mean") == (
        "the file has no single requests: write it with --save-detailed",
    )
    assert any(p.name == "mean_ttft_ms" for p in found.printed)


def test_text_from_files_is_escaped(tmp_path: Path) -> None:
    body = json.loads(fixture("vllm").read_text()) | {"model_id": "<script>alert(1)</script>|"}
    file = tmp_path / "r.json"
    file.write_text(json.dumps(body))
    page = side_by_side(read_results(file))
    assert "<script>" not in html(page)
    assert "http" not in html(page).replace("http-equiv", "")
    assert "\\|" in markdown(page)


def test_report_takes_files_and_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Our own run on the twin, exported as vllm bench would write it, and read back beside it."""
    file = tmp_path / "s.yaml"
    file.write_text(
        "name: s\nmodel: Qwen/Qwen3-4B\nhardware: {gpu: H100-SXM}\nengine: twin\n"
        "workload: {arrivals: {users: 4}, prompts: {tokens: 64}, output_tokens: {max: 32},"
        " duration_s: 10, warmup_s: 2}\nrepeats: 1\n"
    )
    out, export = tmp_path / "o", tmp_path / "v.json"
    assert ridgeline(["study", str(file), "--quiet", "--out", str(out)]) == 0
    assert ridgeline(["report", str(out), "--quiet", "--export-vllm", str(export)]) == 0
    body = json.loads(export.read_text())
    theirs = json.loads(fixture("vllm").read_text())
    # everything that the tool's own file has, but what no one run has measured
    assert set(theirs) - set(body) <= {"queue_times", "max_concurrent_requests", "rtfx"}
    assert {k: type(v) for k, v in body.items() if isinstance(v, list)} == {
        k: list for k, v in theirs.items() if isinstance(v, list) and k != "queue_times"
    }
    n = body["num_prompts"]
    assert all(len(body[k]) == n for k in ("ttfts", "itls", "latencies", "input_lens", "errors"))
    assert body["mean_tpot_ms"] == pytest.approx(
        1e3 * np.mean([(e - t) / (m - 1) for e, t, m in zip(
            body["latencies"], body["ttfts"], body["output_lens"], strict=True)])
    )  # fmt: skip
    capsys.readouterr()
    page, text = tmp_path / "p.html", tmp_path / "p.md"
    files = [str(export), *(str(fixture(tool)) for tool in FILES)]
    args = ["report", str(out), *files, "--html", str(page), "--markdown", str(text)]
    assert ridgeline(args) == 0
    shown = capsys.readouterr().out
    assert "In Ridgeline's definitions" in shown
    assert "As each tool prints it" in text.read_text()
    lines = [line for line in text.read_text().splitlines() if line.startswith("| TPOT mean")]
    ours, exported = (c.strip() for c in lines[0].split("|")[2:4])
    assert ours == exported
    assert "AIPerf 0.13.0" in page.read_text()
    assert ridgeline(["report", str(tmp_path / "none.json"), "--quiet"]) == 2


def test_a_definition_is_told_once_for_the_lines_that_share_it() -> None:
    page = side_by_side([read(tool) for tool in FILES])
    lines = printed_lines(page)
    assert len(lines) == len(page.printed)
    told = [line[3] for line in lines if line[3] != "″"]
    assert set(told) == {line[3] for line in page.printed}
    assert len(told) < len(lines) / 2
    second = markdown(page).split("## As each tool prints it")[1]
    assert second.count("| ″ |") == len(lines) - len(told)
