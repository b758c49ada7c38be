"""The API key of what is served: from the environment or a file, and nowhere else.

vLLM reads it from VLLM_API_KEY, so that it stands on no command line. A router passes the client's
own header on.
"""

import ipaddress
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from ridgeline.domain.errors import BadInput
from ridgeline.domain.secrets import MASK, SHORTEST

VARIABLE = "VLLM_API_KEY"


def key_of(
    name: str | None, file: Path | None, environment: Mapping[str, str] | None = None
) -> str | None:
    """The key from the variable `name` or from `file`; with neither, vLLM's own variable.

    None: there is none. Raises BadInput for one that is missing, empty, short or no header value.
    """
    environment = os.environ if environment is None else environment
    if name is not None and file is not None:
        raise BadInput("give one of --api-key-env and --api-key-file", where="--api-key-file")
    if file is not None:
        return _checked(_read(file), f"--api-key-file {file}")
    if name is not None:
        if name not in environment:
            raise BadInput(f"there is no variable {name}", where="--api-key-env", fix="export it")
        return _checked(environment[name], f"--api-key-env {name}")
    found = environment.get(VARIABLE, "").strip()
    return _checked(found, VARIABLE) if found else None


def _read(file: Path) -> str:
    try:
        mode = file.stat().st_mode
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise BadInput(f"cannot be read: {why}", where=f"--api-key-file {file}") from None
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        raise BadInput(
            "others than its owner can read it", where=f"--api-key-file {file}",
            fix=f"chmod 600 {file}",
        )  # fmt: skip
    return text


def _checked(text: str, where: str) -> str:
    key = text.strip()
    if len(key) < SHORTEST:
        raise BadInput(f"is no key of {SHORTEST} characters or more", where=where)
    if not key.isascii() or not key.isprintable() or " " in key:
        raise BadInput("the key has characters that no key has", where=where)
    return key


def is_loopback(host: str) -> bool:
    """True when only this machine reaches what listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_host(host: str, key: str | None, *, allow_no_key: bool) -> None:
    """Refuse to be reachable from elsewhere without a key. Raises BadInput."""
    if is_loopback(host) or key is not None or allow_no_key:
        return
    raise BadInput(
        f"{host} can be reached from other machines, and there is no API key", where="--host",
        fix="give --api-key-env NAME or --api-key-file FILE, or --allow-no-key",
    )  # fmt: skip


def without_key(text: str, key: str | None) -> str:
    """`text` without the key, however it is quoted."""
    if key is not None:
        for form in {key, json.dumps(key)[1:-1], quote(key, safe="")}:
            text = text.replace(form, MASK)
    return text
