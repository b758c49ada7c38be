"""A round of a duel that was cut short, and the one who goes on with it later."""

import json
from pathlib import Path
from typing import Any

import pytest

from ridgeline.store.run_directory import is_finished
from ridgeline.tuning.budgeting import Limits
from ridgeline.tuning.session import Found
from ridgeline.tuning.trial import Candidate
from support.tunedengine import Listed, TunedEngine, session

BOTH = [Candidate(), Candidate({"max_num_seqs": 160})]


def cut_short(folder: Path) -> list[str]:
    """Stopped when one of the two runs of the second round is there; the names of what is."""
    second = [folder / "baseline-r2", folder / "finalist-1-r2"]
    with session(folder, Listed(BOTH), TunedEngine()) as begun:
        begun.watch.stop_asked = lambda: any(map(is_finished, second))  # type: ignore[method-assign]
        begun.run()
    return [f.name for f in second if is_finished(f)]


def gone_on(folder: Path, limits: Limits | None = None) -> Found:
    with session(folder, Listed(BOTH), TunedEngine(), limits=limits) as begun:
        return begun.run()


def dated(folder: Path, hour: str) -> dict[str, Any]:
    """The run as it was, which ended in that hour now."""
    file = folder / "run.json"
    body: dict[str, Any] = json.loads(file.read_text())
    file.write_text(json.dumps({**body, "ended_at": hour}))
    return body


@pytest.mark.parametrize(("hour", "again"), [("2020-01-01T00:00:00+00:00", True), (None, False)])
def test_what_was_measured_in_another_hour_is_no_pair_with_what_is_measured_now(
    tmp_path: Path, hour: str | None, again: bool
) -> None:
    """The host of then is not the host of now: the whole round is measured again, nothing is
    deleted. What was cut short a moment ago is gone on with.
    """
    (cut,) = cut_short(tmp_path)
    file = tmp_path / cut / "run.json"
    body = json.loads(file.read_text())
    if hour is not None:
        dated(tmp_path / cut, hour)
    found = gone_on(tmp_path)
    assert found.rounds >= 3
    aside = tmp_path / f"{cut}.old-1"
    assert aside.exists() == again
    assert json.loads(file.read_text())["ended_at"] >= body["ended_at"]
    if again:
        assert json.loads((aside / "run.json").read_text())["ended_at"] == hour
    first = json.loads((tmp_path / "baseline-r1" / "run.json").read_text())
    assert first["ended_at"] <= body["ended_at"], "whole rounds stay"
    assert not (tmp_path / "baseline-r1.old-1").exists()


def test_where_nothing_more_is_measured_nothing_is_set_aside(tmp_path: Path) -> None:
    """Begun again with a budget that holds no round: what a verdict rests on stays in its place."""
    (cut,) = cut_short(tmp_path)
    dated(tmp_path / cut, "2020-01-01T00:00:00+00:00")
    gone_on(tmp_path, Limits(gpu_s=1.0))
    assert (tmp_path / cut / "run.json").exists()
    assert not (tmp_path / f"{cut}.old-1").exists()


def test_a_void_run_of_an_earlier_round_is_not_measured_with_a_later_one(tmp_path: Path) -> None:
    """It would be a pair with what was measured beside the void run, in another hour."""
    cut_short(tmp_path)
    first = tmp_path / "finalist-1-r1" / "run.json"
    body = json.loads(first.read_text())
    void = {**body["summary"]["verdict"], "valid": False, "reasons": ["client limit: late"]}
    summary = {**body["summary"], "verdict": void}
    first.write_text(json.dumps({**body, "state": "void", "summary": summary}))
    found = gone_on(tmp_path)
    assert found.duel is not None
    assert json.loads(first.read_text())["state"] == "void"
    assert 1 not in found.duel.summaries(BOTH[1])
    assert {2, 3} <= found.duel.summaries(BOTH[1]).keys()
