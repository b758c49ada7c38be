"""No knob is advised and advised against at once, whatever the findings are."""

import re

import pytest
from diagnosis_pages import MADE, PROMPT, STEPS, R, W, evidence, findings, page

from ridgeline.diagnosis.agreeing import in_agreement
from ridgeline.diagnosis.evidence import Evidence, Known
from ridgeline.diagnosis.finding import Finding, Try, Wont
from support.advice import contradictions
from support.situations import SITUATIONS

QUICK = ("16 slots, 128 users", "blocks for 20 long answers, 60 users",
         "one API server for 4 replicas of a small model", "budget 128 for 8 B",
         "5 drafts of which few are right, 128 users")  # fmt: skip


@pytest.mark.parametrize("name", QUICK)
def test_staged_situations_advise_a_knob_once(name: str) -> None:
    situation = next(s for s in SITUATIONS if s.name == name)
    seen = situation.make(3).evidence(known=situation.knobs, gpu=situation.gpu)
    found = tuple(findings(seen).values())
    assert contradictions(found) == []
    assert found[0].id in situation.expected


def _starved() -> Evidence:
    """All of 16 slots taken, and an API server at a whole core that holds the requests."""
    from dataclasses import replace  # noqa: PLC0415

    pages = [
        page({R: 16, W: 48, STEPS: 1000.0 * i, MADE: 16000.0 * i, PROMPT: 16000.0 * i,
              "process_cpu_seconds_total": 30.0 * i,
              "vllm:num_preemptions_total": 0, "vllm:kv_cache_usage_perc": 0.1})
        for i in range(3)
    ]  # fmt: skip
    seen = evidence(*pages, known=Known(max_num_seqs=16, max_num_batched_tokens=2048))
    return replace(seen, cores={"api server": 1.0})


def test_what_one_finding_tries_no_other_one_calls_useless() -> None:
    found = findings(_starved())
    assert {"batch-ceiling", "api-server-cpu"} <= set(found)
    assert found["batch-ceiling"].tries[0].knob == "max_num_seqs"
    refused = {w.knob for w in found["api-server-cpu"].will_not_help}
    assert "max_num_batched_tokens" in refused, "nobody tries it"
    assert not [k for k in refused if re.search(r"\bmax_num_seqs\b", k)]


def test_a_notes_try_gives_way_to_what_binds() -> None:
    limit = Finding("a", "", "limit", 0.5, will_not_help=(Wont("max_num_seqs up", "full"),))
    note = Finding("b", "", "note", 0.0, tries=(Try("max_num_seqs", "32"), Try("watermark", "1")))
    first, second = in_agreement((limit, note))
    assert [w.knob for w in first.will_not_help] == ["max_num_seqs up"]
    assert [t.knob for t in second.tries] == ["watermark"]


def test_a_value_or_a_direction_is_the_same_knob() -> None:
    found = in_agreement((
        Finding("a", "", "limit", 0.5, tries=(Try("max_num_seqs", "8"), Try("quantization", "x"))),
        Finding("b", "", "limit", 0.2,
                will_not_help=(Wont("max_num_seqs up", ""), Wont("quantization=fp8", ""),
                               Wont("more replicas", ""))),
    ))  # fmt: skip
    assert [w.knob for w in found[1].will_not_help] == ["more replicas"]
