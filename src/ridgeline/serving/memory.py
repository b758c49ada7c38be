"""The memory of a replica's GPUs: the next process must find it free.

A driver gives memory back some seconds after a process's end, and an engine takes what it finds
free at its start: started too early it fails, and a good configuration would be rolled back.
"""

from collections.abc import Callable, Sequence

from ridgeline.engines.leftovers import PATIENCE_S, not_back
from ridgeline.telemetry.gpu import GpuSample, GpuSampler, open_nvml


class Memory:
    """What `gpus` (numbers, as CUDA_VISIBLE_DEVICES has them) hold now, to be compared later.

    GPUs that are named otherwise, or a machine without their driver's library: nothing is told.
    """

    def __init__(
        self, gpus: Sequence[str], sampler: Callable[[], GpuSampler | None] = open_nvml
    ) -> None:
        self._sampler: GpuSampler | None = None
        self._before: dict[int, GpuSample] = {}
        if not gpus:
            return
        try:
            self._sampler = sampler()
            samples = () if self._sampler is None else self._sampler.sample()
        except Exception:  # a driver's own errors share no base; it must not stand in the way
            return
        self._before = {
            s.index: s for s in samples if str(s.index) in gpus and s.memory_used_bytes is not None
        }

    def wait_for_it(self, patience_s: float = PATIENCE_S) -> list[str]:
        """Until all of it is free again, at most so long; a line for each GPU where it is not."""
        if self._sampler is None or not self._before:
            return []
        try:
            return not_back(self._sampler, self._before, patience_s)
        except Exception as error:  # as above
            return [f"the GPUs' memory could not be checked: {type(error).__name__}: {error}"]
