"""What goes with every request besides its prompt: sampling, more body fields, headers.

Checked here once for study file and command line. What Ridgeline sets itself cannot be set, and no
header may hold a secret: results keep the headers, and the API key comes from the environment.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from ridgeline.domain.errors import BadInput, nearest

# Name -> (kind, least, most); those of the OpenAI API and vLLM's additions to it.
SAMPLING: Mapping[str, tuple[type, float, float]] = {
    "temperature": (float, 0.0, 100.0),
    "top_p": (float, 1e-9, 1.0),
    "top_k": (int, -1, 10_000_000),
    "min_p": (float, 0.0, 1.0),
    "seed": (int, -(1 << 63), (1 << 63) - 1),
    "presence_penalty": (float, -2.0, 2.0),
    "frequency_penalty": (float, -2.0, 2.0),
    "repetition_penalty": (float, 1e-9, 100.0),
}
OURS = ("model", "messages", "prompt", "stream", "stream_options", "max_tokens",
        "max_completion_tokens", "ignore_eos", "priority", "n")  # fmt: skip
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_OWN_HEADERS = ("host", "user-agent", "accept", "content-type", "content-length",
                "transfer-encoding", "connection", "expect", "upgrade")  # fmt: skip
_SECRET = re.compile(r"auth|token|secret|passw|cookie|credential|api.?key|signature")
KEY_FROM = "the API key comes from RIDGELINE_API_KEY or OPENAI_API_KEY alone"


def check_sampling(values: Mapping[str, Any], where: str | None = None) -> dict[str, Any]:
    """The sampling parameters as they are sent. Raises BadInput for an unknown or absurd one."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name == "stop":
            texts = [value] if isinstance(value, str) else value
            if (
                not isinstance(texts, list)
                or not texts
                or not all(isinstance(t, str) and t for t in texts)
            ):
                raise BadInput("stop must be a text or a list of texts", where=where)
            found[name] = texts
            continue
        if name not in SAMPLING:
            hint = nearest(name, [*SAMPLING, "stop"])
            raise BadInput(f"unknown sampling parameter {name!r}{hint}", where=where)
        kind, low, high = SAMPLING[name]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or (kind is int and value != int(value)) or not low <= value <= high:
            what = "a whole number" if kind is int else "a number"
            raise BadInput(f"{name} must be {what} from {low:g} to {high:g}, not {value!r}",
                           where=where)  # fmt: skip
        found[name] = kind(value)
    return found


def check_extra_body(value: Any, where: str | None = None) -> dict[str, Any]:
    """More fields of the body. Raises BadInput for what is no object or set by Ridgeline."""
    if not isinstance(value, Mapping):
        raise BadInput('must be a JSON object, as in {"chat_template_kwargs": {...}}', where=where)
    for name in value:
        if name in OURS:
            raise BadInput(f"{name} is set by Ridgeline itself", where=where, fix="leave it out")
        if _SECRET.search(str(name).lower()) and isinstance(value[name], str):
            raise BadInput(f"{name} looks like a secret, and results keep the body's fields",
                           where=where, fix=KEY_FROM)  # fmt: skip
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise BadInput(f"is no JSON: {error}", where=where) from None
    found: dict[str, Any] = json.loads(text)
    return found


def parse_extra_body(text: str, where: str) -> dict[str, Any]:
    """The same from its JSON text."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadInput(f"is no JSON: {error}", where=where) from None
    return check_extra_body(value, where)


def check_headers(values: Mapping[str, str], where: str | None = None) -> dict[str, str]:
    """More headers. Raises BadInput for one that is none, is Ridgeline's own, or holds a secret."""
    for name, value in values.items():
        if not _HEADER.fullmatch(name):
            raise BadInput(f"{name!r} is no header's name", where=where)
        if not value.isascii() or not value.isprintable():
            raise BadInput(f"the value of {name} must be printable ASCII", where=where)
        if name.lower() in _OWN_HEADERS:
            raise BadInput(f"{name} is set by Ridgeline itself", where=where, fix="leave it out")
        if _SECRET.search(name.lower()) or value.lower().startswith(("bearer ", "basic ")):
            raise BadInput(
                f"{name} holds a secret, and results keep the headers", where=where, fix=KEY_FROM
            )
    return dict(values)


def parse_headers(texts: list[str], where: str) -> dict[str, str]:
    """Headers from "K=V" texts."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:  # what was typed may be a secret: it is not repeated
            raise BadInput("a header is given as NAME=VALUE", where=where)
        if name in found:
            raise BadInput(f"{name} is given twice", where=where)
        found[name.strip()] = value.strip()
    return check_headers(found, where)
