"""What a stranger does first, from a clone that has nothing: the demo, timed.

Run by `make acceptance`; its figures stand in docs/acceptance.md. Limits are for two idle cores.
"""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.acceptance


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clone") / "ridgeline"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    return folder


def make(folder: Path, target: str) -> tuple[float, str]:
    """Seconds and output of a make target, in an environment without any other virtual one."""
    environment = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}
    begun = time.monotonic()
    done = subprocess.run(
        ["make", target], check=False, cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return time.monotonic() - begun, done.stdout + done.stderr


def test_the_demo_ends_in_four_minutes_and_its_runs_in_one(clone: Path) -> None:
    first_s, output = make(clone, "demo")
    page = (clone / "runs/demo/report.html").read_text()
    for mark in ("reproduced", "not reproduced"):
        assert mark in page
    assert "fp8-seqs-64" in output
    index = json.loads((clone / "runs/demo/index.json").read_text())
    assert len(index["runs"]) == 36
    assert {run["state"] for run in index["runs"].values()} == {"done"}

    subprocess.run(["rm", "-rf", str(clone / "runs/demo")], check=True)
    again_s, _ = make(clone, "demo")  # everything is installed: the runs, the table and the page
    print(f"\nmake demo from nothing: {first_s:.0f} s; installed: {again_s:.0f} s")
    assert first_s < 240
    assert again_s < 60 + 15  # the page and two starts of Python are not the runs


def test_the_base_install_has_no_torch_and_no_tokenizer(clone: Path) -> None:
    make(clone, "demo")
    python = clone / ".venv/bin/python"
    listed = subprocess.run(
        [str(python), "-m", "pip", "list", "--format=json"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    names = {package["name"].lower() for package in json.loads(listed.stdout)}
    assert names.isdisjoint({"torch", "tokenizers", "transformers", "sentencepiece", "tiktoken"})


def test_help_is_there_in_a_third_of_a_second(clone: Path) -> None:
    make(clone, "demo")
    times = []
    for _ in range(7):
        begun = time.monotonic()
        subprocess.run([clone / ".venv/bin/ridgeline", "--help"], check=True, capture_output=True)
        times.append(time.monotonic() - begun)
    print(f"\nridgeline --help: median {sorted(times)[3]:.3f} s")
    assert sorted(times)[3] < 0.3
