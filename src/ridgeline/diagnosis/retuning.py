"""Whether a re-tune pays, asked of the twin: while watching, beside the view and now and then."""

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from math import inf, log
from statistics import NormalDist

from ridgeline.diagnosis.account import Account
from ridgeline.diagnosis.drift import Shift, Tuned, shifts
from ridgeline.diagnosis.evidence import Evidence
from ridgeline.diagnosis.finding import Finding, Try
from ridgeline.diagnosis.gain import with_gain, workload_of
from ridgeline.diagnosis.paying import Verdict, figures_asked, judge, widened
from ridgeline.domain.bands import Z
from ridgeline.domain.knobs import Configuration

FACTORS = (0.5, 2.0, 4.0)  # of a knob's present value
VARIED = ("max_num_seqs", "max_num_batched_tokens")
AGAIN_S = 300.0  # until the same drift is asked about anew
MOVED = ("out", "edge", "moved")

Ask = Callable[[Evidence, Tuned], Try]


def retune(e: Evidence, tuned: Tuned) -> Try:
    """The best of a few changes on the observed traffic, by the twin; or why it is not known.

    Of each change the tokens per GPU, the TTFT, the time of a request and what the winner's SLO
    limits are asked in one pair: one that wins by giving up another does not pay.
    """
    known = replace(e.known, configuration=tuned.configuration)
    seen = replace(e, known=known)
    load = workload_of(seen)
    closed = load is not None and load.arrivals.closed_loop
    base, figures = Finding("drift", "", "note", 0.0), figures_asked(tuned.slo)
    now = tuned.configuration.knobs.gpus
    tried = [
        (with_gain(seen, base, change, asked=figures, other=other), gpus)
        for change, other, gpus in _changes(seen, tuned)
    ]
    judged = [
        (t, judge(seen, t.gain, tuned.slo, closed=closed, gpus=gpus / now))
        for t, gpus in tried if t.gain
    ]  # fmt: skip
    if not judged:
        why = next((t.why_no_gain for t, _ in tried if t.why_no_gain), "nothing is left to try")
        return Try("ridgeline tune", "with the traffic above", None, why_no_gain=why)
    wider = max(1.0, NormalDist().inv_cdf(1 - 0.05 / len(judged)) / Z)  # the best of so many looks
    sure = [(t, _less_sure(verdict, wider)) for t, verdict in judged]
    best, verdict = max(sure, key=lambda row: _rank(row[1]))
    gain = verdict.gains if verdict.pays else tuple(replace(g, better=False) for g in verdict.gains)
    if verdict.mends:  # what it pays by
        gain = tuple(replace(g, better=g.better or g.metric in _mended(verdict)) for g in gain)
    said = _words(verdict, closed=closed)
    expect = (f"{best.knob} ({best.value}) is predicted {said}, the best of {len(judged)} changes"
              f" tried on this traffic{_left_out(tuned)}")  # fmt: skip
    return Try("ridgeline tune", "with the traffic above", None, best.metric, expect, gain)


def _left_out(tuned: Tuned) -> str:
    if not tuned.unasked:
        return ""
    return f" ({tuned.unasked} that the winner was compared with are not known, and not asked)"


def _less_sure(verdict: Verdict, wider: float) -> Verdict:
    """The bands of what is won, widened; what speaks against it stays as it is."""
    return replace(verdict, gains=tuple(widened(g, wider) for g in verdict.gains))


def _rank(verdict: Verdict) -> tuple[bool, bool, float]:
    return verdict.pays, verdict.against is None, verdict.gains[0].low


def _mended(verdict: Verdict) -> set[str]:
    return {f"{words.partition(' ')[0].removesuffix('_ms')}_s" for words in verdict.mends}


def _words(verdict: Verdict, *, closed: bool) -> str:
    """Cost per token, what is mended, and what speaks against it."""
    tokens = verdict.gains[0]
    if verdict.mends:
        said = f"to bring {', '.join(verdict.mends)}"
    elif not closed and tokens.ratio == tokens.high == 1:
        said = "no cheaper a token (nothing waits: at this rate as many tokens come out)"
    else:
        value, low, high = (
            1 - 1 / r if r else -inf for r in (tokens.ratio, tokens.low, tokens.high)
        )
        said = f"{value:.0%} cheaper a token ({low:.0%} to {high:.0%})"
    return said if verdict.against is None else f"{said}, but {verdict.against}"


def _changes(e: Evidence, tuned: Tuned) -> list[tuple[Try, Configuration | None, int]]:
    """What it was compared with, and its neighbours in the two knobs that traffic moves most.

    Each with the whole other configuration, if it is one, and the GPUs that it takes.
    """
    own = tuned.configuration.knobs.given()
    found: list[tuple[Try, Configuration | None, int]] = []
    for name, other in tuned.others:
        then = other.knobs.given()
        change = {k: then.get(k) for k in (*own, *then) if own.get(k) != then.get(k)}
        if change or other.gpu != tuned.configuration.gpu:
            words = ", ".join(f"{k}={'unset' if v is None else v}" for k, v in change.items())
            found.append((Try(name, words, change), other, other.knobs.gpus))
    resolved = Account(e).knobs
    for knob in VARIED:
        now = own.get(knob) or (None if resolved is None else getattr(resolved, knob))
        if now is None:
            continue
        for factor in FACTORS:
            value = max(1, int(now * factor))
            row = Try(knob, str(value), {knob: value})
            found.append((row, None, tuned.configuration.knobs.gpus))
    return found


# -- while watching


@dataclass(frozen=True, slots=True)
class _Asked:
    about: Hashable
    at_s: float
    answer: Try | None


class Retuning:
    """Asks the twin in a thread of its own, one replica at a time; the view never waits for it.

    What has moved is asked about once, and again when something else moves or AGAIN_S have passed.
    """

    def __init__(self, tuned: Tuned, ask: Ask = retune, again_s: float = AGAIN_S) -> None:
        self._tuned = tuned
        self._ask = ask
        self._again_s = again_s
        self._lock = threading.Lock()
        self._asked: dict[str, _Asked] = {}
        self._waiting: dict[str, tuple[Hashable, Evidence, Try | None]] = {}
        self._busy = False

    def answer(self, replica: str, e: Evidence) -> Try | None:
        """The last answer about what has moved there; None until there is one."""
        about = _about(shifts(e, self._tuned))
        with self._lock:
            last = self._asked.get(replica)
            if not about:
                self._waiting.pop(replica, None)
                return None
            same = last is not None and last.about == about
            known = last.answer if last is not None and same else None
            if not same or last is None or time.monotonic() - last.at_s >= self._again_s:
                self._waiting[replica] = (about, e, known)
            if self._waiting and not self._busy:
                self._busy = True
                threading.Thread(target=self._run, name="re-tune", daemon=True).start()
        return known

    def _run(self) -> None:
        """Answer all that wait, the one without an answer, or with the oldest, first."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._busy = False
                    return
                replica = min(self._waiting, key=self._answered_s)
                about, e, known = self._waiting.pop(replica)
            try:
                answer: Try | None = self._ask(e, self._tuned)
            except Exception as error:  # whatever it is, the others are asked about
                why = f"the twin does not answer ({type(error).__name__}: {error})"
                answer = known or Try("ridgeline tune", "with the traffic above", None,
                                      why_no_gain=why)  # fmt: skip
            with self._lock:
                self._asked[replica] = _Asked(about, time.monotonic(), answer)

    def _answered_s(self, replica: str) -> float:
        last = self._asked.get(replica)
        return float("-inf") if last is None else last.at_s


def _about(found: Sequence[Shift]) -> Hashable:
    """Which properties moved, which way, in halvings and doublings."""
    return frozenset(_step(s) for s in found if s.state in MOVED)


def _step(s: Shift) -> tuple[str, str, int]:
    return s.what, s.state, round(log(s.factor, 2)) if s.factor > 0 else 0
