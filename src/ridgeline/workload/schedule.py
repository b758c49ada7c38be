"""A workload becomes a complete schedule, drawn once, before the run, from named seeded streams.

A pair of runs with the same workload and seed shares arrivals and lengths exactly; only the salt
of the prompts differs. The schedule does not depend on how many workers will send it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.domain.workload import Lengths, Workload

# Rows of lengths drawn for a closed loop, whose request count is not known beforehand. A run that
# needs more starts again at the first row: lengths repeat then, prompts' text never does.
CLOSED_LOOP_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request of the schedule. `row` is its place in the drawn lengths."""

    row: int
    prompt_tokens: int  # all of the prompt, shared prefix included
    output_tokens: int
    prefix_group: int | None  # which shared prefix it begins with, None without sharing


@dataclass(frozen=True, slots=True)
class Schedule:
    """The drawn traffic of one run.

    Open loop: `intended_ns[i]` is when request i should start, ascending, from the run's zero,
    over warm-up and window. Closed loop: `intended_ns` is None, `users` request one after another;
    user u starts at `user_start_ns[u]`, and its k-th request (k from 0) is `closed(u, k)`.
    `prompt_tokens`, `output_tokens` and `prefix_group` (-1: no group) are the drawn rows.
    """

    workload: Workload
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    prefix_group: NDArray[np.int32]
    intended_ns: NDArray[np.int64] | None = None
    users: int | None = None
    user_start_ns: NDArray[np.int64] | None = None

    def planned(self, row: int) -> PlannedRequest:
        """The request of a row (rows wrap around in a closed loop)."""
        row %= len(self.prompt_tokens)
        group = int(self.prefix_group[row])
        return PlannedRequest(
            row,
            int(self.prompt_tokens[row]),
            int(self.output_tokens[row]),
            group if group >= 0 else None,
        )

    def closed(self, user: int, turn: int) -> PlannedRequest:
        """The turn-th request of a user. The same for every configuration that is compared."""
        assert self.users is not None, "an open-loop schedule has no users"
        return self.planned(user + turn * self.users)


def stream(seed: int, name: str) -> np.random.Generator:
    """The generator of one named random stream: independent of all others, stable for ever."""
    words = [seed & 0xFFFFFFFF, seed >> 32, *name.encode()]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


def draw_lengths(lengths: Lengths, n: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """n lengths, uniform on the whole numbers from lengths.low to lengths.high."""
    return rng.integers(lengths.low, lengths.high, size=n, endpoint=True, dtype=np.int32)


def draw_schedule(workload: Workload) -> Schedule:
    """Draw everything that a run needs; the same workload (its seed included) gives the same."""
    raise NotImplementedError
