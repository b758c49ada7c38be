"""Score the twin on public measurements.

    python -m validation                              the data that ships with Ridgeline
    python -m validation --silicon FILE --trace CSV   other rows of the same form
    python -m validation --fit                        fit the GPUs' constants again and store them
    python -m validation --host                       our own H200 hosts only
    python -m validation --transfer                   a calibration carried over to other rows
    python -m validation --aiconfigurator             make its predictions anew (installs it once)

The constants that ship were fitted on half of the cells (whole concurrency sweeps) of each group
of the shipped rows; a row of such a cell is reported as fitted, everything else as held out. The
trace is calibrated on the third of its requests that arrived first and scored on the rest.
"""

import argparse
import json
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import ridgeline.twin
from benchmarks.twin import h200_rows
from ridgeline.domain.errors import RidgelineError
from ridgeline.domain.hardware import gpu as find_gpu
from ridgeline.twin.constants import FITTED, priors_for
from validation import bands, beside, host, score, silicon, trace
from validation.fit import fit_rows
from validation.transfer import carried_over

DATA = Path(__file__).parent / "data"
CONSTANTS = Path(ridgeline.twin.__file__).parent / "data" / "efficiencies.json"
BARS = {"ttft": 0.20, "tpot": 0.08, "trace": 0.04}
PARTS = {
    "held out": "Held out: nothing was fitted on these rows",
    "fitted": "Fitted: the constants come from these rows",
    "apart": "Apart: rows that no single plain engine can have produced (see the data's README)",
}
Say = Callable[[str], None]


def main(arguments: list[str] | None = None) -> int:
    """Entry point; exit code 2 for bad input, 1 when `--floors` are not met."""
    parser = argparse.ArgumentParser(
        prog="python -m validation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--silicon", type=Path, metavar="FILE", help="rows (CSV)")
    parser.add_argument("--trace", type=Path, metavar="CSV", help="a request trace")
    parser.add_argument("--json", metavar="FILE", help="write the scores as JSON; - is stdout")
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--fit", action="store_true", help="fit the GPUs' constants and store them")
    parser.add_argument("--gpu", metavar="NAME", help="with --fit: only this GPU's constants")
    parser.add_argument("--host", action="store_true", help="only our own H200 hosts")
    parser.add_argument(
        "--transfer",
        action="store_true",
        help="only: what a calibration is worth for another model or precision",
    )
    parser.add_argument(
        "--aiconfigurator",
        action="store_true",
        help="predict the rows with AIConfigurator anew and store that (500 MB, once)",
    )
    parser.add_argument("--floors", action="store_true", help="exit 1 when the bars are missed")
    parser.add_argument(
        "--bands", action="store_true", help="also say how many held-out figures the bands hold"
    )
    parser.add_argument("--processes", type=int, default=2, metavar="N")
    given = parser.parse_args(arguments)
    try:
        return _run(given)
    except RidgelineError as problem:
        print(f"validation: {problem}", file=sys.stderr)
        return problem.exit_code


def _run(given: argparse.Namespace) -> int:
    both = given.silicon is None and given.trace is None and not given.host
    rows_path = given.silicon or (DATA / "vllm_dense.csv" if both or given.fit else None)
    trace_path = given.trace or (DATA / "rtx4090_llama-3.1-8b_tp1.csv" if both else None)
    say = partial(print, file=sys.stderr if given.json == "-" else sys.stdout, flush=True)
    body: dict[str, Any] = {}
    met = True
    with ProcessPoolExecutor(given.processes) as pool:
        if given.fit:
            assert rows_path is not None
            _fit(silicon.read_rows(rows_path), pool, say, given.gpu)
            return 0
        if given.transfer:
            carried_over(silicon.read_rows(given.silicon or DATA / "vllm_dense.csv"), pool, say)
            return 0
        if given.aiconfigurator:
            beside.make(rows_path or DATA / "vllm_dense.csv")
        if rows_path is not None:
            body["silicon"] = _silicon(silicon.read_rows(rows_path), pool, say, each=given.rows)
            if given.bands:
                body["bands"] = _bands(silicon.read_rows(rows_path), pool, say, own=both)
            held = body["silicon"]["held_out"].get("all", {})
            met &= bool(held) and all(held[f]["mape"] <= BARS[f] for f in score.FIGURES)
        if trace_path is not None:
            body["trace"] = _trace(trace.read_trace(trace_path), say)
            met &= all(abs(e) <= BARS["trace"] for e in body["trace"]["held_out"].values())
    if both or given.host:
        body["host"] = {
            "rows": host.score_rows(say),
            "runs": host.score_runs(say),
            "probe": host.score_probe(say),
        }
    if given.json is not None:
        text = json.dumps(body, indent=1) + "\n"
        if given.json == "-":
            sys.stdout.write(text)
        else:
            Path(given.json).write_text(text, encoding="utf-8")
    return 1 if given.floors and not met else 0


def _predicted(row: silicon.Row) -> silicon.Predicted | str:
    """The row's prediction with the constants that ship, or why there is none."""
    try:
        return silicon.predict(row, priors_for(silicon.gpu_of(row).name))
    except RidgelineError as problem:
        return str(problem)


def _silicon(
    rows: list[silicon.Row], pool: ProcessPoolExecutor, say: Say, *, each: bool
) -> dict[str, Any]:
    """Predict all rows and print their errors by part and group."""
    found = list(pool.map(_predicted, rows, chunksize=4))
    for row, prediction in zip(rows, found, strict=True):
        if isinstance(prediction, str):
            say(f"not predicted: {row.name}: {prediction}")
        elif each:
            ttft = prediction.ttft_ms / row.ttft_ms - 1
            tpot = prediction.tpot_ms / row.tpot_ms - 1
            say(f"{row.name:58} {row.ttft_ms:9.1f} {ttft:+5.0%} {row.tpot_ms:8.2f} {tpot:+5.0%}")
    seen = set(json.loads(CONSTANTS.read_text("utf-8"))["cells"])
    parts: dict[str, list[tuple[silicon.Row, silicon.Predicted]]] = {}
    for row, prediction in zip(rows, found, strict=True):
        if not isinstance(prediction, str):
            part = "apart" if silicon.apart(row) else "fitted" if row.cell in seen else "held out"
            parts.setdefault(part, []).append((row, prediction))
    body: dict[str, Any] = {"not_predicted": sum(isinstance(f, str) for f in found)}
    for part in ("held out", "fitted", "apart"):
        groups = _errors(parts.get(part, []))
        body[part.replace(" ", "_")] = score.to_json(groups)
        if groups:
            say(f"\n{PARTS[part]}\n{score.HEADER}")
            others = _errors(_beside(parts[part]))
            body[f"aiconfigurator_{part.replace(' ', '_')}"] = score.to_json(others)
            for name, errors in groups.items():
                say(score.group_line(name, errors))
                if name in others:
                    say(score.group_line(f"  AIConfigurator {beside.VERSION}", others[name]))
    return body


def _beside(
    part: list[tuple[silicon.Row, silicon.Predicted]],
) -> list[tuple[silicon.Row, silicon.Predicted]]:
    """AIConfigurator's predictions of the same rows, where it has one."""
    known = beside.read()
    return [(row, silicon.Predicted(*known[row.id])) for row, _ in part if row.id in known]


def _bands(
    rows: list[silicon.Row], pool: ProcessPoolExecutor, say: Say, *, own: bool
) -> dict[str, Any]:
    """Coverage of the bands on held-out rows and, with the shipped data, on one H200 host."""
    seen = set(json.loads(CONSTANTS.read_text("utf-8"))["cells"])
    apart = [r for r in rows if r.cell not in seen and silicon.apart(r) is None]
    found = {"held-out rows": pool.map(bands.of_row, apart, chunksize=4)}
    if own:
        found["one H200 host"] = pool.map(bands.of_host_row, h200_rows.ROWS)
    body = {}
    for title, lists in found.items():
        held = [h for part in lists for h in part]
        for line in bands.coverage_lines(title, held):
            say(line)
        body[title] = {"n": len(held), "inside": sum(h.inside for h in held)}
    return body


def _errors(
    part: list[tuple[silicon.Row, silicon.Predicted]],
) -> dict[str, dict[str, score.Error]]:
    """Errors by group, and of all; empty for no rows."""
    groups: dict[str, list[tuple[silicon.Row, silicon.Predicted]]] = {}
    for pair in part:
        groups.setdefault(pair[0].group, []).append(pair)
    if part:
        groups["all"] = part
    return {
        name: {
            "ttft": score.error([p.ttft_ms for _, p in pairs], [r.ttft_ms for r, _ in pairs]),
            "tpot": score.error([p.tpot_ms for _, p in pairs], [r.tpot_ms for r, _ in pairs]),
        }
        for name, pairs in groups.items()
    }


def _trace(recorded: trace.Trace, say: Say) -> dict[str, Any]:
    """Calibrate on the first third, print the errors of the rest and of the whole."""
    fitted, first = trace.calibrate(recorded), round(len(recorded) / 3)
    truth, found = trace.measured(recorded), trace.predict(recorded, fitted.constants)
    say(
        f"\n{recorded.name}: {len(recorded)} requests, calibrated on the first {first}; means in ms"
    )
    parts = {"held out": slice(first, None), "all": slice(None)}
    body: dict[str, Any] = {"requests": len(recorded), "preemptions": found.preemptions}
    for part, where in parts.items():
        was, is_ = truth.means(where), found.means(where)
        errors = {n: is_[n] / was[n] - 1 for n in was}
        body[part.replace(" ", "_")] = errors
        line = ", ".join(f"{n} {was[n]:.1f} -> {is_[n]:.1f} ({errors[n]:+.1%})" for n in was)
        say(f"  {part + ':':10}{line}")
    say(f"  preemptions in the twin: {found.preemptions}")
    body["constants"] = fitted.values
    say("  calibrated: " + ", ".join(f"{n} {v:g}" for n, v in fitted.values.items()))
    return body


def _informed(rows: list[silicon.Row], gpu: str) -> list[str]:
    """The constants that rows of a GPU can tell: only Hopper's FP8 GEMMs have a step in the
    number of rows, and only FP4 rows say what FP4 costs."""
    dumb = {
        "fp8_rows_share": find_gpu(gpu).compute_capability != "9.0",
        "quantise_fp4_ns": all(row.precision != "fp4" for row in rows),
    }
    return [n for n in FITTED if not dumb.get(n)]


def _fit(rows: list[silicon.Row], pool: ProcessPoolExecutor, say: Say, only: str | None) -> None:
    """Fit each GPU's constants (or only one's) on the fitting cells and store them."""
    cells = silicon.fitting_cells(rows)
    gpus: dict[str, Any] = json.loads(CONSTANTS.read_text("utf-8"))["gpus"] if only else {}
    for name in dict.fromkeys(silicon.gpu_of(r).name for r in rows):
        if only and find_gpu(only).name != name:
            continue
        part = [r for r in rows if r.cell in cells and silicon.gpu_of(r).name == name]
        if not part:
            continue
        names = _informed(part, name)
        found = fit_rows(part, pool, names)
        gpus[name] = found.values
        say(f"{name}: {len(part)} rows")
        for constant in names:
            say(f"  {constant} {found.values[constant]:g} (+- {found.errors[constant]:.0%})")
    stored = {
        "note": "Fitted by `python -m validation --fit` on the cells named below (whole concurrency"
        " sweeps of public vLLM measurements, see validation/data/README.md), one set per GPU.",
        "gpus": gpus,
        "cells": sorted(cells),
    }
    CONSTANTS.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
