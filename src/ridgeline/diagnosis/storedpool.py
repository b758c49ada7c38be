"""`ridgeline watch` from an existing Prometheus: its targets as replicas, asked by one thread."""

import threading
import time
from dataclasses import dataclass, replace

from ridgeline.diagnosis.evidence import Known
from ridgeline.diagnosis.gathering import gather
from ridgeline.diagnosis.live import WINDOW_S, Now, Price, figures, ttft_limit
from ridgeline.diagnosis.modelnames import said
from ridgeline.diagnosis.stored import TIMEOUT_S, PrometheusServer, Stored, as_text
from ridgeline.diagnosis.targets import Target
from ridgeline.domain.errors import RidgelineError
from ridgeline.domain.slo import Slo

LEAST_PERIOD_S = 5.0  # what changes more slowly need not be asked for more often
LOOKED_AT_S = 300.0  # so far back, to learn how often it scrapes
READINGS = 4  # of a target in the window, however slowly it is scraped
OLD = 3.0  # periods, and the time of an answer, after which a look is old
SILENT = 3.0  # scrape intervals without a reading: it does not answer


@dataclass(frozen=True, slots=True)
class StoredReplica:
    """One target as it was last seen. last_text: its last page."""

    name: str
    trouble: str | None
    last_text: str


class StoredPool:
    """The targets of a Prometheus, with the interface of `live.Pool`. A context."""

    def __init__(
        self, server: PrometheusServer, *, period_s: float, known: Known, price: Price,
        slo: Slo | None,
    ) -> None:  # fmt: skip
        self._server = server
        self._period_s = max(LEAST_PERIOD_S, period_s)
        self._known, self._price, self._ttft_limit_s = known, price, ttft_limit(slo)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._seen = server.look(LOOKED_AT_S)  # what is wrong with it is said at once
        self._at = time.monotonic()
        self._trouble: str | None = None
        self._thread = threading.Thread(target=self._run, name="prometheus", daemon=True)

    def __enter__(self) -> "StoredPool":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(1.0)

    @property
    def said(self) -> tuple[str, ...]:
        """What is to be said of the last look: doubles, warnings."""
        return self._last()[0].said

    @property
    def partial(self) -> bool:
        """Whether Prometheus warned that its last answer is a part: sums would be too small."""
        return self._last()[0].partial

    @property
    def replicas(self) -> list[StoredReplica]:
        """The targets of the last look."""
        seen, _, _ = self._last()
        return [StoredReplica(t.name, self._why(seen, t), _text(t)) for t in seen.targets]

    def now(self) -> list[Now]:
        """Every target as Prometheus last had it; never waits for an answer."""
        seen, age, trouble = self._last()
        return [self._one(seen, target, age, trouble) for target in seen.targets]

    def _run(self) -> None:
        while not self._stop.wait(self._period_s):
            try:
                seen = self._server.look(LOOKED_AT_S)
            except Exception as error:  # an odd answer ends no watch
                words = str(error) if isinstance(error, RidgelineError) else (
                    f"its answer is not understood ({type(error).__name__}: {error})")  # fmt: skip
                with self._lock:
                    self._trouble = words
                continue
            with self._lock:
                self._seen, self._at, self._trouble = seen, time.monotonic(), None

    def _last(self) -> tuple[Stored, float, str | None]:
        with self._lock:
            return self._seen, time.monotonic() - self._at, self._trouble

    def _why(self, seen: Stored, target: Target) -> str | None:
        last = target.pages[-1][0]
        if target.down and target.down[-1] > last:
            return "Prometheus cannot read it"
        if seen.now_s - last > SILENT * (target.apart_s or LOOKED_AT_S):
            return "Prometheus has no new readings of it"
        return None

    def _one(self, seen: Stored, target: Target, age_s: float, trouble: str | None) -> Now:
        silent = seen.now_s - target.pages[-1][0] + age_s
        why = trouble or self._why(seen, target)
        if why is None and age_s > OLD * self._period_s + TIMEOUT_S:
            why = f"Prometheus has not answered for {age_s:.0f} s"
        if why is not None:
            return Now(target.name, False, silent, why, model=said(target.models))
        window = max(WINDOW_S, READINGS * (target.apart_s or 0.0)) + 0.5
        rows = [s for s in target.snapshots() if (s.at_s or 0.0) >= seen.now_s - window]
        gpus = seen.gpu_page(target)
        evidence = gather(rows, self._known, [] if gpus is None else [gpus], stored=True)
        now = figures(target.name, evidence, self._price, self._ttft_limit_s, silent)
        return replace(now, model=said(target.models))


def _text(target: Target) -> str:
    return as_text(target.pages[-1][1])
