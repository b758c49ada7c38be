"""The same server with and without vllm-router before it, paired and interleaved, at three loads.

usage: python -m benchmarks.router [--repeats N] [--seconds S] [--write docs/router.md]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from benchmarks.router.engine import ITL_MS, TTFT_MS
from ridgeline.cli.main import run as ridgeline

ROOT = Path(__file__).parents[2]
USERS = (1, 16, 64)
METRICS = ("ttft_s.p50", "ttft_s.p95", "itl_s.p50", "itl_s.p95")
BEGIN, END = "<!-- router-table: python -m benchmarks.router -->", "<!-- /router-table -->"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--write", type=Path, default=None)
    options = parser.parse_args()
    script = ROOT / "scripts" / "vllm_router_env.sh"
    program = subprocess.run([script], capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), program, options.repeats, options.seconds)
    text = table(found, options.repeats, options.seconds)
    print(text)
    if options.write is not None:
        page = options.write.read_text()
        before, _, rest = page.partition(BEGIN)
        options.write.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}")
    return 0


def measure(folder: Path, program: str, repeats: int, seconds: float) -> dict[str, Any]:
    """The study's result: six experiments, the engine with and without the router stays up."""

    def load(users: int) -> dict[str, Any]:
        return {"arrivals": {"users": users}}

    routed = {"launch": {"router": {"command": [program]}}}
    body = {
        "name": "router-cost",
        "model": "Qwen/Qwen3-4B",
        "engine": "vllm",
        "launch": {
            "command": [sys.executable, str(Path(__file__).with_name("engine.py")), "{model}"],
            "resident": 2, "cold_s": 0, "ready_s": 120,
        },
        "workload": {
            **load(USERS[0]), "prompts": {"tokens": 64},
            "output_tokens": {"max": 32, "ignore_eos": True},
            "warmup_s": 2.0, "duration_s": seconds, "seed": 5,
        },
        "baseline_name": f"direct-{USERS[0]}",
        "baseline": {"kv_cache_memory_bytes": 2**30},
        "experiments": [
            {"name": f"{what}-{users}", "workload": load(users), **more}
            for users in USERS
            for what, more in (("direct", {}), ("routed", routed))
            if (what, users) != ("direct", USERS[0])
        ],
        "repeats": repeats,
    }  # fmt: skip
    file, out, told = folder / "study.yaml", folder / "out", folder / "told.json"
    file.write_text(yaml.safe_dump(body, sort_keys=False))
    words = ["study", str(file), "--out", str(out), "--json", str(told), "--retries", "2"]
    assert ridgeline(words) in (0, 3)
    result: dict[str, Any] = json.loads(told.read_text())
    return result


def table(found: dict[str, Any], repeats: int, seconds: float) -> str:
    """One row a load: what the router added, in ms, with the 95 % interval of the paired runs."""
    busy = os.getloadavg()[0]
    lines = [
        f"vllm-router 0.1.17 before one server with a TTFT of {TTFT_MS} ms and an ITL of {ITL_MS}"
        f" ms; {repeats} pairs of {seconds:g} s, interleaved; {os.cpu_count()} cores for client,"
        f" router and server together, load average {busy:.1f} at the end.",
        "",
        "| users | pairs | TTFT p50, ms | TTFT p95, ms | ITL p50, ms | ITL p95, ms |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    costs = {cost["experiment"]: cost for cost in found["router_cost"]}
    for users in USERS:
        cost = costs.get(f"routed-{users}")
        if cost is None:
            lines.append(f"| {users} | 0 | no valid pair | | | |")
            continue
        cells = [_cell(cost["seconds"].get(metric)) for metric in METRICS]
        lines.append(f"| {users} | {cost['pairs']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(change: dict[str, float | None] | None) -> str:
    if change is None or change["delta"] is None:
        return "not measured"
    low, high = change["low"], change["high"]
    span = "" if low is None or high is None else f" ({1e3 * low:+.2f} to {1e3 * high:+.2f})"
    return f"{1e3 * change['delta']:+.2f}{span}"


if __name__ == "__main__":
    sys.exit(main())
