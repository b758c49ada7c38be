"""A workload becomes a complete schedule, drawn once, before the run, from named seeded streams.

A pair of runs with the same workload and seed shares arrivals and lengths exactly; only the salt
of the prompts differs. The schedule does not depend on how many workers will send it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.domain.errors import BadInput, nearest
from ridgeline.domain.workload import Arrivals, Lengths, Workload

PROCESSES = ("poisson", "constant", "gamma")
RAMP_S = 5.0  # the users of a closed loop start spread over at most this long
MOST_ARRIVALS = 20_000_000  # more would need gigabytes for the schedule alone

# Gamma gaps of shape b have a coefficient of variation of b ** -0.5: 10 at this end. Below it
# nearly all gaps are zero and a rare one is longer than any window: no run shows the law.
LEAST_BURSTINESS = 0.01

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
        group = self.prefix_group.item(row)
        return PlannedRequest(
            row,
            self.prompt_tokens.item(row),
            self.output_tokens.item(row),
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
    """Draw everything that a run needs; the same workload (its seed included) gives the same.

    Raises BadInput when the arrivals are not one of users and rate, or name an unknown process.
    """
    arrivals, seed = workload.arrivals, workload.seed
    if (arrivals.users is None) == (arrivals.rate_per_s is None):
        raise BadInput("arrivals need either users or a rate", fix="give exactly one of them")
    total_s = workload.warmup_s + workload.duration_s
    if arrivals.users is None:
        intended, starts = draw_arrivals(arrivals, total_s, stream(seed, "arrivals")), None
        rows = max(1, len(intended))
    else:
        intended = None
        starts = draw_user_starts(arrivals.users, workload.warmup_s, stream(seed, "user-start"))
        rows = max(CLOSED_LOOP_ROWS, arrivals.users)
    prompts = draw_lengths(workload.prompts.tokens, rows, stream(seed, "prompt-lengths"))
    shared = workload.prompts.shared_prefix
    groups = np.full(rows, -1, dtype=np.int32)
    if shared is not None:
        prompts = prompts + np.int32(shared.tokens)
        groups = stream(seed, "prefix-groups").integers(shared.groups, size=rows, dtype=np.int32)
    return Schedule(
        workload=workload,
        prompt_tokens=prompts,
        output_tokens=draw_lengths(workload.outputs.tokens, rows, stream(seed, "output-lengths")),
        prefix_group=groups,
        intended_ns=intended,
        users=arrivals.users,
        user_start_ns=starts,
    )


def draw_arrivals(
    arrivals: Arrivals, total_s: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Start times (ns, ascending) of an open loop in [0, total_s): one continuous renewal process.

    constant: every 1/rate from 0 on. poisson and gamma: gaps with mean 1/rate and coefficient of
    variation 1 or burstiness ** -0.5, the first gap counted from 0. The gaps come one after another
    from one stream, so a longer run begins with the same arrivals as a shorter one.
    """
    rate = arrivals.rate_per_s
    if rate is None or not rate > 0:
        raise BadInput(f"the arrival rate must be above 0 per second, not {rate}")
    expected = rate * total_s
    if expected > MOST_ARRIVALS:
        raise BadInput(
            f"{rate:g} requests/s for {total_s:g} s are {expected:.3g} arrivals",
            fix=f"ask for at most {MOST_ARRIVALS:,}",
        )
    if arrivals.process == "constant":
        at_s = np.arange(int(expected) + 2) / rate
    else:
        at_s = _renewals(arrivals, rate, total_s, rng)
    at_ns = np.rint(at_s[at_s <= total_s] * 1e9).astype(np.int64)
    return at_ns[at_ns < round(total_s * 1e9)]


def _renewals(
    arrivals: Arrivals, rate: float, total_s: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Arrival times that reach at least to total_s, in seconds."""
    expected = int(rate * total_s)
    at_s = np.cumsum(_gaps(arrivals, rate, expected, rng))
    while at_s[-1] < total_s:
        if len(at_s) > 2 * MOST_ARRIVALS:
            raise BadInput(
                f"more than {len(at_s):,} arrivals were drawn and {total_s:g} s are not filled"
            )
        more = _gaps(arrivals, rate, expected, rng)
        at_s = np.concatenate([at_s, at_s[-1] + np.cumsum(more)])
    return at_s


def _gaps(
    arrivals: Arrivals, rate: float, expected: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Gaps in seconds, a little more of them than a run is expected to need."""
    n = expected + 4 * int(expected**0.5) + 16
    if arrivals.process == "poisson":
        return rng.exponential(1.0 / rate, n)
    if arrivals.process == "gamma":
        shape = arrivals.burstiness
        if not shape >= LEAST_BURSTINESS:
            raise BadInput(
                f"burstiness must be at least {LEAST_BURSTINESS:g}, not {shape:g}: below it nearly"
                " all requests come at once and hardly a gap falls into the run"
            )
        return rng.gamma(shape, 1.0 / (rate * shape), n)
    raise BadInput(
        f"unknown arrival process {arrivals.process!r}{nearest(arrivals.process, PROCESSES)}",
        fix=f"use one of {', '.join(PROCESSES)}",
    )


def draw_user_starts(users: int, warmup_s: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """When each user of a closed loop sends its first request (ns, ascending).

    The users are spread over the first RAMP_S seconds, or half the warm-up when that is shorter:
    each at a random moment of its own equal slice. All at once would put them in step, and users
    in step stay in step for a long time.
    """
    ramp_s = min(RAMP_S, warmup_s / 2)
    slices = np.arange(users) + rng.random(users)
    return np.rint(slices / users * ramp_s * 1e9).astype(np.int64)
