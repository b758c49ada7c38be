"""Which fields of a request the twin serves, and what values vLLM allows for them.

The ranges are those of vLLM's SamplingParams and of the OpenAI API reference.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from ridgeline.engines.twin_server.words import never_said


class FieldError(ValueError):
    """A field that is refused; `name` tells which."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


Test = Callable[[Any], bool]


def _number(low: float, high: float = math.inf, *, open_low: bool = False) -> Test:
    def test(value: Any) -> bool:
        good = isinstance(value, int | float) and not isinstance(value, bool)
        return good and (low < value if open_low else low <= value) and value <= high

    return test


def _whole(low: int) -> Test:
    def test(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= low

    return test


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _anything(_: Any) -> bool:
    return True


def _integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _no_stop(value: Any) -> bool:
    return value in ([], "") or never_said(value)


def _only(*values: Any) -> Test:
    def test(value: Any) -> bool:
        return any(value == v and type(value) is type(v) for v in values)

    return test


# Read elsewhere: checked there, or meaningless to a twin and to what it measures.
_READ: Mapping[str, Test] = {
    "model": _anything,
    "stream": _anything,
    "stream_options": _anything,
    "max_tokens": _anything,
    "min_tokens": _whole(0),
    "priority": _integer,
    "user": _text,
    "request_id": _text,
}
# They choose among words. The twin's answer is as long as asked for whatever they say.
_SAMPLING: Mapping[str, tuple[Test, str]] = {
    "temperature": (_number(0), "a number of at least 0"),
    "top_p": (_number(0, 1, open_low=True), "a number above 0 and at most 1"),
    "top_k": (_whole(-1), "a whole number of at least -1"),
    "min_p": (_number(0, 1), "a number from 0 to 1"),
    "presence_penalty": (_number(-2, 2), "a number from -2 to 2"),
    "frequency_penalty": (_number(-2, 2), "a number from -2 to 2"),
    "repetition_penalty": (_number(0, open_low=True), "a number above 0"),
    "seed": (_number(-(2**63), 2**63 - 1), "a whole number of 64 bits"),
    "ignore_eos": (_flag, "true or false"),
    "skip_special_tokens": (_flag, "true or false"),
    "spaces_between_special_tokens": (_flag, "true or false"),
    "include_stop_str_in_output": (_flag, "true or false"),
    "add_generation_prompt": (_only(True), "true"),
}
# The one value of each that asks for what is done anyway.
_UNCHANGED: Mapping[str, Test] = {
    "n": _only(1),
    "best_of": _only(1),
    "echo": _only(False),
    "use_beam_search": _only(False),
    "logprobs": _only(False),
    "top_logprobs": _only(0),
    "tools": _only([]),
    "tool_choice": _only("none"),
    "response_format": _only({"type": "text"}),
    "stop": _no_stop,
    "stop_token_ids": _only([]),
    "bad_words": _only([]),
    "logit_bias": _only({}),
    "suffix": _only(""),
    "return_token_ids": _only(False),
    # vllm-router writes every request anew and adds these, which vLLM does not read
    "no_stop_trim": _only(False),
    "return_hidden_states": _only(False),
    "separate_reasoning": _only(True),
    "stream_reasoning": _only(True),
    "include_reasoning": _only(True),
    "continue_final_message": _only(False),
}


def check(fields: Mapping[str, Any], *, chat: bool) -> None:
    """Raise FieldError for the first field that is not served. A null counts as not given."""
    own = ("messages", "max_completion_tokens") if chat else ("prompt",)
    for name, value in fields.items():
        if value is None or name in own:
            continue
        if name in _SAMPLING:
            test, words = _SAMPLING[name]
            if not test(value):
                raise FieldError(name, f"{name} must be {words}, not {_short(value)}")
        elif name in _READ:
            if not _READ[name](value):
                raise FieldError(name, f"{name} cannot be {_short(value)}")
        elif not (name in _UNCHANGED and _UNCHANGED[name](value)):
            short = _short(value)
            raise FieldError(name, f"{_short(name)[1:-1]}={short} is not served by the twin")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
