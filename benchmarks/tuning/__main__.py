"""Scores search policies on the corpus.

    python -m benchmarks.tuning [--seeds 50] [--settings NAME...] [--policies NAME...]
                                [--write docs/tuning-corpus.md] [--out FILE] [--endings FILE]
                                [--ended N] [--fresh]
    python -m benchmarks.tuning --make      simulate the landscapes anew (five minutes of a core)

Exit code 0: scored, and the bars are met; 1: a bar is missed; 2: bad input, or no bar could be held
(a rival, a seed or an ending is missing).
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.tuning import landscape
from benchmarks.tuning.ending import Ending, endings
from benchmarks.tuning.endtable import APART
from benchmarks.tuning.ground import ReplayGround
from benchmarks.tuning.h200 import RealGround, SlowRealGround
from benchmarks.tuning.score import POLICIES, Score, replay
from benchmarks.tuning.settings import HARD, SETTINGS
from benchmarks.tuning.tables import NEEDED, Bars, markdown, put

GROUNDS: dict[str, Callable[[int], Any]] = {s.name: partial(ReplayGround, s) for s in SETTINGS}
GROUNDS |= {g.name: g for g in (RealGround, SlowRealGround)}
GROUNDS |= {s.name: partial(ReplayGround, s) for s in HARD}


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
    parser.add_argument("--endings", type=Path, default=Path("runs/bench-tuning-endings.jsonl"),
                        help="every tuning's end, in the same way")  # fmt: skip
    parser.add_argument("--ended", type=int, metavar="N", help="end the tunings of the first N"
                        " seeds only (default: of all)")  # fmt: skip
    parser.add_argument("--fresh", action="store_true", help="forget what the two files hold")
    parser.add_argument("--make", action="store_true", help="simulate the landscapes anew")
    options = parser.parse_args()
    if options.make:
        landscape.make((*SETTINGS, *HARD), lambda line: print(line, file=sys.stderr))
        return 0
    for kept in (options.out, options.endings):
        kept.parent.mkdir(parents=True, exist_ok=True)
        if options.fresh:
            kept.unlink(missing_ok=True)
    chosen = {n: GROUNDS[n] for n in options.settings}
    scores = []
    for score in replay(chosen, options.policies, options.seeds, options.out):
        scores.append(score)
        print(f"{len(scores)}: {score.setting} {score.policy} seed {score.seed}", file=sys.stderr)
    ended = options.seeds if options.ended is None else min(options.ended, options.seeds)
    ours = "ours" in options.policies
    ends = list(endings(chosen, range(ended), options.endings)) if ours else []
    page = markdown(scores, ends)
    print(page)
    if options.write is not None:
        put(options.write, page)
    return code_of(scores, ends)


def code_of(scores: Sequence[Score], ends: Sequence[Ending]) -> int:
    """The exit code, with a line on stderr where no bar could be held."""
    bars = Bars.of(
        [s for s in scores if s.setting not in APART], [e for e in ends if e.setting not in APART]
    )
    if isinstance(bars, str):
        print(
            f"benchmarks.tuning: no bar could be held: {bars}. Fix: score the settings of the twin"
            f" with the policies {', '.join(NEEDED)}",
            file=sys.stderr,
        )
        return 2
    return 0 if bars.met else 1


if __name__ == "__main__":
    sys.exit(main())
