"""The same server with and without vllm-router before it, paired and interleaved, at some loads.

usage: python -m benchmarks.router [--users N ...] [--repeats N] [--seconds S] [--write FILE]
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

from benchmarks.router.engine import ITL_MS, STUDY, TTFT_MS
from ridgeline.cli.main import run as ridgeline
from ridgeline.experiment.results import load_results

ROOT = Path(__file__).parents[2]
USERS = (1, 16, 64)
METRICS = ("ttft_s.p50", "ttft_s.p95", "itl_s.p50", "itl_s.p95")
BEGIN, END = "<!-- router-table: python -m benchmarks.router -->", "<!-- /router-table -->"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, nargs="+", default=list(USERS))
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--write", type=Path, default=None)
    options = parser.parse_args()
    script = ROOT / "scripts" / "vllm_router_env.sh"
    program = subprocess.run([script], capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory() as folder:
        loads = (options.users, options.repeats, options.seconds)
        found = measure(Path(folder), program, *loads)
        router = router_name(Path(folder) / "out")
    text = table(found, router, *loads)
    print(text)
    if options.write is not None:
        page = options.write.read_text()
        before, _, rest = page.partition(BEGIN)
        options.write.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}")
    return 0


def measure(
    folder: Path, program: str, levels: list[int], repeats: int, seconds: float
) -> dict[str, Any]:
    """The study's result: two experiments a level, the engine with and without the router stays up.

    Its results are left in `folder`/out.
    """

    def load(users: int) -> dict[str, Any]:
        return {"arrivals": {"users": users}}

    known = folder / "known-times.yaml"
    known.write_text(STUDY)
    first = before_other_work()
    routed = {"launch": {"router": {"command": [*first, program]}}}
    body = {
        "name": "router-cost",
        "model": "Qwen/Qwen3-4B",
        "engine": "vllm",
        "launch": {
            "command": [
                *first, sys.executable, str(Path(__file__).with_name("engine.py")), str(known),
                "{model}",
            ],
            "resident": 2, "cold_s": 0, "ready_s": 120,
        },
        "workload": {
            **load(levels[0]), "prompts": {"tokens": 64},
            "output_tokens": {"max": 32, "ignore_eos": True},
            "warmup_s": 2.0, "duration_s": seconds, "seed": 5,
        },
        "baseline_name": f"direct-{levels[0]}",
        "baseline": {"kv_cache_memory_bytes": 2**30},
        "experiments": [
            {"name": f"{what}-{users}", "workload": load(users), **more}
            for users in levels
            for what, more in (("direct", {}), ("routed", routed))
            if (what, users) != ("direct", levels[0])
        ],
        "repeats": repeats,
    }  # fmt: skip
    file, out, told = folder / "study.yaml", folder / "out", folder / "told.json"
    file.write_text(yaml.safe_dump(body, sort_keys=False))
    words = ["study", str(file), "--out", str(out), "--json", str(told), "--retries", "2"]
    assert ridgeline(words) in (0, 3)
    result: dict[str, Any] = json.loads(told.read_text())
    return result


def before_other_work() -> list[str]:
    """What makes server and router go before other work, if this process does (`chrt -r 1`).

    What Ridgeline starts is scheduled in the ordinary way; here the question is what the router
    costs, not what the rest of the machine does.
    """
    ordinary = os.SCHED_OTHER, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK
    return [] if os.sched_getscheduler(0) in ordinary else ["chrt", "--rr", "1"]


def router_name(results: Path) -> str:
    """The router of the runs, with the version that it gave."""
    found = {
        str(router.get("version", "of unknown version"))
        for one in load_results(results).experiments
        for run in one.stored
        if run.facts is not None and isinstance(router := run.facts.server.get("router"), dict)
    }
    return f"vllm-router {' and '.join(sorted(found)) or 'that did not start'}"


def table(
    found: dict[str, Any], router: str, levels: list[int], repeats: int, seconds: float
) -> str:
    """One row a load: what the router added, in ms, with the 95 % interval of the paired runs.

    "void": runs of the level that were void, behind the router and without it, also those that were
    done again. What makes the client late is in none of the figures, so it must be in the count.
    """
    busy = os.getloadavg()[0]
    lines = [
        f"{router} before one server with a TTFT of {TTFT_MS} ms and an ITL of {ITL_MS}"
        f" ms; {repeats} pairs of {seconds:g} s, interleaved; {os.cpu_count()} cores for client,"
        f" router and server together, load average {busy:.1f} at the end.",
        "",
        "| users | pairs | void (routed, direct) | TTFT p50, ms | TTFT p95, ms | ITL p50, ms"
        " | ITL p95, ms |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    costs = {cost["experiment"]: cost for cost in found["router_cost"]}
    for users in levels:
        voids = ", ".join(str(_voids(found, f"{what}-{users}")) for what in ("routed", "direct"))
        cost = costs.get(f"routed-{users}")
        if cost is None:
            lines.append(f"| {users} | 0 | {voids} | no valid pair | | | |")
            continue
        cells = [_cell(cost["seconds"].get(metric)) for metric in METRICS]
        lines.append(f"| {users} | {cost['pairs']} | {voids} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _voids(found: dict[str, Any], name: str) -> int:
    """Tries of an experiment that were not valid: all before a repeat's last, and that if void."""
    (one,) = (run for run in found["runs"] if run["name"] == name)
    return sum(max(0, r["tries"] - 1) + (r["state"] == "void") for r in one["repeats"])


def _cell(change: dict[str, float | None] | None) -> str:
    if change is None or change["delta"] is None:
        return "not measured"
    low, high = change["low"], change["high"]
    span = "" if low is None or high is None else f" ({1e3 * low:+.2f} to {1e3 * high:+.2f})"
    return f"{1e3 * change['delta']:+.2f}{span}"


if __name__ == "__main__":
    sys.exit(main())
