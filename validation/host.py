"""One H200 host of our own: its rows and runs, what is fitted to a few of them, and the rest.

Three sets, from three sessions on rented hosts. `ROWS` (benchmarks/twin/h200_rows.py) are whole
runs of `vllm bench serve` with ramp and drain. `results/h200/one-gpu` are runs of `ridgeline
study`, 30 of them, on a host that launched kernels about 30 % slower than the first.

Fitted are host constants only (the GPU's shares come from public rows), on the rows named here. For
the runs that choice was made before the held-out scores were seen. For `ROWS` it was not: three
sets of constants for the fixed lengths were tried and their held-out scores seen, and the row that
the mixed lengths are fitted to was changed from 64 slots to the one without graphs. Read the scores
of those rows as how well the model can be made to fit, not as a blind test.

The third set is a calibration as a user makes it: `results/h200/probe`, two minutes of load, and
two studies that it is to predict, `results/h200/knobs` and `results/h200/prompts`. At first no
prediction of the two was computed before it stood; since the API server merges chunks (added with
those scores in view) it is no blind test any more. The probe's load of 200 users is left out of the
fit: there tokens queue unmerged, which the twin does not model.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.twin.h200_rows import ROWS, Row
from benchmarks.twin.h200_rows import simulate as simulate_row
from ridgeline.domain.records import Floats
from ridgeline.engines.twin import known_constants
from ridgeline.experiment.calibrating import Observation, read_observations, simulate
from ridgeline.twin.calibration import Fitted, fit
from ridgeline.twin.constants import Constants, priors_for

Say = Callable[[str], None]
BY_NAME: Mapping[str, Row] = {row.name: row for row in ROWS}
SEEDS = (1, 2, 3)
GPU = "H200-SXM"
# One and 32 users of fixed lengths say what a step, a prompt and the API server cost the host.
FIXED_FIT = ("1 user", "32 users")
FIXED_NAMES = ("step_gap_ns", "prompt_step_ns", "receive_ns", "receive_ns_per_token",
               "send_ns_per_chunk", "update_ns_per_request")  # fmt: skip
FP8_FIT = ("1 user, fp8",)
FP8_NAMES = ("quantise_ns",)
# In eager mode every step waits for its launches and for nothing else.
MIXED_FIT = ("eager, 32 seqs",)
MIXED_NAMES = ("eager_launch_ns_per_layer",)
EXPECTED = {"tok_s": 0.02, "ttft_mean": 0.08, "ttft_p95": 0.15, "itl_mean": 0.03, "itl_p50": 0.02,
            "itl_p95": 0.15}  # fmt: skip
# The bars: what a row that nothing was fitted to may be off.
FIXED_BARS = {"tok_s": 0.05, "itl_p50": 0.05, "itl_mean": 0.10, "ttft_mean": 0.20}
MIXED_BAR = 0.10
CAPTURE_BAR = 1.45

RESULTS = Path(__file__).parents[1] / "results" / "h200"
RUNS = RESULTS / "one-gpu"
STORED = Path(__file__).parent / "data" / "h200-host.json"
PROBED = (RESULTS / "knobs", RESULTS / "prompts")
PROBE = Path(__file__).parent / "data" / "h200-probe.json"
PROBE_FIT = ("one-short", "one-long", "no-graph", "piecewise", "mixed-1024")
MODEL = "Qwen/Qwen3-4B"  # the shape that the runs served
# Without graphs, few and many slots, long and short prompts; the other six are scored.
RUNS_FIT = ("eager", "seqs-32", "seqs-64-capture-1024", "short-seqs-64")


def fit_rows(base: Constants, rows: Sequence[str], names: Sequence[str]) -> Fitted:
    """Fit constants to some of the rows, by name."""
    return fit(base, names, partial(_residuals, rows), pull=0.5)


def _residuals(rows: Sequence[str], constants: Constants) -> Floats:
    found = []
    for row in (BY_NAME[n] for n in rows):
        predicted = simulate_row(row, 1, constants)
        found += [np.log(predicted[n] / v) / EXPECTED[n] for n, v in row.measured.items()]
    return np.array(found)


def errors_of(name: str, constants: Constants) -> dict[str, float]:
    """Relative errors of a row's figures, each of the median over seeds."""
    row = BY_NAME[name]
    runs = [simulate_row(row, seed, constants) for seed in SEEDS]
    return {n: float(np.median([r[n] for r in runs])) / v - 1 for n, v in row.measured.items()}


def score_rows(say: Say) -> dict[str, Any]:
    """Fit on the rows named above, score on the others; prints and returns the errors."""
    base = priors_for(GPU)
    fixed = fit_rows(base, FIXED_FIT, FIXED_NAMES).constants
    fp8 = fit_rows(fixed, FP8_FIT, FP8_NAMES).constants
    mixed = fit_rows(base, MIXED_FIT, MIXED_NAMES).constants
    body: dict[str, Any] = {}
    say("\nOne H200 host, rows of fixed lengths: host constants from one and 32 users")
    body["fixed"] = _told(say, {"100 users": fixed, "100 users, fp8": fp8}, FIXED_BARS)
    say("  mixed lengths: the launch cost from the row without graphs")
    rest = [n for n in BY_NAME if "seqs" in n and n not in MIXED_FIT]
    body["mixed"] = _told(say, dict.fromkeys(rest, mixed), {"tok_s": MIXED_BAR})
    body["capture"] = capture = _capture(mixed)
    say(f"  64 seqs, graphs to 1024 against 128: throughput x {capture:.2f} (measured 1.66)")
    return body


def _told(
    say: Say, rows: Mapping[str, Constants], bars: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    body = {name: errors_of(name, constants) for name, constants in rows.items()}
    for name, errors in body.items():
        cells = (
            f"{n} {e:+.1%}" + ("" if n not in bars else " ok" if abs(e) <= bars[n] else " MISSED")
            for n, e in errors.items()
        )
        say(f"  {name:24}{', '.join(cells)}")
    return body


def _capture(constants: Constants) -> float:
    """Throughput with 64 slots and graphs up to 1024 over that with the default of 128."""
    large, small = (
        np.median([simulate_row(BY_NAME[n], seed, constants)["tok_s"] for seed in SEEDS])
        for n in ("64 seqs, capture 1024", "64 seqs")
    )
    return float(large / small)


def observations(folder: Path = RUNS) -> tuple[Observation, ...]:
    """The runs of a study, repeats merged; the seed that is simulated is the first repeat's."""
    return read_observations([folder], MODEL)


def stored_constants(observation: Observation, path: Path = STORED) -> Constants:
    """What `ridgeline calibrate` fitted; stored, for it takes minutes."""
    values: dict[str, Any] = json.loads(path.read_text("utf-8"))["constants"]
    return replace(known_constants(observation.configuration), **values)


def score_runs(say: Say, only: Iterable[str] | None = None) -> dict[str, Any]:
    """Errors of the runs that were not fitted, with the priors and calibrated, by figure."""
    say(
        f"\nOur own H200 runs (results/h200/one-gpu): calibrated on {', '.join(RUNS_FIT)};"
        " held out, prior -> calibrated"
    )
    rest = [o for o in observations() if o.name not in RUNS_FIT]
    return _score(say, _only(rest, only), STORED)


def score_probe(say: Say, only: Iterable[str] | None = None) -> dict[str, Any]:
    """The same of two whole studies, by name, with the priors and after the probe."""
    say(
        f"\nTwo studies of an H200: calibrated on results/h200/probe ({', '.join(PROBE_FIT)});"
        " prior -> calibrated"
    )
    body = {}
    for folder in PROBED:
        say(f"  results/h200/{folder.name}")
        body[folder.name] = _score(say, _only(observations(folder), only), PROBE)
    return body


def _only(found: Sequence[Observation], only: Iterable[str] | None) -> list[Observation]:
    names = None if only is None else set(only)
    return [o for o in found if names is None or o.name in names]


def _score(say: Say, rest: Sequence[Observation], stored: Path) -> dict[str, Any]:
    errors: dict[str, list[tuple[float, float]]] = {}
    body: dict[str, Any] = {"runs": {}}
    for observation in rest:
        before = simulate(observation, known_constants(observation.configuration))
        after = simulate(observation, stored_constants(observation, stored))
        off = {n: (before[n] / v - 1, after[n] / v - 1) for n, v in observation.figures.items()}
        body["runs"][observation.name] = off
        for name, pair in off.items():
            errors.setdefault(name, []).append(pair)
        shown = ", ".join(
            f"{n[:-2] if n.endswith('_s') else n} {b:+.0%} -> {a:+.0%}"
            for n, (b, a) in off.items()
            if n in ("output_tokens_per_s", "itl_mean_s", "itl_p50_s", "ttft_mean_s", "ttft_p95_s")
        )
        say(f"  {observation.name:28}{shown}")
    means = {n: np.mean(np.abs(v), axis=0).round(4).tolist() for n, v in errors.items()}
    body["mape"] = means
    line = ", ".join(f"{n} {b:.1%} -> {a:.1%}" for n, (b, a) in means.items())
    say(f"  mean absolute error: {line}")
    return body
