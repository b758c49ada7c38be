"""A real study from the repository as Markdown: the page is checked against its own records."""

import json
import re
from pathlib import Path

import pytest

from ridgeline.cli.report import report as verb

RESULTS = Path(__file__).parents[2] / "results/h200/two-gpus"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    assert verb([RESULTS], markdown=folder / "page.md", quiet=True) == 0
    return (folder / "page.md").read_text()


def row(page: str, name: str, section: str) -> list[str]:
    part = page.split(f"## {section}")[1].split("\n## ", maxsplit=1)[0]
    (line,) = [x for x in part.splitlines() if x.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_page_opens_with_what_the_study_file_says_of_itself(page: str) -> None:
    lines = page.splitlines()
    assert lines[0] == "# h200-two-gpus"
    assert "Does a better knob beat more silicon?" in page.split("**MEASURED**", maxsplit=1)[0]


def test_figures_are_the_means_of_the_valid_runs_on_disk(page: str) -> None:
    rates = [
        json.loads((RESULTS / f"two-gpus-seqs-32-r{n}/run.json").read_text())["summary"][
            "throughput"
        ]["output_tokens_per_s"]
        for n in (1, 2, 3)
    ]
    assert 6530 < rates[0] < 6535  # as the run said when it ended
    cells = row(page, "two-gpus-seqs-32", "Experiments")
    assert cells[5].startswith("7\u2009000 (")
    assert round(sum(rates) / 3, -1) == pytest.approx(7000, abs=5)
    assert cells[8] == "3 of 3"


def test_steps_are_those_of_one_replica(page: str) -> None:
    """Two replicas of 31 running each make twice the steps of one, each as long as before."""
    one = row(page, "one-gpu-seqs-32", "What the engine and the GPU did")
    two = row(page, "two-gpus-seqs-32", "What the engine and the GPU did")
    assert one[3] == "8.48 ms"
    assert two[3] == "8.99 ms"
    assert float(two[1]) == pytest.approx(2 * float(one[1]), rel=0.02)


def test_a_void_run_is_named_with_its_reason_and_not_counted(page: str) -> None:
    part = page.split("## Runs not counted")[1].split("\n## ", maxsplit=1)[0]
    assert part.strip().splitlines() == [
        "- one-gpu-tuned-r2: void: not steady: throughput changed by -27% over the window"
    ]
    assert row(page, "one-gpu-tuned", "Experiments")[8] == "2 of 3"


def test_the_account_stands_on_the_page_with_its_errors_and_what_binds(page: str) -> None:
    tuned = row(page, "one-gpu-tuned", "Where a request's seconds went")
    assert all(cell.endswith(" ms") for cell in tuned[2:7])
    *parts, whole = [float(re.sub(r"[^\d.]", "", cell)) for cell in tuned[2:7]]
    assert sum(parts) == pytest.approx(whole, rel=0.01)
    assert tuned[7] == "−0.1 %"
    assert "batch ceiling: max_num_seqs 64 is full" in tuned[9]


def test_a_run_that_was_not_run_says_so_once(tmp_path: Path) -> None:
    assert verb([RESULTS.parent / "prompts"], markdown=tmp_path / "page.md", quiet=True) == 0
    page = (tmp_path / "page.md").read_text()
    assert "- unique-r4: not run: it would exceed 7.5 GPU minutes" in page.splitlines()
    assert row(page, "unique", "Experiments")[8] == "3 of 4"


def test_how_far_the_servers_stages_are_off_stands_in_the_account(tmp_path: Path) -> None:
    """A load that leaves the API server no time: its gauges are late, and the warning says so."""
    assert verb([RESULTS.parent / "probe"], markdown=tmp_path / "page.md", quiet=True) == 0
    text = (tmp_path / "page.md").read_text()
    head = next(line for line in text.splitlines() if "| closes within |" in line)
    place = [cell.strip() for cell in head.split("|")].index("off by")
    cells = {
        n: row(text, n, "Where a request's seconds went")[place - 1] for n in ("crowd", "no-graph")
    }
    assert cells == {"crowd": "−40 % (±8.8 %)", "no-graph": "+1.6 % (±10 %)"}
    assert "the account of seconds is off by -40.0 %" in text
    assert "its API server had no time left" in text
