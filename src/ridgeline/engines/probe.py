"""Who answers at a URL: its models and limits, or one clear line about what is wrong with it."""

import json
import os
from dataclasses import dataclass
from typing import Any

from ridgeline.domain.errors import BadInput, EndpointError, nearest
from ridgeline.load.address import Address
from ridgeline.load.openai import reply_text

TIMEOUT_S = 10.0
KEY_VARIABLES = ("RIDGELINE_API_KEY", "OPENAI_API_KEY")


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
    names = tuple(entry["id"] for entry in entries)
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
    limit, owner = entry.get("max_model_len"), entry.get("owned_by")
    return ServerInfo(
        model=entry["id"],
        served=names,
        max_model_len=limit if isinstance(limit, int) and limit > 0 else None,
        engine=owner if isinstance(owner, str) and owner else None,
        version=_version(address, headers),
    )


def refusal(
    address: Address, status: int, kind: str, body: bytes, *, has_key: bool
) -> EndpointError:
    """The error for a status that is not 200."""
    text = f"HTTP {status}"
    if kind != "text/html" and body:
        text += f" ({reply_text(body)})"
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
    entries = [
        entry
        for entry in (data if isinstance(data, list) else [])
        if isinstance(entry, dict) and isinstance(entry.get("id"), str)
    ]
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
    version = value.get("version") if isinstance(value, dict) else None
    return version if isinstance(version, str) else None
