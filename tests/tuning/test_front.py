"""The front of throughput against latency: who is a point, who is on it, who is near."""

from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.report.charts import build_charts
from ridgeline.report.fronttext import front_notes, front_rows
from ridgeline.report.load import load_report
from ridgeline.tuning.concluding import conclude
from ridgeline.tuning.front import front_of, with_fronts
from ridgeline.tuning.journal import Asked
from ridgeline.tuning.outcome import Point, Spread, read_result, write_result
from ridgeline.tuning.trial import Candidate, Miss, State
from support.tunedengine import Listed, TunedEngine, session, setting


def point(words: str, tokens: float, itl: float, half: float = 0.0) -> Point:
    spread = [Spread(v, v * (1 - half), v * (1 + half)) for v in (tokens, itl)]
    return Point(words, {}, "feasible", "trial", 1, spread[0], None, spread[1], 1)


def test_on_the_front_is_what_nothing_beats_in_both() -> None:
    seen = with_fronts([point("slow", 100, 5), point("worse", 90, 9), point("fast", 200, 10)])
    assert [p.words for p in seen] == ["fast", "slow", "worse"]
    assert [p.on for p in seen] == [("itl",), ("itl",), ()]
    assert [p.near for p in seen] == [(), (), ()]


def test_what_is_behind_by_noise_only_is_not_called_off() -> None:
    seen = with_fronts([point("one", 100, 5, 0.1), point("other", 98, 5.2, 0.1)])
    assert [(p.on, p.near) for p in seen] == [(("itl",), ()), ((), ("itl",))]


def test_a_point_outside_by_its_figure_is_marked_as_such(tmp_path: Path) -> None:
    """Its one trial, 120 ms, may meet a limit of 119 ms: no miss is shown, and none is hidden."""
    tried = [Candidate(), *(Candidate({"max_num_seqs": n}) for n in (150, 200))]
    with session(tmp_path, Listed(tried), TunedEngine(), setting("ttft_p95_ms=150")) as begun:
        found = begun.run()
        (trial,) = [t for t in found.told.history.trials if t.candidate == tried[1]]
        limits = (Miss("ttft_p95_ms", 119.0, 120.0, 100.0, 140.0, None),)
        later = replace(trial, number=9, state="unsure", limits=limits)
        asked = Asked(9, (tried[1], tried[1]), 20.0, ("again", "again"), "search", 0.0)
        told = replace(
            found.told, trials=(*found.told.trials, later), asked=(*found.told.asked, asked)
        )
        seen = front_of(begun, replace(found, told=told, duel=None))
        result = conclude(begun, found)
    rows = {row[0]: row[-1] for row in front_rows(replace(result, front=seen))}
    assert rows[tried[1].words] == (
        "trial 9; outside by its figures (ttft_p95_ms 120 > 119), not shown to miss the targets"
    )
    assert "outside" not in rows[tried[2].words]


def test_crashes_and_misses_are_states_and_no_points(tmp_path: Path) -> None:
    tried = [Candidate(), *(Candidate({"max_num_seqs": n}) for n in (13, 40, 150, 200))]
    with session(tmp_path, Listed(tried), TunedEngine(), setting("ttft_p95_ms=150")) as begun:
        result = conclude(begun, begun.run())
    shown = {p.words for p in result.front}
    assert shown == {"baseline", "max_num_seqs=150", "max_num_seqs=200"}
    (_, states) = front_notes(result)
    assert "max_num_seqs=13 (✗ crashed)" in states
    assert "max_num_seqs=40 (✗ misses them)" in states
    # Twice as fast in tokens and in latency: the fastest alone is the front.
    best = result.front[0]
    assert (best.words, best.on) == ("max_num_seqs=200", ("ttft", "itl"))
    assert all(p.by == "duel" for p in result.front[:2])
    rows = front_rows(result)
    assert rows[0][4] == "on (TTFT), on (ITL)"
    assert rows[0][1].count("to") == 1, "with its interval"

    write_result(tmp_path, result)
    assert read_result(tmp_path) == result
    chart = next(c for c in build_charts(load_report(tmp_path), "baseline") if c.key == "tradeoff")
    drawn = {d["name"] for d in chart.views["TTFT"].data}
    assert drawn == {"front", "baseline", "finalist-1", "finalist-2"}
    assert "has the most tokens and the lowest p95 TTFT" in chart.title


@pytest.mark.parametrize("state", ["crashed", "infeasible", "void", "refused"])
def test_an_earlier_good_trial_makes_no_point_of_what_its_latest_says(
    tmp_path: Path, state: State
) -> None:
    tried = [Candidate(), *(Candidate({"max_num_seqs": n}) for n in (150, 200))]
    with session(tmp_path, Listed(tried), TunedEngine(), setting(finalists=1)) as begun:
        found = begun.run()
        (good,) = [t for t in found.told.history.trials if t.candidate == tried[1]]
        assert tried[1].words in {p.words for p in front_of(begun, found)}
        later = replace(good, number=9, state=state)
        asked = Asked(9, (tried[1], tried[1]), 20.0, ("again", "again"), "search", 0.0)
        told = replace(
            found.told, trials=(*found.told.trials, later), asked=(*found.told.asked, asked)
        )
        seen = front_of(begun, replace(found, told=told))
        assert tried[1].words not in {p.words for p in seen}
        back = replace(told, trials=(*told.trials, replace(good, number=10)))
        again = {p.words for p in front_of(begun, replace(found, told=back))}
        assert (tried[1].words in again) == (state != "crashed")
