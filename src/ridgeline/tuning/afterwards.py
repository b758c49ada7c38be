"""What is worked out once there is a winner: what each of its knobs bought, and how far it is from
what no setting can beat. How far the traffic may move is in `envelope`.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from ridgeline.domain.errors import RidgelineError
from ridgeline.engines.twin import twin_of
from ridgeline.experiment.capacity import bound_of, highest_bound
from ridgeline.tuning import budgeting
from ridgeline.tuning.certificate import certify
from ridgeline.tuning.claims import NONE
from ridgeline.tuning.expecting import Oracle
from ridgeline.tuning.goingon import BUDGET_ENDS
from ridgeline.tuning.journal import Asked
from ridgeline.tuning.outcome import Bought, Side
from ridgeline.tuning.port import Expected
from ridgeline.tuning.saying import missed_words
from ridgeline.tuning.search import Search
from ridgeline.tuning.session import Found, Session
from ridgeline.tuning.trial import Candidate, Miss, Trial

TOGETHER = ("tensor_parallel_size", "data_parallel_size")  # a layout is one change


def ablate(session: Session, found: Found) -> tuple[Bought, ...]:
    """The winner over the winner without each knob: measured where the budget still holds it."""
    winner = found.winner
    if not winner.change or session.watch.stop_asked():
        return ()
    without = parts_of(winner)
    if len(without) == 1:
        return (_by_duel(found, next(iter(without))),)
    candidates = (winner, *without.values())
    window_s = session.setting.window_s
    cost_s = session.ground.cost_s(candidates, window_s)
    told = session.journal.told()
    kept = next((a for a in told.asked if a.phase == "ablation"), None)
    affordable = session.limits.gpu_s is not None and cost_s <= budgeting.left_s(
        session.limits, told
    )
    if session.setting.simulated or not (affordable or kept):
        return _by_twin(session.oracle, winner, without)
    first = max((t.number for t in told.trials), default=0) + 1
    why = ("the winner beside its parts", *(f"what {k} bought" for k in without))
    left_s = budgeting.left_s(session.limits, told)
    session.ground.most_s = None if math.isinf(left_s) else left_s
    asked = kept or Asked(first, candidates, window_s, why, "ablation", time.time())
    trials = session.ground.answer(asked) if kept else session.ground.put(asked)
    return _by_trials(trials, winner, without)


def parts_of(winner: Candidate) -> dict[str, Candidate]:
    """By the name of a change, the winner without it."""
    found: dict[str, Candidate] = {}
    for name in winner.change:
        names = TOGETHER if name in TOGETHER else (name,)
        label = "layout" if name in TOGETHER else name
        found[label] = Candidate({n: v for n, v in winner.change.items() if n not in names})
    return found


def _value_of(winner: Candidate, label: str) -> str:
    if label == "layout":
        return ", ".join(f"{n}={winner.change[n]}" for n in TOGETHER if n in winner.change)
    return str(winner.change[label])


def _by_duel(found: Found, label: str) -> Bought:
    """A single change: the duel has measured it against the baseline."""
    assert found.duel is not None
    claim = found.duel.claim(found.winner)
    ratio, low, high = NONE if claim is None else (claim.ratio, claim.low, claim.high)
    by = "twin" if found.duel.setting.simulated else "measured"
    return Bought(label, _value_of(found.winner, label), ratio, low, high, by, "by the duel")


def _by_twin(
    oracle: Oracle, winner: Candidate, without: Mapping[str, Candidate]
) -> tuple[Bought, ...]:
    if not oracle.known:
        return ()
    whole, *others = oracle.expect([winner, *without.values()])
    lines = []
    for label, one in zip(without, others, strict=True):
        ratio = whole.value / one.value if whole.value and one.value else None
        note = f"without it: {one.refused}" if one.refused else _missed(oracle, whole, one)
        lines.append(Bought(label, _value_of(winner, label), ratio, None, None, "twin", note))
    return tuple(lines)


def _missed(oracle: Oracle, whole: Expected, one: Expected) -> str | None:
    """Targets that it misses only without the knob."""
    limits = {x.key: x.value for x in oracle.setting.slo.limits}
    lost = []
    for key, value in one.limits.items():
        before = Miss(key, limits.get(key, math.nan), whole.limits.get(key), None, None, None)
        after = replace(before, value=value)
        if key in limits and _outside(after) and not _outside(before):
            lost.append(missed_words(after))
    return f"without it {', '.join(lost)}" if lost else None


def _outside(miss: Miss) -> bool:
    if miss.value is None:
        return False
    return miss.value < miss.limit if miss.key == "attainment" else miss.value > miss.limit


def _by_trials(
    trials: Sequence[Trial], winner: Candidate, without: Mapping[str, Candidate]
) -> tuple[Bought, ...]:
    by_key = {t.candidate.key: t for t in trials}
    whole = by_key.get(winner.key)
    lines = []
    for label, candidate in without.items():
        one = by_key.get(candidate.key)
        shown = _value_of(winner, label)
        if one is None or whole is None or not one.value or not whole.value:
            note = "not measured" if one is None else f"without it: {one.state} {one.reason or ''}"
            lines.append(Bought(label, shown, None, None, None, "measured", note.strip()))
            continue
        ratio = whole.value / one.value
        error = math.hypot(_spread(whole), _spread(one))
        lost = [m.key for m in one.limits if m.met is False]
        note = f"without it {', '.join(lost)} is missed" if lost else "one run each"
        low, high = (ratio / math.exp(error), ratio * math.exp(error)) if error else (None, None)
        lines.append(Bought(label, shown, ratio, low, high, "measured", note))
    return tuple(lines)


def _spread(trial: Trial) -> float:
    """Half of a trial's 95 % interval, as a logarithm; 0 without one."""
    if not trial.low or not trial.high:
        return 0.0
    return math.log(trial.high / trial.low) / 2


def certificate(session: Session, found: Found, winner: Side) -> dict[str, Any]:
    """How far the winner is from the bounds, and what is still to be expected of searching."""
    tokens, policy = winner.output_tokens_per_s_per_gpu, session.policy
    if not found.recommended and not found.winner.change:
        return {}  # nothing is named that could be near a bound
    if not session.oracle.known or not tokens or not isinstance(policy, Search):
        return {}
    served = replace(session.setting.served(found.winner), engine="twin", launch=None)
    try:
        twin = twin_of(served)
    except RidgelineError:
        return {}
    load = session.setting.workload
    made = certify(
        tokens, bound_of(twin, load), highest_bound(twin, served, load, ()),
        policy.outlook(session.journal.told().known, found.winner), basis=session.oracle.basis(),
        ended=found.ended if found.ended in BUDGET_ENDS else "",
    )  # fmt: skip
    return {**asdict(made), "lines": list(made.sentences())}
