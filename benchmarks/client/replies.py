"""The bytes that the mock servers send: streamed chat completions, framed as vLLM frames them."""

from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.load.nullreplies import (
    HEAD,
    MODEL,
    PROMPT_TOKENS,
    choice,
    closing,
    page,
    pages,
    role,
    text,
)

__all__ = [
    "HEAD",
    "MODEL",
    "PROMPT_TOKENS",
    "Part",
    "closing",
    "paced",
    "page",
    "pages",
    "prebuilt",
    "reasoning",
    "role",
    "text",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Part:
    """One write of a reply: `ms` after the request was complete, and whether it has content."""

    ms: float
    data: bytes
    content: bool = False


def reasoning() -> bytes:
    """A chunk of reasoning."""
    return choice({"reasoning_content": " hm"})


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
