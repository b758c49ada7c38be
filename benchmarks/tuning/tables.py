"""The corpus's scores as tables for its page, and the bars that they are held against."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.tuning.ending import MINUTES, Ending, bias
from benchmarks.tuning.endtable import APART, ending_table
from benchmarks.tuning.h200 import RealGround
from benchmarks.tuning.score import MOST_S, Score
from benchmarks.tuning.settings import SETTINGS

BEGIN, END = "<!-- tables: python -m benchmarks.tuning -->", "<!-- end of tables -->"
NAMES = {"random": "random", "grid": "grid of two knobs", "tpe": "Optuna TPE", "ours": "ridgeline"}
NEEDED = ("random", "tpe", "ours")
OF_RANDOM, OF_TPE, BIAS = 0.2, 0.5, 0.01
WRONG = 0.025  # of the answers that are shown to meet: what the duel's confidence leaves


@dataclass(frozen=True, slots=True)
class Bars:
    """What ours has to keep, over all settings of the twin: the geometric mean over settings of the
    ratios of medians; and with the largest of the budgets, the answers that are shown to meet the
    limits, those of them that miss one in truth, those that crash, and the mean error (log) of the
    value that is printed.
    """

    of_random: float
    of_tpe: float
    wrong: int
    shown: int
    crashed: int
    answers: int
    bias: float

    @property
    def met(self) -> bool:
        """All of them; what is not a number is not met."""
        return (
            self.of_random <= OF_RANDOM and self.of_tpe <= OF_TPE and abs(self.bias) < BIAS
            and self.wrong <= WRONG * self.shown and not self.crashed
        )  # fmt: skip

    @classmethod
    def of(cls, scores: Sequence[Score], ends: Sequence[Ending]) -> "Bars | str":
        """In words why they cannot be held, where something is missing: that is never "met"."""
        last = [e for e in ends if e.minutes == MINUTES[-1]]
        needed = {*(s.setting for s in scores), *(e.setting for e in last)}
        if not needed:
            return "nothing was scored"
        for setting in sorted(needed):
            seeds = {
                p: {s.seed for s in scores if (s.setting, s.policy) == (setting, p)}
                for p in NEEDED
            }  # fmt: skip
            ended = {e.seed for e in last if e.setting == setting}
            missing = [name for name, found in (*seeds.items(), ("endings", ended)) if not found]
            if missing:
                return f"{setting} has no {' and no '.join(missing)}"
            if len({frozenset(found) for found in seeds.values()}) > 1:
                counts = ", ".join(f"{name} {len(found)}" for name, found in seeds.items())
                return f"{setting} was not scored on the same seeds by all ({counts})"
            if not ended <= seeds["ours"]:
                return f"{setting} was ended on other seeds than it was scored on"
        return cls(
            _ratio(scores, "random"), _ratio(scores, "tpe"),
            sum(e.infeasible and e.sure for e in last), sum(e.sure for e in last),
            sum(e.crashed for e in last), len(last), bias(last),
        )  # fmt: skip


def _ratio(scores: Sequence[Score], other: str) -> float:
    """Geometric mean over settings of our median over the other's; infinite where ours is."""
    logs = []
    for setting in dict.fromkeys(s.setting for s in scores):
        own, theirs = (
            float(np.median([s.reach_s for s in scores if (s.setting, s.policy) == (setting, p)]))
            for p in ("ours", other)
        )
        logs.append(math.log(own / theirs) if math.isfinite(theirs) else -math.inf)
        if math.isinf(own):
            return math.inf
    finite = [v for v in logs if math.isfinite(v)]
    return math.exp(float(np.mean(finite))) if finite else 0.0


def markdown(scores: Sequence[Score], ends: Sequence[Ending]) -> str:
    """The tables."""
    settings = list(dict.fromkeys(s.setting for s in scores))
    policies = [p for p in NAMES if any(s.policy == p for s in scores)]
    seeds = sorted({s.seed for s in scores})
    lines = [
        f"Seeds {seeds[0]} to {seeds[-1]} of each setting.",
        "",
        "Median GPU seconds until the incumbent is truly within 2 % of the optimum (in brackets:"
        " the share of searches that came there at all)",
        "",
        "| setting | " + " | ".join(NAMES[p] for p in policies) + " | of random | of TPE |",
        "|---" * (len(policies) + 3) + "|",
    ]
    for setting in settings:
        cells = [_reach([s for s in scores if (s.setting, s.policy) == (setting, p)])
                 for p in policies]  # fmt: skip
        here = [s for s in scores if s.setting == setting]
        shares = [_share(here, other) for other in ("random", "tpe")]
        lines.append(f"| {setting} | " + " | ".join((*cells, *shares)) + " |")
    lines += ["", *ending_table(ends), "", *_bars(scores, ends)]
    return "\n".join(lines) + "\n"


def _reach(scores: Sequence[Score]) -> str:
    if not scores:
        return "–"
    there = sum(math.isfinite(s.reach_s) for s in scores) / len(scores)
    median = float(np.median([s.reach_s for s in scores]))
    return f"{_seconds(median)} ({there:.0%})"


def _share(scores: Sequence[Score], other: str) -> str:
    if {"ours", other} - {s.policy for s in scores}:
        return "–"
    ratio = _ratio(scores, other)
    return "less" if ratio == 0 else "–" if math.isinf(ratio) else f"{ratio:.2f}"


def _mean(scores: Sequence[Score], figure: Callable[[Score], float]) -> float:
    return float(np.mean([figure(s) for s in scores]))


def _bars(scores: Sequence[Score], ends: Sequence[Ending]) -> list[str]:
    twin = [s for s in scores if s.setting not in APART]
    bars = Bars.of(twin, [e for e in ends if e.setting not in APART])
    if isinstance(bars, str):
        return [f"No bar is held: {bars}."]
    verdict = [
        f"Over the settings of the twin: {bars.of_random:.2f} of random search's median (bar"
        f" {OF_RANDOM}), {bars.of_tpe:.2f} of TPE's (bar {OF_TPE}), geometric means over settings;"
        f" with {MINUTES[-1]:g} minutes, of {bars.answers} answers {bars.shown} are shown to meet"
        f" every limit, {bars.wrong} of those miss one in truth (bar {100 * WRONG:g} %) and"
        f" {bars.crashed} crash (bar: none), and the mean error of a winner's value"
        f" is {100 * bars.bias:+.2f} % (bar {100 * BIAS:g} %): the bars are"
        f" {'met' if bars.met else 'not all met'}.",
    ]
    real = [e for e in ends if e.setting == RealGround.name and e.minutes == MINUTES[-1]]
    if real:
        held = "inside" if abs(bias(real)) < BIAS else "over"
        verdict += ["", f"The real trials ({RealGround.name}), which no bar above holds: mean error"
                    f" {100 * bias(real):+.2f} %, {held} the bar of {100 * BIAS:g} %."]  # fmt: skip
    return [*_together(twin), "", *verdict]


def _together(scores: Sequence[Score]) -> list[str]:
    """All settings and seeds as one: medians, and times cut at the end of our own budget."""
    gpus = {s.name: s.configuration.gpus for s in SETTINGS}
    medians, cut = {}, {}
    for policy in ("ours", "random", "tpe"):
        own = [s for s in scores if s.policy == policy]
        per_gpu = [s.reach_s / gpus.get(s.setting, 1) for s in own]
        medians[policy] = float(np.median(per_gpu))
        cut[policy] = _mean(own, lambda s: min(s.reach_s / gpus.get(s.setting, 1), MOST_S))
    return [
        "All settings of the twin and seeds together, seconds of each GPU: the median is "
        + ", ".join(f"{_seconds(m)} ({NAMES[p]})" for p, m in medians.items())
        + f"; the mean of times cut at {_seconds(MOST_S)} is "
        + ", ".join(f"{_seconds(m)} ({NAMES[p]})" for p, m in cut.items())
        + f". Of the searches came there: {', '.join(_came(scores, p) for p in medians)}."
    ]


def _came(scores: Sequence[Score], policy: str) -> str:
    share = _mean([s for s in scores if s.policy == policy], lambda s: math.isfinite(s.reach_s))
    return f"{share:.0%} ({NAMES[policy]})"


def _seconds(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:,.0f}".replace(",", " ")


def put(page: Path, text: str) -> None:
    """Replace what stands between the marks of the page."""
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", "utf-8")
