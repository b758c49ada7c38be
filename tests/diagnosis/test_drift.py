"""Drift: traffic inside the envelope, at its edge, outside; and whether a re-tune pays."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.cli.main import run as ridgeline
from ridgeline.cli.winneroption import tuned_from
from ridgeline.diagnosis.drift import Edge, Tuned, drift, shifts
from ridgeline.diagnosis.evidence import Evidence
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
    found = drift(_seen(4.0, prompt=64), tuned_from(winner), ask_twin=False)
    assert found is not None
    assert "has left the envelope" in found.title
    assert "prompt lengths x 0.25" in found.title
    assert "it loses at x 0.5" in found.title
    assert found.confidence == "high"


def test_inside_it_is_said_and_nothing_is_proposed(winner: Path) -> None:
    found = drift(_seen(4.0), tuned_from(winner), ask_twin=True)
    assert found is not None
    assert found.title == f"the traffic is inside the envelope of {winner}"
    assert not found.tries


def test_a_retune_pays_where_another_configuration_is_clearly_better(winner: Path) -> None:
    """Sixteen slots, and a load that fills them: more slots carry more."""
    seen = _seen(0.0, users=48)
    tuned = tuned_from(winner)
    found = drift(seen, tuned, ask_twin=True)
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
    found = drift(_seen(2.0), tuned_from(winner), ask_twin=True)
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
    assert drift(seen, tuned_from(winner), ask_twin=False) is None


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
