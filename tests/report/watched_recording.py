"""A recording as `ridgeline watch --record` writes it: two replicas over ten minutes, one is down
for a while, one's queue grows until it waits for slots."""

import json
from pathlib import Path

LOOKS, EVERY_S, BEGUN = 300, 2.0, 1796090000.0
DOWN = range(120, 150)  # looks in which the second one does not answer
FULL = 180  # look from which on the first one's slots are full


def record(
    folder: Path, names: tuple[str, str] = ("http://gpu-1:8000", "http://gpu-2:8000")
) -> Path:
    """Write it; the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for look in range(LOOKS):
        at = BEGUN + EVERY_S * look
        full = look >= FULL
        waiting = max(0.0, 0.4 * (look - FULL))
        lines.append({
            "at": at, "replica": names[0], "up": True, "running": 64.0 if full else 20 + look / 5,
            "waiting": waiting, "kv_use": min(0.8, 0.2 + look / 500), "output_tokens_per_s":
            min(4200.0, 1500 + 15.0 * look), "requests_per_s": 12.0,
            "ttft_s": {"p50": 0.05 + waiting / 100, "p95": 0.12 + waiting / 30},
            "itl_s": {"p50": 0.009, "p95": 0.014}, "findings": ["batch-ceiling"] if full else [],
        })  # fmt: skip
        down = look in DOWN
        other = {"at": at, "replica": names[1], "up": not down}
        if down:
            other |= {"trouble": "timed out", "findings": []}
        else:
            other |= {"running": 8.0, "waiting": 0.0, "kv_use": 0.1, "output_tokens_per_s": 800.0,
                      "ttft_s": {"p50": 0.04, "p95": 0.06}, "itl_s": {"p50": 0.008, "p95": 0.01},
                      "findings": ["low-load"]}  # fmt: skip
        lines.append(other)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "figures.jsonl").write_text(text, "utf-8")
    return folder
