"""Sampling, extra body fields, headers: what is sent, and that no secret gets into a result."""

from typing import Any

import pytest

from ridgeline.domain.errors import BadInput
from ridgeline.workload.requestoptions import (
    check_extra_body,
    check_headers,
    check_sampling,
    parse_extra_body,
    parse_headers,
)
from ridgeline.workload.studyfile import parse_study

HEAD = "name: x\nmodel: m\nengine: endpoint\nurl: http://127.0.0.1:1\n"


def test_a_study_file_says_them() -> None:
    text = (
        HEAD + "api: completions\nworkload:\n  arrivals: {users: 1}\n  salt: pinned\n"
        "  prompts: {tokens: 8, as: token_ids}\n"
        "  sampling: {temperature: 0.7, top_k: 40, stop: END}\n"
        "  extra_body: {chat_template_kwargs: {enable_thinking: false}}\n"
        "  headers: {X-Tenant: a b}\n"
    )
    study = parse_study(text)
    workload = study.baseline.workload
    assert study.api == "completions"
    assert workload.options.sampling == {"temperature": 0.7, "top_k": 40, "stop": ["END"]}
    assert workload.options.extra_body == {"chat_template_kwargs": {"enable_thinking": False}}
    assert workload.options.headers == {"X-Tenant": "a b"}
    assert (workload.salt, workload.token_ids) == ("pinned", True)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"temprature": 1}, "did you mean 'temperature'?"),
        ({"temperature": -1}, "temperature must be a number from 0 to 100"),
        ({"temperature": float("nan")}, "temperature must be"),
        ({"temperature": True}, "temperature must be"),
        ({"top_p": 0}, "top_p must be"),
        ({"top_k": 1.5}, "top_k must be a whole number"),
        ({"seed": "1"}, "seed must be"),
        ({"stop": []}, "stop must be a text or a list of texts"),
        ({"stop": [1]}, "stop must be"),
    ],
)
def test_wrong_sampling(values: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput) as caught:
        check_sampling(values, "here")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("[1]", "must be a JSON object"),
        ("{", "is no JSON"),
        ('{"model": "x"}', "model is set by Ridgeline itself"),
        ('{"stream": false}', "stream is set by"),
        ('{"max_tokens": 4}', "max_tokens is set by"),
        ('{"api_key": "abc"}', "api_key looks like a secret"),
        ('{"a": NaN}', "is no JSON"),
    ],
)
def test_wrong_extra_bodies(value: str, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_extra_body(value, "--extra-body")
    assert words in str(caught.value)
    assert "abc" not in str(caught.value)


SECRET = "sk-1234567890"


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ([f"Authorization=Bearer {SECRET}"], "Authorization holds a secret"),
        ([f"X-Api-Key={SECRET}"], "X-Api-Key holds a secret"),
        ([f"x-goog-apikey={SECRET}"], "holds a secret"),
        ([f"X-Auth-Token={SECRET}"], "holds a secret"),
        ([f"Cookie={SECRET}"], "holds a secret"),
        ([f"X-Thing=Bearer {SECRET}"], "holds a secret"),
        ([f"Bearer {SECRET}"], "is given as NAME=VALUE"),
        (["Host=x"], "Host is set by Ridgeline itself"),
        (["Content-Length=1"], "is set by Ridgeline itself"),
        (["X=a\r\nY: b"], "must be printable ASCII"),
        (["X Y=a"], "is no header's name"),
        (["X=1", "X=2"], "X is given twice"),
    ],
)
def test_wrong_headers_are_named_and_their_values_are_not(texts: list[str], words: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_headers(texts, "--header")
    assert words in str(caught.value)
    assert SECRET not in str(caught.value)


def test_good_ones_pass() -> None:
    assert parse_headers(["X-Tenant=a=b", "X-Session-Id=7"], "h") == {
        "X-Tenant": "a=b", "X-Session-Id": "7"
    }  # fmt: skip
    assert check_headers({}) == check_extra_body({}) == check_sampling({}) == {}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("workload: {arrivals: {users: 1}, headers: {Authorization: x}}", "holds a secret"),
        ("workload: {arrivals: {users: 1}, sampling: {top: 1}}", "did you mean 'stop'?"),
        ("workload: {arrivals: {users: 1}, extra_body: {n: 2}}", "n is set by Ridgeline"),
        ("workload: {arrivals: {users: 1}, prompts: {as: token_ids}}", "add api: completions"),
        ("api: chats\nworkload: {arrivals: {users: 1}}", "one of chat, completions"),
        ("workload: {arrivals: {users: 1}, prompts: {as: ids}}", "one of text, token_ids"),
    ],
)
def test_a_study_file_names_the_line(more: str, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_study(HEAD + more, "s.yaml")
    assert words in str(caught.value)
    assert str(caught.value).startswith("s.yaml:5: ")
