"""The fixture itself: a real server that counts what it is sent."""

import pytest
from real_vllm import MODEL_NAME, RealVllm

pytestmark = pytest.mark.vllm


def test_its_counters_hold_exactly_what_was_sent(vllm: RealVllm) -> None:
    before = vllm.counts()
    body = {"model": MODEL_NAME, "prompt": "a b c", "max_tokens": 7, "ignore_eos": True}
    usage = vllm.post("/v1/completions", body)["usage"]
    added = vllm.counts().since(before)
    assert usage["completion_tokens"] == 7
    assert (added.requests, added.prompt_tokens, added.generation_tokens) == (
        1, usage["prompt_tokens"], 7
    )  # fmt: skip
    assert added.ttft_count == 1
    assert added.ttft_sum_s > 0


def test_a_first_prompt_of_one_word_does_not_kill_the_engine(vllm: RealVllm) -> None:
    """On a processor with AMX it did, see scripts/vllm_cpu_amx.py. The fixture asked for it."""
    assert vllm.first_prompt == "a"
    before = vllm.counts()
    assert before.requests >= 1, "it was answered"
    vllm.post("/v1/completions", {"model": MODEL_NAME, "prompt": "a", "max_tokens": 2})
    assert vllm.counts().since(before).requests == 1, "and the engine lives"
