"""What the quality gate reads from a server, and what it says of one that cannot be read."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from ridgeline.domain.errors import EndpointError
from ridgeline.domain.readings import QualityPrompt
from ridgeline.engines.logprobs import (
    MOST_RESUMED,
    Asking,
    follow_server,
    least_context,
    read_likelihoods,
    read_server,
)
from ridgeline.tuning.quality_prompts import bundled_prompts
from support.logprob_server import Behaviour, letters, logprob_server

PROMPTS = (QualityPrompt("one", "To be read."), QualityPrompt("far", "far away " * 100, long=True))
QUICK = Asking(longest=200, answer_tokens=4, timeout_s=5.0)


def test_it_reads_the_servers_own_probabilities() -> None:
    how = Behaviour(cache_dtype="fp8")
    with logprob_server(how) as url:
        found = read_server(url, PROMPTS, QUICK)
    table = letters(0.0)
    one, far = found.readings
    ids = list(b"To be read.")
    assert one.likelihoods.ids == tuple(ids)
    assert one.likelihoods.logprobs == pytest.approx([table[a, b] for a, b in pairwise(ids)])
    best = np.argsort(-table[ids[:-1]], axis=1, kind="stable")[:, :20]
    assert (one.likelihoods.top_ids == best).all()
    assert one.answer is not None
    assert one.answer.ids[0] == best[-1][0] or one.answer.ids[0] == int(table[ids[-1]].argmax())
    assert set(one.answer.top[0]) == {
        int(i) for i in np.argsort(-table[ids[-1]], kind="stable")[:20]
    }
    assert len(far.likelihoods.ids) == 200, "a long one is cut"
    assert (found.model, found.kv_cache_dtype, found.kv_blocks) == ("letters", "fp8", 77)
    sent = [body for path, body in how.asked if path == "/v1/completions"]
    assert all(body["temperature"] == 0.0 and body["model"] == "letters" for body in sent)


def test_a_long_prompt_is_cut_to_the_servers_context() -> None:
    with logprob_server(Behaviour(max_model_len=64)) as url:
        found = read_server(url, PROMPTS, QUICK)
    assert len(found.readings[1].likelihoods.ids) == 60, "and there is room for the answer"


def test_it_asks_no_more_at_once_than_it_may() -> None:
    how = Behaviour(delay_s=0.02)
    with logprob_server(how) as url:
        read_server(url, [QualityPrompt(str(i), "to be read") for i in range(12)],
                    Asking(concurrency=3, answer_tokens=2))  # fmt: skip
    assert how.most_at_once == 3


def test_a_prompt_of_one_token_is_left_out_and_said() -> None:
    prompts = (QualityPrompt("brace", "{"), *PROMPTS)
    with logprob_server() as url:
        found = read_server(url, prompts, QUICK)
        with pytest.raises(EndpointError, match="no prompt has two tokens"):
            read_server(url, prompts[:1], QUICK)
    assert [r.prompt.name for r in found.readings] == ["one", "far"]
    assert found.notes == ("left out, as they have a single token: brace",)


def test_answers_are_asked_one_by_one() -> None:
    """In a batch the numbers of a token depend on what else is in it."""
    how = Behaviour(delay_s=0.02)
    with logprob_server(how) as url:
        read_server(url, PROMPTS, Asking(concurrency=2, longest=200, answer_tokens=2))
    completions = [body for path, body in how.asked if path == "/v1/completions"]
    assert ["prompt_logprobs" in body for body in completions] == [True, True, False, False]


ERROR = json.dumps({"error": {"message": "prompt_logprobs is not supported"}}).encode()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (Behaviour(no_prompt_logprobs=True), "tells no prompt_logprobs"),
        (Behaviour(answers={"/v1/completions": (400, ERROR)}),
         "POST /v1/completions gives HTTP 400 (prompt_logprobs is not supported)"),
        (Behaviour(answers={"/v1/completions": (500, b"")}), "look into the server's log"),
        (Behaviour(answers={"/v1/completions": (200, b"<html>")}), "gives no JSON object"),
        (Behaviour(answers={"/v1/completions": (200, b"[]")}), "gives no JSON object"),
        (Behaviour(answers={"/v1/completions": (200, b"{}")}), "has no choices"),
        (Behaviour(answers={"/tokenize": (404, b"{}")}), "POST /tokenize gives HTTP 404"),
        (Behaviour(answers={"/tokenize": (200, b'{"tokens": "x"}')}), "/tokenize tells no tokens"),
        (Behaviour(delay_s=1.0), "got no answer within 0.3 s"),
    ],
)  # fmt: skip
def test_one_line_says_why_it_cannot_be_asked(how: Behaviour, words: str) -> None:
    limit = 0.3 if how.delay_s else 5.0
    with (
        logprob_server(how) as url,
        pytest.raises(EndpointError) as told,
    ):
        read_server(url, PROMPTS[:1], Asking(answer_tokens=4, timeout_s=limit))
    assert words in str(told.value)
    assert url in str(told.value)
    assert "\n" not in str(told.value)
    assert told.value.exit_code == 3


@pytest.mark.parametrize(
    "place",
    [
        {},
        {"7": {"logprob": -1.0, "rank": 1}},
        {"5": {"logprob": float("nan"), "rank": 1}, "6": {"logprob": -1.0, "rank": 2}},
        {"5": {"rank": 1}, "6": {"logprob": -1.0, "rank": 2}},
        {"5": {"logprob": -1.0, "rank": 1}},
    ],
)
def test_probabilities_that_are_none_are_refused(place: object) -> None:
    with pytest.raises((ValueError, KeyError)):
        read_likelihoods([4, 5], [None, place], 2)
    with pytest.raises(ValueError, match="1 places for 2 tokens"):
        read_likelihoods([4, 5], [None], 2)


def test_the_token_that_stands_there_is_no_alternative_when_it_is_unlikely() -> None:
    place = {"5": {"logprob": -9.0, "rank": 300}, "6": {"logprob": -0.5, "rank": 1},
             "7": {"logprob": -1.0, "rank": 2}}  # fmt: skip
    found = read_likelihoods([4, 5], [None, place], 2)
    assert found.logprobs == [-9.0]
    assert found.top_ids.tolist() == [[6, 7]]


def test_where_answers_part_the_server_goes_on_from_the_references_tokens() -> None:
    """Each place of the followed answer is what it says after the reference's own tokens."""
    prompts = bundled_prompts()[:12]
    asking, noisy, how = Asking(answer_tokens=16), letters(0.3), Behaviour(noise=0.3)
    with logprob_server() as one, logprob_server(how) as other:
        reference, own = (read_server(url, prompts, asking) for url in (one, other))
        before = len(how.asked)
        found = follow_server(other, own, reference, asking)
    parted = 0
    for ours, theirs, along in zip(reference.readings, own.readings, found.readings, strict=True):
        assert ours.answer is not None
        assert theirs.answer is not None
        assert along.answer == theirs.answer
        if ours.answer.ids == theirs.answer.ids:
            assert along.followed is None
            continue
        parted += 1
        assert along.followed is not None
        assert along.followed.followed
        given = (ours.likelihoods.ids[-1], *ours.answer.ids)[: len(along.followed.ids)]
        assert along.followed.ids == tuple(int(noisy[token].argmax()) for token in given)
        assert len(along.followed.top) == len(along.followed.ids)
        resumed = sum(a != b for a, b in zip(along.followed.ids, ours.answer.ids, strict=False))
        assert len(along.followed.ids) == 16 or resumed == MOST_RESUMED + 1
    assert parted >= 3
    assert len(how.asked) - before <= parted * MOST_RESUMED


def test_all_servers_read_as_far_as_the_least_of_them() -> None:
    with (
        logprob_server(Behaviour(max_model_len=64)) as one,
        logprob_server(Behaviour(max_model_len=90)) as other,
    ):
        least = least_context([(one, None), (other, None)])
        found = read_server(other, PROMPTS, replace(QUICK, context=least))
    assert least == 64
    assert len(found.readings[1].likelihoods.ids) == 60
