"""The search policy against grounds whose truth is known."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.slo import slo_from_mapping
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.tuning.pool import looks
from ridgeline.tuning.ranges import space_of
from ridgeline.tuning.risk import Risk
from ridgeline.tuning.room import Room
from ridgeline.tuning.search import ENOUGH, Search, Windows
from ridgeline.tuning.trial import Candidate, History, Trial
from support.tuneground import FormulaGround

CHAT = Workload(Arrivals(users=100), Prompts(Lengths(256, 0.5)), Outputs(Lengths(96, 0.5)))
BASE = Configuration("Qwen/Qwen3-4B", Knobs(max_num_seqs=16), gpu="H200-SXM")
LIMITS = {"ttft_p95_ms": 1000.0}
SLO = slo_from_mapping(LIMITS)
SPACE = space_of(BASE, CHAT, SLO)
WINDOWS = Windows(10.0, 30.0)


def world(candidate: Candidate) -> tuple[float, Mapping[str, float]]:
    """Best at 64 slots and 2048 tokens; more slots wait for the budget, few wait for slots."""
    knobs: Any = {"max_num_seqs": 16, "max_num_batched_tokens": 8192, **candidate.change}
    seqs, tokens = math.log2(knobs["max_num_seqs"]), math.log2(knobs["max_num_batched_tokens"])
    good = -0.15 * (seqs - 6) ** 2 - 0.05 * (tokens - 11) ** 2
    good += 0.1 * (knobs.get("quantization") == "fp8")
    return 5000 * math.exp(good), {"ttft_p95_ms": 900 * math.exp(0.4 * (5 - seqs))}


def misled(candidate: Candidate) -> tuple[float, Mapping[str, float]]:
    """A twin that has it the wrong way round."""
    value, limits = world(candidate)
    return 5000 * 5000 / value / 3, {k: 1000 * 1000 / v for k, v in limits.items()}


def searched(
    ground: FormulaGround, budget: float = 6000.0, **options: Any
) -> tuple[Search, History]:
    search, history = Search(SPACE, ground, SLO, WINDOWS, **options), History()
    while (ask := search.ask(history, budget - history.gpu_s)) is not None:
        history = history.with_trials(ground.measure(ask, len(history.trials) + 1))
        assert len(history.trials) < 200
    return search, history


def test_the_baseline_is_measured_first_and_a_right_twin_leads_there_at_once() -> None:
    ground = FormulaGround(world, world, LIMITS)
    search, history = Search(SPACE, ground, SLO, WINDOWS, risk=Risk.NUMERICS), History()
    while (ask := search.ask(history, 600 - history.gpu_s)) is not None:
        history = history.with_trials(ground.measure(ask, len(history.trials) + 1))
    assert not history.trials[0].candidate.change
    best = search.best(history)
    assert best is not None
    assert world(best.candidate)[0] >= 0.98 * 5000 * math.exp(0.1)
    assert search.outlook(history).gain < 0.05


def test_it_ends_when_nothing_is_likely_to_be_two_per_cent_better_and_not_before() -> None:
    """Six configurations, the best 2.6 % ahead: a budget of 6000 s is not used up, and the others
    were measured as often as it takes.
    """
    space = space_of(BASE, CHAT, SLO, only=True, wanted={
        "max_num_seqs": (16, 32, 64), "max_num_batched_tokens": (2048, 8192),
    })  # fmt: skip
    ground = FormulaGround(world, world, LIMITS)
    search, history, chances = Search(space, ground, SLO, WINDOWS), History(), []
    while (ask := search.ask(history, 6000 - history.gpu_s)) is not None:
        chances.append(search.outlook(history).chance)
        history = history.with_trials(ground.measure(ask, len(history.trials) + 1))
    assert history.gpu_s < 4000
    assert search.outlook(history).chance < ENOUGH
    # the last question may have been to confirm what was measured once
    assert all(chance >= ENOUGH for chance in chances[:-1])
    best = search.best(history)
    assert best is not None
    assert best.candidate.change == {"max_num_seqs": 64, "max_num_batched_tokens": 2048}
    assert len(history.of(best.candidate)) >= 2


def test_what_is_still_to_be_had_is_told_over_the_one_that_is_named() -> None:
    """The duel may keep the baseline: then the search's own lead over it is still to be had."""
    search, history = searched(FormulaGround(world, world, LIMITS), 900.0)
    best = search.best(history)
    assert best is not None
    assert best.candidate.change
    lead = math.log(world(best.candidate)[0] / world(Candidate())[0])
    assert lead > 0.2, "else this shows nothing"
    assert search.outlook(history, Candidate()).best_guess > 0.8 * lead
    assert search.outlook(history, best.candidate).best_guess < 0.5 * lead


def test_what_may_not_win_is_neither_measured_again_nor_the_answer() -> None:
    """The fastest change is barred once it was measured: the search goes on to the next best."""
    seen: list[Candidate] = []

    def barred(candidate: Candidate) -> str | None:
        return "fail" if seen and candidate.change.get("quantization") == "fp8" else None

    ground = FormulaGround(world, world, LIMITS)
    search = Search(SPACE, ground, SLO, WINDOWS, risk=Risk.NUMERICS, barred=barred)
    history = History()
    while (ask := search.ask(history, 6000 - history.gpu_s)) is not None:
        assert not seen or all(c.change.get("quantization") != "fp8" for c in ask.candidates)
        history = history.with_trials(ground.measure(ask, len(history.trials) + 1))
        seen += [c for c in ask.candidates if c.change.get("quantization") == "fp8"]
    assert seen, "it was measured until it was barred"
    best = search.best(history)
    assert best is not None
    assert best.candidate.change.get("quantization") is None
    assert world(best.candidate)[0] >= 0.95 * 5000


def test_a_misled_twin_costs_time_but_not_the_answer() -> None:
    search, history = searched(FormulaGround(world, misled, LIMITS), 6000, risk=Risk.NUMERICS)
    best = search.best(history)
    assert best is not None
    assert world(best.candidate)[0] >= 0.95 * 5000 * math.exp(0.1)
    assert search.outlook(history).belief < 0.3


def test_the_answer_meets_its_limits_where_the_fastest_does_not() -> None:
    tight = {"ttft_p95_ms": 300.0}  # 16 slots: 1343 ms; 64: 603; 128: 404 ... 512: none

    def slow(candidate: Candidate) -> tuple[float, Mapping[str, float]]:
        value, limits = world(candidate)
        return value, {"ttft_p95_ms": limits["ttft_p95_ms"] * 0.65}  # 128 slots: 263

    ground = FormulaGround(slow, slow, tight)
    search, history = Search(SPACE, ground, slo_from_mapping(tight), WINDOWS), History()
    while (ask := search.ask(history, 6000 - history.gpu_s)) is not None:
        history = history.with_trials(ground.measure(ask, len(history.trials) + 1))
    best = search.best(history)
    assert best is not None
    assert slow(best.candidate)[1]["ttft_p95_ms"] <= 300


def test_nothing_is_named_where_nothing_is_feasible() -> None:
    hopeless = {"ttft_p95_ms": 1.0}
    ground = FormulaGround(world, world, hopeless)
    search = Search(SPACE, ground, slo_from_mapping(hopeless), WINDOWS)
    history = History()
    while (ask := search.ask(history, 3000 - history.gpu_s)) is not None:
        history = history.with_trials(ground.measure(ask, len(history.trials) + 1))
    assert search.best(history) is None


@pytest.mark.parametrize("seed", range(4))
def test_a_planted_crash_region_is_left_after_at_most_two_starts(seed: int) -> None:
    def crashes(candidate: Candidate) -> bool:  # where the twin sees the best
        return candidate.change.get("max_num_seqs", 16) >= 64

    ground = FormulaGround(world, world, LIMITS, crashes=crashes)
    search, history = searched(ground, seed=seed)
    states = [t.state for t in history.trials]
    assert 1 <= states.count("crashed") <= 2
    best = search.best(history)
    assert best is not None
    assert best.candidate.change["max_num_seqs"] == 32


@pytest.mark.parametrize("seed", range(3))
def test_so_is_one_that_takes_two_settings_together(seed: int) -> None:
    def crashes(candidate: Candidate) -> bool:
        change = candidate.change
        return (
            change.get("max_num_seqs", 16) >= 64
            and change.get("max_num_batched_tokens", 8192) < 8192
        )

    search, history = searched(FormulaGround(world, world, LIMITS, crashes=crashes), seed=seed)
    assert [t.state for t in history.trials].count("crashed") <= 2
    best = search.best(history)
    assert best is not None
    assert not crashes(best.candidate)


def test_a_crashed_trial_is_never_ranked_however_fast_a_crash_looks() -> None:
    ground = FormulaGround(world, world, LIMITS)  # C-TU-09
    search = Search(SPACE, ground, SLO, WINDOWS)
    ran = ground.measure_one(Candidate({"max_num_seqs": 64}), 1)
    crashed = Trial(2, Candidate({"max_num_seqs": 128}), "crashed", value=0.0)
    history = History((ran, crashed))
    assert [s.candidate for s in search.standings(history)] == [ran.candidate]


def test_it_is_a_function_of_the_history_and_the_seed() -> None:
    def fresh() -> Search:
        return Search(SPACE, FormulaGround(world, world, LIMITS, places=2), SLO, WINDOWS)

    ground, one, history = FormulaGround(world, world, LIMITS, places=2), fresh(), History()
    for _ in range(3):
        asked = one.ask(history, 5000.0)
        assert asked is not None
        other = fresh()
        other.outlook(history)  # asked in another order
        other.best(history)
        assert other.ask(history, 5000.0) == asked
        history = history.with_trials(ground.measure(asked, len(history.trials) + 1))


def test_a_budget_is_kept_and_the_twin_is_asked_about_hundreds_not_thousands() -> None:
    ground = FormulaGround(world, misled, LIMITS, places=3)
    _, history = searched(ground, 700.0)
    assert history.gpu_s <= 700.0
    assert 100 < len(ground.looked) < 600
    assert SPACE.size > 1000


def test_only_candidates_of_the_allowed_risk_are_measured() -> None:
    _, history = searched(FormulaGround(world, world, LIMITS))
    assert all(SPACE.risk(t.candidate) < Risk.NUMERICS for t in history.trials)


def test_a_change_that_does_nothing_on_top_of_others_is_not_proposed() -> None:
    """In this world three knobs act. Of the best candidates none carries a fourth beside them."""
    ground = FormulaGround(world, world, LIMITS)
    pool = looks(SPACE, ground, LIMITS, measured=[], good=[], random=np.random.default_rng(0))
    acts = {"max_num_seqs", "max_num_batched_tokens", "quantization"}
    best = sorted(pool, key=lambda e: -(e.value or 0.0))[:8]
    assert all(set(e.candidate.change) <= acts for e in best)
    assert best[0].candidate.change == {
        "max_num_seqs": 64, "max_num_batched_tokens": 2048, "quantization": "fp8",
    }  # fmt: skip
    idle = [e.candidate.change for e in pool if not e.candidate.change.keys() <= acts]
    assert {"enable_prefix_caching": False} in idle, "the twin may be blind to it"
    assert all(len(change) == 1 for change in idle), "and two of them are no better"


def test_of_two_ways_to_say_one_configuration_the_shorter_is_asked_for() -> None:
    """A capture size that follows from the slots, say, is no change."""
    ground = FormulaGround(world, world, LIMITS)
    good = Candidate({"max_num_seqs": 64})
    for measured in ([], [Candidate(), good]):
        pool = looks(SPACE, ground, LIMITS, measured=measured, good=measured[1:],
                     random=np.random.default_rng(0))  # fmt: skip
        known = {SPACE.resolved(e.candidate).identity for e in pool}
        longer = 0
        for candidate in (e.candidate for e in pool if len(e.candidate.change) > 1):
            own = SPACE.resolved(candidate).identity
            for name in candidate.change:
                less = Candidate({k: v for k, v in candidate.change.items() if k != name})
                longer += SPACE.resolved(less).identity == own
        assert len(known) == len(pool)
        assert longer == 0


class OwnStarts(FormulaGround):
    """Each candidate pays for its own start, as on a GPU of its own."""

    def cost_s(self, candidates: Sequence[Candidate], window_s: float) -> float:
        starts = len({c.key for c in candidates})
        return self.start_s * starts + len(candidates) * (window_s + 10.0)


def test_four_gpus_end_as_well_as_one_and_sooner() -> None:
    """A question is of candidates that differ, as many as fit; what takes two GPUs counts twice."""
    room = Room(("0", "1", "2", "3"), 4, lambda c: 1 + (c.change.get("max_num_seqs", 16) > 128))

    def walled(room: Room | None) -> tuple[float, float, int]:
        """The truth of what it names, seconds that it took, and the most at once."""
        ground = OwnStarts(world, world, LIMITS)
        search, history = Search(SPACE, ground, SLO, WINDOWS, room=room), History()
        wall_s, most = 0.0, 0
        while (ask := search.ask(history, 4000 - history.gpu_s)) is not None:
            distinct = {c.key: c for c in ask.candidates}
            if room is not None:
                assert room.fits(list(distinct.values()))
            alone = [
                ground.cost_s([c for c in ask.candidates if c.key == key], ask.window_s)
                for key in distinct
            ]
            wall_s, most = wall_s + max(alone), max(most, len(distinct))
            history = history.with_trials(ground.measure(ask, len(history.trials) + 1))
        best = search.best(history)
        assert best is not None
        return world(best.candidate)[0], wall_s, most

    (one, one_s, single), (four, four_s, several) = walled(None), walled(room)
    assert (single, several) == (1, 4)
    assert four >= 0.98 * one
    assert four_s < 0.4 * one_s, f"{four_s:.0f} s against {one_s:.0f} s"
    print(f"{four_s:.0f} s against {one_s:.0f} s, {four:.0f} against {one:.0f}")
