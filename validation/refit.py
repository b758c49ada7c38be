"""How well a twin that was fitted to two runs of a tuning predicts the other runs of its host.

    python -m validation.refit --fit STUDY/trials --model Qwen/Qwen3-4B [--limits 500 12]
                               PREDICT...

Fits to the first two configurations in the folder `--fit` (by the order of their names), as
`ridgeline tune` does after its first question, and predicts what else is in it and in PREDICT
(studies or folders of runs of the same GPU). Prints by folder the mean error of tokens/s, p95
TTFT and p95 ITL with the constants that ship and with the fitted ones, and how many limits (ms: p95
TTFT, p95 ITL) each judges as the measured figure does. Exit code 2: bad input.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.domain.errors import BadInput
from ridgeline.engines.twin import known_constants
from ridgeline.experiment.calibrating import Observation, read_observations, simulate
from ridgeline.tuning.refitting import refit

FIRST = 2
SHOWN = {"output_tokens_per_s": "tokens/s", "ttft_p95_s": "p95 TTFT", "itl_p95_s": "p95 ITL"}
Figures = Mapping[str, float]


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        prog="python -m validation.refit", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--fit", type=Path, required=True)
    parser.add_argument("--model", required=True, help="which has the shape that was served")
    parser.add_argument("--limits", type=float, nargs=2, default=(500.0, 12.0))
    parser.add_argument("predict", type=Path, nargs="*")
    options = parser.parse_args()
    try:
        own = read_observations([options.fit], options.model, "validation.refit")
        if len(own) < FIRST:
            raise BadInput("holds fewer than two measured configurations", where=str(options.fit))
        held = {str(p): read_observations([p], options.model, "validation.refit")
                for p in options.predict}  # fmt: skip
    except BadInput as error:
        print(f"validation.refit: {error}", file=sys.stderr)
        return 2
    fitted = refit(own[:FIRST])
    base = known_constants(own[0].configuration)
    changed: dict[str, Any] = dict(fitted.constants)
    after = replace(base, **changed)
    told = ", ".join(f"{n} x {v / getattr(base, n):.2f}" for n, v in fitted.constants.items())
    print(f"fitted to {own[0].name} and {own[1].name}: {told}\n")
    print(f"| predicted | configurations | {' | '.join(SHOWN.values())} | limits judged right |")
    print("|---|---|---|---|---|---|")
    folders = {f"{options.fit} (fitted to)": own[:FIRST], str(options.fit): own[FIRST:], **held}
    for name, seen in folders.items():
        if seen:
            prior, new = ([simulate(o, c) for o in seen] for c in (base, after))
            print(row(name, seen, prior, new, options.limits))
    return 0


def row(
    name: str, seen: Sequence[Observation], before: Sequence[Figures], after: Sequence[Figures],
    limits: Sequence[float],
) -> str:  # fmt: skip
    """A folder's line: mean absolute error before and after, and limits judged right."""
    cells = []
    for figure in SHOWN:
        errors = [
            float(np.mean([abs(t[figure] / o.figures[figure] - 1)
                           for o, t in zip(seen, twin, strict=True) if figure in t]))
            for twin in (before, after)
        ]  # fmt: skip
        cells.append(f"{errors[0]:.0%} -> {errors[1]:.0%}")
    keys = list(zip(list(SHOWN)[1:], limits, strict=True))
    right = [
        sum((1e3 * t[k] <= most) == (1e3 * o.figures[k] <= most)
            for o, t in zip(seen, twin, strict=True) for k, most in keys)
        for twin in (before, after)
    ]  # fmt: skip
    total = len(seen) * len(keys)
    return f"| {name} | {len(seen)} | {' | '.join(cells)} | {right[0]} -> {right[1]} of {total} |"


if __name__ == "__main__":
    sys.exit(main())
