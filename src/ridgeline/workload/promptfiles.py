"""Prompts from a file: plain lines, JSONL rows, conversations in the ShareGPT form.

A row is one request, whole as it stands: messages that carry a talk's past are sent as they are,
and nothing is appended to them. Token counts of texts are not known before a server has seen them:
they are planned as CHARACTERS_PER_TOKEN characters a token.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ridgeline.domain.errors import BadInput
from ridgeline.domain.workload import PromptFile

FORMATS = ("text", "jsonl", "sharegpt")
CHARACTERS_PER_TOKEN = 4
MOST_BYTES = 2 << 30
MOST_TOKENS = 10_000_000
_ROLES = {"human": "user", "user": "user", "system": "system", "gpt": "assistant",
          "chatgpt": "assistant", "assistant": "assistant", "bing": "assistant"}  # fmt: skip
_LENGTH_KEYS = ("output_tokens", "output_length", "max_tokens")


@dataclass(frozen=True, slots=True)
class Entry:
    """One prompt: (role, text) in order. output_tokens: of its reply, None where not said."""

    messages: tuple[tuple[str, str], ...]
    output_tokens: int | None = None

    @property
    def planned_tokens(self) -> int:
        """Estimated from the characters."""
        return estimated(sum(len(text) for _, text in self.messages))


def estimated(characters: int) -> int:
    """Tokens of so many characters, at least 1."""
    return max(1, round(characters / CHARACTERS_PER_TOKEN))


def open_prompts(path: Path, form: str | None = None, *, salted: bool = True) -> PromptFile:
    """Read a file of prompts once and describe it. Raises BadInput naming file and row."""
    data = _bytes_of(path)
    form = form or _format_of(path, data)
    digest = hashlib.sha256(data).hexdigest()[:16]
    entries = _read(str(path), form, digest)
    lengths = [entry.planned_tokens for entry in entries]
    outputs = [e.output_tokens for e in entries if e.output_tokens is not None]
    return PromptFile(
        file=str(path),
        format=form,
        digest=digest,
        rows=len(entries),
        mean_tokens=sum(lengths) / len(lengths),
        longest=max(lengths),
        longest_output=max(outputs, default=0),
        salted=salted,
    )


def entries_of(file: PromptFile) -> tuple[Entry, ...]:
    """The prompts of a described file. Raises BadInput when it is another one now."""
    if hashlib.sha256(_bytes_of(Path(file.file))).hexdigest()[:16] != file.digest:
        raise BadInput("is another file than when the study was read", where=file.file)
    return _read(file.file, file.format, file.digest)


def _bytes_of(path: Path) -> bytes:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise BadInput("is too large for a file of prompts", where=str(path))
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=str(path)) from None


def _format_of(path: Path, data: bytes) -> str:
    """By what the file begins with; a text that looks like neither JSON is plain lines."""
    start = data[:4096].lstrip()
    if start.startswith(b"[") or b'"conversations"' in start:
        return "sharegpt"
    if start.startswith(b"{"):
        return "jsonl"
    if path.suffix in (".json", ".jsonl"):
        raise BadInput("is no JSON", where=str(path), fix="state its format")
    return "text"


@lru_cache(maxsize=4)
def _read(file: str, form: str, digest: str) -> tuple[Entry, ...]:
    """All entries; `digest` makes a changed file another one."""
    try:
        text = Path(file).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"is not UTF-8 text (byte {error.start})", where=file) from None
    if form == "text":
        found = tuple(
            Entry((("user", line.rstrip("\r")),)) for line in text.split("\n") if line.strip()
        )
    else:
        make = _conversation if form == "sharegpt" else _row
        entries = (make(row, value, file) for row, value in _values(text, file))
        found = tuple(entry for entry in entries if entry is not None)
    if not found:
        raise BadInput("has no prompts", where=file)
    return found


def _fault(file: str, row: int, what: str) -> BadInput:
    return BadInput(what, where=f"{file}, row {row}", fix="correct or remove the row")


def _values(text: str, file: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row from 1, object) of a JSON list or of lines of JSON."""
    if text.lstrip().startswith("["):
        try:
            values = json.loads(text)
        except ValueError as error:
            raise BadInput(f"is no JSON: {error}", where=file) from None
    else:
        values = text.split("\n")
    for row, value in enumerate(values, start=1):
        found = value
        if isinstance(value, str):
            if not value.strip():
                continue
            try:
                found = json.loads(value)
            except ValueError:
                raise _fault(file, row, "is not JSON") from None
        if not isinstance(found, dict):
            raise _fault(file, row, "is not a JSON object")
        yield row, found


def _row(row: int, value: dict[str, Any], file: str) -> Entry:
    """A row with `prompt` or `messages`, and perhaps the length of its reply."""
    if ("prompt" in value) == ("messages" in value):
        raise _fault(file, row, "needs either 'prompt' or 'messages'")
    output = None
    for key in _LENGTH_KEYS:
        if value.get(key) is not None:
            output = value[key]
            whole = isinstance(output, int) and not isinstance(output, bool)
            if not whole or not 1 <= output <= MOST_TOKENS:
                raise _fault(file, row, f"{key} must be a whole number from 1, not {output!r}")
            break
    if "prompt" in value:
        if not isinstance(value["prompt"], str) or not value["prompt"].strip():
            raise _fault(file, row, "prompt must be a text that is not empty")
        return Entry((("user", value["prompt"]),), output)
    messages = value["messages"]
    if not isinstance(messages, list) or not messages:
        raise _fault(file, row, "messages must be a list that is not empty")
    said = []
    for one in messages:
        role = one.get("role") if isinstance(one, dict) else None
        content = one.get("content") if isinstance(one, dict) else None
        if not isinstance(role, str) or not isinstance(content, str):
            raise _fault(file, row, "a message needs role and content, both texts")
        said.append((role, content))
    return Entry(tuple(said), output)


def _conversation(row: int, value: dict[str, Any], file: str) -> Entry | None:
    """The first question of a conversation, what stands before it, and the length of its answer.

    None for a conversation without a question.
    """
    turns = value.get("conversations", value.get("conversation"))
    if not isinstance(turns, list):
        raise _fault(file, row, "has no list of conversations")
    said: list[tuple[str, str]] = []
    for turn in turns:
        speaker = turn.get("from") if isinstance(turn, dict) else None
        text = turn.get("value") if isinstance(turn, dict) else None
        if not isinstance(speaker, str) or not isinstance(text, str):
            raise _fault(file, row, "a turn needs 'from' and 'value', both texts")
        role = _ROLES.get(speaker)
        if role is None:
            raise _fault(file, row, f"'from' is human, gpt or system, not {speaker!r}")
        if role == "assistant" and any(r == "user" for r, _ in said):
            return Entry(tuple(said), estimated(len(text)))
        if role != "assistant":  # an answer before any question is nobody's
            said.append((role, text))
            if role == "user" and not text.strip():
                return None
    return Entry(tuple(said)) if any(r == "user" for r, _ in said) else None
