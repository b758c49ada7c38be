"""Reading a running server again and again: its pages, /health, and CPU where it runs here."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ridgeline.diagnosis.gathering import Snapshot
from ridgeline.diagnosis.saved import parsed, stamped
from ridgeline.domain.errors import BadInput, EndpointError
from ridgeline.load.address import Address
from ridgeline.telemetry.host import RoleClock, listener, whole_server
from ridgeline.telemetry.prometheus import Scrape, merged

PAGES = ("/metrics", "/prometheus/metrics")  # the second is TensorRT-LLM's
TIMEOUT_S = 5.0
MOST_READINGS = 61
CORE = "engine core"
SICK = 500  # a status of /health from which on the engine is dead; 404: it has no such page


@dataclass(slots=True)
class Watched:
    """What was read: snapshots, CPU cores by role (a server on this machine), the
    pages of each as text, by its place.

    unread: servers whose pages were not had, most of the time or at the end. sick: those whose
    /health says SICK or more. closed: those to which no connection can be made, and why.
    api_servers: processes of a server on this machine; host_idle: the share of this machine's CPU
    time in which nothing ran.
    """

    snapshots: list[Snapshot] = field(default_factory=list)
    cores: dict[str, float] = field(default_factory=dict)
    texts: dict[int, list[str]] = field(default_factory=dict)
    gpu_pages: list[Scrape] = field(default_factory=list)
    trouble: str | None = None
    unread: tuple[str, ...] = ()
    sick: tuple[str, ...] = ()
    api_servers: int | None = None
    host_idle: float | None = None
    closed: dict[str, str] = field(default_factory=dict)


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
            html = status == 200 and body.lstrip().startswith(b"<")
            what = "a web page (HTML), of a proxy or a login?" if html else f"HTTP {status}"
            self.trouble = self.trouble or f"{self.address.url}{path}: {what}"
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
    rows: list[_Row] = []
    clock = _clock_of(addresses)
    begun = time.monotonic()
    for step in range(steps + 1):
        time.sleep(max(0.0, begun + step * seconds / steps - time.monotonic()))
        rows.append(_row(servers, found, with_health=step in (0, steps)))
        if clock is not None:
            clock.look()
        page = None if gpu is None else gpu()
        if page is not None:
            found.gpu_pages.append(page)
        said(step, steps)
        if step == 0 and not any(rows[0].pages) and not any(rows[0].health):
            break  # nobody is there
    if clock is not None:
        found.cores = clock.cores()
        found.api_servers = clock.api_servers
        if CORE in found.cores:  # else it is a forwarder to another host that listens here
            found.host_idle = clock.host_idle
    _put_together(servers, rows, found)
    if not any(any(row.pages) for row in rows):
        found.closed = _closed(addresses)
    found.trouble = next((s.trouble for s in servers if s.trouble is not None), None)
    return found


def _closed(addresses: Sequence[Address]) -> dict[str, str]:
    """Those that take no connection: of them it is no question of metrics."""
    found = {}
    for address in addresses:
        try:
            address.site(TIMEOUT_S)
        except EndpointError as error:
            found[address.url] = error.what
    return found


@dataclass(frozen=True, slots=True)
class _Row:
    """One reading of all servers."""

    at_s: float
    pages: list[Scrape | None]
    health: list[int | None]


def _row(servers: Sequence[Server], found: Watched, *, with_health: bool) -> _Row:
    texts = [server.read() for server in servers]
    at = time.monotonic()
    health = [server.health() if with_health else None for server in servers]
    pages: list[Scrape | None] = []
    for text, server in zip(texts, servers, strict=True):
        try:
            pages.append(None if text is None else parsed(text, server.address.url))
        except BadInput as error:
            server.trouble = str(error)
            pages.append(None)
    for place, text in enumerate(texts):
        if text is not None:
            found.texts.setdefault(place, []).append(stamped(text, time.time()))
    return _Row(at, pages, health)


def _put_together(servers: Sequence[Server], rows: Sequence[_Row], found: Watched) -> None:
    """Readings of all servers as one each time, without those that mostly or at last told none.

    These are named, and the others are looked at all the same.
    """
    gone = {
        place for place in range(len(servers))
        if rows[-1].pages[place] is None
        or 2 * sum(row.pages[place] is None for row in rows) > len(rows)
    }  # fmt: skip
    without = gone if len(gone) < len(servers) else set()
    for row in rows:
        page = row.pages[0] if len(servers) == 1 else merged(row.pages, without)
        told = [status for status in row.health if status is not None]
        found.snapshots.append(Snapshot(row.at_s, page, max(told, default=None)))
    found.unread = tuple(servers[place].address.url for place in sorted(gone))
    found.sick = tuple(
        server.address.url for server, status in zip(servers, rows[-1].health, strict=True)
        if (status or 0) >= SICK
    )  # fmt: skip


def _clock_of(addresses: Sequence[Address]) -> RoleClock | None:
    """CPU of a single server on this machine, None for another one."""
    if len(addresses) != 1 or addresses[0].host not in ("127.0.0.1", "localhost", "::1"):
        return None
    pid = listener(addresses[0].port)
    return None if pid is None else RoleClock(whole_server(pid))
