"""Scores search policies on the corpus.

    python -m benchmarks.tuning [--seeds 50] [--settings NAME...] [--policies NAME...]
                                [--write docs/tuning-corpus.md] [--out FILE] [--fresh]
    python -m benchmarks.tuning --make      simulate the landscapes anew (five minutes of a core)

Exit code 0: scored, and the bars are met; 1: a bar is missed; 2: bad input.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.tuning import landscape
from benchmarks.tuning.ground import ReplayGround
from benchmarks.tuning.h200 import RealGround
from benchmarks.tuning.score import POLICIES, replay
from benchmarks.tuning.settings import SETTINGS
from benchmarks.tuning.tables import Bars, markdown, put

GROUNDS: dict[str, Callable[[int], Any]] = {s.name: partial(ReplayGround, s) for s in SETTINGS}
GROUNDS[RealGround.name] = RealGround


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tuning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--settings", nargs="+", choices=tuple(GROUNDS), default=list(GROUNDS))
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables into this page")
    parser.add_argument("--out", type=Path, default=Path("runs/bench-tuning.jsonl"),
                        help="every search's score; a stopped scoring goes on from it")  # fmt: skip
    parser.add_argument("--fresh", action="store_true", help="forget what --out holds")
    parser.add_argument("--make", action="store_true", help="simulate the landscapes anew")
    options = parser.parse_args()
    if options.make:
        landscape.make(SETTINGS, lambda line: print(line, file=sys.stderr))
        return 0
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if options.fresh:
        options.out.unlink(missing_ok=True)
    chosen = {n: GROUNDS[n] for n in options.settings}
    scores = []
    for score in replay(chosen, options.policies, options.seeds, options.out):
        scores.append(score)
        print(f"{len(scores)}: {score.setting} {score.policy} seed {score.seed}", file=sys.stderr)
    page = markdown(scores)
    print(page)
    if options.write is not None:
        put(options.write, page)
    bars = Bars.of([s for s in scores if s.setting != RealGround.name])
    return 0 if bars is None or bars.met else 1


if __name__ == "__main__":
    sys.exit(main())
