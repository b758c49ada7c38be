"""Two kinds of traffic in one pool: what the twin says of priorities and of two pools."""

import json
from dataclasses import replace

import pytest

from ridgeline.diagnosis.evidence import Evidence
from ridgeline.diagnosis.finding import Finding
from ridgeline.diagnosis.pools import BATCH, URGENT, groups_of, with_pools
from ridgeline.diagnosis.ranking import diagnose
from ridgeline.domain.slo import parse_slo
from ridgeline.domain.workload import Lengths, Outputs, Prompts, TrafficClass
from support.situations import Q8, TUNED
from support.staging import load, serving, stage

CHAT = TrafficClass("chat", 0.9, Prompts(Lengths(150, 0.5)), Outputs(Lengths(40, 0.3)))
DOCUMENTS = TrafficClass("documents", 0.1, Prompts(Lengths(8000, 0.2)), Outputs(Lengths(40, 0.3)))
KNOBS = {**TUNED, "max_num_seqs": 32, "max_num_batched_tokens": 8192, "max_model_len": 16384,
         "enable_prefix_caching": False}  # fmt: skip


def _mixed(engines: int, rate: float, *, known: bool = True) -> Evidence:
    own = serving(Q8, "A100-SXM-80GB", **{**KNOBS, "data_parallel_size": engines})
    staged = stage(own, load(rate=rate, duration=20.0, classes=[CHAT, DOCUMENTS]))
    return staged.evidence(known=known)


def _finding(e: Evidence) -> Finding:
    (found,) = [f for f in with_pools(e, diagnose(e)) if f.id == "mixed-classes"]
    return found


@pytest.fixture(scope="module")
def two() -> Finding:
    """Two engines."""
    return _finding(_mixed(2, 14.0))


def test_two_engines_have_all_three_ways_priced(two: Finding) -> None:
    words = [f.words for f in two.evidence]
    for way in ("one pool, fcfs", "one pool, priority", "separate pools (1 for the short, 1 for"):
        assert any(w.startswith(f"twin: {way}") for w in words), words
    by = {t.knob: t for t in two.tries}
    assert set(by) == {"two pools", "scheduling_policy"}
    for change in two.tries:
        metrics = {g.metric for g in change.gain}
        assert metrics == {"ttft_p95_s[urgent]", "e2e_mean_s[batch]", "ttft_p95_s[all]"}
        for gain in change.gain:
            assert gain.low < gain.ratio < gain.high
            assert gain.better == (gain.high < 1)


def test_short_requests_gain_by_a_pool_of_their_own(two: Finding) -> None:
    """Steps full of prompt delay nobody there, whatever the long ones pay for it."""
    by = {t.knob: {g.metric: g for g in t.gain} for t in two.tries}
    assert by["two pools"]["ttft_p95_s[urgent]"].high < 1


def test_what_is_recommended_follows_from_the_bands(two: Finding) -> None:
    by = {t.knob: {g.metric: g for g in t.gain} for t in two.tries}
    good = [
        knob for knob, g in by.items()
        if g["ttft_p95_s[urgent]"].high < 1 and g["e2e_mean_s[batch]"].low <= 1
    ]  # fmt: skip
    assert ("is recommended" in two.title) == bool(good)
    assert ("one pool, fcfs stays" in two.title) == (not good)


def test_what_vllm_cannot_do_is_said(two: Finding) -> None:
    told = json.dumps([w.to_json() for w in two.will_not_help])
    assert "takes no slot from a running request" in told
    assert "no ageing" in told
    priority = next(t for t in two.tries if t.knob == "scheduling_policy")
    assert "no request is known to carry a priority" in priority.expect


def test_one_engine_has_no_second_pool() -> None:
    found = _finding(_mixed(1, 4.0))
    pools = next(t for t in found.tries if t.knob == "two pools")
    assert not pools.gain
    assert pools.why_no_gain == "one engine: two pools need a second one"
    assert next(t for t in found.tries if t.knob == "scheduling_policy").gain


def test_without_model_and_gpu_that_is_what_is_missing() -> None:
    found = _finding(_mixed(1, 6.0, known=False))
    assert all("model and GPU are not known" in (t.why_no_gain or "") for t in found.tries[:2])


def test_the_groups_are_the_two_kinds_of_the_histogram() -> None:
    seen = _mixed(1, 6.0)
    seen = replace(seen, known=replace(seen.known, workload=None))
    groups = groups_of(seen)
    assert groups is not None
    short, long = groups.classes
    assert (short.name, long.name) == (URGENT, BATCH)
    assert short.prompts.tokens.mean == pytest.approx(150, rel=0.25)
    assert long.prompts.tokens.mean == pytest.approx(8000, rel=0.15)
    assert long.share == pytest.approx(0.1, abs=0.04)
    assert short.share + long.share == pytest.approx(1.0)


def test_a_studys_classes_and_their_priorities_go_first() -> None:
    seen = _mixed(1, 6.0)
    plan = load(rate=6, classes=[replace(CHAT, priority=5), replace(DOCUMENTS, priority=0)])
    groups = groups_of(replace(seen, known=replace(seen.known, workload=plan)))
    assert groups is not None
    assert groups.group == {"chat": BATCH, "documents": URGENT}
    assert groups.how == "the study's classes"


def _with_limit(e: Evidence, limit_ms: float) -> Evidence:
    """The study's classes, with a limit on the short ones' p95 TTFT, and priorities."""
    chat = replace(CHAT, priority=0, slo=parse_slo(f"ttft_p95_ms={limit_ms:g}"))
    plan = load(rate=14.0, classes=[chat, replace(DOCUMENTS, priority=10)])
    return replace(e, known=replace(e.known, workload=plan, priorities=True))


def test_the_way_that_is_inside_the_limit_is_recommended(two: Finding) -> None:
    """Between what pools and priorities give the short requests: only pools are inside."""
    told = {f.name: f.words for f in two.evidence}
    seconds = {way: float(words.split("short requests ")[1].split(" s")[0])
               for way, words in told.items() if "short requests " in words}  # fmt: skip
    pools = next(s for way, s in seconds.items() if not way.startswith("one pool"))
    others = min(s for way, s in seconds.items() if way.startswith("one pool"))
    assert pools < others
    limit_ms = 1e3 * (pools * others) ** 0.5
    e = _with_limit(_mixed(2, 14.0), limit_ms)
    found = {f.id: f for f in with_pools(e, diagnose(e))}
    title = found["mixed-classes"].title
    assert "pools (" in title.split("; ", 1)[1].split(" is recommended")[0]
    assert f"the only one inside the short ones' limit of {limit_ms:.4g} ms" in title
    # one verdict on the policy: the note has no second one
    assert not [t for t in found["priority"].tries if t.knob == "scheduling_policy"]
    assert any("told with the two kinds of traffic" in f.words for f in found["priority"].evidence)
    assert any(t.knob == "scheduling_policy" and t.gain for t in found["mixed-classes"].tries)


def test_a_limit_that_nothing_holds_is_said() -> None:
    e = _with_limit(_mixed(2, 14.0), 0.001)
    title = next(f.title for f in with_pools(e, diagnose(e)) if f.id == "mixed-classes")
    assert "is recommended, though none of the ways is inside" in title or (
        "one pool, fcfs stays" in title)  # fmt: skip
