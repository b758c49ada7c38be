"""Every pytest line of the Makefile finds tests: a gate that collects nothing is no gate."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINE = re.compile(r"^\t\$\(BIN\)/python -m pytest (.+)$", re.MULTILINE)


def pytest_lines() -> list[str]:
    """What the Makefile's recipes give to pytest, but for the plain run that this test is in."""
    lines = LINE.findall((ROOT / "Makefile").read_text("utf-8"))
    return [line for line in lines if " -m " in line]


def test_the_makefile_has_lines_to_look_at() -> None:
    marks = {shlex.split(line)[shlex.split(line).index("-m") + 1] for line in pytest_lines()}
    assert {"vllm and not acceptance", "acceptance"} <= marks


@pytest.mark.parametrize("line", pytest_lines())
def test_its_tests_are_found(line: str) -> None:
    # Exit code 5 is "no tests collected": what an ignored folder gives, with no error.
    found = subprocess.run(
        [sys.executable, "-m", "pytest", *shlex.split(line), "--collect-only", "-q"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
