"""A round of a duel that was cut short, and the one who goes on with it later."""

import json
from pathlib import Path

import pytest

from ridgeline.store.run_directory import is_finished
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


def gone_on(folder: Path) -> Found:
    with session(folder, Listed(BOTH), TunedEngine()) as begun:
        return begun.run()


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
        file.write_text(json.dumps({**body, "ended_at": hour}))
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
