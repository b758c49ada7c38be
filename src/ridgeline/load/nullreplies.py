"""Replies of a server that does nothing but send: chat completions, framed as vLLM frames them.

The client is measured against such servers, by its own calibration and by the benchmarks.
"""

import json

MODEL = "mock"
PROMPT_TOKENS = 32
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
END = b"0\r\n\r\n"


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


def choice(delta: dict[str, str], finish: str | None = None) -> bytes:
    """A chunk with that delta."""
    found = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return _event(choices=[found])


def role() -> bytes:
    """The chunk that only says who speaks."""
    return choice({"role": "assistant", "content": ""})


def text(words: int = 1) -> bytes:
    """A chunk with content."""
    return choice({"content": " word" * words})


def closing(tokens: int) -> bytes:
    """Finish reason, usage, end marker, end of the body."""
    usage = {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": tokens,
        "total_tokens": PROMPT_TOKENS + tokens,
    }
    done = _framed(b"data: [DONE]\n\n")
    return choice({"content": ""}, "length") + _event(choices=[], usage=usage) + done + END


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
