"""What traffic a run offers: arrivals, prompts and output lengths, as plain values."""

from dataclasses import dataclass, field

# A fixed warm-up, where none is asked for: this share of the window, and at most so long.
WARMUP_SHARE, LONGEST_FIXED_WARMUP_S = 0.2, 10.0
WARMUP_LIMIT_S = 60.0  # an automatic one takes at most so long, unless told otherwise


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Either `users` (closed loop) or `rate_per_s` (open loop), never both.

    process: poisson | constant | gamma; burstiness is the gamma shape (1 = Poisson, smaller is
    burstier). think_time_s: pause of a user between a reply and the next request.
    """

    users: int | None = None
    think_time_s: float = 0.0
    rate_per_s: float | None = None
    process: str = "poisson"
    burstiness: float = 1.0

    @property
    def closed_loop(self) -> bool:
        """True when the load is a number of users, False when it is a rate."""
        return self.users is not None


@dataclass(frozen=True, slots=True)
class Lengths:
    """A length distribution in tokens: mean with relative half-width `spread`.

    Drawn uniformly from mean*(1-spread) to mean*(1+spread), both ends included and rounded.
    """

    mean: float
    spread: float = 0.0

    @property
    def low(self) -> int:
        """Smallest length that can be drawn, at least 1."""
        return max(1, round(self.mean * (1 - self.spread)))

    @property
    def high(self) -> int:
        """Largest length that can be drawn."""
        return max(self.low, round(self.mean * (1 + self.spread)))


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Prompts of a group begin with the same `tokens` tokens; requests pick a group at random."""

    tokens: int
    groups: int = 1


@dataclass(frozen=True, slots=True)
class Prompts:
    """Synthetic prompts: own part by `tokens`, before it an optional shared prefix."""

    tokens: Lengths = field(default_factory=lambda: Lengths(256))
    shared_prefix: SharedPrefix | None = None


@dataclass(frozen=True, slots=True)
class Outputs:
    """Output lengths asked for. `ignore_eos` makes a server produce exactly that many."""

    tokens: Lengths = field(default_factory=lambda: Lengths(128))
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    """One complete offered load. Times in seconds.

    The run offers the traffic for warmup_s, then (without draining) measures for duration_s;
    requests sent inside the window are followed to their end. `requests` ends the window early
    once that many requests were sent inside it (then duration_s is the upper limit).

    warmup_auto: the warm-up ends when the run is steady, and warmup_s is the most that it may take.
    """

    arrivals: Arrivals
    prompts: Prompts = field(default_factory=Prompts)
    outputs: Outputs = field(default_factory=Outputs)
    duration_s: float = 90.0
    warmup_s: float = 10.0
    requests: int | None = None
    seed: int = 0
    warmup_auto: bool = False

    @property
    def least_warmup_s(self) -> float:
        """The shortest warm-up that an automatic one may have: what a fixed one would take.

        So it is at no time less safe than the fixed one. A window that counts requests may be
        short, whatever its duration: it asks for no more than the search itself needs.
        """
        if self.requests is not None:
            return 0.0
        return min(LONGEST_FIXED_WARMUP_S, WARMUP_SHARE * self.duration_s, self.warmup_s)
