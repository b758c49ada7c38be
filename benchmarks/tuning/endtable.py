"""The table of how tunings ended, with the product's rules and a budget, and their means."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.tuning.ending import MINUTES, Ending, bias
from benchmarks.tuning.h200 import RealGround


def ending_table(ends: Sequence[Ending]) -> list[str]:
    """A row for each setting and budget, then the settings of the twin together."""
    if not ends:
        return ["No tuning was ended."]
    seeds = sorted({e.seed for e in ends})
    lines = [
        "Tunings with a budget, in minutes of each GPU, ended by the product's rules (seeds"
        f" {seeds[0]} to {seeds[-1]}); regret of the best configuration that is feasible in truth"
        " (in brackets of the optimum as defined above; what is better than it counts as 0). An"
        " answer that misses a limit counts with its value, and is counted beside it.",
        "",
        "| setting | minutes | searches | baseline stays | mean regret | median | 90th percentile"
        " | of the others, mean | miss a limit"
        " in truth | of them said to meet it | the baseline that stays | crash"
        " | mean error of a winner's printed value | finalists | rounds |",
        "|---" * 15 + "|",
    ]
    names = list(dict.fromkeys(e.setting for e in ends))
    twin = [n for n in names if n != RealGround.name]
    for title, group in (*((n, [n]) for n in names), ("**the twin's**", twin)):
        for minutes in MINUTES:
            found = [e for e in ends if e.setting in group and e.minutes == minutes]
            if found:
                lines.append(f"| {title} | {minutes:g} | " + " | ".join(_cells(found)) + " |")
    return lines


def _cells(found: Sequence[Ending]) -> list[str]:
    named = [e for e in found if not e.stays]
    return [
        str(len(found)), str(len(found) - len(named)),
        _regret(found, np.mean), _regret(found, np.median),
        _regret(found, lambda v: np.quantile(v, 0.9)),
        _regret(named, np.mean) if named else "–",
        str(sum(e.infeasible for e in found)), str(sum(e.infeasible and e.sure for e in found)),
        str(sum(e.infeasible and e.stays for e in found)),
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
