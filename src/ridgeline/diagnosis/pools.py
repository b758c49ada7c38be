"""Two kinds of traffic on the GPUs that are there: one pool first come first served, one pool with
priority scheduling, or two pools; priced by the twin for the lengths and the rate that are seen.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, log

from ridgeline.diagnosis.distribution import Distribution
from ridgeline.diagnosis.evidence import Evidence
from ridgeline.diagnosis.finding import Fact, Finding, Gain, Try, Wont
from ridgeline.diagnosis.gain import AGREES, OF_CHANGE, as_it_is, deviation_of
from ridgeline.domain import classways
from ridgeline.domain.bands import Z
from ridgeline.domain.classways import BATCH, FCFS, POOLS, PRIORITY, URGENT
from ridgeline.domain.errors import RidgelineError
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.numerals import counted
from ridgeline.domain.workload import (
    Arrivals,
    Lengths,
    Outputs,
    Prompts,
    TrafficClass,
    Workload,
)
from ridgeline.engines.twin_bands import Serving, doubt_of
from ridgeline.engines.twin_pools import E2E, ITL, TTFT, Priced, figures, price, serving_of

WINDOW_S, WARMUP_S = 20.0, 8.0
BESIDE = {TTFT: 0.25, E2E: 0.10}  # what no constant explains of a ratio, as in gain.py
SHOWN = ((URGENT, TTFT), (BATCH, E2E))
ALL = "all"
WORDS = {f"{TTFT}[{URGENT}]": "p95 TTFT of the short requests",
         f"{E2E}[{BATCH}]": "mean time of the long requests"}  # fmt: skip
LIMIT = "ttft_p95_ms"
MOST_SPLITS = 7
CANNOT = tuple(Wont(hope, why) for hope, why in classways.CANNOT)


@dataclass(frozen=True, slots=True)
class Groups:
    """The traffic as classes, each in a group; how they were told apart."""

    classes: tuple[TrafficClass, ...]
    group: Mapping[str, str]
    how: str


def with_pools(e: Evidence, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings, that of mixed classes with the prices of the ways to serve them."""
    found = [_priced(e, f) if f.id == "mixed-classes" else f for f in findings]
    if any(t.gain for f in found if f.id == "mixed-classes" for t in f.tries):
        found = [_said_there(f) if f.id == "priority" else f for f in found]
    return tuple(found)


def _said_there(finding: Finding) -> Finding:
    """The note about the policy, where the other finding has its gains: one verdict on a knob."""
    tries = tuple(t for t in finding.tries if t.knob != "scheduling_policy")
    if len(tries) == len(finding.tries):
        return finding
    fact = Fact("gains", None, "what the policy gives each class, and all requests together, is"
                " told with the two kinds of traffic")  # fmt: skip
    return replace(finding, tries=tries, evidence=(*finding.evidence, fact))


def _priced(e: Evidence, finding: Finding) -> Finding:
    finding = replace(finding, will_not_help=(*CANNOT, *finding.will_not_help))
    configuration = e.known.configuration
    if configuration is None or configuration.gpu is None:
        return _without(finding, "model and GPU are not known: give --study, or --model and --gpu")
    groups, rate = groups_of(e), e.per_s(e.requests)
    if groups is None or not rate:
        return _without(finding, "the page does not tell both kinds' lengths and their rate")
    try:
        load = classways.ranked(_load(rate, groups.classes), groups.group)
        ways = _ways(e, as_it_is(e, configuration, finding), groups, load)
        priced = price(ways, load, groups.group, doubt_of(configuration))
    except RidgelineError as error:
        return _without(finding, f"the twin refuses it: {error.what}")
    told, gap = priced[FCFS].figures.get(("", ITL)), e.histograms.itl
    if told and gap is not None and gap.mean and not 1 / AGREES < told / gap.mean < AGREES:
        return _without(finding, f"the twin does not see this server: its mean time between tokens"
                        f" is {told / gap.mean:.2f} times what the server shows")  # fmt: skip
    return _said(e, finding, groups, priced, rate)


def _without(finding: Finding, why: str) -> Finding:
    return replace(finding, tries=tuple(replace(t, why_no_gain=why) for t in finding.tries))


def _said(
    e: Evidence, finding: Finding, groups: Groups, priced: Mapping[str, Priced], rate: float
) -> Finding:
    gains = {name: _gains(p) for name, p in priced.items() if name != FCFS}
    limit = _limit_s(groups)
    within = {name: limit is None or p.figures.get((URGENT, TTFT), float("inf")) <= limit
              for name, p in priced.items()}  # fmt: skip
    forced = limit is not None and not within[FCFS]  # then what holds the limit goes first
    good = {name: g for name, g in gains.items() if _recommended(g, forced and within[name])}
    best = min(good, key=lambda name: (forced and not within[name], good[name][0].high),
               default=None)  # fmt: skip
    order = sorted(gains, key=lambda name: name != best)
    facts = [Fact("rate", rate, f"priced at {rate:.3g} requests/s; {groups.how}", "requests/s")]
    facts += [_figures_fact(name, p) for name, p in priced.items()]
    tries = tuple(_try(e, name, gains[name]) for name in order)
    if not any(name.startswith(POOLS) for name in gains):
        tries = (*tries, Try("two pools", "long requests on GPUs of their own", None,
                             why_no_gain="one engine: two pools need a second one"))  # fmt: skip
    said = f"{best} is recommended{_because(limit, within, best, gains)}" if best else (
        "one pool, fcfs stays: nothing else is clearly better for the short requests without being"
        " clearly worse for the long ones")  # fmt: skip
    return replace(
        finding, title=f"{finding.title}; {said}", evidence=(*finding.evidence, *facts), tries=tries
    )


def _limit_s(groups: Groups) -> float | None:
    """The strictest limit on the urgent classes' p95 TTFT; None where they have none."""
    found = [limit.value / 1e3 for kind in groups.classes if groups.group[kind.name] == URGENT
             for limit in kind.slo.limits if limit.key == LIMIT]  # fmt: skip
    return min(found, default=None)


def _because(
    limit: float | None, within: Mapping[str, bool], best: str, gains: Mapping[str, Sequence[Gain]]
) -> str:
    """What the limit has to do with it, and what the long requests pay."""
    if limit is None or within[FCFS]:
        return ""
    inside = [name for name in gains if within[name]]
    if not within[best] and inside:
        return (f", though {inside[0]} alone is inside the short ones' limit of {limit * 1e3:.4g}"
                " ms, and not clearly better")  # fmt: skip
    if not within[best]:
        return f", though none of the ways is inside the short ones' limit of {limit * 1e3:.4g} ms"
    rest = [name for name in gains if name != best]
    alone = "the only one" if not any(within[name] for name in rest) else "which is"
    batch = next((g for g in gains[best] if g.metric == f"{E2E}[{BATCH}]"), None)
    pays = f"; the long ones take x {batch.ratio:.2f} as long" if batch and batch.low > 1 else ""
    return f", {alone} inside the short ones' limit of {limit * 1e3:.4g} ms{pays}"


def _recommended(gains: Sequence[Gain], holds: bool) -> bool:
    """Clearly better for the short requests, and not clearly worse for the long ones: unless it
    holds a limit that the present way misses.
    """
    by = {g.metric: g for g in gains}
    if len(by) < len(SHOWN):
        return False
    urgent, batch = (by[f"{figure}[{group}]"] for group, figure in SHOWN)
    return urgent.high < 1 and (holds or batch.low <= 1)


def _gains(priced: Priced) -> list[Gain]:
    found = []
    for group, figure in (*SHOWN, ("", TTFT)):
        if (group, figure) not in priced.ratios:
            continue
        ratio, error = priced.ratios[group, figure]
        whole = hypot(error, BESIDE[figure], OF_CHANGE * log(ratio))
        low, high = ratio * exp(-Z * whole), ratio * exp(Z * whole)
        found.append(Gain(f"{figure}[{group or ALL}]", ratio, low, high, high < 1))
    return found


def _figures_fact(name: str, priced: Priced) -> Fact:
    told = [
        f"{WORDS[f'{figure}[{group}]']} {priced.figures[group, figure]:.3g} s"
        for group, figure in SHOWN if (group, figure) in priced.figures
    ]  # fmt: skip
    return Fact(name, None, f"twin: {name}: {', '.join(told)}")


def _try(e: Evidence, name: str, gains: Sequence[Gain]) -> Try:
    if name != PRIORITY:
        split = name.removeprefix(POOLS).strip(" ()")
        return Try("two pools", f"engines: {split}", None, TTFT, "", tuple(gains))
    missing = "" if e.known.priorities else (
        "no request is known to carry a priority: clients must send one (0 for the short, 1 for the"
        " long), and without it nothing changes")  # fmt: skip
    return Try("scheduling_policy", "priority, with a priority on every request",
               {"scheduling_policy": "priority"}, TTFT, missing, tuple(gains))  # fmt: skip


# -- what is priced


def _ways(e: Evidence, base: Configuration, groups: Groups, load: Workload) -> dict[str, Serving]:
    engines = max(e.replicas, base.knobs.data_parallel_size or 1)
    found = {
        FCFS: serving_of(classways.one_pool(base, engines, "fcfs"), load),
        PRIORITY: serving_of(classways.one_pool(base, engines, "priority"), load),
    }
    if engines < 2:
        return found
    splits = {}
    for k in _counts(engines, groups):
        name = f"{POOLS} ({engines - k} for the short, {k} for the long)"
        counts = {URGENT: engines - k, BATCH: k}
        splits[name] = serving_of(classways.pooled(base, counts, groups.group), load)
    now = figures(found[FCFS], load, groups.group)
    best = min(splits, key=lambda name: _worst(figures(splits[name], load, groups.group), now))
    return {**found, best: splits[best]}


def _worst(way: Mapping[tuple[str, str], float], now: Mapping[tuple[str, str], float]) -> float:
    """The larger of the two ratios: a split must do for both."""
    return max(way.get(key, float("inf")) / now[key] for key in SHOWN if key in now)


def _counts(engines: int, groups: Groups) -> Iterable[int]:
    """Engines for the long requests: all splits, or those next to their share of the tokens."""
    if engines - 1 <= MOST_SPLITS:
        return range(1, engines)
    work = {
        group: sum(c.share * (c.prompts.tokens.mean + c.outputs.tokens.mean)
                   for c in groups.classes if groups.group[c.name] == group)
        for group in (URGENT, BATCH)
    }  # fmt: skip
    middle = round(engines * work[BATCH] / (work[URGENT] + work[BATCH]))
    near = range(middle - MOST_SPLITS // 2, middle + MOST_SPLITS // 2 + 1)
    return [k for k in near if 1 <= k < engines] or [engines - 1]


def _load(rate: float, classes: tuple[TrafficClass, ...]) -> Workload:
    return Workload(Arrivals(rate_per_s=rate), duration_s=WINDOW_S, warmup_s=WARMUP_S, seed=1,
                    classes=classes)  # fmt: skip


# -- which traffic


def groups_of(e: Evidence) -> Groups | None:
    """By a study's classes, else by the histogram in which two kinds show; None without them."""
    plan = e.known.workload
    if plan is not None and len(plan.classes) > 1:
        group = classways.groups_of(plan.classes)
        return Groups(plan.classes, group, "the study's classes")
    prompts, outputs = e.histograms.prompt_lengths, e.histograms.output_lengths
    if prompts is None or outputs is None or not prompts.mean or not outputs.mean:
        return None
    from ridgeline.diagnosis.rules.traffic import two_kinds  # noqa: PLC0415  they price each other

    for d, other, split in ((prompts, outputs, True), (outputs, prompts, False)):
        kinds = two_kinds(d)
        if kinds is None:
            continue
        alike = Lengths(other.mean or 1.0, min(0.95, 3**0.5 * deviation_of(other)))
        found = []
        for name, lengths, share in _parts(d, kinds[0]):
            p, o = (lengths, alike) if split else (alike, lengths)
            found.append(TrafficClass(name, share, Prompts(p), Outputs(o)))
        what = "prompts" if split else "answers"
        rest = "answers" if split else "prompts"
        return Groups(tuple(found), {c.name: c.name for c in found},
                      f"told apart by {what} of {counted(kinds[0])} tokens; {rest} are taken to be"
                      " alike in both, which the server does not tell")  # fmt: skip
    return None


def _parts(d: Distribution, limit: float) -> Iterable[tuple[str, Lengths, float]]:
    """Both kinds of a histogram: lengths with their spread, and share of the requests."""
    inside = [edge <= limit for edge in d.edges]
    short = replace(d, counts=tuple(c if i else 0.0 for c, i in zip(d.counts, inside, strict=True)))
    long = replace(d, counts=tuple(0.0 if i else c for c, i in zip(d.counts, inside, strict=True)))
    below, total = 0.0, 0.0
    for edge, count in zip(short.edges, short.counts, strict=True):
        total += count * (below + edge) / 2 if count else 0.0
        below = edge
    rest = (d.total or 0.0) - total
    for name, part, tokens in ((URGENT, short, total), (BATCH, long, rest)):
        if part.count:
            mean = max(1.0, tokens / part.count)
            yield name, Lengths(mean, min(0.9, 3**0.5 * deviation_of(part))), part.count / d.count
