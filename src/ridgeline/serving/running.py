"""One replica's process with all that hangs on it: its start, its watcher, its end."""

import contextlib
import threading
from collections.abc import Callable, Sequence

from ridgeline.domain.errors import RidgelineError
from ridgeline.domain.knobs import Configuration
from ridgeline.engines import beside
from ridgeline.engines.readiness import Answers
from ridgeline.engines.started import Dialect, ServerLaunch, spawn, wait_ready
from ridgeline.serving.memory import Memory
from ridgeline.serving.pulse import Limits
from ridgeline.serving.watching import Watcher


class Running:
    """A replica's process from its start to its end, each in a thread of its own.

    `at`: host and port that it listens on. Callbacks come from those threads: `ready`, `lost` with
    words, `stopped` with a line for each thing that it left behind.
    """

    def __init__(
        self,
        dialect: Dialect,
        configuration: Configuration,
        launch: ServerLaunch,
        *,
        at: tuple[str, int],
        key: str | None,
        limits: Limits,
    ) -> None:
        self._dialect, self._configuration, self._launch = dialect, configuration, launch
        self._at, self._key, self._limits = at, key, limits
        self.url = f"http://{contact(at[0])}:{at[1]}"
        self._given_up, self._hurried = threading.Event(), threading.Event()
        self._replica: beside.Replica | None = None
        self._watcher: Watcher | None = None
        self._starting: threading.Thread | None = None
        self._memory: Memory | None = None
        self.ready_s: float | None = None
        self.draining = False

    @property
    def watcher(self) -> Watcher | None:
        """None until it was ready."""
        return self._watcher

    def start(self, ready: Callable[[], None], lost: Callable[[str], None]) -> None:
        """Begin; exactly one of the callbacks is called."""

        def work() -> None:
            try:
                self._start()
            except RidgelineError as error:
                lost(str(error))
            except Exception as error:  # its replica is not to be "starting" for ever
                lost(f"it cannot be started: {error}")
            else:
                ready()

        self._starting = threading.Thread(target=work, name=f"start-{self._at[1]}", daemon=True)
        self._starting.start()

    def _start(self) -> None:
        self._memory = Memory([str(gpu) for gpu in self._launch.gpus or ()])
        replica = spawn(self._dialect, self._configuration, self._launch, at=self._at)
        self._replica = replica
        replica.url = self.url
        model = self._configuration.model
        answers = Answers(self.url, model, self._key)
        name = f"the server at {self.url}"
        wait_ready(replica, answers, self._launch.ready_s, name, self._given_up.is_set)
        self.ready_s = replica.start.get("ready_s")
        self._watcher = Watcher(self.url, model, self._key, self._limits)

    def trouble(self) -> str | None:
        """Why it is to be ended: its process did, or it does not live. None before it was ready."""
        if self._watcher is None or self._replica is None:
            return None
        code = self._replica.process.poll()
        if code is not None:
            return beside.ended(self._replica, code, "while it served").what
        return self._watcher.trouble()

    @property
    def pid(self) -> int | None:
        """The process that guards it, None before it was started."""
        return None if self._replica is None else self._replica.process.pid

    def hurry(self) -> None:
        """Wait no more for its end, which has begun."""
        self._hurried.set()
        pid = self.pid
        if pid is not None:
            threading.Thread(target=kill_below, args=(pid,), daemon=True).start()

    def stop(self, kill: bool, stopped: Callable[[Sequence[str]], None]) -> None:
        """End its processes; with `kill` without a grace time."""

        def work() -> None:
            self._given_up.set()
            if self._starting is not None:
                self._starting.join()
            if self._watcher is not None:
                self._watcher.close()
            try:
                left = self._end(kill=kill)
            except Exception as error:  # its replica is not to be "stopping" for ever
                left = [f"its end: {type(error).__name__}: {error}"]
            stopped(left)

        threading.Thread(target=work, name=f"stop-{self._at[1]}", daemon=True).start()

    def _end(self, *, kill: bool) -> list[str]:
        """What it left behind, a line each."""
        left: list[str] = []
        if self._replica is not None:
            if kill:
                kill_below(self._replica.process.pid)
            self._replica.process.stop()
            if pids := self._replica.process.left:
                left.append(f"processes that could not be ended: {', '.join(map(str, pids))}")
            if self._memory is not None and not self._hurried.is_set():
                left += self._memory.wait_for_it()
        return left


def contact(host: str) -> str:
    """The address at which a server that listens on `host` is asked from here."""
    if host in ("0.0.0.0", ""):  # noqa: S104
        return "127.0.0.1"
    bare = "::1" if host == "::" else host
    return f"[{bare}]" if ":" in bare else bare


def kill_below(pid: int) -> None:
    """KILL every process below `pid`: one that was stopped (SIGSTOP) heeds nothing else."""
    import psutil  # noqa: PLC0415

    with contextlib.suppress(psutil.Error, RuntimeError, OSError, ValueError, LookupError):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                process.kill()
