"""What engines leave behind when they end: memory of the GPUs, and processes that cannot be ended.

Engines may start and stop side by side, so memory is compared from before the first of them started
to after the last one stopped. A driver gives memory back some seconds after a process's end, and
the next engine measures what is free at its start: so the wait for it belongs to the stop.
"""

import threading
import time
from collections.abc import Callable, Sequence

from ridgeline.telemetry.gpu import GpuSample, GpuSampler, open_nvml

SLACK_BYTES = 256 * 2**20  # what a driver keeps for itself differs by about as much
PATIENCE_S = 15.0


class Leftovers:
    """Follows starts and stops of one kind of engine; safe to use from several threads.

    `sampler` opens the GPUs' counters (None: there are none); `patience_s`: how long memory may
    take to come back.
    """

    def __init__(
        self,
        sampler: Callable[[], GpuSampler | None] = open_nvml,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._open, self._patience_s = sampler, patience_s
        self._lock = threading.Lock()
        self._up = 0
        self._sampler: GpuSampler | None = None
        self._before: dict[int, int] = {}
        self._told: list[str] = []

    @property
    def told(self) -> tuple[str, ...]:
        """What was left behind until now, a line each."""
        return tuple(self._told)

    def starting(self, *, on_gpu: bool) -> None:
        """An engine is about to start; `on_gpu`: it will use GPUs of this machine."""
        with self._lock:
            self._up += 1
            if on_gpu and not self._before:
                self._sampler = self._open()
                if self._sampler is not None:
                    self._before = _memory(self._sampler.sample())

    def stopped(self, pids: Sequence[int] = ()) -> None:
        """An engine was stopped; `pids` of its processes are still there.

        Of the last engine that was up it returns when its memory is back, or patience is over.
        """
        with self._lock:
            if pids:
                listed = ", ".join(map(str, pids))
                self._told.append(f"processes of an engine could not be ended: {listed}")
            self._up -= 1
            if self._up or not self._before or self._sampler is None:
                return
            self._told += _not_back(self._sampler, self._before, self._patience_s)
            self._before, self._sampler = {}, None


def _memory(samples: Sequence[GpuSample]) -> dict[int, int]:
    """Used bytes by GPU, of those that tell."""
    return {s.index: s.memory_used_bytes for s in samples if s.memory_used_bytes is not None}


def _not_back(sampler: GpuSampler, before: dict[int, int], patience_s: float) -> list[str]:
    """A line for each GPU that holds more than before when patience is over."""
    deadline = time.monotonic() + patience_s
    while True:
        samples = sampler.sample()
        more = {
            i: used - before[i]
            for i, used in _memory(samples).items()
            if i in before and used > before[i] + SLACK_BYTES
        }
        if not more or time.monotonic() >= deadline:
            break
        time.sleep(0.2)
    holders = {s.index: ", ".join(map(str, s.processes)) or "none told" for s in samples}
    return [
        f"GPU {i} holds {extra / 2**30:.1f} GiB more than before the engines were started,"
        f" {patience_s:g} s after the last one was stopped (its processes: {holders[i]})"
        for i, extra in sorted(more.items())
    ]
