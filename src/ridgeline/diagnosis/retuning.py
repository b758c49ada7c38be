"""Whether a re-tune pays, asked of the twin: while watching, beside the view and now and then."""

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import NormalDist

from ridgeline.diagnosis.account import Account
from ridgeline.diagnosis.drift import Shift, Tuned, shifts
from ridgeline.diagnosis.evidence import Evidence
from ridgeline.diagnosis.finding import Finding, Gain, Try
from ridgeline.diagnosis.gain import with_gain
from ridgeline.domain.bands import Z
from ridgeline.domain.knobs import Configuration

FACTORS = (0.5, 2.0, 4.0)  # of a knob's present value
VARIED = ("max_num_seqs", "max_num_batched_tokens")
AGAIN_S = 300.0  # until the same drift is asked about anew
TOKENS = "output_tokens_per_s"
MOVED = ("out", "edge", "moved")

Ask = Callable[[Evidence, Tuned], Try]


def retune(e: Evidence, tuned: Tuned) -> Try:
    """The best of a few changes on the observed traffic, by the twin; or why it is not known.

    A change that takes other GPUs is judged by tokens per GPU.
    """
    known = replace(e.known, configuration=tuned.configuration)
    seen = replace(e, known=known)
    base = Finding("drift", "", "note", 0.0)
    tried = [(with_gain(seen, base, change), gpus) for change, gpus in _changes(seen, tuned)]
    told = [_per_gpu(t, gpus / tuned.configuration.knobs.gpus) for t, gpus in tried if t.gain]
    if not told:
        why = next((t.why_no_gain for t, _ in tried if t.why_no_gain), "nothing is left to try")
        return Try("ridgeline tune", "with the traffic above", None, why_no_gain=why)
    best = max(told, key=lambda t: _sure(t.gain[0]))
    wider = NormalDist().inv_cdf(1 - 0.05 / len(told)) / Z  # the best of so many looks
    gain = tuple(_widened(g, max(1.0, wider)) for g in best.gain)
    told_of = next((g for g in gain if g.better), gain[0])
    expect = (f"{best.knob} ({best.value}) is predicted {_words(told_of)}, the best of {len(told)}"
              " changes tried on this traffic")  # fmt: skip
    return Try("ridgeline tune", "with the traffic above", None, best.metric, expect, gain)


def _words(gain: Gain) -> str:
    """A ratio of tokens as cost per token, of a latency as it is."""
    if gain.metric == TOKENS:
        value, low, high = (1 - 1 / r for r in (gain.ratio, gain.low, gain.high))
        return f"{value:.0%} cheaper a token ({low:.0%} to {high:.0%})"
    value, low, high = (1 - r for r in (gain.ratio, gain.high, gain.low))
    name = {"itl_mean_s": "time between tokens"}.get(gain.metric, gain.metric)
    return f"{value:.0%} less {name} ({low:.0%} to {high:.0%})"


def _changes(e: Evidence, tuned: Tuned) -> list[tuple[Try, int]]:
    """What it was compared with, and its neighbours in the two knobs that traffic moves most.

    Each with the GPUs that it takes.
    """
    own = tuned.configuration.knobs.given()
    found = []
    for name, other in tuned.others:
        change = {k: v for k, v in other.knobs.given().items() if own.get(k) != v}
        if change:
            words = ", ".join(f"{k}={v}" for k, v in change.items())
            found.append((Try(name, words, change), _gpus(tuned.configuration, change)))
    resolved = Account(e).knobs
    for knob in VARIED:
        now = own.get(knob) or (None if resolved is None else getattr(resolved, knob))
        if now is None:
            continue
        for factor in FACTORS:
            value = max(1, int(now * factor))
            found.append((Try(knob, str(value), {knob: value}), tuned.configuration.knobs.gpus))
    return found


def _gpus(base: Configuration, change: dict[str, object]) -> int:
    return base.knobs.with_changes(change).gpus


def _per_gpu(change: Try, times: float) -> Try:
    """The gain in tokens per GPU of a change that takes so many times the GPUs."""
    if times == 1:
        return change
    return replace(change, gain=tuple(_shared_out(g, times) for g in change.gain))


def _shared_out(gain: Gain, times: float) -> Gain:
    if gain.metric != TOKENS:
        return replace(gain, better=False)  # what more GPUs win in latency is no cheaper token
    low = gain.low / times
    return replace(gain, ratio=gain.ratio / times, low=low, high=gain.high / times, better=low > 1)


def _sure(gain: Gain) -> float:
    """How much better at the least."""
    return gain.low if gain.metric == TOKENS else 1 / gain.high


def _widened(gain: Gain, by: float) -> Gain:
    low = gain.ratio * exp(by * log(gain.low / gain.ratio))
    high = gain.ratio * exp(by * log(gain.high / gain.ratio))
    better = low > 1 if gain.metric == TOKENS else high < 1
    return replace(gain, low=low, high=high, better=better)


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
        self._busy = False

    def answer(self, replica: str, e: Evidence) -> Try | None:
        """The last answer about what has moved there; None until there is one."""
        about = _about(shifts(e, self._tuned))
        if not about:
            return None
        now = time.monotonic()
        with self._lock:
            last = self._asked.get(replica)
            same = last is not None and last.about == about
            known = last.answer if last is not None and same else None
            due = not same or last is None or now - last.at_s >= self._again_s
            if due and not self._busy:
                self._busy = True
                threading.Thread(target=self._run, args=(replica, about, e, known),
                                 name="re-tune", daemon=True).start()  # fmt: skip
        return known

    def _run(self, replica: str, about: Hashable, e: Evidence, known: Try | None) -> None:
        try:
            answer: Try | None = self._ask(e, self._tuned)
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
            why = f"the twin does not answer ({type(error).__name__}: {error})"
            answer = known or Try("ridgeline tune", "with the traffic above", None, why_no_gain=why)
        with self._lock:
            self._asked[replica] = _Asked(about, time.monotonic(), answer)
            self._busy = False


def _about(found: Sequence[Shift]) -> Hashable:
    """Which properties moved, which way, in halvings and doublings."""
    return frozenset(_step(s) for s in found if s.state in MOVED)


def _step(s: Shift) -> tuple[str, str, int]:
    return s.what, s.state, round(log(s.factor, 2)) if s.factor > 0 else 0
