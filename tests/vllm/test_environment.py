"""The install script fails loudly where it cannot, and never removes what is not its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from real_vllm import ROOT

pytestmark = pytest.mark.vllm

# No index, no local wheels, no user configuration: pip finds nothing.
OFFLINE = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}


def run_script(venv: Path) -> "subprocess.CompletedProcess[str]":
    environment = {"PYTHON": sys.executable, "RIDGELINE_VLLM_VENV": str(venv)}
    return subprocess.run(
        [ROOT / "scripts" / "vllm_cpu_env.sh"],
        env=os.environ | OFFLINE | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_an_impossible_install_ends_with_one_line_and_an_error_code(tmp_path: Path) -> None:
    done = run_script(tmp_path / "venv")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "vLLM could not be installed" in line
    assert "torch" in line, "it names the package that was not found"
    assert "RIDGELINE_TORCH_INDEX" in line, "and what to do"
    assert str(tmp_path / "venv.log") in line
    assert not (tmp_path / "venv" / ".ridgeline-complete").exists()
    again = run_script(tmp_path / "venv")
    assert again.returncode == 1, "what was left half made is not taken for complete"


def test_a_folder_that_it_did_not_make_is_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "venv" / "thesis.txt"
    precious.parent.mkdir()
    precious.write_text("years of work")
    done = run_script(precious.parent)
    assert done.returncode == 1
    assert "was not made by this script" in done.stderr
    assert precious.read_text() == "years of work"
