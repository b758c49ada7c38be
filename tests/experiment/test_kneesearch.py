"""Knee and capacity: against closed forms, on noisy levels, and where they must not be given."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from ridgeline.domain.knee import (
    KneeLevel,
    attainment_target,
    find_capacity,
    find_knee,
    plateau,
    requests_wanted,
)
from ridgeline.domain.knobs import Configuration, Knobs
from ridgeline.domain.run import ClientCheck, SilentWatch
from ridgeline.domain.slo import parse_slo
from ridgeline.domain.workload import Arrivals, Lengths, Outputs, Prompts, Workload
from ridgeline.engines.twin import TwinEngine
from ridgeline.experiment.knee import Sweep, level_of, level_workload, read_knee, search_knee
from ridgeline.experiment.kneesearch import Asked, next_load
from ridgeline.experiment.plan import Plan, PlannedExperiment, plan_runs
from ridgeline.experiment.protocol import carry_out
from ridgeline.experiment.runner import SilentStudyWatch
from ridgeline.store.study_directory import StudyDirectory
from support.slots import Slots, SlotsEngine

USERS = Asked("users", start=1, least=1, most=4096)
RATE = Asked("rate", start=0.0, least=0.01, most=1e4, target=0.95)
TRAFFIC = Workload(Arrivals(users=1), Prompts(Lengths(100)), Outputs(Lengths(20)))


class Quiet(SilentStudyWatch):
    def __init__(self, stop_after: int = 10**6) -> None:
        self.levels: list[KneeLevel] = []
        self.stop_after = stop_after

    def level(self, level: KneeLevel) -> None:
        self.levels.append(level)

    def stop_asked(self) -> bool:
        return len(self.levels) >= self.stop_after


def sweep(asked: Asked = USERS, slo: str = "", requests: int = 100, **changes) -> Sweep:
    configuration = Configuration("m", Knobs(), engine="endpoint", url="http://127.0.0.1:9")
    made = Sweep("k", configuration, TRAFFIC, asked, parse_slo(slo), requests)
    return replace(made, **changes)


def search(folder: Path, made: Sweep, engine: SlotsEngine, watch: Quiet | None = None):
    return search_knee(made, StudyDirectory(folder), engine, watch or Quiet(), command="c")


def level(load: float, tokens: float, state: str = "valid", **changes) -> KneeLevel:
    made = KneeLevel(
        f"l-{load:g}", load, state, 300, 200, tokens_per_s=tokens, tokens_low=tokens * 0.98,
        tokens_high=tokens * 1.02, error_rate=0.0,
    )  # fmt: skip
    return replace(made, **changes)


class TestClosedForms:
    @pytest.mark.parametrize("slots", [5, 16])
    def test_the_knee_of_n_slots_is_at_95_percent_of_n_users(
        self, tmp_path: Path, slots: int
    ) -> None:
        engine = SlotsEngine(Slots(slots))
        result, stopped = search(tmp_path, sweep(), engine)
        assert not stopped
        assert engine.started == 1
        assert result.knee.value is not None
        assert 0.9 * slots - 1 <= result.knee.value <= slots
        assert result.knee.low is not None
        assert result.knee.high is not None
        assert result.knee.low <= 0.95 * slots <= result.knee.high
        assert result.plateau_tokens_per_s == pytest.approx(slots * 20, rel=0.05)

    def test_the_capacity_of_an_open_loop_is_where_the_queue_grows(self, tmp_path: Path) -> None:
        """16 slots of 1 s, targets that allow a little waiting: 16 requests/s is the end."""
        made = sweep(RATE, "ttft_p95_ms=1000,error_rate=0.01", requests=216)
        result, _ = search(tmp_path, made, SlotsEngine(Slots(16)))
        assert result.capacity is not None
        assert result.capacity.value is not None
        assert 12 <= result.capacity.value <= 16
        assert result.capacity.high is not None
        assert result.capacity.high <= 20
        assert result.knee.value is not None
        assert 0.95 * 16 * 0.85 <= result.knee.value <= 16 * 1.15
        assert any(one.state == "overloaded" for one in result.levels)

    def test_targets_that_no_load_meets(self, tmp_path: Path) -> None:
        made = sweep(replace(RATE, least=1.0), "e2e_p95_ms=500", requests=120)
        result, _ = search(tmp_path, made, SlotsEngine(Slots(4)))
        assert result.capacity is not None
        assert result.capacity.value is None
        assert "not even the lowest load" in (result.capacity.reason or "")


class TestNotToBeFooled:
    def test_prompts_that_a_cache_answers_are_void(self, tmp_path: Path) -> None:
        """Each reply says that its whole prompt came from the cache: fresh prompts cannot."""
        result, _ = search(tmp_path, sweep(), SlotsEngine(Slots(4, cached=lambda prompt: prompt)))
        assert {one.state for one in result.levels} == {"void"}
        assert result.knee.value is None
        assert "prefix cache" in (result.knee.reason or "")
        assert any("is void" in line for line in result.notes)

    def test_every_level_has_fresh_prompts(self, tmp_path: Path) -> None:
        engine = SlotsEngine(Slots(4))
        search(tmp_path, sweep(), engine)
        assert len(engine.endpoint.drives) == len(set(engine.endpoint.drives)) > 3

    def test_too_few_requests_give_no_capacity(self, tmp_path: Path) -> None:
        """A window of 15 s at 1 request/s brings about 15 of the 200 that are needed."""
        made = sweep(replace(RATE, start=1.0, most=1.0), "ttft_p50_ms=5000", 200, longest_s=15.0)
        result, _ = search(tmp_path, made, SlotsEngine(Slots(4)))
        assert result.capacity is not None
        assert result.capacity.value is None
        assert (result.capacity.reason or "").startswith("not enough requests: the level at 1 had")

    def test_a_client_at_its_limit_ends_the_search_and_says_so(self, tmp_path: Path) -> None:
        busy = Slots(10**6, client=ClientCheck("kernel", cpu_share=0.99))
        result, _ = search(tmp_path, sweep(), SlotsEngine(busy))
        assert len(result.levels) == 1
        assert "client limit" in (result.knee.reason or "")

    def test_a_level_that_was_void_by_chance_is_measured_once_more(self, tmp_path: Path) -> None:
        class Disturbed(Slots):
            def drive(self, plan, sink, watch):
                late = ClientCheck("kernel", cpu_share=0.99 if len(self.drives) == 2 else 0.1)
                self.client = late
                return super().drive(plan, sink, watch)

        engine = SlotsEngine(Disturbed(4))
        result, _ = search(tmp_path, sweep(), engine)
        assert all(one.state == "valid" for one in result.levels)
        assert len(engine.endpoint.drives) == len(result.levels) + 1
        assert (tmp_path / "users-4-r1.old-1").exists()

    def test_throughput_that_still_rises_is_no_plateau(self, tmp_path: Path) -> None:
        result, _ = search(tmp_path, sweep(replace(USERS, most=16)), SlotsEngine(Slots(10**6)))
        assert result.knee.value is None
        assert "still rises at the highest load that was measured, 16" in (result.knee.reason or "")

    def test_a_budget_that_is_used_up(self, tmp_path: Path) -> None:
        result, _ = search(tmp_path, sweep(budget_s=1.0), SlotsEngine(Slots(4)))
        assert result.levels == ()
        assert any("time budget of 1 s was used up" in line for line in result.notes)
        assert result.knee.value is None


class TestLevels:
    def test_the_plateau_is_not_the_luckiest_of_many(self) -> None:
        truth, rng = 1000.0, np.random.default_rng(2)
        found = []
        for _ in range(200):
            noise = 1 + 0.04 * rng.standard_normal(6)
            loads = (16, 32, 40, 50, 64, 80)
            caps = [min(load * 25.0, truth) for load in loads]
            states = ["valid" if load * 25 < truth else "overloaded" for load in loads]
            made = [level(x, cap * e, s)
                    for x, cap, e, s in zip(loads, caps, noise, states, strict=True)]  # fmt: skip
            best = plateau(made)
            assert best is not None
            found.append(best.value)
        assert np.mean(found) == pytest.approx(truth, rel=0.01)

    def test_throughput_that_falls_beyond_the_knee(self) -> None:
        made = [level(x, t) for x, t in ((1, 100), (2, 200), (4, 400), (8, 390), (16, 250))]
        found = find_knee(made)
        assert found.value == pytest.approx(2 + 2 * (0.95 * 400 - 200) / 200, rel=0.06)

    def test_the_capacity_needs_the_lower_bound_and_all_lower_loads(self) -> None:
        def at(load: float, share: float, low: float, high: float) -> KneeLevel:
            return level(load, load, attained=share, attained_low=low, attained_high=high)

        made = [at(1, 1.0, 0.98, 1.0), at(2, 0.97, 0.96, 0.99), at(3, 0.96, 0.93, 0.98),
                at(4, 0.97, 0.955, 0.99), at(6, 0.5, 0.4, 0.6)]  # fmt: skip
        found = find_capacity(made, 0.95)
        # 3 is inside by its figure, not by its bound: it is not shown, so it ends nothing
        assert (found.value, found.high) == (4, 6)
        broken = [*made[:2], at(3, 0.90, 0.85, 0.93), *made[3:]]
        assert find_capacity(broken, 0.95).value == 2
        assert find_capacity(broken, 0.95).high == 3

    def test_a_level_that_could_not_be_judged_leaves_a_lower_bound(self) -> None:
        """4 was void and 3 too short: what lies below 8 may be more than 2, and that is said."""
        good = level(2, 2, attained=1.0, attained_low=0.98, attained_high=1.0)
        void = replace(good, load=4, state="void", reasons=("client limit: busy",))
        short = replace(good, load=3, requests=50)
        over = replace(good, load=8, state="overloaded")
        found = find_capacity([good, void, over], 0.95)
        assert (found.value, found.high) == (2, 8)
        assert found.reason == "the level at 4 is void: client limit: busy"
        assert "3 had 50 of 200" in (find_capacity([good, short, over], 0.95).reason or "")
        assert find_capacity([good, over], 0.95).reason is None
        above = replace(void, load=16)  # beyond what fails: nothing is open
        assert find_capacity([good, over, above], 0.95).reason is None

    def test_errors_count(self) -> None:
        good = level(1, 1, attained=1.0, attained_low=0.98, attained_high=1.0)
        bad = replace(good, load=2, error_rate=0.03)
        found = find_capacity([good, bad], 0.95, most_errors=0.01)
        assert (found.value, found.high) == (1, 2)

    @pytest.mark.parametrize(
        ("slo", "target"),
        [
            ("ttft_p95_ms=5", 0.95),
            ("ttft_p50_ms=5,itl_p99_ms=9", 0.99),
            ("ttft_p95_ms=5,attainment=0.9", 0.9),
            ("error_rate=0.1", None),
            ("", None),
        ],
    )
    def test_what_the_attainment_must_reach(self, slo: str, target: float | None) -> None:
        assert attainment_target(parse_slo(slo)) == target

    def test_enough_requests_can_reach_the_target(self) -> None:
        for target in (0.5, 0.9, 0.95, 0.99):
            n = requests_wanted(target)
            assert 0.025 ** (1 / n) > target
        assert requests_wanted(None) == 100


class TestSearch:
    def measured(self, capacity: float, asked: Asked) -> list[float]:
        levels: list[KneeLevel] = []
        while (load := next_load(levels, asked)) is not None:
            inside = 1.0 if load <= capacity else 0.0
            state = "valid" if load <= 1.2 * capacity or asked.load == "users" else "overloaded"
            levels.append(level(load, 100 * min(load, capacity), state, attained=inside,
                                attained_low=inside * 0.99, attained_high=inside))  # fmt: skip
            assert len(levels) < 40
        return [one.load for one in levels]

    @pytest.mark.parametrize("capacity", [0.7, 3.3, 17.0, 1234.0])
    def test_a_rate_is_found_in_few_levels_within_the_resolution(self, capacity: float) -> None:
        loads = self.measured(capacity, replace(RATE, start=2.0))
        below = max(load for load in loads if load <= capacity)
        above = min(load for load in loads if load > capacity)
        assert above / below <= 1.1 + 1e-9
        assert len(loads) <= 10 + abs(math.log2(capacity / 2.0))

    @pytest.mark.parametrize("capacity", [1, 2, 7, 100])
    def test_users_are_whole(self, capacity: int) -> None:
        loads = self.measured(capacity, USERS)
        assert all(load == int(load) for load in loads)
        assert len(loads) == len(set(loads))

    def test_the_highest_load_is_a_limit(self) -> None:
        assert max(self.measured(1e9, replace(USERS, most=50))) == 50


def test_a_search_that_was_cut_off_goes_on_where_it_was(tmp_path: Path) -> None:
    first = SlotsEngine(Slots(8))
    _, stopped = search(tmp_path, sweep(), first, Quiet(stop_after=3))
    assert stopped
    assert len(first.endpoint.drives) == 3
    second = SlotsEngine(Slots(8))
    result, _ = search(tmp_path, sweep(), second)
    whole, _ = search(tmp_path / "other", sweep(), SlotsEngine(Slots(8)))
    assert len(second.endpoint.drives) == len(result.levels) - 3
    assert [one.load for one in result.levels] == [one.load for one in whole.levels]
    assert result.engine == "slots"  # what answered, by its own word
    assert read_knee(StudyDirectory(tmp_path)) == result
    index = StudyDirectory(tmp_path).index()
    assert set(index.order) == {one.run_id for one in result.levels}
    assert not any(entry.outdated for entry in index.runs.values())


def test_the_twins_knee_is_that_of_an_exhaustive_sweep(tmp_path: Path) -> None:
    configuration = Configuration(
        "Qwen/Qwen3-4B", Knobs(max_num_seqs=8), engine="twin", gpu="H100-SXM", gpus=1
    )
    traffic = replace(
        TRAFFIC, prompts=Prompts(Lengths(128, 0.5)), outputs=Outputs(Lengths(32, 0.5))
    )
    made = sweep(configuration=configuration, workload=traffic)
    result, _ = search_knee(made, StudyDirectory(tmp_path), TwinEngine(), Quiet(), command="c")
    levels = []
    for users in range(1, 21):
        plan = Plan("x", "study", None, (PlannedExperiment(
            f"u{users}", configuration, level_workload(made, users)),))  # fmt: skip
        (run,) = plan_runs(plan)
        stored = carry_out(run, tmp_path / "all" / run.run_id, TwinEngine(), SilentWatch())
        levels.append(level_of(stored, users, made))
    best = np.mean([one.tokens_per_s for one in levels if one.load >= 12])
    truth = next(one.load for one in levels if (one.tokens_per_s or 0) >= 0.95 * best)
    assert result.knee.value is not None
    assert abs(result.knee.value - truth) <= 1.5
    assert result.plateau_tokens_per_s == pytest.approx(best, rel=0.05)
    # sixteen users hold no more than eight slots: found in fewer levels than the sweep has
    assert len(result.levels) < 12
