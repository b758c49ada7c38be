"""Credentials for a Prometheus: from a file or the environment, never from the command line."""

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ridgeline.domain.errors import BadInput
from ridgeline.domain.secrets import MASK, PROMETHEUS_TOKEN, mask

MOST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Credentials:
    """Headers to send, and the secrets in them, which are taken out of whatever is shown."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def __bool__(self) -> bool:
        return bool(self.headers)

    def masked(self, text: str) -> str:
        """A server's words without what it may quote of them."""
        for secret in self.secrets:
            text = text.replace(secret, MASK)
        return mask(text)


def credentials(token_file: Path | None, user_file: Path | None) -> Credentials:
    """Of a file with a bearer token, or one with USER:PASSWORD, or $RIDGELINE_PROMETHEUS_TOKEN.

    A file goes before the variable. Raises BadInput, which never quotes what a file holds.
    """
    if token_file is not None and user_file is not None:
        raise BadInput(
            "a token and a password", where="--prometheus-token-file",
            fix="give one of --prometheus-token-file and --prometheus-user-file",
        )  # fmt: skip
    if user_file is not None:
        return _basic(user_file)
    if token_file is not None:
        return _bearer(_line(token_file), str(token_file))
    token = os.environ.get(PROMETHEUS_TOKEN, "").strip()
    return _bearer(token, PROMETHEUS_TOKEN) if token else Credentials()


def _bearer(token: str, where: str) -> Credentials:
    if not token.isascii() or not token.isprintable() or " " in token:
        raise BadInput("holds no token: one word of plain characters is one", where=where)
    return Credentials({"Authorization": f"Bearer {token}"}, (token,))


def _basic(file: Path) -> Credentials:
    line = _line(file)
    user, colon, password = line.partition(":")
    if not colon or not user or not password:
        raise BadInput("holds no user and password", where=str(file),
                       fix="write one line USER:PASSWORD")  # fmt: skip
    word = base64.b64encode(line.encode()).decode("ascii")
    return Credentials({"Authorization": f"Basic {word}"}, (word, password))


def _line(file: Path) -> str:
    """The only line of a file."""
    try:
        with file.open("rb") as opened:
            text = opened.read(MOST_BYTES).decode("utf-8").strip()
    except UnicodeDecodeError:
        raise BadInput("is no text", where=str(file)) from None
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise BadInput(f"cannot be read ({why})", where=str(file)) from None
    if not text or len(text.splitlines()) != 1:
        raise BadInput("must hold just one line", where=str(file))
    return text
