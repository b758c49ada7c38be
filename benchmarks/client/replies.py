"""The bytes that the mock servers send: streamed chat completions, framed as vLLM frames them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

MODEL = "mock"
PROMPT_TOKENS = 32
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
END = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Part:
    """One write of a reply: `ms` after the request was complete, and whether it has content."""

    ms: float
    data: bytes
    content: bool = False


def _event(**more: object) -> bytes:
    """One SSE event in an HTTP chunk of its own."""
    value = {
        "id": "chatcmpl-0123456789abcdef0123456789abcdef",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": MODEL,
        **more,
    }
    return _framed(b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n")


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _choice(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return _event(choices=[choice])


def role() -> bytes:
    """The chunk that only says who speaks."""
    return _choice({"role": "assistant", "content": ""})


def text(words: int = 1) -> bytes:
    """A chunk with content."""
    return _choice({"content": " word" * words})


def reasoning() -> bytes:
    """A chunk of reasoning."""
    return _choice({"reasoning_content": " hm"})


def closing(tokens: int) -> bytes:
    """Finish reason, usage, end marker, end of the body."""
    usage = {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": tokens,
        "total_tokens": PROMPT_TOKENS + tokens,
    }
    done = _framed(b"data: [DONE]\n\n")
    return _choice({"content": ""}, "length") + _event(choices=[], usage=usage) + done + END


def prebuilt(chunks: int) -> bytes:
    """A whole reply of that many one-token chunks."""
    return HEAD + role() + text() * chunks + closing(chunks)


def paced(
    times_ms: Sequence[float],
    *,
    words: int = 1,
    role_ms: float | None = None,
    reasoning_ms: Sequence[float] = (),
) -> tuple[Part, ...]:
    """One chunk at each of the times; the role goes out with the first unless `role_ms` says when.

    `words` are the tokens of a chunk of text; the first has one, as a first step gives one.
    """
    content = [(ms, reasoning()) for ms in reasoning_ms]
    content += [(ms, text(1 if i == 0 else words)) for i, ms in enumerate(times_ms)]
    tokens = len(reasoning_ms) + 1 + words * (len(times_ms) - 1)
    parts = [] if role_ms is None else [Part(role_ms, HEAD + role())]
    for number, (ms, data) in enumerate(content):
        begin = HEAD + role() if role_ms is None and number == 0 else b""
        end = closing(tokens) if number == len(content) - 1 else b""
        parts.append(Part(ms, begin + data + end, content=True))
    return tuple(parts)


def page(status: str, kind: str, body: bytes) -> bytes:
    """A reply that is no stream."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def pages() -> dict[str, bytes]:
    """Path -> reply of what clients ask for before they begin."""
    models = {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
    return {
        "/health": page("200 OK", "application/json", b"{}"),
        "/v1/models": page("200 OK", "application/json", json.dumps(models).encode()),
        "/": page("404 Not Found", "application/json", b"{}"),
    }
