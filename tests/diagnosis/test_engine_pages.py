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
    assert seen.running is not None
    assert seen.running.high == 0
    assert (seen.per_s(seen.generation_tokens) or 0) > 500
    assert "low-load" not in {f.id for f in diagnose(seen)}
    known = replace(seen.known, eager=True)
    assert diagnose(replace(seen, known=known))[0].id == "eager"
