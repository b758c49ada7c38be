"""Accuracy on measurements that nothing was fitted to, with floors so that it cannot rot."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ridgeline.domain.errors import BadInput
from ridgeline.twin.constants import FITTED, PRIORS, priors_for
from validation import score, silicon, trace
from validation.__main__ import CONSTANTS, DATA, main
from validation.fit import fit_rows

ROWS = silicon.read_rows(DATA / "vllm_dense.csv")
FITTED_ON = set(json.loads(CONSTANTS.read_text("utf-8"))["cells"])
HEAD = "id,model,gpu,precision,vllm_version,tp,isl,osl,concurrency,ttft_ms,tpot_ms\n"


def test_no_sweep_lies_on_both_sides_and_half_of_each_group_is_held_out():
    assert silicon.fitting_cells(ROWS) == FITTED_ON
    groups = {}
    for row in ROWS:
        if silicon.apart(row) is None:
            groups.setdefault(row.group, set()).add(row.cell)
    assert len(groups) == 5
    for name, cells in groups.items():
        held = cells - FITTED_ON
        assert len(cells) // 2 == len(held), name
        for cell in cells:
            assert len([r for r in ROWS if r.cell == cell]) == 5, "not a whole sweep"


def test_constants_are_few_and_of_gpus_never_of_models():
    table = json.loads(CONSTANTS.read_text("utf-8"))["gpus"]
    assert set(table) == {"H100-SXM", "H200-SXM", "B200-SXM"}
    for name, values in table.items():
        assert set(values) <= set(FITTED)
        assert len(values) <= 7
        for constant, value in values.items():
            if constant.endswith("_share"):
                assert 0.2 < value <= 1.0, (name, constant)
        assert priors_for(name).gemm_flops_share == values["gemm_flops_share"]
    assert priors_for("L40S") == PRIORS


def test_held_out_rows_stay_within_loose_floors():
    """The short ones of them, so that this stays quick; `python -m validation` scores all."""
    rows = [
        r for r in ROWS
        if r.cell not in FITTED_ON and silicon.apart(r) is None and r.output <= 1024
    ]  # fmt: skip
    assert len(rows) >= 50
    found = [silicon.predict(r, priors_for(silicon.gpu_of(r).name)) for r in rows]
    ttft = score.error([p.ttft_ms for p in found], [r.ttft_ms for r in rows])
    tpot = score.error([p.tpot_ms for p in found], [r.tpot_ms for r in rows])
    assert ttft.mape < 0.20
    assert tpot.mape < 0.08
    assert abs(ttft.bias) < 0.15
    assert abs(tpot.bias) < 0.06


def test_the_trace_is_met_after_calibration_on_its_first_third():
    recorded = trace.read_trace(DATA / "rtx4090_llama-3.1-8b_tp1.csv")
    rest = slice(100, None)
    truth = trace.measured(recorded)
    assert truth.means()["TTFT"] == pytest.approx(65_456.57, abs=0.1)  # the source's own figure
    found = trace.predict(recorded, trace.calibrate(recorded).constants)
    for name, value in truth.means(rest).items():
        assert found.means(rest)[name] == pytest.approx(value, rel=0.04), name
    assert 150 < found.preemptions < 250  # another simulator with a measured profile counts 194


def test_errors_by_hand():
    found = score.error([110, 80, 100], [100, 100, 100])
    assert (found.n, found.mape, found.median) == (3, pytest.approx(0.1), pytest.approx(0.1))
    assert found.bias == pytest.approx(-1 / 30)


def test_a_fit_finds_what_made_the_rows():
    """Rows that a twin of known constants would have measured, offered to a fit."""
    truth = replace(PRIORS, gemm_flops_share=0.5, all_reduce_ns=25_000.0)
    picked = [r for r in ROWS if r.gpu == "b200_sxm" and r.output < r.prompt and r.users == 16]
    made = []
    for row in picked:
        found = silicon.predict(row, truth)
        made.append(replace(row, ttft_ms=found.ttft_ms, tpot_ms=found.tpot_ms))
    with ThreadPoolExecutor(1) as pool:
        fitted = fit_rows(made, pool, ("gemm_flops_share", "all_reduce_ns"))
    assert fitted.values["gemm_flops_share"] == pytest.approx(0.5, rel=0.03)
    assert fitted.values["all_reduce_ns"] == pytest.approx(25_000, rel=0.1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,model\n1,x\n", "has no column gpu"),
        (HEAD, "has no rows"),
        (HEAD + "1,m,h100_sxm,bf16,,2,x,8,8,1,1\n", r":2: invalid literal"),
        (HEAD + "1,m,h100_sxm,bf16,,2,8,8,8,0,1\n", "times above 0"),
        (HEAD + "1,m,h100_sxm,int3,,2,8,8,8,1,1\n", "unknown precision 'int3'"),
        (HEAD + "1,m,h101,bf16,,2,8,8,8,1,1\n", "unknown GPU 'h101'"),
    ],
)
def test_bad_rows_are_one_clear_line(tmp_path, text, message, capsys):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=message):
        silicon.read_rows(path)
    assert main(["--silicon", str(path)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def _trace_file(folder: Path, *lines: str) -> Path:
    path = folder / "t.csv"
    columns = ("request", *trace.COLUMNS)
    path.write_text(",".join(columns) + "\n" + "\n".join(lines) + "\n")
    path.with_suffix(".meta.json").write_text("{}")
    return path


def test_bad_traces_are_refused(tmp_path):
    good = "0,0.0,10,5,0.1,0.2,0.9"
    assert len(trace.read_trace(_trace_file(tmp_path, good))) == 1
    with pytest.raises(BadInput, match=r"t\.csv:3: times run backwards"):
        trace.read_trace(_trace_file(tmp_path, good, "1,0.5,10,5,0.6,0.4,0.9"))
    with pytest.raises(BadInput, match="times run backwards"):
        trace.read_trace(_trace_file(tmp_path, "0,1.0,10,5,1.1,1.2,1.9", "1,0.5,10,5,1.6,1.7,1.9"))
    with pytest.raises(BadInput, match="first_token_s is not a number"):
        trace.read_trace(_trace_file(tmp_path, "0,0.0,10,5,0.1,,0.9"))
    with pytest.raises(BadInput, match="cannot be read"):
        trace.read_trace(tmp_path / "none.csv")


def test_other_rows_are_scored_as_held_out_and_what_cannot_run_is_told(tmp_path, capsys):
    row = next(r for r in ROWS if r.cell in FITTED_ON and r.output == 1024)
    path, out = tmp_path / "other.csv", tmp_path / "scores.json"
    lines = [
        f"a,{row.model},{row.gpu},{row.precision},,{row.tensor_parallel},900,100,4,50,10",
        "b,meta-llama/Llama-3.1-70B,h100_sxm,bf16,,1,900,100,4,50,10",
    ]
    path.write_text(HEAD + "\n".join(lines) + "\n")
    assert main(["--silicon", str(path), "--json", str(out), "--processes", "1"]) == 0
    body = json.loads(out.read_text())["silicon"]
    assert body["not_predicted"] == 1
    assert body["held_out"]["all"]["tpot"]["n"] == 1
    assert body["fitted"] == {}
    assert np.isfinite(body["held_out"]["all"]["ttft"]["mape"])
    assert "not enough GPU memory" in capsys.readouterr().out
