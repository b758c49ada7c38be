"""The last figures of `ridgeline watch`, and where they are kept."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ridgeline.diagnosis.drift import Tuned
    from ridgeline.diagnosis.live import Now, Pool, Replica
    from ridgeline.diagnosis.retuning import Retuning
    from ridgeline.diagnosis.storedpool import StoredPool, StoredReplica

RECORD_EVERY_S = 10.0  # pages are kept so often
GPU = ("utilisation", "sm_active", "tensor_active", "dram_active", "power_w")


class State:
    """The last figures, and where they are kept."""

    def __init__(
        self, pool: "Pool | StoredPool", record: Path | None, tuned: "Tuned | None" = None
    ) -> None:
        self._pool = pool
        self._tuned = tuned
        self._retuning: Retuning | None = None
        self._record = record
        self._kept = float("-inf")
        self.now: list[Now] = pool.now()

    def look(self) -> None:
        """Work the figures out anew, and keep them where that is asked for."""
        self.now = [self._held_against(row) for row in self._pool.now()]
        if self._record is not None:
            self._keep(self._record)

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
            from ridgeline.diagnosis.recorded import close  # noqa: PLC0415

            close(self._record)

    def _keep(self, folder: Path) -> None:
        from ridgeline.diagnosis.recorded import FIGURES  # noqa: PLC0415
        from ridgeline.diagnosis.saved import stamped  # noqa: PLC0415
        from ridgeline.domain.secrets import mask  # noqa: PLC0415

        at = time.time()
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / FIGURES).open("a", encoding="utf-8") as file:
            for row in self.now:
                file.write(mask(json.dumps({"at": round(at, 3), **as_json(row)})) + "\n")
        if at - self._kept < RECORD_EVERY_S:
            return
        self._kept = at
        replicas: Sequence[Replica | StoredReplica] = self._pool.replicas
        for number, replica in enumerate(replicas):
            if replica.trouble is None and replica.last_text:
                own = folder / f"replica-{number:03d}"
                own.mkdir(exist_ok=True)
                page = stamped(replica.last_text, at)
                (own / f"metrics-{round(at)}.txt").write_text(page, "utf-8")


def as_json(row: "Now") -> dict[str, Any]:
    """One replica's figures as plain values."""
    e = row.evidence
    levels = {
        name: None if e is None or (level := getattr(e, name)) is None else level.last
        for name in ("running", "waiting", "kv_use")
    }
    gpu = {} if e is None else {f"gpu_{name}": e.gpu_mean(name) for name in GPU}
    found = {
        "replica": row.name, "up": row.up, "trouble": row.trouble, **levels,
        "output_tokens_per_s": row.output_tokens_per_s, "requests_per_s": row.requests_per_s,
        "preemptions_per_s": row.preemptions_per_s, "ttft_s": dict(row.ttft_s),
        "itl_s": dict(row.itl_s), "idle": row.idle, "share_of_bound": row.share_of_bound,
        "mbu": row.mbu, "mfu": row.mfu, "waste_usd_per_hour": row.waste_usd_per_hour,
        "usd_per_million_output_tokens": row.usd_per_million_output_tokens, **gpu,
        "attainment": row.attainment,
        "findings": [f.id for f in row.findings if f.kind != "note" or f.id == "drift"],
    }  # fmt: skip
    return {k: v for k, v in found.items() if v is not None}
