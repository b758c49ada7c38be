"""API keys in texts and in values that are stored."""

import json

import pytest

from ridgeline.domain.secrets import looks_secret, mask, mask_all, secret_name, without_secrets

KEY = 'sk-a"b/c+d'
HELD = {"RIDGELINE_API_KEY": KEY}


@pytest.mark.parametrize(
    "quoted",
    [KEY, f"Bearer {KEY}", json.dumps(KEY), "sk-a%22b%2Fc%2Bd", f"key={KEY}, again {KEY}"],
)
def test_however_a_server_quotes_it(quoted: str) -> None:
    found = mask(f"refused: {quoted}!", HELD)
    assert "***" in found
    assert "sk-a" not in found


def test_both_variables_count_and_other_text_stays() -> None:
    both = {"OPENAI_API_KEY": " sk-other ", **HELD}
    assert mask(f"{KEY} and sk-other and sk", both) == "*** and *** and sk"
    assert mask("nothing here", both) == "nothing here"
    assert mask("text", {}) == "text"


def test_a_very_short_key_does_not_eat_words() -> None:
    assert mask("a model, Bearer a", {"OPENAI_API_KEY": "a"}) == "a model, Bearer ***"


def test_every_text_of_a_value() -> None:
    body = {"a": [f"x {KEY}", 1, None], KEY: {"deep": (KEY, 2.5, True)}}
    found = mask_all(body, HELD)
    assert found == {"a": ["x ***", 1, None], "***": {"deep": ["***", 2.5, True]}}
    assert mask_all({"a": [1, None], "b": "x"}, {}) == {"a": [1, None], "b": "x"}


def test_secrets_that_an_engine_was_started_with_are_masked_by_their_name() -> None:
    """The last line of defence: study files that hold one are refused before."""
    launch = {
        "environment": {"HF_TOKEN": "hf_abc", "OMP_NUM_THREADS": "4", "API_KEY": ""},
        "arguments": ["--api-key", "sk-abc", "--seed", "1", "--hf-token=abc", "--api-key", "--x"],
    }
    assert mask_all({"launch": launch}, {}) == {
        "launch": {
            "environment": {"HF_TOKEN": "***", "OMP_NUM_THREADS": "4", "API_KEY": ""},
            "arguments": ["--api-key", "***", "--seed", "1", "--hf-token=***", "--api-key", "--x"],
        }
    }


@pytest.mark.parametrize("name", [
    "DB_PASS", "PASSPHRASE", "ssh_passphrase", "DB_PWD", "HF_TOKEN_READ", "TOKEN_1", "JWT", "DSN",
    "SENTRY_DSN", "API_KEY",
])  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert secret_name(name)


@pytest.mark.parametrize("name", [
    "max_tokens", "prompt_tokens", "PWD", "OLDPWD", "max_num_batched_tokens", "step_token_budget",
    "long_prefill_token_threshold", "tokenizer", "bypass", "keyspace",
])  # fmt: skip
def test_names_of_other_things(name: str) -> None:
    assert not secret_name(name)


@pytest.mark.parametrize("value", [
    "AKIA" + "IOSFODNN7EXAMPLE", "https://s3.aws/x?X-Amz-Signature=deadbeefcafe1234",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2ln", "https://a.blob/x?sv=1&sig=abc%3D",
])  # fmt: skip
def test_forms_of_secrets(value: str) -> None:
    assert looks_secret(value)


def test_a_url_without_what_it_should_not_say() -> None:
    assert without_secrets("http://u:p@h:1/load?key=x#y") == "http://h:1/load"
    assert without_secrets("/get_load") == "/get_load"
