"""Whether a replica lives, from what is seen of it; its /health alone says little.

A hung engine answers /health with 200. A sign of life is a completion that came back, or a counter
of steps or tokens that moved: under load a completion of one token may wait in the queue for
minutes while the engine works. An engine without counters (their page is switched off) is hung only
when its /health is silent too.
"""

from dataclasses import dataclass

REFUSALS = 2  # in a row, of /health, until a replica counts as unwell


@dataclass(frozen=True, slots=True)
class Limits:
    """hung_s: without a sign of life. probe_s: between completions. page_s: between pages."""

    hung_s: float = 10.0
    probe_s: float = 2.0
    page_s: float = 1.0

    @classmethod
    def within(cls, hung_s: float) -> "Limits":
        """Often enough that several completions and pages fall into `hung_s`."""
        return cls(hung_s, min(2.0, hung_s / 5), min(1.0, hung_s / 10))


class Pulse:
    """What was seen of one replica; times in seconds of the caller's clock.

    `running`: requests in it, None where it does not tell. `answer_s`: of the last completion.
    """

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._life_s = self._well_s = now
        self._looked_s = now
        self._counts: tuple[tuple[str, float], ...] = ()
        self._refusals = 0
        self._health: int | None = None
        self._last: str | None = None
        self.running: float | None = None
        self.answer_s: float | None = None
        self.empty_pages = 0

    def answered(self, now: float, took_s: float) -> None:
        """A completion came back."""
        self._life_s, self.answer_s, self._last = now, took_s, None

    def refused(self, words: str | None) -> None:
        """A completion was answered with something else."""
        self._last = words

    def page(self, now: float, readings: dict[str, float], own: int) -> None:
        """A page of metrics, empty when there was none; `own` requests in it are ours."""
        if "running" not in readings:
            self.running, self.empty_pages = None, 0
            return
        # a long prompt takes steps that no counter counts: its KV cache grows
        names = ("steps", "generation_tokens", "prompt_tokens", "kv_use")
        counts = tuple((n, readings[n]) for n in names if n in readings)
        if counts != self._counts:
            self._counts, self._life_s = counts, now
        told = readings["running"] + readings.get("waiting", 0.0)
        self.running = max(0.0, told - own)
        if self.running:
            self.empty_pages = 0
        elif not own:  # the one that was counted might be somebody's, and ours not there yet
            self.empty_pages += 1

    def health(self, status: int | None) -> None:
        """The status of /health; None: nobody listens. A late answer is not told here."""
        bad = status is None or status >= 500
        self._refusals = self._refusals + 1 if bad else 0
        self._health = status

    def well(self, now: float) -> None:
        """/health was answered, with anything."""
        self._well_s = now

    def trouble(self, now: float) -> str | None:
        """What is wrong with it, None while nothing is.

        Time in which nobody looked (a machine that slept, a starved supervisor) is not held
        against it.
        """
        unseen_s = max(0.0, now - self._looked_s - 2 * self._limits.page_s)
        self._life_s += unseen_s
        self._well_s += unseen_s
        self._looked_s = now
        if self._refusals >= REFUSALS:
            said = "nobody listens" if self._health is None else f"status {self._health}"
            return f"unwell: /health: {said}, {self._refusals} times in a row"
        if not self._counts and now - self._well_s < self._limits.hung_s:
            return None  # no counter tells a full queue from a hung engine
        silent_s = now - self._life_s
        if silent_s < self._limits.hung_s:
            return None
        held = "" if self.running is None else f", {self.running:.0f} requests in it"
        last = "" if self._last is None else f"; last it answered {self._last}"
        return f"hung: no completion and no step for {silent_s:.1f} s{held}{last}"
