"""What came of a duel, as it is kept and shown."""

from collections.abc import Mapping

from ridgeline.tuning.claims import NONE
from ridgeline.tuning.duel import DuelState, Word
from ridgeline.tuning.dueling import Duel
from ridgeline.tuning.outcome import Duelist, DuelResult
from ridgeline.tuning.trial import Candidate

NO_CLEAR: Word = "no clear difference"


def result_of(duel: Duel, rounds: int, estimates: Mapping[str, float]) -> DuelResult:
    """What came of it; `estimates`: the search's, by a candidate's words."""
    state = duel.standing()
    stopped = "stopped by the user" if duel.watch.stop_asked() else "its budget is used"
    if not rounds:
        stopped = "no duel was held: its budget is used"
    lines = [_line(duel, c, estimates.get(c.words)) for c in duel.candidates]
    none = duel.fallen and (not state.done or state.leader == 0)
    ended = "no finalist is left" if none else _reason(duel, state)
    ended = "the baseline does not run" if duel.died(duel.candidates[0]) else ended
    return DuelResult(rounds, ended if duel.is_over else stopped, tuple(lines))


def _reason(duel: Duel, state: DuelState) -> str:
    """Why it ended; of one that is left with open targets also that they are too near."""
    left = None if state.leader is None else duel.candidates[state.leader]
    if not state.best or left is None or duel.meets(left) is not None:
        return state.reason
    if None not in duel.runs_to_decide(left).values():
        return state.reason
    return f"{state.reason}; {duel.judging.most} rounds would not decide its targets"


def _line(duel: Duel, candidate: Candidate, searched: float | None) -> Duelist:
    base, died = duel.candidates[0], duel.died(candidate)
    found = None if candidate == base else duel.claim(candidate)
    ratio, low, high = NONE if found is None else (found.ratio, found.low, found.high)
    pairs = 0 if found is None else found.rounds
    word: str = NO_CLEAR if found is None else found.verdict
    verdict = died or ("the baseline" if candidate == base else word)
    runs = duel.stored(candidate)
    reasons = [died] if died else []
    reasons += [r.failure.text for r in runs if r.failure is not None]
    reasons += [
        "; ".join(r.summary.verdict.reasons) for r in runs if r.state == "void" and r.summary
    ]
    value, least, most = duel.estimate(candidate)
    return Duelist(
        candidate.words, candidate.change, duel.name(candidate), value,
        ratio, low, high, pairs, verdict, duel.meets(candidate),
        "; ".join(dict.fromkeys(reasons)) or None, searched, least, most,
    )  # fmt: skip
