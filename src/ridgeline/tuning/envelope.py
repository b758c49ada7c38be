"""How far the traffic may move, one property at a time, before the winner should not be used.

Every point is a look of the twin at the winner, the other finalists and the baseline. An end has
its own reason: the winner breaks a target there, or another one is ahead of it; where neither is
seen, only the look has ended.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ridgeline.domain.numerals import significant
from ridgeline.domain.workload import Lengths, SharedPrefix, Workload
from ridgeline.tuning.expecting import Oracle
from ridgeline.tuning.outcome import Reach
from ridgeline.tuning.port import Expected
from ridgeline.tuning.saying import missed_words
from ridgeline.tuning.session import Found, Session
from ridgeline.tuning.trial import Candidate, Miss

LOADS = (0.25, 0.5, 0.7, 1.4, 2.0, 3.0)
LENGTHS = (0.25, 0.5, 2.0, 4.0)
SHARES = (0.0, 0.25, 0.5, 0.75, 0.9)
AHEAD = 1.02  # another one wins when it gives more than this factor
SHARED = "share of the prompts that a prefix cache can serve"
NOTHING = "nothing that was compared meets the targets"
RIVALS = 3


def envelope(session: Session, found: Found) -> tuple[tuple[Reach, ...], str | None]:
    """How far load, lengths and cache hits may move, and what the winner is compared with."""
    oracle, load = session.oracle, session.setting.workload
    others = [c for c in (*found.finalists, Candidate()) if c.key != found.winner.key][:RIVALS]
    if not oracle.known or not found.winner.change or not others:
        return (), None
    kinds = moved(load)
    points = [(what, value, w) for what, by in kinds.items() for value, w in by.items()]
    contenders = [found.winner, *others]
    looks = oracle.under([(c, w) for _, _, w in points for c in contenders])
    ends: dict[str, dict[float, tuple[str, str] | None]] = {what: {} for what in kinds}
    for i, (what, value, _) in enumerate(points):
        row = looks[i * len(contenders) : (i + 1) * len(contenders)]
        ends[what][value] = beaten_by(oracle, row)
    today = shared_today(load)
    reaches = tuple(
        reach_of(what, by, 1.0 if what != SHARED else today, share=what == SHARED)
        for what, by in ends.items()
    )
    rivals = "the other finalists and the baseline" if len(others) > 1 else "the baseline"
    return reaches, rivals


def moved(load: Workload) -> dict[str, dict[float, Workload]]:
    """The loads to look at, by the property that moves and its value (a factor, or the share)."""
    kinds: dict[str, dict[float, Workload]] = {
        "load": {f: replace(load, arrivals=load.arrivals.scaled(f)) for f in LOADS}
    }
    if load.arrivals.trace is not None or load.prompts.file is not None or load.classes:
        return kinds
    prompt, output = load.prompts, load.outputs
    kinds["prompt lengths"] = {
        f: replace(load, prompts=replace(prompt, tokens=_times(prompt.tokens, f))) for f in LENGTHS
    }
    kinds["output lengths"] = {
        f: replace(load, outputs=replace(output, tokens=_times(output.tokens, f))) for f in LENGTHS
    }
    if load.sessions is None:
        today = shared_today(load)
        shares = [s for s in SHARES if abs(s - today) > 0.05]
        kinds[SHARED] = {s: shared(load, s) for s in shares}
    return kinds


def shared_today(load: Workload) -> float:
    """Share (0..1) of the mean prompt that is a prefix which others have too."""
    prefix = load.prompts.shared_prefix
    tokens = 0 if prefix is None else prefix.tokens
    return tokens / (tokens + load.prompts.tokens.mean)


def shared(load: Workload, share: float) -> Workload:
    """The load with that share of a prompt in common, prompts as long as before."""
    prompt = load.prompts
    before = prompt.shared_prefix
    whole = prompt.tokens.mean + (0 if before is None else before.tokens)
    prefix = round(share * whole)
    own = Lengths(max(1.0, whole - prefix), prompt.tokens.spread)
    groups = 1 if before is None else before.groups
    common = SharedPrefix(prefix, groups) if prefix else None
    return replace(load, prompts=replace(prompt, tokens=own, shared_prefix=common))


def _times(lengths: Lengths, factor: float) -> Lengths:
    return Lengths(max(1.0, lengths.mean * factor), lengths.spread)


def beaten_by(oracle: Oracle, row: Sequence[Expected]) -> tuple[str, str] | None:
    """(what should be used instead, why) at one point; None while the first one holds."""
    first, *others = row
    holds = bool(first.value) and first.feasible >= 0.5
    sure = [e for e in others if e.value and e.feasible >= 0.5]
    better = [e for e in sure if not holds or (e.value or 0) > AHEAD * (first.value or 0)]
    best = max(better, key=lambda e: e.value or 0.0, default=None)
    if holds and best is not None:
        gain = 100 * ((best.value or 0.0) / (first.value or 1.0) - 1)
        return best.candidate.words, f"{best.candidate.words} gives {significant(gain, 2)} % more"
    if holds:
        return None
    why = f"the winner breaks its targets ({_broken(oracle, first)})"
    if best is None:
        return NOTHING, f"{why}, as does all that was compared"
    return best.candidate.words, f"{why}, {best.candidate.words} does not"


def _broken(oracle: Oracle, one: Expected) -> str:
    """Which targets it is expected to miss."""
    if one.refused is not None:
        return one.refused
    found = []
    for limit in oracle.setting.slo.limits:
        value = one.limits.get(limit.key)
        below = limit.key == "attainment"
        if value is not None and (value < limit.value if below else value > limit.value):
            text = Miss(limit.key, limit.value, value, None, None, False)
            found.append(f"{limit.key} without end" if math.isinf(value) else missed_words(text))
    return ", ".join(found) or "too near to them"


def reach_of(
    what: str, ends: Mapping[float, tuple[str, str] | None], at: float, *, share: bool
) -> Reach:
    """The nearest ends on both sides of today's value, each with its own reason."""
    down = max((v for v, by in ends.items() if by and v < at), default=None)
    up = min((v for v, by in ends.items() if by and v > at), default=None)
    below = None if down is None else ends[down]
    above = None if up is None else ends[up]
    to = above or below
    return Reach(
        what, down, up, min(*ends, at), max(*ends, at), None if to is None else to[0],
        None if below is None else below[1], None if above is None else above[1], share, at,
    )  # fmt: skip
