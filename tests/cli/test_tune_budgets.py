"""Budgets that are no budgets are refused in one line."""

from pathlib import Path

import pytest

from ridgeline.cli.main import run

STUDY = """\
name: budgets
model: Qwen/Qwen3-4B
hardware: {gpu: H200-SXM, count: 1}
workload: {arrivals: {users: 4}, duration_s: 4}
baseline: {max_num_seqs: 8}
"""


@pytest.mark.parametrize("option", ["--gpu-minutes", "--minutes"])
@pytest.mark.parametrize("value", ["inf", "nan"])
def test_a_budget_without_end_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    file = tmp_path / "budgets.yaml"
    file.write_text(STUDY)
    code = run(["tune", str(file), "--engine", "twin", option, value, "--out", str(tmp_path / "o")])
    told = capsys.readouterr().err
    assert code == 2
    assert option in told
    assert "traceback" not in told.lower()
    assert not (tmp_path / "o").exists()
