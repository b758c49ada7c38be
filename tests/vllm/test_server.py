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
