"""Percentiles of many durations in constant memory."""

import numpy as np

from ridgeline.domain.records import Ints

_FOLD = 4096
_PER_OCTAVE = 32  # steps of 2.2 %
_BINS = 64 * _PER_OCTAVE


class Digest:
    """Counts durations (ns) in bins 2.2 % wide; the maximum and the count are exact.

    A value below 1 ns counts as 1 ns. Adding costs a look into a dict, whatever `count` is; no
    memory grows with the count. What is counted ten thousand times a second is appended to
    `fresh` instead, a value at a time, and `fold` is called now and then.
    """

    def __init__(self) -> None:
        self.fresh: list[int] = []
        self._some: dict[int, int] = {}  # value -> how often
        self._counts = np.zeros(_BINS, dtype=np.int64)
        self._max = 0

    def add(self, value_ns: int, count: int = 1) -> None:
        """Take a duration, `count` times."""
        some = self._some
        some[value_ns] = some.get(value_ns, 0) + count
        if len(some) >= _FOLD:
            self.fold()

    def merge(self, other: "Digest") -> None:
        """Take everything that another one has counted."""
        other.fold()
        self.fold()
        self._counts += other._counts
        self._max = max(self._max, other._max)

    def clear(self) -> None:
        """Forget everything."""
        self.fresh.clear()
        self._some.clear()
        self._counts[:] = 0
        self._max = 0

    def __len__(self) -> int:
        return int(self._counts.sum()) + sum(self._some.values()) + len(self.fresh)

    @property
    def max_ns(self) -> int | None:
        """The largest duration, None without any."""
        self.fold()
        return self._max if self._counts.any() else None

    def percentile_ns(self, percent: float) -> float | None:
        """The smallest bin's upper edge that covers `percent` of all, None without any."""
        self.fold()
        total = int(self._counts.sum())
        if total == 0:
            return None
        rank = max(1, int(np.ceil(percent / 100 * total)))
        place = int(np.searchsorted(np.cumsum(self._counts), rank))
        return float(min(2 ** ((place + 1) / _PER_OCTAVE), self._max))

    def fold(self) -> None:
        """Put what is fresh into the bins."""
        if self.fresh:
            values = np.maximum(np.array(self.fresh, dtype=np.int64), 1)
            self.fresh.clear()
            self._put(values, np.ones(len(values), dtype=np.int64))
        if self._some:
            some, size = self._some, len(self._some)
            values = np.maximum(np.fromiter(some, dtype=np.int64, count=size), 1)
            counts = np.fromiter(some.values(), dtype=np.int64, count=size)
            some.clear()
            self._put(values, counts)

    def _put(self, values: Ints, counts: Ints) -> None:
        self._max = max(self._max, int(values.max()))
        places = (np.log2(values.astype(np.float64)) * _PER_OCTAVE).astype(np.int64)
        np.add.at(self._counts, places, counts)
