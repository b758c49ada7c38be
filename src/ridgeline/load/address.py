"""A server's address: the URL as people write it, resolved; and single plain requests to it."""

import http.client
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.domain.baseurl import base_url
from ridgeline.domain.errors import EndpointError
from ridgeline.load.http import Site

_PAGE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Address:
    """A base URL, taken apart. `path` is "" or begins with "/" and ends before /v1."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def url(self) -> str:
        """The base URL without /v1."""
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def authority(self) -> str:
        """What goes into the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.scheme == "https" else 80
        return host if self.port == default else f"{host}:{self.port}"

    def tls(self) -> ssl.SSLContext | None:
        """A verifying context for https, None for http."""
        return ssl.create_default_context() if self.scheme == "https" else None

    def site(self, timeout_s: float) -> Site:
        """Resolve the name and find an address that takes a connection.

        Raises EndpointError with the reason of the last address tried.
        """
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise EndpointError(
                f"the host name cannot be resolved ({error.strerror or error})",
                where=self.url,
                fix="check the address",
            ) from None
        reason = "no address"
        for family, kind, _, _, address in found:
            with socket.socket(family, kind) as probe:
                probe.settimeout(timeout_s)
                try:
                    probe.connect(address)
                except TimeoutError:
                    reason = f"no connection within {timeout_s:g} s"
                except OSError as error:
                    reason = os.strerror(error.errno).lower() if error.errno else str(error)
                else:
                    return Site(family, address, self.host, self.url, self.tls())
        raise EndpointError(
            f"cannot be reached ({reason})",
            where=self.url,
            fix="is the server running, and is this its address?",
        )

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """A connection to it, TLS where the scheme says so; nothing is sent yet."""
        if self.scheme == "https":
            return http.client.HTTPSConnection(
                self.host, self.port, timeout=timeout_s, context=self.tls()
            )
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)

    def get(
        self,
        path: str,
        headers: Mapping[str, str],
        timeout_s: float,
        most_bytes: int = _PAGE_BYTES,
    ) -> tuple[int, str, bytes]:
        """GET base + path; (status, content type, body up to most_bytes). Raises EndpointError."""
        connection = self.connection(timeout_s)
        try:
            connection.request("GET", self.path + path, headers=dict(headers))
            reply = connection.getresponse()
            return reply.status, reply.headers.get_content_type(), reply.read(most_bytes)
        except TimeoutError:
            text, fix = f"GET {path} got no answer within {timeout_s:g} s", "is the server ready?"
        except ssl.SSLError as error:
            text, fix = f"TLS failed ({error.reason or error})", "check the scheme and certificate"
        except (OSError, http.client.HTTPException) as error:
            text, fix = f"GET {path} failed ({str(error) or type(error).__name__})", "is it HTTP?"
        finally:
            connection.close()
        raise EndpointError(text, where=self.url, fix=fix)


class Asker:
    """Small POST requests to one address over one kept connection; nothing it does raises."""

    def __init__(self, address: Address, headers: Mapping[str, str], timeout_s: float = 10.0):
        self._headers = {**headers, "Content-Type": "application/json"}
        self._path = address.path
        self._connection: http.client.HTTPConnection
        if address.scheme == "https":
            self._connection = http.client.HTTPSConnection(
                address.host, address.port, timeout=timeout_s, context=address.tls()
            )
        else:
            self._connection = http.client.HTTPConnection(
                address.host, address.port, timeout=timeout_s
            )

    def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """(status, body up to 4 MiB); status 0 when there was no answer."""
        try:
            self._connection.request("POST", self._path + path, body, self._headers)
            reply = self._connection.getresponse()
            return reply.status, reply.read(_PAGE_BYTES)
        except (OSError, http.client.HTTPException):
            self._connection.close()
            return 0, b""

    def close(self) -> None:
        """Give the connection up."""
        self._connection.close()


def parse_address(text: str) -> Address:
    """Read a URL, with or without scheme and /v1; raises BadInput that says what is wrong."""
    return Address(*base_url(text))
