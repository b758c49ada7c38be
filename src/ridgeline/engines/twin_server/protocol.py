"""The OpenAI API as vLLM speaks it: request bodies in, reply bytes out. No sockets, no clock."""

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from ridgeline.domain.vision import ImageGrid
from ridgeline.engines.twin_server.fields import FieldError, check
from ridgeline.engines.twin_server.pictures import PictureError, picture_tokens
from ridgeline.engines.twin_server.words import WORDS, words_from

DEFAULT_COMPLETION_TOKENS = 16  # the OpenAI API's own default of max_tokens in /v1/completions
TOKEN_IDS = 1 << 17


class ApiError(Exception):
    """A request that is refused; becomes vLLM's error object and HTTP status."""

    def __init__(
        self, status: int, message: str, kind: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind or ("BadRequestError" if status == 400 else HTTPStatus(status).phrase)
        self.param = param

    def body(self) -> bytes:
        """The reply's JSON: {"error": {"message", "type", "param", "code"}}."""
        error = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.status,
        }
        return json.dumps({"error": error}).encode()


@dataclass(frozen=True, slots=True)
class Served:
    """What is served: the model's name, its limits, and what the twin calls an answer's end.

    `stop_after_tokens`: a chat request without max_tokens ends by itself after that many, because
    a twin has no end-of-sequence token. `prompt_tokens_details`: report cached tokens in usage.
    `image_grid`: how many tokens an image is; None: images are refused.
    """

    model: str
    max_model_len: int
    stop_after_tokens: int = 128
    prompt_tokens_details: bool = False
    image_grid: ImageGrid | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """One generation request, checked. `prompt` holds its tokens: words, or ids as given.

    A smaller `priority` comes first where the engine's policy looks at it, as in vLLM.
    """

    chat: bool
    prompt: Sequence[object]
    output_tokens: int
    max_tokens: int | None
    finish_reason: str
    stream: bool
    usage_at_end: bool
    usage_always: bool
    priority: int = 0


def parse_json(body: bytes) -> dict[str, Any]:
    """The body as a JSON object; raises ApiError 400."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}", kind="Bad Request") from None
    if not isinstance(value, dict):
        raise ApiError(400, "the body must be a JSON object", kind="Bad Request")
    return value


def parse_ask(body: bytes, served: Served, *, chat: bool) -> Ask:
    """Check a request for /v1/chat/completions or /v1/completions; raises ApiError.

    Nothing is ignored in silence: what only chooses among words (temperature, seed ...) is checked
    as vLLM checks it and changes nothing, because a twin's words mean nothing; everything else that
    is not served here is refused by name.
    """
    fields = parse_json(body)
    check_model(fields, served)
    check_fields(fields, chat=chat)
    prompt = _chat_tokens(fields, served) if chat else _prompt_tokens(fields)
    if not prompt:
        raise ApiError(400, "the prompt is empty", param="messages" if chat else "prompt")
    stream = _flag(fields, "stream")
    at_end, always = _stream_options(fields, stream)
    limit = _limit(fields, chat=chat)
    least = fields.get("min_tokens") or 0
    if limit is not None and least > limit:
        raise ApiError(
            400, f"min_tokens must be at most max_tokens={limit}, not {least}", param="min_tokens"
        )
    output, reason = _output(limit, len(prompt), served, chat=chat)
    priority = fields.get("priority") or 0
    return Ask(chat, prompt, output, limit, reason, stream, at_end, always, priority)


def check_fields(fields: dict[str, Any], *, chat: bool) -> None:
    """Raise ApiError 400 for a field that the twin does not serve or vLLM would refuse."""
    try:
        check(fields, chat=chat)
    except FieldError as error:
        raise ApiError(400, str(error), param=error.name) from None


def check_model(fields: dict[str, Any], served: Served) -> None:
    """Raise ApiError 404 when another model is asked for; no model means the served one."""
    model = fields.get("model")
    if model is not None and model != served.model:
        raise ApiError(
            404,
            f"the model {model!r} is not served here, {served.model!r} is",
            kind="NotFoundError",
            param="model",
        )


def _flag(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise ApiError(400, f"{name} must be true or false", kind="Bad Request", param=name)
    return value


def _stream_options(fields: dict[str, Any], stream: bool) -> tuple[bool, bool]:
    options = fields.get("stream_options")
    if options is None:
        return False, False
    if not isinstance(options, dict):
        raise ApiError(400, "stream_options must be an object", param="stream_options")
    if not stream:
        raise ApiError(400, "stream_options need stream=true", param="stream_options")
    at_end = _flag(options, "include_usage")
    return at_end, at_end and _flag(options, "continuous_usage_stats")


def _limit(fields: dict[str, Any], *, chat: bool) -> int | None:
    names = ("max_completion_tokens", "max_tokens") if chat else ("max_tokens",)
    for name in names:
        value = fields.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ApiError(400, f"{name} must be a whole number of at least 1", param=name)
        return value
    return None


def _output(
    limit: int | None, prompt_tokens: int, served: Served, *, chat: bool
) -> tuple[int, str]:
    """Tokens that this request gets, and the finish reason that goes with it."""
    room = served.max_model_len - prompt_tokens
    wanted = limit if limit is not None or chat else DEFAULT_COMPLETION_TOKENS
    if room < (wanted or 1):
        raise ApiError(
            400,
            f"maximum context length is {served.max_model_len} tokens, but the request has "
            f"{prompt_tokens} prompt tokens and asks for {wanted or 1} more",
            param="messages" if chat else "prompt",
        )
    if wanted is not None:
        return wanted, "length"
    if served.stop_after_tokens <= room:
        return served.stop_after_tokens, "stop"
    return room, "length"


def _chat_tokens(fields: dict[str, Any], served: Served) -> list[str]:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be a list with entries", "Bad Request", "messages")
    words: list[str] = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ApiError(400, "each message needs a role", "Bad Request", "messages")
        content = message.get("content")
        if isinstance(content, str):
            words += content.split()
        elif isinstance(content, list):
            for part in content:
                words += _part_tokens(part, served)
        elif content is not None:
            raise ApiError(400, "content must be text or text parts", "Bad Request", "messages")
    return words


def _part_tokens(part: Any, served: Served) -> list[str]:
    """The tokens of one part of a message: its words, or as many as its image is."""
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"]).split()
    if not isinstance(part, dict) or part.get("type") != "image_url":
        raise ApiError(400, "the twin reads parts of text and images only", param="messages")
    if served.image_grid is None:
        raise ApiError(
            400,
            f"the twin of {served.model!r} takes no images: how many tokens one is, is not known",
            param="messages",
        )
    try:
        return picture_tokens(part.get("image_url"), served.image_grid)
    except PictureError as error:
        raise ApiError(400, str(error), param="messages") from None


def _prompt_tokens(fields: dict[str, Any]) -> Sequence[object]:
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]  # a batch of one
    if isinstance(prompt, str):
        return prompt.split()
    if isinstance(prompt, list) and all(type(t) is int and t >= 0 for t in prompt):
        return prompt
    raise ApiError(
        400, "prompt must be one text or one list of token ids (no batch)", "Bad Request", "prompt"
    )


def tokenize(body: bytes, served: Served) -> bytes:
    """The reply of /tokenize; raises ApiError. Ids are stable hashes of the words."""
    fields = parse_json(body)
    check_model(fields, served)
    words = _chat_tokens(fields, served) if "messages" in fields else _prompt_tokens(fields)
    ids = [
        w if isinstance(w, int) else zlib.crc32(str(w).encode(errors="surrogatepass")) % TOKEN_IDS
        for w in words
    ]
    reply = {"count": len(ids), "max_model_len": served.max_model_len, "tokens": ids}
    return json.dumps({**reply, "token_strs": None}).encode()


def models(served: Served, created_s: int) -> bytes:
    """The reply of /v1/models. `owned_by` tells that this is a twin."""
    card = {
        "id": served.model,
        "object": "model",
        "created": created_s,
        "owned_by": "ridgeline-twin",
        "root": served.model,
        "parent": None,
        "max_model_len": served.max_model_len,
        "permission": [],
    }
    return json.dumps({"object": "list", "data": [card]}).encode()


class Reply:
    """The bytes of one reply, event by event. Everything that can be is built beforehand."""

    def __init__(self, ask: Ask, served: Served, reply_id: str, created_s: int) -> None:
        self._ask = ask
        self._served = served
        self._base = {
            "id": reply_id,
            "object": "chat.completion" if ask.chat else "text_completion",
            "created": created_s,
            "model": served.model,
        }
        kind = "chat.completion.chunk" if ask.chat else "text_completion"
        base = json.dumps({**self._base, "object": kind}, separators=(",", ":"))[:-1]
        self._head = f'data: {base},"choices":['.encode()
        text = '{"index":0,"delta":{"content":"' if ask.chat else '{"index":0,"text":"'
        self._open = self._head + text.encode()
        close = "}" if ask.chat else ""
        self._close = f'"{close},"logprobs":null,"finish_reason":null}}]'.encode()
        self._last = (
            f'"{close},"logprobs":null,"finish_reason":"{ask.finish_reason}","stop_reason":null}}]'
        ).encode()

    def usage(self, done: int, cached: int | None) -> dict[str, Any]:
        """The usage object after `done` output tokens."""
        prompt = len(self._ask.prompt)
        details = None
        if self._served.prompt_tokens_details and cached is not None:
            details = {"cached_tokens": cached}
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + done,
            "completion_tokens": done,
            "prompt_tokens_details": details,
        }

    def _end(self, done: int) -> bytes:
        if not self._ask.usage_always:
            return b"}\n\n"
        usage = json.dumps(self.usage(done, None), separators=(",", ":"))
        return b',"usage":' + usage.encode() + b"}\n\n"

    def role(self) -> bytes:
        """The event that opens a chat stream: role and empty content, no token."""
        delta = b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
        return self._head + delta + b'"finish_reason":null}]' + self._end(0)

    def tokens(self, done: int, count: int, *, last: bool) -> bytes:
        """The event with the next `count` tokens after `done` earlier ones."""
        if count == 1 and not self._ask.usage_always:
            word = WORDS[done % len(WORDS)].encode()
            space = b" " if done else b""
            return b"".join(
                (self._open, space, word, self._last if last else self._close, b"}\n\n")
            )
        close = self._last if last else self._close
        return self._open + words_from(done, count).encode() + close + self._end(done + count)

    def closing(self, done: int, cached: int | None) -> bytes:
        """What follows the last token: the usage event when asked for, then [DONE]."""
        usage = b""
        if self._ask.usage_at_end:
            figures = json.dumps(self.usage(done, cached), separators=(",", ":"))
            usage = self._head + b'],"usage":' + figures.encode() + b"}\n\n"
        return usage + b"data: [DONE]\n\n"

    def whole(self, cached: int | None) -> bytes:
        """The body of a reply that is not streamed."""
        ask = self._ask
        text = words_from(0, ask.output_tokens)
        said: dict[str, Any] = (
            {"message": {"role": "assistant", "content": text}} if ask.chat else {"text": text}
        )
        end = {"logprobs": None, "finish_reason": ask.finish_reason, "stop_reason": None}
        choice = {"index": 0, **said, **end}
        usage = self.usage(ask.output_tokens, cached)
        return json.dumps({**self._base, "choices": [choice], "usage": usage}).encode()
