"""How long to wait before the next try: longer after each failure, never the same for two."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackOff:
    """`first_s` doubles with each failure in a row up to `cap_s`.

    Of each wait a random share of up to `jitter` is taken off, so that replicas that died together
    do not start together.
    """

    first_s: float = 1.0
    cap_s: float = 60.0
    jitter: float = 0.5

    def wait_s(self, failures: int, stream: random.Random) -> float:
        """Seconds before the try after so many failures in a row (1 or more)."""
        longest = min(self.cap_s, self.first_s * 2.0 ** min(failures - 1, 32))
        return longest * (1.0 - self.jitter * stream.random())
