"""Repeats of an engine that is up: one window at a time, beside other engines, until a stop."""

import math
from collections.abc import Mapping

import pytest

from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.slo import slo_from_mapping
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.tuning.port import Ask
from ridgeline.tuning.ranges import space_of
from ridgeline.tuning.search import Search, Windows
from ridgeline.tuning.trial import Candidate, History, Miss, Trial
from support.tuneground import FormulaGround

CHAT = Workload(Arrivals(users=100), Prompts(Lengths(256, 0.5)), Outputs(Lengths(96, 0.5)))
BASE = Configuration("Qwen/Qwen3-4B", Knobs(max_num_seqs=32), gpu="H200-SXM")
LIMITS = {"ttft_p95_ms": 500.0, "itl_p95_ms": 12.0}
SLO = slo_from_mapping(LIMITS)
SPACE = space_of(BASE, CHAT, SLO)
WINDOWS = Windows(10.0, 20.0)
Figures = tuple[float, Mapping[str, float]]


def twin(candidate: Candidate) -> Figures:
    """As the twin of an H200 had it: more slots wait less, and few configurations are near."""
    slots = math.log2(int(candidate.change.get("max_num_seqs", 32)))
    servers = int(candidate.change.get("api_server_count", 1))
    value = 3500 * math.exp(0.9 * min(slots - 5, 1.2) + 0.03 * servers)
    return value, {
        "ttft_p95_ms": 1850 * math.exp(-1.4 * (slots - 5)),
        "itl_p95_ms": 22.0 * math.exp(-0.8 * min(slots - 5, 1.0)) * 0.97**servers,
    }


def slower(candidate: Candidate) -> Figures:
    """The host that was met: a quarter slower, with later tokens."""
    value, limits = twin(candidate)
    return 0.78 * value, {k: 1.6 * v for k, v in limits.items()}


def reached(places: int) -> tuple[Search, FormulaGround, History]:
    """The baseline and one candidate were measured, and miss their limits."""
    ground = FormulaGround(
        slower, twin, LIMITS, noise=0.12, places=places, start_s=130.0, lasting=True
    )
    search, history = Search(SPACE, ground, SLO, WINDOWS), History()
    ask = search.ask(history, 700.0)
    assert ask is not None
    return search, ground, history.with_trials(ground.measure(ask, 1))


@pytest.mark.parametrize("places", [1, 4])
def test_a_question_never_asks_for_two_windows_of_an_engine_that_stays_up(places: int) -> None:
    search, ground, history = reached(places)
    asked = 0
    while (ask := search.ask(history, 2500.0 - history.gpu_s)) is not None and asked < 12:
        keys = [c.key for c in ask.candidates]
        assert len(set(keys)) == len(keys), ask.why
        history = history.with_trials(ground.measure(ask, len(history.trials) + 1))
        asked += 1
    assert asked > 3


def test_several_start_where_one_start_is_paid_for_all() -> None:
    """Five windows of one that hardly meets its limits were worth more than three
    candidates, because each of the three was charged with five windows of its own.
    """
    search, ground, history = reached(places=4)
    first = {t.candidate.key: t for t in reversed(history.trials)}
    two = History(tuple(sorted(first.values(), key=lambda t: t.number))[:2])
    ground.up = {t.candidate.key for t in two.trials}
    ask = search.ask(two, 600.0)
    assert ask is not None
    assert len({c.key for c in ask.candidates}) == len(ask.candidates) >= 3, ask.why


class Stopping(FormulaGround):
    """Ends every window of what is no baseline early: half of its requests waited too long."""

    def measure(self, ask: Ask, first: int) -> tuple[Trial, ...]:
        found = []
        for made in super().measure(ask, first):
            trial = made
            if made.candidate.change:
                missed = Miss("ttft_p95_ms", 500.0, None, None, None, None)
                limits = (missed, *(m for m in made.limits if m.key != "ttft_p95_ms"))
                trial = Trial(
                    made.number, made.candidate, "infeasible", limits=limits, window_s=2.5,
                    gpu_s=made.gpu_s, stopped=True,
                    reason="median TTFT 571 ms after 20% of the window, over 131 requests:"
                    " ttft_p95_ms=500 cannot be met",
                )  # fmt: skip
            found.append(trial)
        return tuple(found)


def test_what_was_stopped_as_hopeless_is_believed_to_miss_and_not_asked_again() -> None:
    """A stopped window has no p95; that it is above the limit is known all the same."""
    ground = Stopping(slower, twin, LIMITS, noise=0.12, places=1, start_s=130.0, lasting=True)
    search, history = Search(SPACE, ground, SLO, WINDOWS), History()
    stops: dict[object, int] = {}
    while (ask := search.ask(history, 3000.0 - history.gpu_s)) is not None:
        history = history.with_trials(ground.measure(ask, len(history.trials) + 1))
        for candidate in ask.candidates:
            if candidate.change:
                stops[candidate.key] = stops.get(candidate.key, 0) + 1
        if len(history.trials) > 15:
            break
    assert stops
    assert max(stops.values()) <= 2, stops


def test_the_words_say_which_window_of_how_many() -> None:
    search, _, history = reached(places=1)
    history = History(history.trials[:1])
    row = history.trials[0].candidate
    belief = search._view(history).belief
    at = next(i for i, e in enumerate(belief.pool) if e.candidate.key == row.key)
    assert belief.why(at, 0, 5).startswith("again, window 2 of up to 6: ")
    fresh = next(i for i, n in enumerate(belief.count) if not n)
    assert belief.why(fresh, 0, 5).startswith("expected: ")
    assert belief.why(fresh, 0, 5).endswith("; up to 5 windows")
    assert belief.why(fresh, 1, 5) == "again, window 2 of up to 5"
