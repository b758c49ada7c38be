"""Whether a change pays: cheaper a token, or a missed limit held, and nothing else given up for it.

All figures are of one pair of runs on the twin. What a limit bounds may get worse inside it; what
none bounds may not get worse for sure, nor by more than MUCH as predicted.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import exp, log

from ridgeline.diagnosis.distribution import Distribution
from ridgeline.diagnosis.evidence import Evidence
from ridgeline.diagnosis.finding import Gain
from ridgeline.domain.slo import Limit, Slo

TOKENS = "output_tokens_per_s"
GUARDED = ("ttft_p50_s", "ttft_p95_s", "e2e_mean_s")
JUDGED = ("ttft", "itl", "tpot", "e2e")  # what the server's histograms tell
MUCH = 1.5
WORDS = {"itl_mean_s": "mean time between tokens", "e2e_mean_s": "mean time of a request",
         TOKENS: "output tokens/s"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """gains: by what the change is for, first. against: what speaks against it, None where nothing
    does. mends: limits that are missed now and held with it.
    """

    gains: tuple[Gain, ...]
    against: str | None
    mends: tuple[str, ...] = ()

    @property
    def pays(self) -> bool:
        """Cheaper for sure, or a limit held that is missed now; and nothing against it."""
        return self.against is None and (bool(self.mends) or self.gains[0].better)


def figures_asked(slo: Slo) -> tuple[str, ...]:
    """The figures that are to be asked of one pair."""
    limited = [_figure(limit) for limit in _judged(slo)]
    return tuple(dict.fromkeys((TOKENS, "itl_mean_s", *GUARDED, *limited)))


def judge(e: Evidence, gains: Iterable[Gain], slo: Slo, *, closed: bool, gpus: float) -> Verdict:
    """gpus: how many times the GPUs the change takes. closed: the load follows the answers."""
    told = {g.metric: g for g in gains}
    tokens = _per_gpu(told.pop(TOKENS, None), gpus, closed=closed)
    rows = (tokens, *(replace(g, better=g.high < 1) for g in told.values()))
    by = {g.metric: g for g in rows}
    missed, mends = _limits(e, by, slo)
    worse = [_worse(by[name]) for name in _unlimited(slo)
             if name in by and (by[name].low > 1 or by[name].ratio > MUCH)]  # fmt: skip
    absent = [name for name in GUARDED[:2] if name not in by]
    if not closed and tokens.high * gpus < 1:
        worse.append("fewer output tokens/s")
    if absent:
        worse.append("no request gets its first token in the run")
    against = "; ".join((*missed, *worse)) or None
    return Verdict(rows, against, mends if against is None else ())


def _per_gpu(gain: Gain | None, times: float, *, closed: bool) -> Gain:
    """Tokens per GPU. At a given rate no more come out than before."""
    if gain is None:
        return Gain(TOKENS, 1 / times, 0.0, 1 / times, better=False)
    ratio, low, high = gain.ratio, gain.low, gain.high
    if not closed:
        ratio, low, high = min(1.0, ratio), (1.0 if high >= 1 else low), min(1.0, high)
    return Gain(TOKENS, ratio / times, low / times, high / times, better=low / times > 1)


def _limits(
    e: Evidence, by: Mapping[str, Gain], slo: Slo
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(limits that are missed with the change, those missed now that it holds for sure)."""
    missed, mends = [], []
    for limit in _judged(slo):
        seen, gain = observed(e, limit), by.get(_figure(limit))
        if seen is None:
            continue
        if gain is None:
            missed.append(f"{limit.key} is not told by the run")
        elif seen * gain.ratio > limit.value:
            missed.append(f"{limit.key} would be {seen * gain.ratio:.4g}, at most"
                          f" {limit.value:g} is allowed")  # fmt: skip
        elif seen > limit.value and seen * gain.high <= limit.value:
            mends.append(f"{limit.key} from {seen:.4g} to {seen * gain.ratio:.4g} (at most"
                         f" {limit.value:g})")  # fmt: skip
    return tuple(missed), tuple(mends)


def observed(e: Evidence, limit: Limit) -> float | None:
    """What the server shows of a limited latency, ms; None where it does not."""
    seen: Distribution | None = getattr(e.histograms, limit.metric, None)
    if seen is None:
        return None
    statistic = limit.statistic or ""
    value = seen.mean if statistic == "mean" else seen.estimate(float(statistic[1:]) / 100)
    return None if value is None else value * 1e3


def widened(gain: Gain, by: float) -> Gain:
    """With a band so many times as wide: the best of several looks."""
    if not 0 < gain.low <= gain.ratio <= gain.high:
        return gain
    low = gain.ratio * exp(by * log(gain.low / gain.ratio))
    high = gain.ratio * exp(by * log(gain.high / gain.ratio))
    better = low > 1 if gain.metric == TOKENS else high < 1
    return replace(gain, low=low, high=high, better=better)


def named(metric: str) -> str:
    """A figure in words: "p95 TTFT"."""
    if metric in WORDS:
        return WORDS[metric]
    name, statistic, _ = metric.rsplit("_", 2)
    return f"{statistic} {name.upper()}"


def _worse(gain: Gain) -> str:
    return f"{named(gain.metric)} {gain.ratio:.2g} times ({gain.low:.2g} to {gain.high:.2g})"


def _judged(slo: Slo) -> list[Limit]:
    return [limit for limit in slo.limits if limit.metric in JUDGED and limit.statistic]


def _unlimited(slo: Slo) -> list[str]:
    limited = {limit.metric for limit in _judged(slo)}
    return [name for name in GUARDED if name.partition("_")[0] not in limited]


def _figure(limit: Limit) -> str:
    return f"{limit.metric}_{limit.statistic}_s"
