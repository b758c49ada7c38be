"""The last figures of `ridgeline watch`, and where they are kept."""

import itertools
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.cli.output import say
from ridgeline.domain.errors import StoreError
from ridgeline.domain.secrets import mask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ridgeline.diagnosis.drift import Tuned
    from ridgeline.diagnosis.keeping import Keeper, Limit
    from ridgeline.diagnosis.live import Now, Pool, Replica
    from ridgeline.diagnosis.retuning import Retuning
    from ridgeline.diagnosis.storedpool import StoredPool, StoredReplica

NAME = "replica.txt"  # which replica a folder of pages is of
MANY_BYTES = 20e6  # of figures: their table takes seconds
RECORD_EVERY_S = 10.0  # pages are kept so often
GPU = ("utilisation", "sm_active", "tensor_active", "dram_active", "power_w")


class State:
    """The last figures, and where they are kept."""

    def __init__(
        self, pool: "Pool | StoredPool", record: Path | None, tuned: "Tuned | None" = None,
        limit: "Limit | None" = None,
    ) -> None:  # fmt: skip
        self._pool = pool
        self._tuned = tuned
        self._retuning: Retuning | None = None
        self._record = record
        self._limit = limit
        self._keeper: Keeper | None = None
        self._kept = float("-inf")
        self._clock = time.time() - time.monotonic()  # one that nobody sets
        self._folders: dict[str, Path] = {}
        self._said: set[str] = set()
        self._failing = False
        self._looks = 0
        self.now: list[Now] = pool.now()

    @property
    def whole(self) -> bool:
        """Whether all replicas are among the figures, as far as is known."""
        return not getattr(self._pool, "partial", False)

    def look(self) -> None:
        """Work the figures out anew, and keep them where that is asked for."""
        self.now = [self._held_against(row) for row in self._pool.now()]
        for words in getattr(self._pool, "said", ()):
            if words not in self._said:
                self._said.add(words)
                say(f"Prometheus: {words}")
        if self._record is not None:
            self._try_to_keep(self._record)

    def _held_against(self, row: "Now") -> "Now":
        """With what has become of the traffic, where a winner was given."""
        if self._tuned is None or row.evidence is None:
            return row
        from dataclasses import replace  # noqa: PLC0415

        from ridgeline.diagnosis.drift import drift  # noqa: PLC0415
        from ridgeline.diagnosis.retuning import Retuning  # noqa: PLC0415

        if self._retuning is None:
            self._retuning = Retuning(self._tuned)
        asked = self._retuning
        found = drift(row.evidence, self._tuned, retune=lambda e, _: asked.answer(row.name, e))
        return row if found is None else replace(row, findings=(*row.findings, found))

    def close(self) -> None:
        """The end: what was recorded becomes the store's table."""
        if self._record is not None and self._record.is_dir():
            from ridgeline.diagnosis.keeping import figure_files  # noqa: PLC0415
            from ridgeline.diagnosis.recorded import close  # noqa: PLC0415

            if sum(p.stat().st_size for p in figure_files(self._record)) > MANY_BYTES:
                say(f"{self._record}: writing telemetry.parquet (Ctrl-C leaves it to the report)")
            try:
                close(self._record)
            except (OSError, StoreError) as error:
                say(f"{self._record}: telemetry.parquet cannot be written ({error}); `ridgeline"
                    " report` makes it of figures.jsonl")  # fmt: skip
            if self._looks:
                say(f"recorded: {self._looks} looks at {len(self.now)} replicas in {self._record};"
                    f" `ridgeline report {self._record}` shows them")  # fmt: skip

    def _try_to_keep(self, folder: Path) -> None:
        """A disk that is full ends no view: it is said once, and tried again at the next look."""
        try:
            self._keep(folder)
        except OSError as error:
            if not self._failing:
                why = (error.strerror or str(error)).lower()
                say(f"{folder}: nothing is recorded ({why}); the watch goes on and tries again")
            self._failing = True
            return
        if self._failing:
            say(f"{folder}: recording again")
        self._failing = False

    def _keep(self, folder: Path) -> None:
        from ridgeline.diagnosis.keeping import DEFAULT, Keeper, parse_limit  # noqa: PLC0415
        from ridgeline.diagnosis.saved import stamped  # noqa: PLC0415

        at = self._clock + time.monotonic()
        if self._keeper is None:
            self._keeper = Keeper(folder, self._limit or parse_limit(DEFAULT))
        lines = [mask(json.dumps({"at": round(at, 3), **as_json(row)})) + "\n" for row in self.now]
        self._keeper.add("".join(lines).encode(), at)
        self._looks += 1
        if at - self._kept < RECORD_EVERY_S:
            return
        self._kept = at
        replicas: Sequence[Replica | StoredReplica] = self._pool.replicas
        for replica in replicas:
            if replica.trouble is None and replica.last_text:
                own = self._folder_of(folder, replica.name)
                text = stamped(replica.last_text, at)
                self._keeper.page(own / f"metrics-{round(at)}.txt", text, at)

    def _folder_of(self, folder: Path, name: str) -> Path:
        """A replica's own, whatever others come and go: also in a later run."""
        if name not in self._folders:
            told = {own: _said_name(own) for own in sorted(folder.glob("replica-*"))}
            own = next((path for path, said in told.items() if said == mask(name)), None)
            if own is None:
                taken = {path.name for path in told}
                free = (f"replica-{n:03d}" for n in itertools.count())
                own = folder / next(n for n in free if n not in taken)
                own.mkdir()
                (own / NAME).write_text(f"{mask(name)}\n", "utf-8")
            self._folders[name] = own
        self._folders[name].mkdir(exist_ok=True)
        return self._folders[name]


def _said_name(folder: Path) -> str | None:
    try:
        return (folder / NAME).read_text("utf-8").strip()
    except OSError:
        return None


def as_json(row: "Now") -> dict[str, Any]:
    """One replica's figures as plain values."""
    e = row.evidence
    levels = {
        name: None if e is None or (level := getattr(e, name)) is None else level.last
        for name in ("running", "waiting", "kv_use")
    }
    gpu = {} if e is None else {f"gpu_{name}": e.gpu_mean(name) for name in GPU}
    found = {
        "replica": row.name, "model": row.model, "up": row.up, "trouble": row.trouble, **levels,
        "output_tokens_per_s": row.output_tokens_per_s, "requests_per_s": row.requests_per_s,
        "preemptions_per_s": row.preemptions_per_s, "ttft_s": dict(row.ttft_s),
        "itl_s": dict(row.itl_s), "idle": row.idle, "share_of_bound": row.share_of_bound,
        "mbu": row.mbu, "mfu": row.mfu, "usd_per_hour": row.usd_per_hour, "gpus": row.gpus,
        "waste_usd_per_hour": row.waste_usd_per_hour,
        "usd_per_million_output_tokens": row.usd_per_million_output_tokens, **gpu,
        "attainment": row.attainment,
        "findings": [f.id for f in row.findings if f.kind != "note" or f.id == "drift"],
    }  # fmt: skip
    if e is not None and e.twin:
        found["source"] = "twin"
    return {k: v for k, v in found.items() if v is not None}
