"""What is measured in which order, and what each measurement leaves. Resumable: see `Session`."""

import itertools
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.client.cases import CASES
from benchmarks.client.environments import Missing
from benchmarks.client.mocks import CORE, Mock, null_mock, paced_mock
from benchmarks.client.tools import Load, Tool, all_tools, as_json, run

STREAMS, RATE_SECONDS = 32, 5.0
WORKLOADS = {"1": 1, "200": 200}  # name -> chunks a reply
GUESS_S = 60.0  # for a tool that was not timed yet
MOST_TRIES = 2  # a measurement that fails so often has failed; it is told with its last words


@dataclass(frozen=True, slots=True)
class Step:
    """One measurement: a tool under a load. part "rate": how fast; part "truth": how true."""

    part: str
    load: str
    tool: str
    round: int

    @property
    def key(self) -> str:
        """Its name in the file of results."""
        return f"{self.part}/{self.load}/{self.tool}/{self.round}"


def order(tools: list[str], truthful: list[str], rounds: int) -> Iterator[Step]:
    """Every step. Tools alternate (A B B A), so that a drift of the machine meets all alike."""
    for number in range(rounds):
        turn = tools if number % 2 == 0 else tools[::-1]
        for load in WORKLOADS:
            for tool in turn:
                yield Step("rate", load, tool, number)
    for load in CASES:
        for tool in truthful:
            yield Step("truth", load, tool, 0)


class Session:
    """The measurements of `folder`/results.json; those that are there are not made again.

    `results` is what the file holds: "versions" and "missing" by tool, "steps" by key.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "results.json"
        self.results: dict[str, Any] = {"versions": {}, "missing": {}, "steps": {}}
        if self._file.exists():
            self.results = json.loads(self._file.read_text())
        self.tools: dict[str, Tool] = all_tools(folder.resolve())

    def prepare(self, wanted: list[str]) -> list[str]:
        """Set up the tools; those that can be run. The others stand in results["missing"]."""
        ready = []
        self.results["missing"] = {}
        for name in wanted:
            try:
                self.results["versions"][name] = self.tools[name].prepare(self.folder.resolve())
                ready.append(name)
            except Missing as error:
                self.results["missing"][name] = str(error)
        self.results["machine"] = _machine()
        self.results["command"] = "python -m benchmarks.client"
        self._save()
        return ready

    def measure(self, steps: list[Step], until: float | None) -> int:
        """Make what is not there until a monotonic time (s); how many steps are left then.

        What was never tried comes before what has failed, and what does not fit into the time that
        is left waits, so that one slow or failing tool holds up no other.
        """
        known = self.results["steps"]
        left = [s for s in steps if s.key not in known]
        left += [s for s in steps if s.key in known and self._may_try_again(known[s.key])]
        waiting, done = 0, len(steps) - len(left)
        for step in left:
            if until is not None and time.monotonic() + self._guess_s(step) > until:
                waiting += 1
                continue
            began, tries = time.monotonic(), known.get(step.key, {}).get("tries", 0)
            found = self._make(step)
            found |= {"seconds": round(time.monotonic() - began, 1), "tries": tries + 1}
            done += 1
            said = _in_short(found)
            print(f"[{done}/{len(steps)}] {step.key}: {said}", file=sys.stderr, flush=True)
            known[step.key] = found
            self._save()
            waiting += self._may_try_again(found)
        return waiting

    @staticmethod
    def _may_try_again(found: dict[str, Any]) -> bool:
        return found["error"] is not None and found.get("tries", 1) < MOST_TRIES

    def _guess_s(self, step: Step) -> float:
        """How long it may take: as long as the tool's longest under this load, or this half."""
        seen: dict[str, list[float]] = {"load": [], "part": []}
        for key, found in self.results["steps"].items():
            part, load, tool, _ = key.split("/")
            if tool == step.tool and part == step.part:
                seen["part"].append(found["seconds"])
                if load == step.load:
                    seen["load"].append(found["seconds"])
        return max(seen["load"] or seen["part"], default=GUESS_S)

    def _save(self) -> None:
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps(self.results, indent=1) + "\n")
        part.replace(self._file)

    def _make(self, step: Step) -> dict[str, Any]:
        found: dict[str, Any] = {
            "date": time.strftime("%Y-%m-%d %H:%M"),
            "load_average": round(os.getloadavg()[0], 2),
            "error": None,
        }
        tool, out = self.tools[step.tool], self.folder.resolve() / step.key
        try:
            if step.part == "rate":
                found |= _rate(tool, WORKLOADS[step.load], out, self.folder)
            else:
                found |= _truth(tool, step.load, out)
        except (RuntimeError, OSError, KeyError, ValueError) as error:
            found["error"] = f"{type(error).__name__}: {error}"[:600]
        return found


def _cores(tool: Tool) -> set[int]:
    """A tool of one thread gets the core that the mock does not have; the others get all."""
    every = os.sched_getaffinity(0)
    return every - {CORE} if tool.pinned and len(every) > 1 else every


def _rate(tool: Tool, chunks: int, out: Path, scratch: Path) -> dict[str, Any]:
    with null_mock(chunks, scratch) as mock:
        load = Load(STREAMS, chunks, RATE_SECONDS)
        printed = run(tool, mock.url, load, out, _cores(tool))
        replies = mock.replies_ns()
        return {**_middle(replies, mock), "mock": mock.kind, "printed": as_json(printed)}


def _middle(replies: list[int], mock: Mock) -> dict[str, Any]:
    """Replies/s as the mock counted them, without the first and the last tenth."""
    if len(replies) < 100:
        raise RuntimeError(f"only {len(replies)} requests came")
    low, high = len(replies) // 10, len(replies) * 9 // 10
    begin, end = replies[low], replies[high]
    rate = (high - low) / ((end - begin) / 1e9)
    return {"requests": len(replies), "requests_per_s": rate, "mock_busy": mock.busy(begin, end)}


def _truth(tool: Tool, name: str, out: Path) -> dict[str, Any]:
    case = CASES[name]
    with paced_mock(name) as mock:
        load = Load(case.streams, case.tokens, 0.0, case.requests)
        printed = run(tool, mock.url, load, out, _cores(tool))
        stamps = mock.stamps()[-case.requests :]  # a tool's own first trials are not its run
    waits = [(content[0] - received) / 1e6 for received, content in stamps]
    gaps = [(b - a) / 1e6 for _, c in stamps for a, b in itertools.pairwise(c)]
    return {
        "requests": len(stamps),
        "truth": {
            "ttft_mean_ms": statistics.fmean(waits),
            "ttft_p50_ms": statistics.median(waits),
            "itl_mean_ms": statistics.fmean(gaps) if gaps else None,
            "itl_p95_ms": statistics.quantiles(gaps, n=20)[18] if gaps else None,
            "itl_max_ms": max(gaps, default=None),
        },
        "printed": as_json(printed),
    }


def _in_short(found: dict[str, Any]) -> str:
    if found["error"]:
        return f"failed: {found['error']}"
    if "truth" in found:
        mine, theirs = found["truth"]["ttft_mean_ms"], found["printed"]["ttft_mean_ms"]
        return f"TTFT {theirs} ms printed, {mine:.2f} ms sent"
    busy = found["mock_busy"]
    return f"{found['requests_per_s']:.0f} requests/s, mock {busy and round(busy, 2)} of a core"


def _machine() -> str:
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores ({model}), {platform.system()} {platform.release()}, Python " + (
        platform.python_version()
    )
