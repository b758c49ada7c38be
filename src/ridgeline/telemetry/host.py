"""What an engine's processes take from the host: CPU time and memory, by their role."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from ridgeline.telemetry.sampling import Reading

# In a process's title or command line -> its role. vLLM names its children so.
ROLES = (
    ("EngineCore", "engine core"),
    ("VLLM::Worker", "worker"),
    ("APIServer", "api server"),
    ("DPCoordinator", "coordinator"),
    ("vllm-router", "router"),
    ("resource_tracker", "helper"),
    ("compile_worker", "compiler"),
)
LOOK_AGAIN_S = 5.0  # for processes that came or went


MACHINE = "machine"  # the unit of what is read of the whole host


class HostProbe:
    """CPU (in cores) and resident memory (bytes) of each role below the given processes.

    `roots`: unit -> the id of the guard process whose only child is the engine; the guard itself
    is left out. Of the whole machine, where an engine of ours is on it: `busy_cores`, and
    `stolen_cores` on a virtual one, the cores that were wanted and that the hypervisor gave to
    others (`steal` of proc_stat(5)). The first reading has no CPU: it is a difference of two.
    """

    def __init__(self, roots: Mapping[str, int]) -> None:
        self._roots = roots
        self._found: list[tuple[str, Any]] = []
        self._looked_s = float("-inf")
        self._before: dict[int, tuple[float, float]] = {}
        self._machine_before: tuple[float, float, float] | None = None

    def read(self) -> Iterable[Reading]:
        """What they take now; a process that has ended is left out."""
        import psutil  # noqa: PLC0415

        if time.monotonic() - self._looked_s > LOOK_AGAIN_S:
            self._found = list(self._look())
            self._looked_s = time.monotonic()
        cores: dict[str, float] = defaultdict(float)
        memory: dict[str, float] = defaultdict(float)
        for unit, process in self._found:
            with contextlib.suppress(psutil.Error):
                with process.oneshot():
                    times = process.cpu_times()
                    memory[unit] += process.memory_info().rss
                now, used = time.monotonic(), times.user + times.system
                before = self._before.get(process.pid)
                self._before[process.pid] = now, used
                if before is not None and now > before[0]:
                    cores[unit] += (used - before[1]) / (now - before[0])
        yield from (Reading("host", unit, "cpu_cores", value) for unit, value in cores.items())
        yield from (Reading("host", unit, "memory_bytes", value) for unit, value in memory.items())
        if self._roots:
            yield from self._machine()

    def _machine(self) -> Iterable[Reading]:
        before, now = self._machine_before, _machine_seconds()
        self._machine_before = now
        if before is None or now is None or now[0] <= before[0]:
            return
        elapsed, busy, stolen = (b - a for a, b in zip(before, now, strict=True))
        yield Reading("host", MACHINE, "busy_cores", max(0.0, busy) / elapsed)
        yield Reading("host", MACHINE, "stolen_cores", max(0.0, stolen) / elapsed)

    def close(self) -> None:
        """Nothing to let go of."""

    def _look(self) -> Iterable[tuple[str, Any]]:
        import psutil  # noqa: PLC0415

        for unit, pid in self._roots.items():
            with contextlib.suppress(psutil.Error):
                guard = psutil.Process(pid)
                direct = {child.pid for child in guard.children()}
                for process in guard.children(recursive=True):
                    with contextlib.suppress(psutil.Error):
                        role = role_of(process.cmdline(), direct=process.pid in direct)
                        yield f"{unit}: {role}", process


def descendants() -> frozenset[int]:
    """The ids of all processes that we started, directly or not, and that still run."""
    import psutil  # noqa: PLC0415

    return frozenset(process.pid for process in psutil.Process().children(recursive=True))


def role_of(command: Iterable[str], *, direct: bool) -> str:
    """The role of a process by its title; `direct`: it is the one that was started."""
    text = " ".join(command)
    for word, role in ROLES:
        if word in text:
            return role
    return "api server" if direct else "other"


def listener(port: int) -> int | None:
    """The process that listens on a TCP port of this machine; None when it cannot be told."""
    import psutil  # noqa: PLC0415

    try:
        rows = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return None
    return next(
        (
            row.pid
            for row in rows
            if row.status == psutil.CONN_LISTEN and row.laddr and row.laddr.port == port and row.pid
        ),
        None,
    )


def whole_server(pid: int) -> int:
    """The process that started all of a server, of one that listens for it.

    Of several API servers that share a port any may be the one that is found to listen.
    """
    import psutil  # noqa: PLC0415

    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        parent = process.parent()
        if parent is not None and "APIServer_" in " ".join([process.name(), *process.cmdline()]):
            return int(parent.pid)
    return pid


class RoleClock:
    """CPU of a running server's processes by role, in cores: of the busiest one of each role.

    Nothing is told of a server whose engine core is no process of its own: one figure for both
    would be no one's.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._first: dict[int, tuple[float, float]] = {}
        self._last: dict[int, tuple[float, float]] = {}
        self._roles: dict[int, str] = {}
        self._words: dict[int, str] = {}
        self._host_first = self._host_last = (0.0, 0.0)

    def look(self) -> None:
        """Take the processes' times; called at the beginning, now and then, and at the end."""
        import psutil  # noqa: PLC0415

        self._host_last = _host_times()
        if not self._first:
            self._host_first = self._host_last
        with contextlib.suppress(psutil.Error):
            server = psutil.Process(self._pid)
            for process in (server, *server.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    times = process.cpu_times()
                    now = (time.monotonic(), times.user + times.system)
                    self._first.setdefault(process.pid, now)
                    self._last[process.pid] = now
                    if process.pid not in self._roles:
                        words = [process.name(), *process.cmdline()]
                        direct = process.pid == self._pid
                        self._roles[process.pid] = role_of(words, direct=direct)
                        self._words[process.pid] = " ".join(words)

    def cores(self) -> dict[str, float]:
        """Cores by role, between the first look and the last."""
        found: dict[str, float] = {}
        for pid, (begun, used) in self._first.items():
            ended, total = self._last[pid]
            if ended > begun:
                role = self._roles.get(pid, "other")
                found[role] = max(found.get(role, 0.0), (total - used) / (ended - begun))
        return found if "engine core" in found else {}

    @property
    def api_servers(self) -> int | None:
        """How many API servers there are. Several are called so; one alone is the server itself."""
        if "engine core" not in self._roles.values():
            return None
        return max(1, sum("APIServer" in words for words in self._words.values()))

    @property
    def host_idle(self) -> float | None:
        """Share of all the host's CPU time in which nothing ran, between the first look and the
        last."""
        if self._host_last[1] <= self._host_first[1]:
            return None
        idle, total = (b - a for a, b in zip(self._host_first, self._host_last, strict=True))
        return idle / total


def _machine_seconds() -> tuple[float, float, float] | None:
    """(now, busy, stolen) in seconds, the last two over all cores since the host was started; None
    where the system does not tell what was stolen."""
    import psutil  # noqa: PLC0415

    times = psutil.cpu_times()
    stolen = getattr(times, "steal", None)
    if stolen is None:
        return None
    idle, total = _host_times()
    return time.monotonic(), total - idle - stolen, stolen


def _host_times() -> tuple[float, float]:
    """(idle, all) CPU seconds of the host since it was started."""
    import psutil  # noqa: PLC0415

    times = psutil.cpu_times()
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # in user as well
    return times.idle + getattr(times, "iowait", 0.0), sum(times) - guests
