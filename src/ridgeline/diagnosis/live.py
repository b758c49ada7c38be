"""Many replicas watched at once: each is read by a thread of its own, so that one that hangs or
answers nonsense never holds up the others. What is shown is worked out from what they left.
"""

import http.client
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ridgeline.diagnosis.account import Account
from ridgeline.diagnosis.evidence import Evidence, Known
from ridgeline.diagnosis.finding import Finding
from ridgeline.diagnosis.gathering import WANTED, Snapshot, gather
from ridgeline.diagnosis.gpupages import GPU_FIELDS
from ridgeline.diagnosis.modelnames import models_on, said
from ridgeline.diagnosis.ranking import diagnose
from ridgeline.diagnosis.stillness import StillClock, with_stillness
from ridgeline.domain.slo import Slo
from ridgeline.load.address import Address
from ridgeline.telemetry.dialects import in_vllm_words
from ridgeline.telemetry.prometheus import Scrape
from ridgeline.telemetry.quickpage import QuickReader

TIMEOUT_S = 2.0
WINDOW_S = 30.0
STALE_S = 3 * TIMEOUT_S  # behind its time, from which on a page is old
LEAST = 2  # readings are kept, however long ago: differences need two
KEPT = 7  # readings of the window that are looked at, the first and the last among them
PAGE_BYTES = 8 << 20
HTML = " (HTML: a proxy or a login page?)"
_READER = QuickReader(WANTED)
_GPU_READER = QuickReader(GPU_FIELDS)


@dataclass(frozen=True, slots=True)
class Price:
    """What is paid: USD per GPU and hour; gpus: of one replica (None: not said by the user)."""

    per_gpu_hour: float | None = None
    gpus: int | None = None

    def gpus_of(self, e: Evidence) -> int:
        """The GPUs of a replica: as the user says, else as many engine cores as its page shows,
        each with as many GPUs as the configuration gives one (where none is known: one).
        """
        if self.gpus is not None:
            return self.gpus
        found = e.known.configuration
        if found is None:
            return e.replicas
        knobs = found.knobs
        return e.replicas * (knobs.gpus // (knobs.data_parallel_size or 1))

    def per_hour(self, e: Evidence) -> float | None:
        """USD per hour of a replica."""
        return None if self.per_gpu_hour is None else self.per_gpu_hour * self.gpus_of(e)

    def said(self, e: Evidence) -> str:
        """Which GPUs are paid for, and how that is known."""
        count, seen = self.gpus_of(e), e.replicas
        found = e.known.configuration
        cores = f"{seen} engine core{'' if seen == 1 else 's'} seen"
        own = None if found is None else found.knobs.gpus
        if self.gpus is None:
            each = 1 if found is None else count // seen
            why = f"{cores}, {each} each" if found is not None else f"{cores}, one each is taken"
            if own is not None and own != count:
                why += f"; the study's configuration has {own}"
        else:
            why = f"as --gpus says; {cores}"
            if own is not None and own != count:
                why += f", the study's configuration has {own}"
        return f"{count} GPU{'' if count == 1 else 's'} a replica ({why})"


@dataclass(frozen=True, slots=True)
class Now:
    """One replica over the last half minute; None = not known.

    silent_s: since its page was last read; `trouble`: why it was not. Latencies in s by "p50",
    "p95". mbu, mfu: share of the GPU's bytes and FLOPs that were used (on the roofline, not
    measured); waste_usd_per_hour: what the idle time costs, of usd_per_hour, which is for `gpus`.
    attainment: least share of the requests inside the TTFT limit. model: as its page says, also the
    last one of a replica that is down.
    """

    name: str
    up: bool
    silent_s: float
    trouble: str | None = None
    evidence: Evidence | None = None
    findings: tuple[Finding, ...] = ()
    ttft_s: Mapping[str, float] = field(default_factory=dict)
    itl_s: Mapping[str, float] = field(default_factory=dict)
    output_tokens_per_s: float | None = None
    requests_per_s: float | None = None
    preemptions_per_s: float | None = None
    idle: float | None = None
    share_of_bound: float | None = None
    mbu: float | None = None
    mfu: float | None = None
    usd_per_hour: float | None = None
    gpus: int | None = None
    waste_usd_per_hour: float | None = None
    usd_per_million_output_tokens: float | None = None
    attainment: float | None = None
    model: str | None = None


class Replica:
    """A server and the thread that reads it every `period_s` until `stop`."""

    def __init__(
        self, address: Address, headers: Mapping[str, str], period_s: float,
        reader: QuickReader = _READER,
    ) -> None:  # fmt: skip
        self.name = address.url
        self.host = address.host
        self._reader = reader
        self._address = address
        self._headers = dict(headers)
        self.period_s = period_s
        self._readings: deque[tuple[float, Scrape]] = deque()
        self._clock = StillClock()  # longer than the window
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._begun = time.monotonic()
        self._connection: http.client.HTTPConnection | None = None
        self.trouble: str | None = "not read yet"
        self.last_text = ""
        self.model: str | None = None
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Read no more."""
        self._stop.set()

    def join(self, limit_s: float) -> None:
        """Wait for the thread, which a server that hangs may keep for TIMEOUT_S."""
        self._thread.join(limit_s)

    def readings(self) -> list[tuple[float, Scrape]]:
        """The window's readings that are looked at, oldest first."""
        with self._lock:
            rows = list(self._readings)
        if len(rows) <= KEPT:
            return rows
        step = (len(rows) - 1) / (KEPT - 1)
        return [rows[round(i * step)] for i in range(KEPT)]

    def still_s(self) -> dict[str, float]:
        """Seconds that each of its engines has held requests without moving."""
        with self._lock:
            return self._clock.still_s()

    @property
    def silent_s(self) -> float:
        """Seconds since the last page, or since the beginning."""
        with self._lock:
            last = self._readings[-1][0] if self._readings else self._begun
        return time.monotonic() - last

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            self._look()
            due = max(due + self.period_s, time.monotonic())
            self._stop.wait(due - time.monotonic())
        self._close()

    def _look(self) -> None:
        try:
            text = self._page()
            page = self._reader.read(text)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._close()
            self.trouble = str(error) or type(error).__name__
            return
        if not page.samples:
            html = text.lstrip().startswith("<")
            self.trouble = f"no page of engine metrics{HTML if html else ''}"
            return
        now = time.monotonic()
        with self._lock:
            self._readings.append((now, page))
            self._clock.look(now, in_vllm_words(page))
            while len(self._readings) > LEAST and self._readings[0][0] < now - WINDOW_S:
                self._readings.popleft()
        self.last_text, self.trouble, self.model = text, None, said(models_on(page))

    def _page(self) -> str:
        connection = self._connection or self._connect()
        connection.request("GET", f"{self._address.path}/metrics", headers=self._headers)
        reply = connection.getresponse()
        body = reply.read(PAGE_BYTES)
        if len(body) >= PAGE_BYTES:
            raise ValueError(f"its page has more than {PAGE_BYTES >> 20} MiB")
        if reply.status != 200:
            raise ValueError(f"HTTP {reply.status}")
        if reply.will_close or not reply.isclosed():
            self._close()
        return body.decode("utf-8", errors="replace")

    def _connect(self) -> http.client.HTTPConnection:
        self._connection = self._address.connection(TIMEOUT_S)
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


class Pool:
    """Replicas that are watched together. Figures are worked out when they are asked for."""

    def __init__(
        self,
        addresses: Sequence[Address],
        headers: Mapping[str, str],
        *,
        period_s: float = 1.0,
        known: Known | None = None,
        price: Price | None = None,
        slo: Slo | None = None,
        gpu_addresses: Sequence[Address] = (),
    ) -> None:
        self._gpus = [Replica(a, {}, period_s, _GPU_READER) for a in gpu_addresses]
        self.replicas = [Replica(address, headers, period_s) for address in addresses]
        self._known = known or Known()
        self._price = price or Price()
        self._ttft_limit_s = ttft_limit(slo)

    def __enter__(self) -> "Pool":
        for replica in (*self.replicas, *self._gpus):
            replica.start()
        return self

    def __exit__(self, *_: object) -> None:
        for replica in (*self.replicas, *self._gpus):
            replica.stop()
        end = time.monotonic() + 1.5 * TIMEOUT_S
        for replica in (*self.replicas, *self._gpus):
            replica.join(max(0.0, end - time.monotonic()))

    def now(self) -> list[Now]:
        """Every replica as it is now; never waits for one."""
        return [replace(self._guarded(r), model=r.model) for r in self.replicas]

    def _guarded(self, replica: Replica) -> Now:
        """What no rule expected on the page of one replica is no reason to show the others less."""
        try:
            return self._one(replica)
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
            why = f"its page is not understood ({type(error).__name__}: {error})"
            return Now(replica.name, False, replica.silent_s, why)

    def _one(self, replica: Replica) -> Now:
        silent, trouble = replica.silent_s, replica.trouble
        rows = replica.readings()
        if trouble is None and silent > replica.period_s + STALE_S:
            trouble = f"no whole page for {silent:.0f} s"  # one that drips never times out
        up = trouble is None
        if not rows:
            return Now(replica.name, up, silent, trouble)
        gpus = self._gpu_pages(replica)
        evidence = gather([Snapshot(at, page) for at, page in rows], self._known, gpus)
        if not up:
            return Now(replica.name, up, silent, trouble)
        if not evidence.mixed:
            evidence = with_stillness(evidence, replica.still_s())
        return figures(replica.name, evidence, self._price, self._ttft_limit_s, silent)

    def _gpu_pages(self, replica: Replica) -> list[Scrape]:
        """Readings of the GPUs of its host, or of the only ones that are known."""
        mine = [g for g in self._gpus if g.host == replica.host]
        if not mine and len(self._gpus) == 1:
            mine = self._gpus
        return [page for gpu in mine if gpu.trouble is None for _, page in gpu.readings()]


def figures(
    name: str, e: Evidence, price: Price, ttft_limit_s: float | None = None, silent_s: float = 0.0
) -> Now:
    """What one replica's evidence comes to."""
    account = Account(e)
    made, busy, floor, step = (
        e.per_s(e.generation_tokens), account.busy, account.floor, e.step_s
    )  # fmt: skip
    hourly = price.per_hour(e)
    used = (busy or 0.0) / step if step else None
    ttft = e.histograms.ttft
    inside = None
    if ttft_limit_s is not None and ttft is not None and ttft.count and ttft.bucketed:
        inside = 1 - ttft.share_above(ttft_limit_s)[1]
    return Now(
        name, True, silent_s, None, e, diagnose(e),
        ttft_s=_percentiles(e, "ttft"), itl_s=_percentiles(e, "itl"),
        output_tokens_per_s=made, requests_per_s=e.per_s(e.requests),
        preemptions_per_s=e.per_s(e.preemptions),
        idle=None if busy is None else 1 - busy, share_of_bound=account.share_of_bound,
        mbu=None if floor is None or used is None else floor.memory_s * used,
        mfu=None if floor is None or used is None else floor.compute_s * used,
        usd_per_hour=hourly, gpus=None if hourly is None else price.gpus_of(e),
        waste_usd_per_hour=None if hourly is None or busy is None else hourly * (1 - busy),
        usd_per_million_output_tokens=(
            hourly / (made * 3600) * 1e6 if hourly is not None and made else None
        ),
        attainment=inside,
    )  # fmt: skip


def _percentiles(e: Evidence, name: str) -> dict[str, float]:
    values = getattr(e.histograms, name)
    if values is None:
        return {}
    found = {word: values.estimate(share) for word, share in (("p50", 0.5), ("p95", 0.95))}
    return {word: value for word, value in found.items() if value is not None}


def ttft_limit(slo: Slo | None) -> float | None:
    """The strictest limit on a TTFT percentile, seconds."""
    if slo is None:
        return None
    limits = [limit.value for limit in slo.limits if limit.key.startswith("ttft_")]
    return min(limits) / 1e3 if limits else None
