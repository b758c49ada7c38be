"""Whether the traffic has left what a configuration was chosen for, and whether a re-tune pays.

Each property is held against the plan as a factor with a 95 % interval of what was observed; a
tuner's envelope says at which factors that configuration loses. Where there is no envelope, a
difference is only a difference: whether it matters is asked of the twin.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt

from ridgeline.diagnosis.evidence import Evidence, Level
from ridgeline.diagnosis.finding import Fact, Finding, Try
from ridgeline.diagnosis.gain import deviation_of
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.slo import Slo
from ridgeline.domain.workload import TrafficClass, Workload

Z95 = 1.96
LEAST_REQUESTS = 20
TURNAROUND = 0.05
LOAD, PROMPTS, OUTPUTS = "load", "prompt lengths", "output lengths"


@dataclass(frozen=True, slots=True)
class Edge:
    """How far one property may move, as factors of the plan. holds_down, holds_up: it still holds
    there; down, up: it loses there, None where it holds as far as was tried. to: what wins then.
    """

    what: str
    down: float | None
    holds_down: float
    holds_up: float
    up: float | None
    to: str | None = None


@dataclass(frozen=True, slots=True)
class Tuned:
    """A configuration that was chosen for a workload. others: what it was compared with, by name.

    edges: the tuner's envelope, empty without one. slo: what it was chosen to hold. unasked: how
    many of those that it was compared with are not known well enough to be asked about.
    """

    name: str
    configuration: Configuration
    workload: Workload
    edges: tuple[Edge, ...] = ()
    others: tuple[tuple[str, Configuration], ...] = ()
    slo: Slo = field(default_factory=Slo)
    unasked: int = 0


@dataclass(frozen=True, slots=True)
class Shift:
    """One property: planned and observed (in `unit`), their ratio and its 95 % interval.

    state: "out" and "in" of the envelope for sure, "edge" between the two, "moved" and "as planned"
    where there is none.
    """

    what: str
    planned: float
    seen: float
    low: float
    high: float
    unit: str
    state: str
    edge: Edge | None = None

    @property
    def factor(self) -> float:
        """Observed over planned."""
        return self.seen / self.planned


def shifts(e: Evidence, tuned: Tuned) -> list[Shift]:
    """What can be held against the plan; empty with fewer than LEAST_REQUESTS requests."""
    if not e.rates_known or (e.requests or 0) < LEAST_REQUESTS:
        return []
    found = [*_load(e, tuned.workload), *_lengths(e, tuned.workload)]
    found += [*_hits(e, tuned.workload), *_mix(e, tuned.workload)]
    edges = {edge.what: edge for edge in tuned.edges}
    return [_placed(s, edges.get(s.what)) for s in found]


def drift(
    e: Evidence, tuned: Tuned, *, retune: Callable[[Evidence, Tuned], Try | None] | None
) -> Finding | None:
    """The finding; None where too few requests ended to say anything.

    retune: asks whether a change pays (None: not asked); its answer may be not there yet.
    """
    found = shifts(e, tuned)
    if not found:
        return None
    facts = tuple(_fact(s) for s in found)
    out = [s for s in found if s.state == "out"]
    moved = [s for s in found if s.state in ("edge", "moved")]
    if not out and not moved:
        where = f"inside the envelope of {tuned.name}" if tuned.edges else (
            f"as {tuned.name} was made for")  # fmt: skip
        return Finding("drift", f"the traffic is {where}", "note", 0.0, "", facts, "high")
    change = None if retune is None else retune(e, tuned)
    said = "" if change is None else f"; {pays(change)}"
    if change is None:
        why = "not asked" if retune is None else "the twin is being asked"
        change = Try("ridgeline doctor --winner", "asks the twin whether a re-tune pays", None,
                     why_no_gain=why)  # fmt: skip
    return Finding(
        "drift", f"{_title(tuned, out, moved)}{said}", "note", 0.0, "", facts,
        "high" if out else "medium", (change,),
    )  # fmt: skip


def _title(tuned: Tuned, out: Sequence[Shift], moved: Sequence[Shift]) -> str:
    if out:
        words = "; ".join(f"{s.what} x {s.factor:.2g} ({s.low:.2g} to {s.high:.2g}), and it loses"
                          f" at x {_lost_at(s):g}" for s in out)  # fmt: skip
        return f"the traffic has left the envelope of {tuned.name}: {words}"
    words = "; ".join(f"{s.what} x {s.factor:.2g}" for s in moved)
    if any(s.state == "edge" for s in moved):
        return f"the traffic is at the edge of the envelope of {tuned.name}: {words}"
    return f"the traffic is not what {tuned.name} was made for: {words}"


def _lost_at(shift: Shift) -> float:
    edge = shift.edge
    assert edge is not None
    return (edge.up if shift.factor > 1 else edge.down) or 0.0


def pays(change: Try) -> str:
    """What an answer comes to, in a few words: `expect` says it where there is a gain."""
    if not change.gain:
        return f"whether a re-tune pays is not known ({change.why_no_gain})"
    better = next((g for g in change.gain if g.better), None)
    return f"a re-tune pays: {change.expect}" if better else f"not yet: {change.expect}"


def _placed(shift: Shift, edge: Edge | None) -> Shift:
    """Where it stands: by the envelope, or by whether the plan lies inside its interval."""
    if edge is None:
        inside = shift.low <= 1 <= shift.high
        return replace(shift, state="as planned" if inside else "moved")
    out = (edge.up is not None and shift.low >= edge.up) or (
        edge.down is not None and shift.high <= edge.down)  # fmt: skip
    return replace(shift, edge=edge, state="out" if out else "in" if _held(shift, edge) else "edge")


def _held(shift: Shift, edge: Edge) -> bool:
    """Between factors that hold; or the plan itself is possible and no factor that loses is."""
    low = shift.low >= edge.holds_down or (
        shift.high >= 1 and (edge.down is None or shift.low > edge.down))  # fmt: skip
    high = shift.high <= edge.holds_up or (
        shift.low <= 1 and (edge.up is None or shift.high < edge.up))  # fmt: skip
    return low and high


def _fact(s: Shift) -> Fact:
    words = (f"{s.what}: {s.seen:.4g} {s.unit}, planned {s.planned:.4g}: x {s.factor:.2f}"
             f" ({s.low:.2f} to {s.high:.2f})")  # fmt: skip
    if s.edge is not None:
        e = s.edge
        ends = [f"loses at x {x:g}" for x in (e.down, e.up) if x is not None]
        lost = "; ".join(ends) or "no factor that was tried loses"
        to = f" (then: {e.to})" if e.to and ends else ""
        words += f"; the envelope holds from x {e.holds_down:g} to {e.holds_up:g}, {lost}{to}"
    elif s.state == "moved":
        words += "; the plan is outside the interval"
    name = s.what.replace(" ", "_")
    return Fact(name, s.factor, words, "", s.low, s.high)


# -- observed against planned


def _load(e: Evidence, plan: Workload) -> Iterable[Shift]:
    """Requests a second, or in flight where users were planned, of one deployment."""
    copies = len({x.name.partition("/")[0] for x in e.engines if "/" in x.name}) or 1
    if plan.arrivals.closed_loop:
        users, flight = plan.arrivals.peak_users, e.in_flight
        if users and flight and e.running is not None:
            low, high = _around(e.running, e.waiting)
            ends = (low / copies / users, high / copies / users)
            yield Shift(LOAD, users, flight / copies, *ends, "requests in flight", "")
        return
    rate, n = plan.arrivals.peak_rate_per_s, e.requests
    if rate and n:
        seen = n / e.span_s / copies
        half = Z95 * sqrt(n) / n
        yield Shift(LOAD, rate, seen, seen / rate * (1 - half), seen / rate * (1 + half),
                    "requests/s", "")  # fmt: skip


def _around(running: Level, waiting: Level | None) -> tuple[float, float]:
    """The 95 % interval of the mean of what is in flight; least to most of a few readings.

    Never closer than one request and TURNAROUND: those on their way are in no gauge.
    """
    levels = [running] if waiting is None else [running, waiting]
    if any(level.half is None for level in levels):
        return sum(level.low for level in levels), sum(level.high for level in levels)
    mean = sum(level.mean for level in levels)
    half = max(sum(level.half or 0.0 for level in levels), 1.0 + TURNAROUND * mean)
    return max(0.0, mean - half), mean + half


def _lengths(e: Evidence, plan: Workload) -> Iterable[Shift]:
    h = e.histograms
    rows = ((PROMPTS, h.prompt_lengths, _mean(plan, _prompt)),
            (OUTPUTS, h.output_lengths, _mean(plan, lambda k: k.outputs.tokens.mean)))  # fmt: skip
    for what, seen, planned in rows:
        if planned is None or seen is None or not seen.mean or seen.count < LEAST_REQUESTS:
            continue
        half = Z95 * deviation_of(seen) * seen.mean / sqrt(seen.count)
        yield Shift(what, planned, seen.mean, (seen.mean - half) / planned,
                    (seen.mean + half) / planned, "tokens", "")  # fmt: skip


def _prompt(kind: TrafficClass) -> float:
    shared = kind.prompts.shared_prefix
    return kind.prompts.tokens.mean + (0 if shared is None else shared.tokens)


def _told(plan: Workload) -> bool:
    """Whether the plan itself says its lengths: no file, no sessions, no recorded traffic."""
    files = any(k.prompts.file is not None or k.prompts.images is not None for k in plan.kinds)
    return plan.arrivals.trace is None and plan.sessions is None and not files


def _mean(plan: Workload, of: Callable[[TrafficClass], float]) -> float | None:
    if plan.arrivals.trace is not None:
        trace = plan.arrivals.trace
        return trace.mean_prompt_tokens if of is _prompt else trace.mean_output_tokens
    if not _told(plan):
        return None
    total = sum(k.share for k in plan.kinds)
    return sum(k.share * of(k) for k in plan.kinds) / total


def _hits(e: Evidence, plan: Workload) -> Iterable[Shift]:
    """The share of prompt tokens that the prefix cache has; a request shares a beginning or not."""
    rate, n = e.hit_rate, e.requests
    shared = sum(
        k.share * k.prompts.shared_prefix.tokens for k in plan.kinds
        if k.prompts.shared_prefix is not None
    )  # fmt: skip
    planned = _mean(plan, _prompt)
    if rate is None or not n or not planned or not _told(plan) or not shared:
        return
    expected = shared / sum(k.share for k in plan.kinds) / planned
    half = Z95 * sqrt(max(rate * (1 - rate), 1e-4) / n)
    # whole blocks only are kept: up to one of a prompt is lost to the rate that was planned
    block = (e.known.block_size or 16) / planned
    yield Shift("cache hits", expected, rate, (rate - half) / expected,
                (rate + half + block) / expected, "of the prompt tokens", "")  # fmt: skip


def _mix(e: Evidence, plan: Workload) -> Iterable[Shift]:
    """The share of requests of the class with the longest prompts, told by their length."""
    seen = e.histograms.prompt_lengths
    if len(plan.classes) < 2 or not _told(plan) or seen is None or seen.count < LEAST_REQUESTS:
        return
    by_length = sorted(plan.classes, key=_prompt)
    longest, others = by_length[-1], by_length[:-1]
    top = max(_prompt(k) * (1 + k.prompts.tokens.spread) for k in others)
    bottom = _prompt(longest) * (1 - longest.prompts.tokens.spread)
    if bottom <= top:
        return  # their lengths overlap: the server does not tell them apart
    least, most = seen.share_above(sqrt(top * bottom))
    planned = longest.share / sum(k.share for k in plan.classes)
    middle = (least + most) / 2
    half = Z95 * sqrt(max(middle * (1 - middle), 1 / seen.count) / seen.count)
    yield Shift(f"share of class {longest.name}", planned, middle, max(0.0, least - half) / planned,
                (most + half) / planned, "of the requests", "")  # fmt: skip
