"""The mock servers as processes of their own, pinned to a core, with their load watched."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from array import array
from pathlib import Path
from types import TracebackType

from benchmarks.client.replies import pages, prebuilt

SOURCE = Path(__file__).with_name("null_server.c")
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
CORE = min(os.sched_getaffinity(0))


def compiled(folder: Path) -> Path | None:
    """The null server in C, built into `folder`; None where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    program = folder / "null_server"
    done = subprocess.run([compiler, "-O2", "-o", program, SOURCE], check=False)
    return program if done.returncode == 0 else None


class Mock:
    """A running server; a context manager. `url` is its base, `kind` says what it is.

    `busy(begin_ns, end_ns)` is the share of a core that it used between two monotonic times.
    """

    def __init__(self, command: list[str], kind: str) -> None:
        self._command, self.kind = command, kind
        self._samples: list[tuple[int, float]] = []
        self._over = threading.Event()

    def __enter__(self) -> "Mock":
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        os.sched_setaffinity(self._process.pid, {CORE})
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        self._sampler = threading.Thread(target=self._sample)
        self._sampler.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._sampler.join()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def _sample(self) -> None:
        path = Path(f"/proc/{self._process.pid}/stat")
        while not self._over.wait(0.2):
            user, system = path.read_text().rpartition(")")[2].split()[11:13]
            self._samples.append((time.monotonic_ns(), (int(user) + int(system)) * TICK_S))

    def busy(self, begin_ns: int, end_ns: int) -> float | None:
        """The share of a core; None when the time was too short to tell."""
        inside = [s for s in self._samples if begin_ns <= s[0] <= end_ns]
        if len(inside) < 2:
            return None
        return (inside[-1][1] - inside[0][1]) / ((inside[-1][0] - inside[0][0]) / 1e9)

    def _served(self) -> bytes:
        with urllib.request.urlopen(f"{self.url}/served", timeout=60) as reply:
            data: bytes = reply.read()
        return data

    def replies_ns(self) -> list[int]:
        """When the null server made each reply since the last call."""
        return array("q", self._served()).tolist()

    def stamps(self) -> list[tuple[int, list[int]]]:
        """(request complete, writes with content) of the paced server's replies, monotonic ns."""
        return [(received, content) for received, content in json.loads(self._served())]


def paced_mock(case: str) -> Mock:
    """The paced server of one of cases.CASES."""
    return Mock([sys.executable, "-m", "benchmarks.client.paced_server", case], "Python, paced")


def null_mock(chunks: int, folder: Path | None = None) -> Mock:
    """The null server with replies of that many chunks; in C where a compiler is there."""
    folder = folder or Path(tempfile.mkdtemp(prefix="null-server-"))
    program = compiled(folder)
    if program is None:
        command = [sys.executable, "-m", "benchmarks.client.null_server", str(chunks)]
        return Mock(command, "Python (no C compiler found)")
    reply, page = folder / f"reply-{chunks}", folder / "page"
    reply.write_bytes(prebuilt(chunks))
    page.write_bytes(pages()["/v1/models"])
    return Mock([str(program), str(reply), str(page)], "C")
