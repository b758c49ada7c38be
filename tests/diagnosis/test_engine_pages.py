"""Pages of several engines and releases: recorded by running them, else written and marked so."""

from dataclasses import replace
from pathlib import Path

import pytest
from diagnosis_pages import words

from ridgeline.diagnosis.evidence import Evidence
from ridgeline.diagnosis.gathering import gather
from ridgeline.diagnosis.ranking import diagnose
from ridgeline.diagnosis.saved import read_saved

DATA = Path(__file__).parent / "data"


def _evidence(name: str) -> Evidence:
    return gather(read_saved(sorted(DATA.glob(f"{name}-[0-9].txt")), 10.0))


def test_what_is_written_and_what_is_recorded_is_told_apart() -> None:
    for file in DATA.glob("*.txt"):
        text = file.read_text()
        assert ("not recorded" in text) == file.name.startswith("written-"), file.name
        assert ("# ridgeline: read at" in text) != file.name.startswith("written-"), file.name


def test_vllm_0_9_by_its_older_names() -> None:
    seen = _evidence("written-vllm-0.9")
    assert seen.kv_use is not None
    assert seen.kv_use.mean == pytest.approx(0.3)
    assert seen.step_s == pytest.approx(0.02)
    assert seen.hit_rate == pytest.approx(0.01)
    assert seen.known.kv_tokens == 26_999 * 16
    assert seen.preemptions == 0
    found = {f.id: f for f in diagnose(seen)}
    assert next(iter(found)) == "batch-ceiling"
    assert {"older-names", "prefix-cache-useless"} <= set(found)
    assert "vllm:time_per_output_token_seconds" not in seen.aliases.values()


def test_sglang() -> None:
    seen = _evidence("written-sglang")
    assert (seen.server, seen.preemptions, seen.acceptance) == ("sglang", 24, None)
    first = diagnose(seen)[0]
    assert first.id == "kv-memory"
    assert "--mem-fraction-static" in {t.knob for t in first.tries}
    assert "max_num_seqs" not in {t.knob for t in first.tries}


def test_tensorrt_llm() -> None:
    seen = _evidence("written-trtllm")
    assert seen.server == "trtllm"
    assert seen.preemptions is None, "absent, not 0"
    assert seen.hit_rate is None
    first = diagnose(seen)[0]
    assert first.id == "nothing-wrong"
    assert "preemptions" not in words(first)


def test_tgi() -> None:
    seen = _evidence("written-tgi")
    assert seen.server == "tgi"
    assert seen.kv_use is None
    first = diagnose(seen)[0]
    assert first.id == "batch-ceiling"
    assert first.tries[0].knob == "--max-concurrent-requests"


def test_llama_cpp_recorded_with_two_slots_and_eight_users() -> None:
    seen = _evidence("llamacpp-two-slots")
    assert seen.server == "llamacpp"
    assert (seen.kv_use, seen.preemptions, seen.hit_rate) == (None, None, None)
    first = diagnose(seen)[0]
    assert first.id == "batch-ceiling"
    assert "2 requests run" in first.title
    assert first.tries[0].knob.startswith("-np")
    assert first.tries[0].why_no_gain == "the twin is one of vLLM"


@pytest.mark.parametrize(
    ("name", "first", "words_in_it"),
    [
        ("four-slots", "batch-ceiling", "4 requests run"),
        ("few-blocks", "kv-memory", "preemption and recompute"),
        ("frozen", "hung", "nothing moved for 31 s"),
        ("short-requests", "nothing-wrong", "nothing wrong"),
    ],
)
def test_vllm_0_32_recorded(name: str, first: str, words_in_it: str) -> None:
    """On the CPU, eager; without its log, so that eager mode is not known."""
    found = diagnose(_evidence(f"vllm-0.32.0-{name}"))
    assert found[0].id == first
    assert words_in_it in found[0].title


def test_a_gauge_that_always_says_0_is_not_taken_for_idleness() -> None:
    """Short requests: the page is rendered when a batch has just ended."""
    seen = _evidence("vllm-0.32.0-short-requests")
    assert seen.lagged is not None
    assert (seen.lagged.running, seen.lagged.waiting) == (0, 0)
    assert seen.running is not None
    assert seen.running.mean == pytest.approx(1.2, abs=0.01), "12.35 s of requests in 10.32 s"
    assert (seen.per_s(seen.generation_tokens) or 0) > 500
    assert "low-load" not in {f.id for f in diagnose(seen)}
    known = replace(seen.known, eager=True)
    assert diagnose(replace(seen, known=known))[0].id == "eager"


def test_a_queue_that_the_gauges_do_not_show_is_read_from_the_histograms() -> None:
    """Recorded with four slots on a host without spare cores: each reading says 0 and 0."""
    seen = _evidence("vllm-0.32.0-lagging")
    assert seen.lagged is not None
    assert (seen.lagged.running, seen.lagged.waiting) == (0, 0)
    assert seen.running is not None
    assert seen.waiting is not None
    # 22.3 s of queue and 17.3 s of prefill and decode in 9.0 s, summed by hand from the pages
    assert seen.waiting.mean == pytest.approx(2.48, abs=0.02)
    assert seen.running.mean == pytest.approx(1.91, abs=0.02)
    known = replace(seen.known, max_num_seqs=4, max_num_batched_tokens=2048, eager=True)
    for told, confidence in ((known, "high"), (seen.known, "low")):
        first = diagnose(replace(seen, known=told))[0]
        assert (first.id, first.confidence) == ("batch-ceiling", confidence)
        assert "the gauges lag: read at 3 moments they say 0 running and 0 waiting" in words(first)
        assert "Little's law" in words(first)


@pytest.mark.parametrize(
    ("name", "users", "in_flight"),
    [
        ("0.32.0-healthy-light", 2, 2.02),
        ("0.32.0-healthy-moderate", 8, 5.78),
        ("0.28.0-healthy-light", 2, 1.72),
        ("0.28.0-healthy-moderate", 8, 6.39),
    ],
)
def test_a_healthy_server_as_it_was_recorded(name: str, users: int, in_flight: float) -> None:
    """Two and eight users of short requests; in flight: all that ended, by their whole time."""
    seen = _evidence(f"vllm-{name}")
    found = diagnose(seen)
    assert not [f.id for f in found if f.kind in ("limit", "fault")]
    assert found[0].id == "nothing-wrong"
    assert not seen.several_fronts
    assert seen.running is not None
    assert seen.running.high <= users
    e2e = seen.histograms.e2e
    assert e2e is not None
    assert (e2e.total or 0) / seen.span_s == pytest.approx(in_flight, abs=0.01)


@pytest.mark.parametrize("name", ["few-blocks", "frozen", "healthy-light"])
def test_gauges_are_kept_where_the_histograms_do_not_contradict_or_cannot_tell(name: str) -> None:
    """What a preempted request waits counts as decode; of a frozen engine nothing ends."""
    assert _evidence(f"vllm-0.32.0-{name}").lagged is None
