"""Drift: traffic inside the envelope, at its edge, outside; and whether a re-tune pays."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.cli.main import run as ridgeline
from ridgeline.cli.winneroption import tuned_from
from ridgeline.diagnosis.drift import Edge, Tuned, drift, shifts
from ridgeline.diagnosis.evidence import Evidence
from ridgeline.diagnosis.finding import Gain, Try
from ridgeline.diagnosis.retuning import Retuning, retune
from ridgeline.domain.workload import Lengths, Outputs, Prompts, SharedPrefix, TrafficClass
from ridgeline.tuning.outcome import Reach, Side, TuneResult, write_result
from support.situations import Q4, TUNED
from support.staging import load, serving, stage

WINNER = """\
name: chat-winner
model: Qwen/Qwen3-4B
hardware: {gpu: H100-SXM, count: 1}
engine: twin
workload:
  arrivals: {rate_per_s: RATE}
  prompts: {tokens: {mean: 256, spread: 0.5}}
  output_tokens: {max: 128}
baseline: {max_num_seqs: 16, max_num_batched_tokens: 2048, max_cudagraph_capture_size: 2048}
experiments: [{name: before, set: {max_num_seqs: 256}}]
"""


def _result(*reaches: Reach) -> TuneResult:
    side = Side("max_num_seqs=16", {"max_num_seqs": 16}, 1)
    return TuneResult("chat", "twin", "cost", "USD", "Serve it.", True, side, side, (), "budget",
                      60.0, envelope=reaches, envelope_by="the baseline")  # fmt: skip


@pytest.fixture
def winner(tmp_path: Path) -> Path:
    """Tuned for four requests/s; its envelope ends between x 1.4 and x 2 of the load."""
    (tmp_path / "winner.yaml").write_text(WINNER.replace("RATE", "4"))
    write_result(tmp_path, _result(
        Reach("load", None, 2.0, 0.25, 3.0, "the baseline"),
        Reach("prompt lengths", 0.5, None, 0.25, 4.0, "the baseline"),
        Reach("output lengths", None, None, 0.25, 4.0)))  # fmt: skip
    return tmp_path / "winner.yaml"


def _seen(rate: float, prompt: int = 256, output: int = 128, users: int | None = None) -> Evidence:
    """Half a minute of a server with the winner's knobs."""
    own = serving(**{**TUNED, "max_num_seqs": 16})
    if users is not None:
        offered = load(users=users, prompt=prompt, output=output, duration=30.0)
    else:
        offered = load(rate=rate, prompt=prompt, output=output, duration=30.0)
    return stage(own, offered).evidence()


def test_the_winners_files_are_read(winner: Path) -> None:
    tuned = tuned_from(winner)
    assert tuned == replace(tuned_from(winner.parent), name=str(winner))
    assert tuned.configuration.knobs.max_num_seqs == 16
    assert [name for name, _ in tuned.others] == ["before"]
    assert tuned.edges == (
        Edge("load", None, 0.25, 1.4, 2.0, "the baseline"),
        Edge("prompt lengths", 0.5, 1.0, 4.0, None, "the baseline"),
        Edge("output lengths", None, 0.25, 4.0, None, None),
    )


@pytest.mark.parametrize(
    ("rate", "states"),
    [(4.0, {"in"}), (6.8, {"edge"}), (14.0, {"out"})],
)
def test_the_load_against_the_envelope(rate: float, states: set[str], winner: Path) -> None:
    found = {s.what: s for s in shifts(_seen(rate), tuned_from(winner))}
    assert {found["load"].state} == states
    assert found["load"].low < rate / 4 < found["load"].high
    assert found["prompt lengths"].state in ("in", "edge")
    assert found["prompt lengths"].low < 1 < found["prompt lengths"].high


def test_shorter_prompts_leave_it_downwards(winner: Path) -> None:
    found = drift(_seen(4.0, prompt=64), tuned_from(winner), retune=None)
    assert found is not None
    assert "has left the envelope" in found.title
    assert "prompt lengths x 0.25" in found.title
    assert "it loses at x 0.5" in found.title
    assert found.confidence == "high"


def test_inside_it_is_said_and_nothing_is_proposed(winner: Path) -> None:
    found = drift(_seen(4.0), tuned_from(winner), retune=retune)
    assert found is not None
    assert found.title == f"the traffic is inside the envelope of {winner}"
    assert not found.tries


def test_a_retune_pays_where_another_configuration_is_clearly_better(winner: Path) -> None:
    """Sixteen slots, and a load that fills them: more slots carry more."""
    seen = _seen(0.0, users=48)
    tuned = tuned_from(winner)
    found = drift(seen, tuned, retune=retune)
    assert found is not None
    assert "load" in found.title
    assert "a re-tune pays" in found.title
    (change,) = found.tries
    (gain, *_) = change.gain
    assert gain.metric == "output_tokens_per_s"
    assert 1 < gain.low < gain.ratio < gain.high
    assert "max_num_seqs" in change.expect
    # the truth: the same load on the system with the change that was found
    bigger = serving(**{**TUNED, "max_num_seqs": 64})
    truth = stage(bigger, load(users=48, prompt=256, output=128, duration=30.0))
    now = stage(tuned.configuration, load(users=48, prompt=256, output=128, duration=30.0))
    least = truth.figures["output_tokens_per_s"] / now.figures["output_tokens_per_s"]
    assert gain.high > least


def test_it_does_not_pay_where_nothing_is_short(winner: Path) -> None:
    """The load has halved: less of it, but the same configuration is as good as any."""
    (winner.parent / "tune.json").unlink()
    found = drift(_seen(2.0), tuned_from(winner), retune=retune)
    assert found is not None
    assert "is not what" in found.title
    assert "a re-tune pays" not in found.title


def test_without_an_envelope_a_plan_inside_the_interval_is_as_planned(winner: Path) -> None:
    (winner.parent / "tune.json").unlink()
    tuned = tuned_from(winner)
    assert tuned.edges == ()
    found = {s.what: s.state for s in shifts(_seen(4.0), tuned)}
    assert found["load"] == "as planned"
    assert {s.what: s.state for s in shifts(_seen(8.0), tuned)}["load"] == "moved"


def test_cache_hits_and_classes_are_held_against_the_plan() -> None:
    own = serving(**{**TUNED, "enable_prefix_caching": True})
    chat = TrafficClass("chat", 0.8, Prompts(Lengths(100, 0.2)), Outputs(Lengths(64)))
    doc = TrafficClass("documents", 0.2, Prompts(Lengths(3000, 0.1)), Outputs(Lengths(64)))
    plan = load(rate=6, duration=30.0, classes=[chat, doc])
    more = replace(plan, classes=(replace(chat, share=0.4), replace(doc, share=0.6)))
    for offered, state in ((plan, "as planned"), (more, "moved")):
        found = {s.what: s for s in shifts(stage(own, offered).evidence(), Tuned("x", own, plan))}
        assert found["share of class documents"].state == state
        assert found["share of class documents"].planned == 0.2
    shared = replace(load(rate=6, prompt=64, output=64, duration=30.0),
                     prompts=Prompts(Lengths(64, 0.2), SharedPrefix(448)))  # fmt: skip
    alone = load(rate=6, prompt=512, output=64, duration=30.0)
    for offered, state in ((shared, "as planned"), (alone, "moved")):
        seen = stage(own, offered).evidence()
        found = {s.what: s for s in shifts(seen, Tuned("x", own, shared))}
        assert found["cache hits"].state == state, found["cache hits"]


def test_too_few_requests_say_nothing(winner: Path) -> None:
    seen = stage(serving(Q4), load(rate=0.3, prompt=64, output=16, duration=10.0)).evidence()
    assert drift(seen, tuned_from(winner), retune=None) is None


def test_the_command(winner: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = serving(**{**TUNED, "max_num_seqs": 16})
    pages = stage(own, load(rate=14, prompt=256, output=128, duration=30.0)).pages
    named = []
    for place, (at, text) in enumerate(pages[:: len(pages) - 1]):
        file = tmp_path / f"{place}.txt"
        file.write_text(f"# ridgeline: read at {at:.3f}\n{text}")
        named += ["--from", str(file)]
    out = tmp_path / "d.json"
    assert (
        ridgeline(["doctor", *named, "--winner", str(winner), "--json", str(out), "--no-gains"])
        == 0
    )
    last = json.loads(out.read_text())["findings"][-1]
    assert last["id"] == "drift"
    assert "has left the envelope" in capsys.readouterr().out
    assert ridgeline(["doctor", *named, "--winner", str(tmp_path / "none")]) == 2
    assert "there is no such file" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert ridgeline(["doctor", *named, "--winner", str(tmp_path / "empty")]) == 2
    assert "holds neither winner.yaml nor a study" in capsys.readouterr().err


def test_the_runner_up_is_told_with_what_it_saves_a_token(winner: Path) -> None:
    """The tuning's other finalist had more slots; at three times the load it carries more."""
    tuned = replace(tuned_from(winner), others=(
        ("the runner-up", serving(**{**TUNED, "max_num_seqs": 128})),))  # fmt: skip
    change = retune(_seen(0.0, users=120), tuned)
    (gain, *_) = change.gain
    assert gain.better
    cheaper = 1 - 1 / gain.ratio
    assert f"{cheaper:.0%} cheaper a token ({1 - 1 / gain.low:.0%} to" in change.expect
    found = drift(_seen(0.0, users=120), tuned, retune=lambda *_: change)
    assert found is not None
    assert f"; a re-tune pays: {change.expect}" in found.title


def test_twice_the_tokens_on_four_times_the_gpus_are_no_cheaper(winner: Path) -> None:
    four = ("four replicas", serving(**{**TUNED, "max_num_seqs": 16, "data_parallel_size": 4}))
    one = tuned_from(winner)
    alone = replace(one, others=(four,))
    change = retune(_seen(0.0, users=24), alone)
    assert "four replicas" not in change.expect, "24 users do not fill four times 16 slots"


def _moved(winner: Path) -> tuple[Evidence, Tuned]:
    return _seen(14.0), tuned_from(winner)


def test_while_watching_the_answer_comes_later_and_once(winner: Path) -> None:
    e, tuned = _moved(winner)
    go, asked = threading.Event(), []

    def ask(seen: Evidence, of: Tuned) -> Try:
        asked.append((seen, of))
        assert go.wait(10)
        return Try("ridgeline tune", "x", None, expect="four slots", gain=(
            Gain("output_tokens_per_s", 1.5, 1.2, 1.8, better=True),))  # fmt: skip

    retuning = Retuning(tuned, ask)
    first = drift(e, tuned, retune=lambda seen, _: retuning.answer("a", seen))
    assert first is not None
    assert first.tries[0].why_no_gain == "the twin is being asked"
    assert "pays" not in first.title
    for _ in range(5):
        assert retuning.answer("a", e) is None, "nobody waits for the twin"
        assert retuning.answer("b", e) is None, "and one is asked about at a time"
    go.set()
    _until(lambda: retuning.answer("a", e) is not None)
    told = drift(e, tuned, retune=lambda seen, _: retuning.answer("a", seen))
    assert told is not None
    assert told.title.endswith("; a re-tune pays: four slots")
    assert len([seen for seen, _ in asked if seen is e]) == len(asked)
    before = len(asked)
    for _ in range(20):
        assert retuning.answer("a", e) is not None
    assert len(asked) == before, "the same is not asked again"


def test_traffic_inside_the_envelope_is_not_asked_about(winner: Path) -> None:
    tuned = tuned_from(winner)
    asked: list[int] = []
    retuning = Retuning(tuned, lambda *_: asked.append(1) or Try("x", "y"))
    assert retuning.answer("a", _seen(4.0)) is None
    assert asked == []


def test_a_twin_that_fails_is_an_answer(winner: Path) -> None:
    e, tuned = _moved(winner)

    def fails(*_: object) -> Try:
        raise ValueError("of the twin")

    retuning = Retuning(tuned, fails)
    _until(lambda: retuning.answer("a", e) is not None)
    found = drift(e, tuned, retune=lambda seen, _: retuning.answer("a", seen))
    assert found is not None
    assert "whether a re-tune pays is not known (the twin does not answer" in found.title


def _until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)
