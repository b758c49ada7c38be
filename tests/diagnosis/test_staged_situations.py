"""A few of the situations that tests/acceptance stages in full: the right limit comes first."""

import pytest

from ridgeline.diagnosis.asking import with_gains
from ridgeline.diagnosis.ranking import diagnose
from support.situations import HEALTHY, SITUATIONS, TUNED, Situation
from support.staging import load, serving, stage

QUICK = (
    "16 slots, 128 users", "48 slots, nothing known of the configuration",
    "blocks for 10 long prompts, 40 users", "blocks on an L40S, a rate, nothing known",
    "budget 256, long prompts", "one prompt in 8 of 16,000 tokens on an L40S",
    "default graphs of 64 slots, 60 users", "eager, a rate",
    "an engine core slow for each request", "a slow API server", "8 B on an L40S, 16 users",
    "a request every two seconds", "4 replicas, a router that sends 7 of 10 to one",
    "5 drafts of which few are right, 128 users",
)  # fmt: skip


def _named(name: str) -> Situation:
    return next(s for s in SITUATIONS if s.name == name)


@pytest.mark.parametrize("name", QUICK)
def test_the_limit_that_was_staged_comes_first(name: str) -> None:
    situation = _named(name)
    seen = situation.make(3).evidence(known=situation.knobs, gpu=situation.gpu)
    found = diagnose(seen)
    assert found[0].id in situation.expected, [(f.id, f.kind, f.share) for f in found]


@pytest.mark.parametrize("situation", HEALTHY[::4], ids=lambda s: s.name)
def test_a_healthy_server_is_left_in_peace(situation: Situation) -> None:
    found = diagnose(situation.make(3).evidence())
    assert found[0].kind == "fine"
    assert not [f.id for f in found if f.kind in ("limit", "fault")]


def test_a_gain_has_a_band_and_a_twin_that_does_not_agree_is_not_asked() -> None:
    staged = _named("8 slots on an A100, a rate that is too high").make(3)
    (first, *_) = with_gains(staged.evidence(), diagnose(staged.evidence()))
    (gain,) = first.tries[0].gain
    assert gain.metric == "rate_carried"
    assert "requests/s arrive and" in first.tries[0].expect
    assert 1.5 < gain.low < gain.ratio < gain.high < 10
    assert gain.better
    # an API server 40 times as slow is nothing that the twin knows of
    slow = stage(serving(**TUNED), load(users=64, prompt=128, output=150), send_ns_per_chunk=40)
    (first, *_) = with_gains(slow.evidence(), diagnose(slow.evidence()))
    assert first.id == "api-server-cpu"
    asked = next(t for t in first.tries if t.knob == "stream_interval")
    assert asked.gain == ()
    assert "the twin does not see this limit" in str(asked.why_no_gain)
