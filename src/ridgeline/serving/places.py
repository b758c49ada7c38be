"""The GPUs of this host, shared by the pools: who holds which."""

from collections.abc import Sequence


class Places:
    """Free GPUs by their names, given out in order; what needs none always has a place."""

    def __init__(self, gpus: Sequence[str]) -> None:
        self._order = {gpu: i for i, gpu in enumerate(gpus)}
        self._free = list(gpus)

    def take(self, count: int) -> tuple[str, ...] | None:
        """So many free GPUs, or None."""
        if len(self._free) < count:
            return None
        taken, self._free = tuple(self._free[:count]), self._free[count:]
        return taken

    def give(self, gpus: Sequence[str]) -> None:
        """Take back what a replica held."""
        self._free = sorted([*self._free, *gpus], key=self._order.__getitem__)

    def room(self, count: int) -> bool:
        """True when so many are free."""
        return len(self._free) >= count
