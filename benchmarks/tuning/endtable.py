"""The table of how tunings ended, with the product's rules and a budget, and their means."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.tuning.ending import MINUTES, Ending, bias
from benchmarks.tuning.h200 import MEASURED
from benchmarks.tuning.settings import HARD

APART = frozenset((*MEASURED, *(s.name for s in HARD)))  # of which no bar is held


def ending_table(ends: Sequence[Ending]) -> list[str]:
    """A row for each setting and budget, then the settings of the twin together."""
    if not ends:
        return ["No tuning was ended."]
    seeds = sorted({e.seed for e in ends})
    lines = [
        "Tunings with a budget, in minutes of each GPU, ended by the product's rules (seeds"
        f" {seeds[0]} to {seeds[-1]}). *Shown*: the duel shows at 95 % that the answer meets every"
        " limit, as another configuration that is named or as the baseline that stays. *Not shown*:"
        " no configuration is named to serve, the answer is the nearest. Regret is of the best"
        " configuration that is feasible in truth (in brackets of the optimum as defined above;"
        " what is better than it counts as 0), over all answers: one that misses a limit or is not"
        " shown counts with its value.",
        "",
        "| setting | minutes | tunings | shown: another is named | shown: the baseline stays"
        " | not shown | of the shown, miss a limit in truth | of the not shown | mean regret"
        " | median | 90th percentile | of the shown, mean | crash"
        " | mean error of a winner's printed value | finalists | rounds |",
        "|---" * 16 + "|",
    ]
    names = list(dict.fromkeys(e.setting for e in ends))
    twin = [n for n in names if n not in APART]
    for title, group in (*((n, [n]) for n in names), ("**the twin's**", twin)):
        for minutes in MINUTES:
            found = [e for e in ends if e.setting in group and e.minutes == minutes]
            if found:
                lines.append(f"| {title} | {minutes:g} | " + " | ".join(_cells(found)) + " |")
    return lines


def _cells(found: Sequence[Ending]) -> list[str]:
    shown = [e for e in found if e.sure]
    other = [e for e in found if not e.sure]
    return [
        str(len(found)), str(sum(not e.stays for e in shown)), str(sum(e.stays for e in shown)),
        str(len(other)), str(sum(e.infeasible for e in shown)),
        str(sum(e.infeasible for e in other)),
        _regret(found, np.mean), _regret(found, np.median),
        _regret(found, lambda v: np.quantile(v, 0.9)),
        _regret(shown, np.mean) if shown else "–",
        str(sum(e.crashed for e in found)),
        "–" if math.isnan(off := bias(found)) else f"{100 * off:+.1f} %",
        f"{np.mean([e.finalists for e in found]):.1f}", f"{np.mean([e.rounds for e in found]):.1f}",
    ]  # fmt: skip


def _regret(found: Sequence[Ending], figure: Callable[[list[float]], object]) -> str:
    true, shown = (
        float(str(figure(values)))
        for values in ([e.regret for e in found], [max(e.shown, 0.0) for e in found])
    )
    return f"{100 * true:.1f} % ({100 * shown:.1f} %)"
