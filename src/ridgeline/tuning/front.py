"""The front of throughput against latency, of all that is not shown to miss the targets.

A point is a configuration whose runs meet the targets or may meet them; what misses them, crashed,
was void or refused is a state and never a point. One that met the baseline in the duel has the
duel's figures, any other those of its latest trial, whose state is its state; who ever crashed is
none, whatever came after.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from ridgeline.domain.summary import Summary
from ridgeline.store.run_directory import is_finished, read_run
from ridgeline.tuning.dueling import Duel
from ridgeline.tuning.finalists import crashed
from ridgeline.tuning.measuring import TRIALS
from ridgeline.tuning.objective import BETWEEN_RUNS, interval_of, over_limit, pareto, value_of
from ridgeline.tuning.outcome import Point, Spread
from ridgeline.tuning.saying import missed_words
from ridgeline.tuning.session import Found, Session
from ridgeline.tuning.trial import Candidate, History, Miss

AXES = ("ttft", "itl")
COUNTED = ("feasible", "unsure")
_Z = 1.959964


def front_of(session: Session, found: Found) -> tuple[Point, ...]:
    """Every point, the most tokens first, with the fronts that it is on."""
    history = found.told.history
    tried = {t.candidate.key: t.candidate for t in history.trials}
    points = [_point(session, found, history, c) for c in tried.values()]
    return with_fronts([p for p in points if p is not None])


def with_fronts(points: Sequence[Point]) -> tuple[Point, ...]:
    """The points with `on` (no other is better in both) and `near` (none is clearly so)."""
    on: list[set[str]] = [set() for _ in points]
    near: list[set[str]] = [set() for _ in points]
    for axis in AXES:
        known = [(i, s) for i, p in enumerate(points) if (s := p.latency(axis)) is not None]
        pairs = [(points[i].tokens.value, span.value) for i, span in known]
        edge = {known[k][0] for k in pareto(pairs)}
        for i, span in known:
            if i in edge:
                on[i].add(axis)
            elif not any(_clearly(points[k], s, points[i], span) for k, s in known if k != i):
                near[i].add(axis)
    told = [replace(p, on=_in_order(on[i]), near=_in_order(near[i])) for i, p in enumerate(points)]
    return tuple(sorted(told, key=lambda p: -p.tokens.value))


def _in_order(axes: set[str]) -> tuple[str, ...]:
    return tuple(a for a in AXES if a in axes)


def _clearly(one: Point, one_s: Spread, other: Point, other_s: Spread) -> bool:
    """Whether `one` is better in both by whole intervals."""
    return one.tokens.least > other.tokens.most and one_s.most < other_s.least


def _point(session: Session, found: Found, history: History, candidate: Candidate) -> Point | None:
    gpus = session.setting.served(candidate).gpus
    duel = found.duel_with(candidate)
    summary = None if duel is None else duel.merged(candidate)
    if duel is not None and summary is not None:
        state, limits = duel.judged(candidate)
        if state not in COUNTED or duel.died(candidate):
            return None
        tokens = _of_duel(session, duel, candidate, summary)
        if tokens is None:
            return None
        made = _made(candidate, session, summary, tokens)
        return replace(
            made,
            state=state,
            by="duel",
            runs=len(duel.summaries(candidate)),
            outside=_outside(limits),
        )
    trials = history.of(candidate)
    latest = trials[-1]
    folder = session.folder / TRIALS / (latest.run or "")
    if any(map(crashed, trials)) or latest.state not in COUNTED:
        return None
    if latest.run is None or not is_finished(folder):
        return None
    stored = read_run(folder).summary
    value = None if stored is None else value_of(stored, "throughput_per_gpu", gpus)
    if stored is None or value is None:
        return None
    low, high = interval_of(stored, "throughput_per_gpu", gpus)
    made = _made(candidate, session, stored, Spread(value, low, high))
    outside = _outside(latest.limits)
    return replace(made, state=latest.state, number=latest.number, outside=outside)


def _outside(limits: Sequence[Miss]) -> tuple[str, ...]:
    """Limits that its figures are outside of, without being shown to miss them."""
    return tuple(missed_words(m) for m in limits if m.met is None and over_limit(m) > 0)


def _of_duel(session: Session, duel: Duel, candidate: Candidate, summary: Summary) -> Spread | None:
    """Tokens/s per GPU of the duel's estimate: the figure that the headline has."""
    setting = session.setting
    gpus = setting.served(candidate).gpus
    tokens = value_of(summary, "throughput_per_gpu", gpus)
    measured = value_of(summary, setting.goal, gpus)
    value, low, high = duel.estimate(candidate)
    if tokens is None:
        return None
    if setting.goal == "goodput" or not measured or not value:
        return Spread(tokens, *interval_of(summary, "throughput_per_gpu", gpus))
    scale = tokens / measured
    if low is None or high is None:  # one round: its run's own interval
        low, high = interval_of(summary, setting.goal, gpus)
    ends = (None if v is None else v * scale for v in (low, high))
    return Spread(value * scale, *ends)


def _made(candidate: Candidate, session: Session, summary: Summary, tokens: Spread) -> Point:
    closed = session.setting.workload.arrivals.closed_loop
    ttft = _latency(summary, "ttft_s" if closed else "ttft_intent_s")
    itl = _latency(summary, "itl_s")
    return Point(candidate.words, candidate.change, "unsure", "trial", 1, tokens, ttft, itl)


def _latency(summary: Summary, name: str) -> Spread | None:
    """The p95 in ms with its interval; of one measured run widened by what differs between runs."""
    seconds = summary.failures_as_infinite[name].p95
    if seconds is None or math.isinf(seconds):
        return None
    span = summary.intervals.get(f"{name}.p95")
    if span is None or span.low is None or span.high is None:
        return Spread(seconds * 1e3)
    several = any("mean over" in note for note in summary.notes)
    widen = 1.0 if summary.source == "twin" or several else math.exp(_Z * BETWEEN_RUNS)
    low, high = min(span.low, seconds) / widen, max(span.high, seconds) * widen
    return Spread(seconds * 1e3, low * 1e3, high * 1e3)
