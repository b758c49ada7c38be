"""Reading a running server again and again: its pages, /health, and CPU where it runs here."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ridgeline.diagnosis.gathering import Snapshot
from ridgeline.diagnosis.saved import parsed, stamped
from ridgeline.domain.errors import BadInput, EndpointError
from ridgeline.load.address import Address
from ridgeline.telemetry.host import RoleClock, listener
from ridgeline.telemetry.prometheus import Scrape, merged

PAGES = ("/metrics", "/prometheus/metrics")  # the second is TensorRT-LLM's
TIMEOUT_S = 5.0
MOST_READINGS = 61


@dataclass(slots=True)
class Watched:
    """What was read: snapshots, CPU cores by role (a server on this machine), pages as text."""

    snapshots: list[Snapshot] = field(default_factory=list)
    cores: dict[str, float] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    gpu_pages: list[Scrape] = field(default_factory=list)
    trouble: str | None = None


class Server:
    """One base URL. `read` never raises: what cannot be had is None."""

    def __init__(self, address: Address, headers: dict[str, str]) -> None:
        self.address = address
        self._headers = headers
        self._path: str | None = None
        self.trouble: str | None = None

    def read(self) -> str | None:
        """Its page of metrics as text."""
        self.trouble = None
        for path in (self._path,) if self._path else PAGES:
            try:
                status, _, body = self.address.get(path, self._headers, TIMEOUT_S)
            except EndpointError as error:
                self.trouble = str(error)
                return None
            if status == 200 and not body.lstrip().startswith((b"{", b"[", b"<")):
                self._path = path
                return body.decode("utf-8", errors="replace")
            self.trouble = self.trouble or f"{self.address.url}{path}: HTTP {status}"
        return None

    def health(self) -> int | None:
        """The status of /health."""
        try:
            return self.address.get("/health", self._headers, TIMEOUT_S)[0]
        except EndpointError:
            return None


def watch(
    addresses: Sequence[Address],
    headers: dict[str, str],
    seconds: float,
    *,
    gpu: Callable[[], Scrape | None] | None = None,
    said: Callable[[int, int], None] = lambda done, of: None,
) -> Watched:
    """Read the servers about once a second for so many seconds, at least twice.

    Several servers are read as one: their engines stand side by side.
    """
    servers = [Server(address, headers) for address in addresses]
    steps = max(1, min(MOST_READINGS - 1, round(seconds)))
    found = Watched()
    clock = _clock_of(addresses)
    begun = time.monotonic()
    for step in range(steps + 1):
        time.sleep(max(0.0, begun + step * seconds / steps - time.monotonic()))
        found.snapshots.append(_snapshot(servers, found, with_health=step in (0, steps)))
        if clock is not None:
            clock.look()
        page = None if gpu is None else gpu()
        if page is not None:
            found.gpu_pages.append(page)
        said(step, steps)
        if step == 0 and found.snapshots[0].page is None and found.snapshots[0].health is None:
            break  # nobody is there
    if clock is not None:
        found.cores = clock.cores()
    found.trouble = next((s.trouble for s in servers if s.trouble is not None), None)
    return found


def _snapshot(servers: Sequence[Server], found: Watched, *, with_health: bool) -> Snapshot:
    texts = [server.read() for server in servers]
    at = time.monotonic()
    health = servers[0].health() if with_health else None
    pages: list[Scrape | None] = []
    for text, server in zip(texts, servers, strict=True):
        try:
            pages.append(None if text is None else parsed(text, server.address.url))
        except BadInput as error:
            server.trouble = str(error)
            pages.append(None)
    found.texts += [stamped(text, time.time()) for text in texts if text is not None]
    page = pages[0] if len(pages) == 1 else merged(pages)
    return Snapshot(at, page, health)


def _clock_of(addresses: Sequence[Address]) -> RoleClock | None:
    """CPU of a single server on this machine, None for another one."""
    if len(addresses) != 1 or addresses[0].host not in ("127.0.0.1", "localhost", "::1"):
        return None
    pid = listener(addresses[0].port)
    return None if pid is None else RoleClock(pid)
