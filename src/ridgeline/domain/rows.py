"""Requests of a load client as columns: what hundreds of `RequestRecord`s say, made in one go.

A client that ends ten thousand requests a second has no time for an object of 31 fields each.
"""

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ridgeline.domain.records import Bools, Ints, RequestRecord

MISSING = -(1 << 63)  # no time and no count
# What a load client knows in numbers; a twin's times and preemptions it does not know.
ROW_NUMBERS = (
    "index", "user", "intended_ns", "sent_ns", "first_ns", "last_ns", "end_ns",
    "planned_prompt_tokens", "planned_output_tokens",
    "prompt_tokens", "output_tokens", "cached_tokens", "http_status", "connect_ns",
    "first_answer_ns", "target", "retries", "read_timed", "cap_wait_ns", "session", "turn",
    "first_error_ns", "chunk_error_ns",
)  # fmt: skip
ROW_TIMES = ("intended_ns", "sent_ns", "first_ns", "last_ns", "end_ns", "first_answer_ns")
ROW_TEXTS = ("failure", "failure_detail", "finish_reason", "traffic_class")
WIDTH = len(ROW_NUMBERS) + 2  # of a row while it is gathered: the place of its texts, its chunks
ROW = struct.Struct(f"={WIDTH}q").pack
ROW_BYTES = 8 * WIDTH

Texts = tuple[str | None, ...]  # those of ROW_TEXTS


@dataclass(frozen=True, slots=True)
class RequestRows:
    """Requests in the order in which they ended. Times in ns from the run's zero.

    numbers: one row a request, one column for each of `names`, MISSING where there is none.
    `texts` holds each combination of ROW_TEXTS once, and `said[i]` is the place of request i's.
    Request i has `chunks[i]` content chunks; theirs stand one after another in `chunk_ns` and
    `chunk_shared` (see RequestRecord).
    """

    numbers: Ints
    said: Ints
    chunks: Ints
    texts: Sequence[Texts]
    chunk_ns: Ints
    chunk_shared: Bools
    names: Sequence[str] = ROW_NUMBERS

    def __len__(self) -> int:
        return len(self.numbers)

    def column(self, name: str) -> Ints:
        """One column of numbers. Raises ValueError for a name that is none."""
        found: Ints = self.numbers[:, list(self.names).index(name)]
        return found

    def text(self, name: str) -> list[str | None]:
        """One of ROW_TEXTS for each request."""
        place = ROW_TEXTS.index(name)
        known = [texts[place] for texts in self.texts]
        return [known[i] for i in self.said.tolist()]

    @property
    def succeeded(self) -> Bools:
        """True for requests without a failure."""
        good = np.array([texts[0] is None for texts in self.texts], dtype=np.bool_)
        return good[self.said]

    def records(self) -> list[RequestRecord]:
        """The same one by one. Their chunks are views of the columns."""
        found = []
        ends = np.cumsum(self.chunks).tolist()
        begin = 0
        for values, said, end in zip(self.numbers.tolist(), self.said.tolist(), ends, strict=True):
            numbers: dict[str, Any] = {
                name: None if value == MISSING else value
                for name, value in zip(self.names, values, strict=True)
            }
            found.append(
                RequestRecord(
                    **numbers,
                    **dict(zip(ROW_TEXTS, self.texts[said], strict=True)),
                    chunk_ns=self.chunk_ns[begin:end],
                    chunk_shared=self.chunk_shared[begin:end],
                )
            )
            begin = end
        return found


class RowsBuilder:
    """Gathers ended requests until `take`. Times go in on one clock and come out from `zero_ns`.

    A request adds to `numbers` its ROW (ROW_NUMBERS, then the place of its texts and how many
    chunks it has), and to `stamps` and `shared` its chunks.
    """

    def __init__(self, zero_ns: int = 0) -> None:
        self.zero_ns = zero_ns
        self._clear()

    def _clear(self) -> None:
        self.numbers = bytearray()
        self.stamps = array("q")
        self.shared = bytearray()
        self.places: dict[Texts, int] = {}
        self._texts: list[Texts] = []

    def say(self, key: Texts, kept: Texts) -> int:
        """The place of new texts: found under `key` by `places`, and kept as they are shown."""
        place = self.places[key] = len(self._texts)
        self._texts.append(kept)
        return place

    def __len__(self) -> int:
        return len(self.numbers) // ROW_BYTES

    def take(self) -> RequestRows:
        """What was gathered; from then on it is gathered anew."""
        width = len(ROW_NUMBERS)
        table = np.frombuffer(self.numbers, dtype=np.int64).reshape(-1, WIDTH)
        numbers = table[:, :width].copy()
        for name in ROW_TIMES:
            place = ROW_NUMBERS.index(name)
            column = numbers[:, place]
            column[column != MISSING] -= self.zero_ns
        rows = RequestRows(
            numbers,
            table[:, width].copy(),
            table[:, width + 1].copy(),
            tuple(self._texts),
            np.frombuffer(self.stamps, dtype=np.int64) - self.zero_ns,
            np.frombuffer(bytes(self.shared), dtype=np.bool_),
        )
        self._clear()
        return rows
