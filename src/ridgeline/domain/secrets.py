"""Keeping API keys out of everything that is stored or shown.

A server may quote the key that it refuses, so a key is masked wherever a server's words come in,
and once more where results go out. Words and variables that an engine is started with are kept with
every run, so a secret among them is found by its name (or its well-known form) and refused.
"""

import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

KEY_VARIABLES = ("RIDGELINE_API_KEY", "OPENAI_API_KEY")
PROMETHEUS_TOKEN = "RIDGELINE_PROMETHEUS_TOKEN"  # noqa: S105 - its name
MASK = "***"
SHORTEST = 4  # what is shorter is found in ordinary words; no service gives out such keys

_NAME = re.compile(
    r"secret|passw|credential|cookie|signature|authorization|(api|access|private|auth)[-_.]?(key|token)"
    r"|(^|[-_.])(auth|bearer|token|keys?|pat|pass|jwt|dsn)([-_.]\d+)?$"
    r"|passphrase|.[-_.]pwd$|(^|[-_.])token[-_.](read|write|ro|rw|admin)$",
    re.IGNORECASE,
)
_PLACE = re.compile(r"(file|path|dir|folder)$", re.IGNORECASE)  # where a secret lies is none
_FORM = re.compile(  # what the services that give them out begin them with; a password in a URL
    r"(?<![A-Za-z0-9])(hf_|sk-|ghp_|github_pat_|glpat-|nvapi-|xox[abp]-|AIza)[A-Za-z0-9_-]{16,}"
    r"|(?<![A-Za-z0-9])A[KS]IA[A-Z0-9]{16}|\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\."
    r"|[?&](X-Amz-(Signature|Credential|Security-Token)|X-Goog-Signature|Signature|sig)=[^&\s]"
    r"|\b(bearer|basic) +\S|://[^/@\s:]*:[^/@\s]+@",
    re.IGNORECASE,
)
_GIVEN = re.compile(  # NAME=value, --name=value, "name": "value"; a reference ($NAME) is no value
    r"""(?:^|[\s"'])-{0,2}([A-Za-z_][\w.-]*)(?:=["']?|"\s*:\s*")(?![$\s"']|$)"""
)
_FLAG = re.compile(r"--?([A-Za-z][\w.-]*)")


def secret_name(name: str) -> bool:
    """True when what bears this name (a variable, an option, a field) is likely to be a secret."""
    return _NAME.search(name) is not None and _PLACE.search(name) is None


def looks_secret(value: str) -> bool:
    """True when a text has the form of a known service's key, or holds a password."""
    return _FORM.search(value) is not None


def without_secrets(url: str) -> str:
    """A URL without its user's name and password, its query and its fragment."""
    return re.sub(r"://[^/@\s]*@", "://", re.split(r"[?#]", url, maxsplit=1)[0])


def secret_in_words(words: Sequence[str]) -> str | None:
    """The name under which command-line words hold a secret, "a value" for one known by its form.

    None when they hold none. Never the secret itself.
    """
    for i, word in enumerate(words):
        for found in _GIVEN.finditer(word):
            if secret_name(found[1]):
                return found[1]
        parts = [*word.split(), *words[i + 1 : i + 2]]
        for flag, value in itertools.pairwise(parts):
            if _is_secret_flag(flag) and value and not value.startswith(("-", "$")):
                return flag
        if looks_secret(word):
            return "a value"
    return None


def _is_secret_flag(word: str) -> bool:
    flag = _FLAG.fullmatch(word)
    return flag is not None and secret_name(flag[1])


def mask_words(words: Sequence[Any]) -> list[Any]:
    """Command-line words without the values of options that are named like secrets."""
    shown = list(words)
    for i, word in enumerate(shown):
        if not isinstance(word, str):
            continue
        flag, equals, _ = word.partition("=")
        if equals and secret_name(flag.lstrip("-")) and " " not in flag:
            shown[i] = f"{flag}={MASK}"
        before = words[i - 1] if i else None
        if isinstance(before, str) and _is_secret_flag(before) and not word.startswith("-"):
            shown[i] = MASK
    return shown


def mask_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Variables without the values of those that are named like secrets."""
    return {n: MASK if v and secret_name(str(n)) else v for n, v in variables.items()}


def mask(text: str, environment: Mapping[str, str] | None = None) -> str:
    """`text` without the keys in the environment (None: this process's), however they are quoted.

    A key of fewer than SHORTEST characters is masked only where it stands after "Bearer".
    """
    if environment is None:
        environment = os.environ
    for name in (*KEY_VARIABLES, PROMETHEUS_TOKEN):
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
    """A JSON value with every text in it masked, the names of its members included.

    So are values in a member `environment` and command-line words after an option, where the
    variable's or the option's name is that of a secret.
    """
    if environment is None:
        environment = os.environ
    if isinstance(value, str):
        return mask(value, environment)
    if isinstance(value, Mapping):
        variables = value.get("environment")
        if isinstance(variables, Mapping):
            value = {**value, "environment": mask_variables(variables)}
        return {mask_all(k, environment): mask_all(v, environment) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [mask_all(v, environment) for v in mask_words(value)]
    return value
