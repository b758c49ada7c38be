"""Prompts from a file: plain lines, JSONL rows, conversations in the ShareGPT form, sessions.

A row is one request, whole as it stands: messages that carry a talk's past are sent as they are,
and nothing is appended to them. Token counts of texts are not known before a server has seen them:
they are planned as promptrow.CHARACTERS_PER_TOKEN characters a token.
"""

import hashlib
import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from ridgeline.domain.errors import BadInput
from ridgeline.domain.workload import PromptFile
from ridgeline.workload.promptrow import Entry, estimated
from ridgeline.workload.promptrow import row_fault as _fault
from ridgeline.workload.sessionfiles import SessionRow, Talks, talks_of

FORMATS = ("text", "jsonl", "sharegpt", "sessions")
MOST_BYTES = 2 << 30
MOST_TOKENS = 10_000_000
_ROLES = {"human": "user", "user": "user", "system": "system", "gpt": "assistant",
          "chatgpt": "assistant", "assistant": "assistant", "bing": "assistant"}  # fmt: skip
_LENGTH_KEYS = ("output_tokens", "output_length", "max_tokens")
_INPUT_KEYS = ("prompt_tokens", "input_length")
_SESSION_KEYS = ("session", "session_id", "conversation_id")


def open_prompts(
    path: Path, form: str | None = None, *, salted: bool = True, history: str | None = None
) -> PromptFile:
    """Read a file of prompts once and describe it. Raises BadInput naming file and row.

    history: of a file of sessions, "cumulative" or "incremental"; None: as its rows show.
    """
    data = _bytes_of(path)
    form = form or _format_of(path, data)
    digest = hashlib.sha256(data).hexdigest()[:16]
    talks = None
    if form == "sessions":
        talks = _talks(str(path), history, digest)
        entries = talks.entries
    elif history is not None:
        raise BadInput("history belongs to a file of sessions", where=str(path),
                       fix='rows with a "session", or leave it out')  # fmt: skip
    else:
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
        history=None if talks is None else talks.history,
        carried=talks is not None and talks.carried,
        turns=(0, 0) if talks is None else (min(talks.turns), max(talks.turns)),
        longest_whole=0 if talks is None else talks.longest_whole,
    )


def entries_of(file: PromptFile) -> tuple[Entry, ...]:
    """The prompts of a described file. Raises BadInput when it is another one now."""
    _check_same(file)
    if file.history is not None:
        return _talks(file.file, file.history, file.digest).entries
    return _read(file.file, file.format, file.digest)


def turns_of(file: PromptFile) -> tuple[int, ...]:
    """How many turns each session of a described file has. Raises as `entries_of` does."""
    _check_same(file)
    return _talks(file.file, file.history, file.digest).turns


def _check_same(file: PromptFile) -> None:
    if hashlib.sha256(_bytes_of(Path(file.file))).hexdigest()[:16] != file.digest:
        raise BadInput("is another file than when the study was read", where=file.file)


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
        first = start.partition(b"\n")[0]
        return "sessions" if any(b'"%b"' % k.encode() in first for k in _SESSION_KEYS) else "jsonl"
    if path.suffix in (".json", ".jsonl"):
        raise BadInput("is no JSON", where=str(path), fix="state its format")
    return "text"


def _text_of(file: str) -> str:
    try:
        return Path(file).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"is not UTF-8 text (byte {error.start})", where=file) from None


@lru_cache(maxsize=4)
def _talks(file: str, history: str | None, digest: str) -> Talks:
    """The sessions of a file; `digest` makes a changed file another one."""
    rows = [_session_row(row, value, file) for row, value in _values(_text_of(file), file)]
    if not rows:
        raise BadInput("has no prompts", where=file)
    return talks_of(rows, file, history)


def _session_row(row: int, value: dict[str, Any], file: str) -> SessionRow:
    """A row with its session and a prompt, messages or a length."""
    names = [value[key] for key in _SESSION_KEYS if value.get(key) is not None]
    if not names or not isinstance(names[0], str | int):
        raise _fault(file, row, "needs 'session', a text or a number")
    lengths = [key for key in _INPUT_KEYS if key in value]
    if not lengths or "prompt" in value or "messages" in value:
        return SessionRow(row, str(names[0]), _row(row, value, file))
    tokens = _whole(value[lengths[0]], lengths[0], row, file)
    return SessionRow(row, str(names[0]), Entry((), _output_of(row, value, file), tokens))


@lru_cache(maxsize=4)
def _read(file: str, form: str, digest: str) -> tuple[Entry, ...]:
    """All entries; `digest` makes a changed file another one."""
    text = _text_of(file)
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


def _output_of(row: int, value: dict[str, Any], file: str) -> int | None:
    found = [key for key in _LENGTH_KEYS if value.get(key) is not None]
    return _whole(value[found[0]], found[0], row, file) if found else None


def _whole(value: Any, key: str, row: int, file: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_TOKENS:
        raise _fault(file, row, f"{key} must be a whole number from 1, not {value!r}")
    return value


def _row(row: int, value: dict[str, Any], file: str) -> Entry:
    """A row with `prompt` or `messages`, and perhaps the length of its reply."""
    if ("prompt" in value) == ("messages" in value):
        raise _fault(file, row, "needs either 'prompt' or 'messages'")
    output = _output_of(row, value, file)
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
