"""A server's URL as people write it, taken apart and checked: before anything of it is stored."""

import ipaddress
from urllib.parse import quote, urlsplit

from ridgeline.domain.errors import BadInput
from ridgeline.domain.secrets import without_secrets

_ENDINGS = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/v1")
LONGEST_HOST = 253  # RFC 1035, section 2.3.4


def base_url(text: str) -> tuple[str, str, int, str]:
    """(scheme, host, port, path) of a URL, with or without scheme and /v1.

    The path is "" or begins with "/" and ends before /v1. Raises BadInput that says what is wrong,
    without the password that a URL may hold.
    """
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        hostname = parts.hostname
    except ValueError as error:
        shown = repr(without_secrets(text))
        raise BadInput(
            f"is no URL ({str(error).lower()})", where=shown, fix="give it as http://HOST:PORT"
        ) from None
    if parts.username is not None or parts.password is not None:
        raise BadInput(
            "a URL with a user name or password would end up in stored results",
            where=f"{parts.scheme}://...@{hostname}",
            fix="give the key in RIDGELINE_API_KEY",
        )
    if parts.scheme not in ("http", "https"):
        raise BadInput(f"{parts.scheme!r} is not http or https", where=text, fix="give a base URL")
    try:
        port = parts.port
    except ValueError:
        raise BadInput("the port is not a number from 0 to 65535", where=text) from None
    if port == 0:
        raise BadInput("the port is not a number from 1 to 65535", where=text)
    if not hostname:
        raise BadInput("no host name", where=repr(text), fix="give it as http://HOST:PORT")
    if parts.query or parts.fragment:
        raise BadInput("a base URL has no query", where=text, fix="give it as http://HOST:PORT")
    host = _ascii_host(hostname, text)
    path = quote(parts.path, safe="/%:@!$&'()*+,;=~-._").rstrip("/")
    for ending in _ENDINGS:
        if path.endswith(ending):
            path = path.removesuffix(ending)
            break
    default = 443 if parts.scheme == "https" else 80
    return parts.scheme, host, port or default, path


def checked_url(text: str, place: str) -> str:
    """The text, where it is a URL of a server; raises BadInput that names the place that has it."""
    try:
        base_url(text)
    except BadInput as error:
        what = f"{error.where}: {error.what}"
        raise BadInput(what, where=place, fix=error.fix) from None
    return text


def _ascii_host(host: str, text: str) -> str:
    """A host name as it is looked up and sent; raises BadInput for what cannot be one."""
    try:
        if ":" in host:  # an IPv6 address, perhaps with a zone
            ipaddress.IPv6Address(host)
            return host
        found = host.encode("idna").decode("ascii")
        if len(found) > LONGEST_HOST or not found.isprintable() or " " in found:
            raise ValueError
    except ValueError:  # UnicodeError is one
        short = host if len(host) <= 40 else f"{host[:40]}..."
        raise BadInput(
            f"{short!r} is no host name",
            where=repr(text if len(text) <= 80 else f"{text[:80]}..."),
            fix="check the address",
        ) from None
    return found
