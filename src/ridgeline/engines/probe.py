"""Who answers at a URL: its models and limits, or one clear line about what is wrong with it."""

import json
import os
import sys
from dataclasses import dataclass
from typing import Any

from ridgeline.domain.errors import BadInput, EndpointError, nearest
from ridgeline.domain.secrets import KEY_VARIABLES, SHORTEST, mask
from ridgeline.load.address import Address
from ridgeline.load.openai import reply_text

TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says about itself; None = it does not say. max_model_len in tokens."""

    model: str
    served: tuple[str, ...]
    max_model_len: int | None
    engine: str | None
    version: str | None


def api_key_from_environment() -> str | None:
    """The API key, from the environment only; raises BadInput for one that is no header value."""
    for name in KEY_VARIABLES:
        key = os.environ.get(name, "").strip()
        if key:
            if not key.isascii() or not key.isprintable():
                raise BadInput("the API key has characters that no key has", where=name)
            if len(key) < SHORTEST:
                raise BadInput(
                    f"an API key of fewer than {SHORTEST} characters cannot be kept out of results",
                    where=name,
                    fix="unset it if the server wants none",
                )
            return key
    return None


def auth_headers(api_key: str | None) -> dict[str, str]:
    """The headers that carry the key."""
    return {} if api_key is None else {"Authorization": f"Bearer {api_key}"}


def probe(address: Address, model: str | None, api_key: str | None) -> ServerInfo:
    """Ask /v1/models and /version. `model` None: the first served one is taken.

    Raises EndpointError or BadInput, each one line that names the URL and what to do.
    """
    headers = auth_headers(api_key)
    status, kind, body = address.get("/v1/models", headers, TIMEOUT_S)
    if status == 404 and model is not None and kind != "text/html":
        return ServerInfo(model, (), None, None, _version(address, headers))
    if status != 200:
        raise refusal(address, status, kind, body, has_key=api_key is not None)
    entries = _models(address, kind, body)
    names = tuple(mask(entry["id"]) for entry in entries)
    if model is None:
        entry = entries[0]
    elif model in names:
        entry = entries[names.index(model)]
    else:
        raise BadInput(
            f"model {model!r} is not served here{nearest(model, names)}",
            where=address.url,
            fix=f"it serves {', '.join(names)}",
        )
    return ServerInfo(
        model=entry["id"],
        served=names,
        max_model_len=_length(entry.get("max_model_len")),
        engine=_plain(entry.get("owned_by")),
        version=_version(address, headers),
    )


def _length(value: object) -> int | None:
    """A number of tokens (true and false are none, though Python counts with them)."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < sys.maxsize:
        return value
    return None


def _plain(value: object) -> str | None:
    """A short word of the server's own, None when it is not one that can be shown and stored."""
    if isinstance(value, str) and value and value.isprintable() and len(value) <= 200:
        return mask(value)
    return None


def refusal(
    address: Address, status: int, kind: str, body: bytes, *, has_key: bool
) -> EndpointError:
    """The error for a status that is not 200."""
    text = f"HTTP {status}"
    if kind != "text/html" and body:
        text += f" ({mask(reply_text(body))})"
    if status in (401, 403):
        fix = "the API key is not accepted" if has_key else "set RIDGELINE_API_KEY"
    elif status == 404:
        fix = "is this the base URL of an OpenAI-compatible server?"
    elif status == 429:
        fix = "the server limits the rate of requests; wait, or raise its limit"
    elif status >= 500:
        fix = "the server is not well: look into its log"
    else:
        fix = "is this an OpenAI-compatible server?"
    return EndpointError(text, where=f"{address.url}/v1/models", fix=fix)


def _models(address: Address, kind: str, body: bytes) -> list[dict[str, Any]]:
    where = f"{address.url}/v1/models"
    try:
        value = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        what = "a web page" if kind == "text/html" else f"{kind}, not JSON"
        raise EndpointError(
            f"answers with {what}", where=where, fix="give the base URL of the API"
        ) from None
    data = value.get("data") if isinstance(value, dict) else None
    named = [
        entry
        for entry in (data if isinstance(data, list) else [])
        if isinstance(entry, dict) and isinstance(entry.get("id"), str)
    ]
    # A name goes to the terminal and into pages: one with control characters is not asked for.
    entries = [entry for entry in named if entry["id"].isprintable() and entry["id"]]
    if named and not entries:
        raise EndpointError(
            "names its model with control characters, or not at all",
            where=where,
            fix="serve it under a plain name",
        )
    if not entries:
        raise EndpointError(
            "lists no model", where=where, fix="is this an OpenAI-compatible server?"
        )
    return entries


def _version(address: Address, headers: dict[str, str]) -> str | None:
    """What /version says, None where there is none: few servers but vLLM have it."""
    try:
        status, _, body = address.get("/version", headers, TIMEOUT_S)
        value = json.loads(body.decode("utf-8")) if status == 200 else None
    except (EndpointError, ValueError, RecursionError):
        return None
    return _plain(value.get("version")) if isinstance(value, dict) else None
