"""The corpus's scores as tables for its page, and the bars that they are held against."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.tuning.h200 import RealGround
from benchmarks.tuning.score import MOST_S, Score
from benchmarks.tuning.settings import SETTINGS

BEGIN, END = "<!-- tables: python -m benchmarks.tuning -->", "<!-- end of tables -->"
NAMES = {"random": "random", "grid": "grid of two knobs", "tpe": "Optuna TPE", "ours": "ridgeline"}
OF_RANDOM, OF_TPE, BIAS = 0.2, 0.5, 0.01


@dataclass(frozen=True, slots=True)
class Bars:
    """What ours has to keep, over all settings of the twin: the geometric mean over settings of the
    ratios of medians, answers that do not hold, and the mean error (log) of the final estimate.
    """

    of_random: float
    of_tpe: float
    infeasible: int
    crashed: int
    answers: int
    bias: float

    @property
    def met(self) -> bool:
        """All of them."""
        return (
            self.of_random <= OF_RANDOM and self.of_tpe <= OF_TPE and abs(self.bias) < BIAS
            and not self.infeasible and not self.crashed
        )  # fmt: skip

    @classmethod
    def of(cls, scores: Sequence[Score]) -> "Bars | None":
        """None where a policy is missing."""
        if {s.policy for s in scores} < {"random", "tpe", "ours"}:
            return None
        ours = [s for s in scores if s.policy == "ours"]
        return cls(
            _ratio(scores, "random"), _ratio(scores, "tpe"),
            sum(s.infeasible for s in ours), sum(s.crashed for s in ours),
            sum(s.regret is not None for s in ours),
            float(np.mean([s.error for s in ours if s.error is not None])),
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


def markdown(scores: Sequence[Score]) -> str:
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
    lines += ["", *_answers(scores, settings), "", *_bars(scores)]
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


def _answers(scores: Sequence[Score], settings: Sequence[str]) -> list[str]:
    """What our searches ended with."""
    lines = [
        "Our searches at their own end, after the duel",
        "",
        "| setting | searches | without an answer | median regret | 90th percentile | infeasible"
        " answers | crashed answers | failed starts | mean error of the estimate | GPU s of the"
        " search | of the duel |",
        "|---" * 11 + "|",
    ]
    for setting in settings:
        ours = [s for s in scores if (s.setting, s.policy) == (setting, "ours")]
        if ours:
            lines.append(f"| {setting} | " + " | ".join(_own(ours)) + " |")
    return lines


def _own(ours: Sequence[Score]) -> list[str]:
    regrets = [s.regret for s in ours if s.regret is not None]
    errors = [s.error for s in ours if s.error is not None]
    mean = _mean
    return [
        str(len(ours)), str(len(ours) - len(regrets)),
        f"{100 * float(np.median(regrets)):.1f} %" if regrets else "–",
        f"{100 * float(np.quantile(regrets, 0.9)):.1f} %" if regrets else "–",
        str(sum(s.infeasible for s in ours)), str(sum(s.crashed for s in ours)),
        f"{mean(ours, lambda s: s.crashes):.1f}",
        f"{100 * float(np.mean(errors)):+.1f} %" if errors else "–",
        f"{mean(ours, lambda s: s.spent_s):.0f}", f"{mean(ours, lambda s: s.duel_s):.0f}",
    ]  # fmt: skip


def _mean(scores: Sequence[Score], figure: Callable[[Score], float]) -> float:
    return float(np.mean([figure(s) for s in scores]))


def _bars(scores: Sequence[Score]) -> list[str]:
    bars = Bars.of([s for s in scores if s.setting != RealGround.name])
    if bars is None:
        return []
    return [
        *_together([s for s in scores if s.setting != RealGround.name]),
        "",
        f"Over the settings of the twin: {bars.of_random:.2f} of random search's median (bar"
        f" {OF_RANDOM}), {bars.of_tpe:.2f} of TPE's (bar {OF_TPE}), geometric means over settings;"
        f" of {bars.answers} answers {bars.infeasible} miss a limit in truth and {bars.crashed}"
        f" crash (bar: none); mean error of the final estimate {100 * bars.bias:+.2f} % (bar"
        f" {100 * BIAS:g} %).",
    ]


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
