"""When requests start: the drawn times of an open loop, and when the users of a closed one begin.

A stepped load is the same process on a clock that runs as fast as the rate of the moment: arrivals
of rate 1 are drawn once, and each is put where the integral of the rate reaches its time. For
Poisson arrivals that is exactly the inhomogeneous process; gaps of the other laws shrink and
stretch with the rate, also those across a change.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.domain.errors import BadInput, nearest
from ridgeline.domain.numerals import counted
from ridgeline.domain.workload import Arrivals, LoadStep

PROCESSES = ("poisson", "constant", "gamma")
RAMP_S = 5.0  # the users of a closed loop start spread over at most this long
STEP_RAMP_SHARE = 0.25  # users that a step adds start over at most this share of it
MOST_ARRIVALS = 20_000_000  # more would need gigabytes for the schedule alone

# Gamma gaps of shape b have a coefficient of variation of b ** -0.5: 10 at this end. Below it
# nearly all gaps are zero and a rare one is longer than any window: no run shows the law.
LEAST_BURSTINESS = 0.01


@dataclass(frozen=True, slots=True)
class Presence:
    """Which users of a closed loop are there, and when: the first `users[i]` from `since_ns[i]` on.

    Those that step i adds begin one after another, evenly over `ramp_ns[i]`.
    """

    since_ns: tuple[int, ...]
    users: tuple[int, ...]
    ramp_ns: tuple[int, ...]

    def next_ns(self, user: int, at_ns: int) -> int | None:
        """The first time not before `at_ns` at which the user may send; None: never again."""
        last = len(self.since_ns) - 1
        for i, (since, users) in enumerate(zip(self.since_ns, self.users, strict=True)):
            until = self.since_ns[i + 1] if i < last else None
            if user >= users or (until is not None and at_ns >= until):
                continue
            before = self.users[i - 1] if i else 0
            if user < before:  # was there already
                return max(at_ns, since)
            share = (user - before) / (users - before)
            return max(at_ns, since + round(share * self.ramp_ns[i]))
        return None


def draw_arrivals(
    arrivals: Arrivals, total_s: float, rng: np.random.Generator, warmup_s: float = 0.0
) -> NDArray[np.int64]:
    """Start times (ns, ascending) of an open loop in [0, total_s): one continuous renewal process.

    constant: every 1/rate from 0 on. poisson and gamma: gaps with mean 1/rate and coefficient of
    variation 1 or burstiness ** -0.5, the first gap counted from 0. The gaps come one after another
    from one stream, so a longer run begins with the same arrivals as a shorter one. A stepped load
    begins after `warmup_s` at the rate of its first step.
    """
    if arrivals.steps:
        return _stepped(arrivals, total_s, rng, warmup_s)
    rate = arrivals.rate_per_s
    if rate is None or not rate > 0:
        raise BadInput(f"the arrival rate must be above 0 per second, not {rate}")
    at_s = _at_rate(arrivals, rate, total_s, rng)
    at_ns = np.rint(at_s[at_s <= total_s] * 1e9).astype(np.int64)
    return at_ns[at_ns < round(total_s * 1e9)]


def _at_rate(
    arrivals: Arrivals, rate: float, total_s: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Arrival times in seconds, at least to total_s."""
    expected = rate * total_s
    if expected > MOST_ARRIVALS:
        raise BadInput(
            f"{rate:g} requests/s for {total_s:g} s are {expected:.3g} arrivals",
            fix=f"ask for at most {counted(MOST_ARRIVALS)}",
        )
    if arrivals.process == "constant":
        return np.arange(int(expected) + 2) / rate
    return _renewals(arrivals, rate, total_s, rng)


def _stepped(
    arrivals: Arrivals, total_s: float, rng: np.random.Generator, warmup_s: float
) -> NDArray[np.int64]:
    """Arrivals of rate 1, moved to where the integral of the stepped rate reaches their times."""
    steps = arrivals.steps
    rates = [steps[0].rate_per_s or 0.0, *(s.rate_per_s or 0.0 for s in steps)]
    lengths = [warmup_s, *(s.for_s for s in steps)]
    if not all(rate > 0 for rate in rates):
        raise BadInput("every step needs a rate above 0 per second")
    edges = np.concatenate(([0.0], np.cumsum(lengths)))
    mass = np.concatenate(([0.0], np.cumsum(np.array(rates) * lengths)))
    unit = _at_rate(arrivals, 1.0, float(mass[-1]), rng)
    # rounding must not let an arrival slip over the end
    at_s = np.interp(unit[unit < mass[-1] - 1e-9], mass, edges)
    at_ns: NDArray[np.int64] = np.rint(at_s * 1e9).astype(np.int64)
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
                f"more than {counted(len(at_s))} arrivals were drawn and {total_s:g} s are not"
                " filled"
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


def draw_user_starts(
    users: int, warmup_s: float, rng: np.random.Generator, ramp_s: float | None = None
) -> NDArray[np.int64]:
    """When each user of a closed loop sends its first request (ns, ascending).

    The users are spread over `ramp_s`, or else the first RAMP_S seconds, or half the warm-up when
    that is shorter: each at a random moment of its own equal slice. All at once would put them in
    step, and users in step stay in step for a long time.
    """
    if ramp_s is None:
        ramp_s = min(RAMP_S, warmup_s / 2)
    slices = np.arange(users) + rng.random(users)
    return np.rint(slices / users * ramp_s * 1e9).astype(np.int64)


def presence_of(steps: tuple[LoadStep, ...], warmup_s: float) -> Presence:
    """The users of a stepped closed loop; the warm-up has those of the first step."""
    since, users, ramps = [0], [steps[0].users or 0], [0]
    at_s = warmup_s + steps[0].for_s
    for step in steps[1:]:
        since.append(round(at_s * 1e9))
        users.append(step.users or 0)
        ramps.append(round(min(RAMP_S, STEP_RAMP_SHARE * step.for_s) * 1e9))
        at_s += step.for_s
    return Presence(tuple(since), tuple(users), tuple(ramps))


def draw_pauses(
    mean_s: float, law: str, n: int, rng: np.random.Generator
) -> NDArray[np.int64] | None:
    """n pauses (ns) of the law (constant | exponential); None when they all are `mean_s`."""
    if law == "constant" or not mean_s:
        return None
    return np.rint(rng.exponential(mean_s, n) * 1e9).astype(np.int64)
