"""The OpenAI-compatible protocol: bodies of requests, and what one streamed event means."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ridgeline.domain.rows import MISSING
from ridgeline.load.sse import BadStream

ENDPOINTS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
_MOST_TOKENS = 1 << 40  # a count above this is none
_MARK = "\ufffcPROMPT\ufffc"


class RequestForm:
    """Builds request bodies quickly: everything but the text and the length is made once.

    The text must be ASCII without quotes, backslashes and control characters, as prompts made
    here are; `stream` False is for calibration. `extra` are more fields of the body.
    """

    def __init__(
        self,
        endpoint: str,
        model: str,
        *,
        ignore_eos: bool = False,
        stream: bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = ENDPOINTS[endpoint]
        chat = endpoint == "chat"
        body: dict[str, Any] = {"model": model, "messages" if chat else "prompt": _MARK}
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if ignore_eos:
            body["ignore_eos"] = True
        body |= dict(extra or {})
        before, after = json.dumps(body).split(json.dumps(_MARK))
        self._before = before.encode()
        self._after = after[:-1].encode() + b', "max_tokens": '
        begin, end = (b'[{"role": "user", "content": "', b'"}]') if chat else (b'"', b'"')
        self._to_text, self._from_text = self._before + begin, end + self._after

    def parts(self, text: bytes, max_tokens: int) -> list[bytes]:
        """The body for one text, in pieces to be sent one after another."""
        return [self._to_text, text, b"%b%d}" % (self._from_text, max_tokens)]

    def payload(self, value: Sequence[bytes], max_tokens: int) -> list[bytes]:
        """The body for a value of `messages` or `prompt` that is JSON already, in pieces."""
        return [self._before, *value, b"%b%d}" % (self._after, max_tokens)]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as the server reported them."""

    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None

    @property
    def numbers(self) -> tuple[int, int, int]:
        """All three for `domain.rows`: MISSING for what was not reported."""
        prompt, output, cached = self.prompt_tokens, self.completion_tokens, self.cached_tokens
        return (
            MISSING if prompt is None else prompt,
            MISSING if output is None else output,
            MISSING if cached is None else cached,
        )


@dataclass(frozen=True, slots=True)
class Event:
    """What one event of a stream says.

    content: it carries something to read (text, reasoning or a tool call). answer: text or a tool
    call. done: the end marker. ends: it says more than text (how the reply ends, usage, an error).
    says: any of these. text: what it adds to the answer's text.
    """

    content: bool = False
    answer: bool = False
    finish_reason: str | None = None
    usage: Usage | None = None
    error: str | None = None
    done: bool = False
    text: str = ""
    ends: bool = field(init=False)
    says: bool = field(init=False)

    def __post_init__(self) -> None:
        said = (self.finish_reason, self.usage, self.error)
        ends = self.done or any(part is not None for part in said)
        object.__setattr__(self, "ends", ends)
        object.__setattr__(self, "says", ends or self.content)


_DONE = Event(done=True)
DATA = b"data: "
_ID = re.compile(rb'data: \{"id": ?"[!#-\[\]-~]*"')
_KEPT_EVENTS = 2048
_KEPT_EVENT_BYTES = 600
after_id: dict[bytes, Event] = {}  # what stands after a reply's id -> what it says
_whole: dict[bytes, Event] = {}


def leading_id(line: bytes) -> bytes:
    """The beginning of an event's line up to the end of its reply's id; b"" when it has none.

    The id says nothing about the event, and is the same in all events of a reply.
    """
    start = _ID.match(line)
    return b"" if start is None else start.group()


def known_event(data: bytes, skip: int) -> Event:
    """`read_event`, with a memory for events that have been seen.

    Most events of a run differ in their reply's id only: what stands after the first `skip` bytes,
    those of `leading_id` without DATA, is the key.
    """
    known = after_id if skip else _whole  # what follows an id means nothing without one
    key = data[skip:]
    event = known.get(key)
    if event is None:
        event = read_event(data)
        if len(key) <= _KEPT_EVENT_BYTES and b"\n" not in key:  # a key is one line of a stream
            if len(known) >= _KEPT_EVENTS:
                known.clear()
            known[key] = event
    return event


def read_event(data: bytes) -> Event:
    """Interpret an event's data; raises BadStream when it is not UTF-8 JSON of that protocol.

    A chunk without text (role only, empty, usage) is no content; `reasoning` and
    `reasoning_content` are two names of the same thing. The only place that parses JSON of a
    stream.
    """
    if data.strip() == b"[DONE]":
        return _DONE
    try:
        value = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise BadStream(f"an event is not UTF-8: {_excerpt(data)}") from None
    except (ValueError, RecursionError):
        raise BadStream(f"an event is not JSON: {_excerpt(data)}") from None
    if not isinstance(value, dict):
        raise BadStream(f"an event is not a JSON object: {_excerpt(data)}")
    error = error_text(value)
    if error is not None:
        return Event(error=error)
    usage = read_usage(value.get("usage"))
    choices = value.get("choices")
    if not choices:
        return Event(usage=usage)
    if not isinstance(choices, list) or not isinstance(choices[0], dict):
        raise BadStream(f"an event has no choices to read: {_excerpt(data)}")
    choice = choices[0]
    if len(choices) > 1 or choice.get("index") not in (None, 0):
        # pooled, the gaps between them would be nobody's
        raise BadStream(f"more than one choice in a reply, only one can be timed: {_excerpt(data)}")
    reason = choice.get("finish_reason")
    answer, reasoning = _content(choice)
    return Event(
        content=answer or reasoning,
        answer=answer,
        finish_reason=reason if isinstance(reason, str) else None,
        usage=usage,
        text=_text(choice),
    )


def error_event(data: bytes) -> Event:
    """What the data of an event of the type `error` say: an error, whatever their form."""
    return Event(error=reply_text(data))


def _text(choice: dict[str, Any]) -> str:
    """The piece of the answer's text in a choice: what the next turn of a talk must carry."""
    delta = choice.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
    return text if isinstance(text, str) else ""


def _content(choice: dict[str, Any]) -> tuple[bool, bool]:
    """Whether a choice carries (answer, reasoning)."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return bool(choice.get("text")), False
    answer = bool(
        delta.get("content")
        or delta.get("tool_calls")
        or delta.get("function_call")
        or delta.get("refusal")
    )
    return answer, bool(delta.get("reasoning_content") or delta.get("reasoning"))


def read_usage(value: object) -> Usage | None:
    """Token counts of a `usage` object, None when it is none or has no count."""
    if not isinstance(value, dict):
        return None
    details = value.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    counts = (value.get("prompt_tokens"), value.get("completion_tokens"), cached)
    prompt, output, cached = map(_count, counts)
    if prompt is None and output is None:
        return None
    return Usage(prompt, output, cached)


def _count(value: object) -> int | None:
    """A count of tokens; anything else than a sane whole number >= 0 was not reported."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_TOKENS:
        return value
    return None


def error_text(value: dict[str, Any]) -> str | None:
    """The message of an error object (`{"error": ...}` or vLLM's older form), else None."""
    error = value.get("error")
    if not error:
        if value.get("object") != "error":
            return None
        error = value
    if isinstance(error, dict):
        message = error.get("message") or error.get("detail") or json.dumps(error)
        code = error.get("code")
        return f"{message} (code {code})" if code is not None else str(message)
    return str(error)


def reply_text(body: bytes) -> str:
    """One line about a reply that is no stream: its error message, else its beginning."""
    try:
        value = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        return _excerpt(body)
    if isinstance(value, dict):
        message = error_text(value) or value.get("detail") or value.get("message")
        if message:
            return " ".join(str(message).split())[:300]
    return _excerpt(body)


def _excerpt(data: bytes) -> str:
    """The beginning of some bytes as one printable line."""
    text = " ".join(data[:200].decode("utf-8", "replace").split())
    return repr(text[:120] + ("..." if len(text) > 120 or len(data) > 200 else ""))
