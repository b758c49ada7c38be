"""What engines leave behind when they end: memory of the GPUs, and processes that cannot be ended.

Engines may start and stop side by side, so memory is compared from before the first of them started
to after the last one stopped. A driver gives memory back some seconds after a process's end, and
the next engine measures what is free at its start: so the wait for it belongs to the stop. A total
that is no higher than before may hide a leak where a neighbour gave back as much: so the processes
that a GPU lists are compared too, as far as the driver tells them. A driver that fails is told, and
never stands in the way of an engine or of its error.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence

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
        self._before: dict[int, GpuSample] = {}
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
                try:
                    self._sampler = self._open()
                    samples = () if self._sampler is None else self._sampler.sample()
                except Exception as error:  # a driver's own errors share no base
                    self._told.append(_unchecked("before an engine started", error))
                    return
                self._before = {s.index: s for s in samples if s.memory_used_bytes is not None}

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
            before, sampler = self._before, self._sampler
            self._before, self._sampler = {}, None
            try:
                self._told += not_back(sampler, before, self._patience_s)
            except Exception as error:  # it must not take the place of the engine's own
                self._told.append(_unchecked("after the last engine was stopped", error))


def _unchecked(when: str, error: Exception) -> str:
    why = f"{type(error).__name__}: {error}"
    return (
        f"what engines left on the GPUs could not be checked: their counters failed {when} ({why})"
    )


def not_back(sampler: GpuSampler, before: Mapping[int, GpuSample], patience_s: float) -> list[str]:
    """A line for each GPU of `before` that is not as it was then when patience is over.

    Returns at once when all are.
    """
    deadline = time.monotonic() + patience_s
    while True:
        now = {sample.index: sample for sample in sampler.sample()}
        found = {i: _left_on(i, was, now.get(i), patience_s) for i, was in sorted(before.items())}
        lines = [line for line in found.values() if line is not None]
        if not lines or time.monotonic() >= deadline:
            return lines
        time.sleep(0.2)


def _left_on(
    number: int, before: GpuSample, now: GpuSample | None, patience_s: float
) -> str | None:
    """What one GPU still holds, None when it is as it was."""
    used, was = None if now is None else now.memory_used_bytes, before.memory_used_bytes
    if now is None or used is None or was is None:
        return (
            f"GPU {number} could not be checked after the last engine was stopped: it no longer"
            " tells how much of its memory is used"
        )
    after = f"{patience_s:g} s after the last one was stopped"
    if used > was + SLACK_BYTES:
        holders = ", ".join(map(str, now.processes)) or "none told"
        return (
            f"GPU {number} holds {(used - was) / 2**30:.1f} GiB more than before the engines were"
            f" started, {after} (its processes: {holders})"
        )
    new = sorted(set(now.processes) - set(before.processes))
    if new:
        return (
            f"GPU {number} is used by processes that it did not list before the engines were"
            f" started, {after}: {', '.join(map(str, new))} (an engine's own or a neighbour's)"
        )
    return None
