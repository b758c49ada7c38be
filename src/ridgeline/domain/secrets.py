"""Keeping API keys out of everything that is stored or shown.

A server may quote the key that it refuses, so a key is masked wherever a server's words come in,
and once more where results go out.
"""

import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

KEY_VARIABLES = ("RIDGELINE_API_KEY", "OPENAI_API_KEY")
MASK = "***"
SHORTEST = 4  # what is shorter is found in ordinary words; no service gives out such keys


def mask(text: str, environment: Mapping[str, str] | None = None) -> str:
    """`text` without the keys in the environment (None: this process's), however they are quoted.

    A key of fewer than SHORTEST characters is masked only where it stands after "Bearer".
    """
    if environment is None:
        environment = os.environ
    for name in KEY_VARIABLES:
        key = environment.get(name, "").strip()
        if not key:
            continue
        if len(key) < SHORTEST:
            text = text.replace(f"Bearer {key}", f"Bearer {MASK}")
            continue
        for form in {key, json.dumps(key)[1:-1], quote(key, safe="")}:
            text = text.replace(form, MASK)
    return text


def mask_all(value: Any, environment: Mapping[str, str] | None = None) -> Any:
    """A JSON value with every text in it masked, the names of its members included."""
    if environment is None:
        environment = os.environ
    if not any(environment.get(name, "").strip() for name in KEY_VARIABLES):
        return value
    if isinstance(value, str):
        return mask(value, environment)
    if isinstance(value, Mapping):
        return {mask_all(k, environment): mask_all(v, environment) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [mask_all(v, environment) for v in value]
    return value
