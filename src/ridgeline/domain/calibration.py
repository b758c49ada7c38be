"""What the load client was shown to be able to do on its host, before or apart from a run."""

import math
from dataclasses import dataclass

TRUE_S = 0.001  # an error of a client's time stamps up to here matters for no figure
FULL_SHARE = 0.9  # of its core: less may do for more, as work is done in larger batches


@dataclass(frozen=True, slots=True)
class ClientLevel:
    """One load that the client offered to a null server, and how true its time stamps were.

    kind: "requests" (one-chunk replies) or "chunks" (replies of several, each read by itself).
    asked_per_s: of what the kind says; the rates are those reached. Errors (s) are how far TTFT and
    gaps between chunks lay outside what the server's own stamps allow; None without any.
    compared: stamps. failed: requests that failed, or were told otherwise than they were sent.
    cpu_share: of the busiest worker's core. server_was_the_limit: it sent less than was asked of
    it while the client had time left.
    """

    kind: str
    asked_per_s: float
    requests_per_s: float
    chunks_per_s: float
    compared: int
    failed: int
    ttft_error_p50_s: float | None
    ttft_error_p99_s: float | None
    itl_error_p50_s: float | None
    itl_error_p99_s: float | None
    send_lateness_p50_s: float | None
    send_lateness_p99_s: float | None
    loop_lag_p99_s: float | None
    cpu_share: float | None
    server_lateness_p50_s: float | None
    server_was_the_limit: bool

    @property
    def true(self) -> bool:
        """Whether its figures can be believed: stamps right at p99, and requests sent in time.

        The lateness is judged at its median: what happens now and then is the machine's doing and
        says nothing about the load that the client can bear; a run is judged by its own.
        """
        wanted = [self.ttft_error_p99_s, self.send_lateness_p50_s]
        if self.kind == "chunks":
            wanted.append(self.itl_error_p99_s)
        return not self.failed and all(e is not None and e <= TRUE_S for e in wanted)

    @property
    def filled_core(self) -> bool:
        """Whether the client had little left: what it could not do then it cannot do."""
        return (self.cpu_share or 0.0) >= FULL_SHARE

    @property
    def disturbed(self) -> bool:
        """Failed while the client's core was not full: something else kept it from working."""
        return not self.true and not self.filled_core

    @property
    def rate_per_s(self) -> float:
        """What was reached of what its kind says."""
        return self.requests_per_s if self.kind == "requests" else self.chunks_per_s


@dataclass(frozen=True, slots=True)
class ClientCalibration:
    """What a client of `workers` processes with `streams` streams could do; took `seconds`.

    problem: why it could not be found out, None when it was.
    """

    streams: int
    workers: int
    seconds: float
    levels: tuple[ClientLevel, ...] = ()
    problem: str | None = None

    def most_per_s(self, kind: str) -> float | None:
        """The highest rate of a kind that was timed right: 0 when none was, None when not tried."""
        rates = [level.rate_per_s if level.true else 0.0 for level in self._of(kind)]
        return max(rates, default=None)

    def bounded(self, kind: str) -> bool:
        """Whether the highest rate that was timed right is the client's own limit.

        It is not where the server sent no more, nor where something else disturbed the client.
        """
        levels = self._of(kind)
        disturbed = any(level.disturbed for level in levels)
        return not disturbed and any(level.filled_core for level in levels)

    def cost_s(self, kind: str) -> float | None:
        """CPU time of one request, or of one chunk, at the highest load that was timed right."""
        best = self.best(kind)
        if best is None or best.cpu_share is None or best.rate_per_s <= 0:
            return None
        return best.cpu_share * self.workers / best.rate_per_s

    def best(self, kind: str) -> ClientLevel | None:
        """The level with the highest rate that was timed right, None without any."""
        true = [level for level in self._of(kind) if level.true]
        return max(true, key=lambda level: level.rate_per_s, default=None)

    def share_used(
        self, requests_per_s: float, reads_per_s: float, *, bounded: bool = False
    ) -> float:
        """How much of what was shown to be timed right a load is: above 1 it is more than that.

        reads_per_s: reads that bring content; the first one of a reply is part of its request.
        bounded: count only against rates that are known to be the client's own limit. Infinite
        when nothing was timed right.
        """
        further = max(0.0, reads_per_s - requests_per_s)
        share = 0.0
        for kind, load in (("requests", requests_per_s), ("chunks", further)):
            if load > 0 and (not bounded or self.bounded(kind)):
                most = self.most_per_s(kind)
                share += load / most if most else math.inf
        return share

    def _of(self, kind: str) -> list[ClientLevel]:
        return [level for level in self.levels if level.kind == kind]
