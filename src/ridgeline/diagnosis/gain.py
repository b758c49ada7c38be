"""What a change would give, asked of the twin: the same traffic before and after, paired.

The traffic is rebuilt from what the server tells: mean lengths and their spread, the rate or the
number of requests in flight, what the prefix cache finds. The twin's constants are taken as
uncertain as they are said to be, so a gain has a band.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from math import exp, hypot, log, sqrt
from typing import Any

from ridgeline.diagnosis.account import Account
from ridgeline.diagnosis.distribution import Distribution
from ridgeline.diagnosis.evidence import Evidence
from ridgeline.diagnosis.finding import Finding, Gain, Try
from ridgeline.diagnosis.known import LOG
from ridgeline.domain.bands import TOKENS, Z
from ridgeline.domain.errors import RidgelineError
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.workload import (
    Arrivals,
    Lengths,
    Outputs,
    Prompts,
    SharedPrefix,
    TrafficClass,
    Workload,
)
from ridgeline.engines.twin import Twin, constants_of, twin_of
from ridgeline.engines.twin_bands import doubt_of, paired_ratios

PATHS = {
    "output_tokens_per_s": TOKENS, "itl_mean_s": "itl_s.mean", "itl_p99_s": "itl_s.p99",
    "ttft_p50_s": "ttft_s.p50", "ttft_p95_s": "ttft_s.p95", "e2e_mean_s": "e2e_s.mean",
}  # fmt: skip
LIKE_A_TAIL = 0.25  # standard error of the logarithm of a figure that BESIDE does not have
# What no constant explains, of a ratio: standard errors of its logarithm. Most of what is wrong
# with a figure is wrong in both of a pair. And a share of the change itself.
BESIDE = {"output_tokens_per_s": 0.04, "itl_mean_s": 0.05, "itl_p99_s": 0.20, "ttft_p50_s": 0.20,
          "ttft_p95_s": 0.25, "e2e_mean_s": 0.06}  # fmt: skip
OF_CHANGE = 0.10
AGREES = 1.4  # factor within which the twin must show what the server does, to be asked at all
TTFT_AGREES = 2.5  # the server tells it by buckets, and a queue's length is its history
LEAST_S, MOST_S = 5.0, 20.0  # of the simulated window
MOST_USERS = 2048
SIDE_BY_SIDE = 4  # engines
SPREAD_ONE_KIND = 0.6  # a standard deviation above this share of the mean: several kinds


def with_gain(
    e: Evidence, finding: Finding, change: Try, *, asked: Collection[str] = (),
    other: Configuration | None = None, load: Workload | None = None,
) -> Try:  # fmt: skip
    """One change with what the twin says of it.

    asked: figures such as "ttft_p95_s", all of one pair; else the one that the change is about.
    other: a whole configuration that takes the place of the present one with the change. load: the
    traffic, else `workload_of` what was seen.
    """
    if change.change is None:
        return change
    account = Account(e)
    if e.known.configuration is None or account.gpu is None:
        return replace(change, why_no_gain="model and GPU are not known: give --study, or --model"
                       " and --gpu")  # fmt: skip
    load = workload_of(e) if load is None else load
    if load is None:
        return replace(change, why_no_gain="the page does not tell the requests' lengths")
    try:
        base = as_it_is(e, e.known.configuration, finding)
        after = None if other is None else _like(base, e.known.configuration, other)
        gains = _gains(e, (base, change.change, after), load, change.metric, asked)
    except _NotSeen as why:
        return replace(change, why_no_gain=str(why))
    except RidgelineError as error:
        return replace(change, why_no_gain=f"the twin refuses it: {error.what}")
    if not gains:
        return replace(change, why_no_gain="the twin shows nothing in so short a run")
    return replace(change, gain=gains)


class _NotSeen(Exception):
    """The twin does not show what was observed: what it says of a change is beside the point."""


def _check(e: Evidence, before: Mapping[str, float], load: Workload, metric: str) -> None:
    """Hold the twin's figures before the change against the server's. Raises _NotSeen.

    At least one must be told by both; of a change that is about TTFT the TTFT must be.
    """
    gap, ttft = e.histograms.itl, e.histograms.ttft
    pairs = [("mean time between tokens", "itl_s.mean", None if gap is None else gap.mean, AGREES)]
    if load.arrivals.closed_loop:
        pairs.append(("output tokens/s", TOKENS, e.per_s(e.generation_tokens), AGREES))
    about_ttft = metric.startswith("ttft")
    if about_ttft:
        seen = None if ttft is None else ttft.estimate(0.5)
        pairs.append(("median TTFT", PATHS["ttft_p50_s"], seen, TTFT_AGREES))
    held = []
    for words, path, seen, factor in pairs:
        told = before.get(path)
        if not seen or not told:
            continue
        held.append(path)
        if not 1 / factor < told / seen < factor:
            raise _NotSeen(
                f"the twin does not see this limit: its {words}: {told / seen:.2f} times what the"
                " server shows (`ridgeline calibrate` fits it to the host)"
            )
    if not held or (about_ttft and PATHS["ttft_p50_s"] not in held):
        what = "TTFT" if held else "figure"
        raise _NotSeen(f"the page tells no {what} that the twin could be held against")


def _like(base: Configuration, known: Configuration, other: Configuration) -> Configuration:
    """The other configuration with what was seen of the present one (the pool's true size).

    A knob that only the present one sets is not set in it.
    """
    now, then = known.knobs.given(), other.knobs.given()
    change = {k: then.get(k) for k in (*now, *then) if now.get(k) != then.get(k)}
    return replace(base, knobs=replace(base.knobs, **change), gpu=other.gpu, model=other.model)


_Pair = tuple[Configuration, Mapping[str, Any], Configuration | None]


def _gains(
    e: Evidence, pair: _Pair, load: Workload, metric: str, asked: Collection[str]
) -> tuple[Gain, ...]:
    """pair: the present configuration, the change, and the whole other one if there is one."""
    base, change, other = pair
    constants = constants_of(base)
    right = _acceptance(e)
    if right is not None:
        constants = replace(constants, draft_acceptance=right)
    before = twin_of(base, constants)
    after = (
        twin_of(replace(base, knobs=_changed(base, before, change)), constants) if other is None
        else twin_of(other, constants)
    )  # fmt: skip
    ranks = before.knobs.data_parallel
    if ranks > 1 and before.knobs.api_servers == ranks and not together(ranks, load):
        before, after = _alone(before), _alone(after)
        alone = replace(load, arrivals=load.arrivals.scaled(1 / ranks))
        paired = paired_ratios(before, after, alone, doubt_of(base))
        whole = {**paired.before, TOKENS: ranks * paired.before.get(TOKENS, 0.0)}
    else:
        paired = paired_ratios(before, after, load, doubt_of(base))
        whole = paired.before
    _check(e, whole, load, metric)
    found = paired.ratios
    names: Iterable[str]
    if asked:
        names = asked
    elif load.arrivals.closed_loop:
        names = dict.fromkeys((metric, "output_tokens_per_s"))
    else:  # at a given rate as many tokens come out as before
        names = dict.fromkeys(("itl_mean_s" if metric == "output_tokens_per_s" else metric,))
    return tuple(_gain(name, *found[path_of(name)]) for name in names if path_of(name) in found)


def path_of(name: str) -> str:
    """Where a figure such as "tpot_p90_s" stands among the twin's."""
    if name in PATHS:
        return PATHS[name]
    metric, statistic, _ = name.rsplit("_", 2)
    return f"{metric}_s.{statistic}"


def _gain(name: str, ratio: float, error: float) -> Gain:
    whole = hypot(error, BESIDE.get(name, LIKE_A_TAIL), OF_CHANGE * log(ratio))
    low, high = ratio * exp(-Z * whole), ratio * exp(Z * whole)
    more_is_better = name == "output_tokens_per_s"
    return Gain(name, ratio, low, high, low > 1 if more_is_better else high < 1)


def _acceptance(e: Evidence) -> float | None:
    """How often a draft is right whose predecessors were, by what was accepted; None without any.

    Of k drafts p + p^2 + ... + p^k are accepted on average.
    """
    if not e.drafts or not e.draft_tokens or e.accepted_tokens is None:
        return None
    k, accepted = round(e.draft_tokens / e.drafts), e.accepted_tokens / e.drafts
    low, high = 0.0, 0.999
    for _ in range(40):
        middle = (low + high) / 2
        if sum(middle**i for i in range(1, k + 1)) < accepted:
            low = middle
        else:
            high = middle
    return low


def together(ranks: int, load: Workload) -> bool:
    """Whether engines are simulated side by side: at a rate a queue hangs on who gets the next one,
    and of many engines the share of one must do.
    """
    return ranks <= SIDE_BY_SIDE and not load.arrivals.closed_loop


def _alone(twin: Twin) -> Twin:
    return replace(twin, knobs=replace(twin.knobs, data_parallel=1, api_servers=1))


def as_it_is(e: Evidence, configuration: Configuration, finding: Finding) -> Configuration:
    """The configuration with what was seen: as many engines as there are cores, the KV pool's true
    size, a ceiling that was inferred.

    The pool is told in bytes, so that a change of its type changes the tokens in it.
    """
    knobs = _as_many_engines(e, _by_the_log(e, configuration.knobs))
    if e.known.max_num_seqs is None:
        seen = next((f.value for f in finding.evidence if f.name == "max_num_seqs"), None)
        if isinstance(seen, float):
            knobs = replace(knobs, max_num_seqs=int(seen))
    elif knobs.max_num_seqs is None:
        knobs = replace(knobs, max_num_seqs=e.known.max_num_seqs)
    found = replace(configuration, knobs=knobs)
    twin = twin_of(found)
    blocks = knobs.num_gpu_blocks_override
    if blocks is None and e.known.kv_tokens is not None:
        blocks = e.known.kv_tokens // twin.knobs.block_size + 1
    if blocks is None:
        return found
    size = int(blocks * twin.memory.block_bytes)
    pinned = replace(knobs, num_gpu_blocks_override=None, kv_cache_memory_bytes=size)
    return replace(found, knobs=pinned)


def _as_many_engines(e: Evidence, knobs: Knobs) -> Knobs:
    """The knobs for all engine cores that were seen, whose load together is the traffic.

    Servers of one engine each have an API server each.
    """
    seen = len(e.engines)
    if seen in (0, knobs.data_parallel_size or 1):
        return knobs
    targets = {g.name.partition("/")[0] for g in e.engines if "/" in g.name}
    fronts = None if len(targets) == seen else knobs.api_server_count
    if (fronts or 0) > seen:
        fronts = None
    return replace(knobs, data_parallel_size=seen, api_server_count=fronts)


def _by_the_log(e: Evidence, knobs: Knobs) -> Knobs:
    """The knobs, as the engine's own log has them where a study file says something else."""
    names = {"max_num_seqs": "max_num_seqs", "max_num_batched_tokens": "max_num_batched_tokens",
             "max_model_len": "max_model_len", "eager": "enforce_eager"}  # fmt: skip
    told = {
        knob: getattr(e.known, field) for field, knob in names.items()
        if e.known.sources.get(field) == LOG
    }  # fmt: skip
    return knobs.with_changes(told)


def _changed(base: Configuration, before: Twin, change: Mapping[str, Any]) -> Any:
    """The knobs with the change; more of the GPU's memory goes to the KV pool."""
    knobs = base.knobs.with_changes({k: v for k, v in change.items() if k != "routing"})
    more = change.get("gpu_memory_utilization")
    if more is None or knobs.kv_cache_memory_bytes is None:
        return knobs
    added = (more - before.knobs.gpu_memory_utilization) * before.gpu.total_memory_bytes
    size = max(0, int(knobs.kv_cache_memory_bytes + added))
    return replace(knobs, kv_cache_memory_bytes=size)


def workload_of(e: Evidence) -> Workload | None:
    """The traffic as the server tells it; None without lengths or load.

    A queue, or a study that says so, is taken for as many users as are in flight; else the rate.
    """
    prompts, outputs = e.histograms.prompt_lengths, e.histograms.output_lengths
    if prompts is None or outputs is None or not prompts.mean or not outputs.mean:
        return None
    flight, rate = e.in_flight, e.per_s(e.requests)
    if not flight:
        return None
    e2e = e.histograms.e2e
    stay = None if e2e is None else e2e.mean
    if rate and stay:  # Little's law: a front end's requests are in no gauge
        flight = max(flight, rate * stay)
    planned = e.known.workload
    closed = planned is None or planned.arrivals.closed_loop or Account(e).queue_share > 0.05
    users = max(1, min(MOST_USERS, round(flight)))
    arrivals = Arrivals(users=users) if closed or not rate else Arrivals(rate_per_s=rate)
    window = min(MOST_S, max(LEAST_S, 2 * (stay or LEAST_S)))
    hit = e.hit_rate or 0.0
    shared = int(hit * prompts.mean)
    prefix = SharedPrefix(shared) if shared >= 16 else None
    own = prompts.mean - (shared if prefix else 0)
    answers = Outputs(_lengths(outputs.mean, outputs))
    return Workload(
        arrivals,
        Prompts(Lengths(own, min(0.95, _spread(prompts))), prefix),
        answers,
        duration_s=window,
        warmup_s=0.75 * window,
        seed=1,
        classes=() if prefix else _kinds(prompts, answers),
    )


def _lengths(mean: float, d: Distribution) -> Lengths:
    return Lengths(mean, min(0.95, _spread(d)))


def _spread(d: Distribution) -> float:
    """Half-width of the even distribution that has the same spread, as a share of the mean."""
    deviation = deviation_of(d)
    return sqrt(3.0) * deviation


def deviation_of(d: Distribution) -> float:
    """Standard deviation over mean, values taken at the middle of their buckets.

    What the buckets' own width adds is taken off.
    """
    middles = list(_middles(d))
    count = sum(c for _, c, _ in middles)
    if not count:
        return 0.0
    mean = sum(m * c for m, c, _ in middles) / count
    around = sum(c * (m - mean) ** 2 for m, c, _ in middles) / count
    return sqrt(max(0.0, around)) / mean if mean else 0.0


def _middles(d: Distribution) -> list[tuple[float, float, float]]:
    """(middle, count, half-width) of the buckets with values, as far as they have an end."""
    found, below = [], 0.0
    for edge, count in zip(d.edges, d.counts, strict=True):
        if count and edge != float("inf"):
            found.append(((below + edge) / 2, count, (edge - below) / 2))
        below = edge
    return found


def _kinds(prompts: Distribution, answers: Outputs) -> tuple[TrafficClass, ...]:
    """Classes by prompt length, where one even distribution would be too far from the truth."""
    if deviation_of(prompts) <= SPREAD_ONE_KIND or not prompts.mean:
        return ()
    rows = [(m, c, w) for m, c, w in _middles(prompts) if c >= 0.005 * prompts.count]
    count = sum(c for _, c, _ in rows)
    scale = prompts.mean / (sum(m * c for m, c, _ in rows) / count)
    return tuple(
        TrafficClass(
            f"prompts-{round(m)}", c / count, Prompts(Lengths(m * scale, min(0.9, w / m))), answers
        )
        for m, c, w in rows
    )
