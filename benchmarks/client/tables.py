"""The results as tables, and their place in a page of docs/."""

import re
import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.client.cases import CASES
from benchmarks.client.measuring import STREAMS, WORKLOADS
from benchmarks.client.tools import Tool

MARK = "client-tables"


def markdown(results: Mapping[str, Any], tools: Mapping[str, Tool]) -> str:
    """Every table that the results have something for."""
    parts = [_head(results, tools)]
    for load, chunks in WORKLOADS.items():
        kind = "one chunk" if chunks == 1 else f"{chunks} chunks"
        if table := _rates(results, tools, load):
            parts += [f"### Rate: replies of {kind}, {STREAMS} streams", table]
    if table := _truths(results, tools):
        parts += ["### Truth: what is printed beside what was sent", table]
    missing = [f"- {tools[name].title}: {why}" for name, why in results["missing"].items()]
    if missing:
        parts += ["Not measured:", "\n".join(missing)]
    failed = [
        f"- {_place(key, tools)} ({step['date']}, {step.get('tries', 1)} tries): {_quoted(step)}"
        for key, step in results["steps"].items()
        if step["error"] is not None
    ]
    if failed:
        parts += ["Failed, with what the tool said last:", "\n".join(failed)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _place(key: str, tools: Mapping[str, Tool]) -> str:
    """Which measurement a key of the results names, in words."""
    part, load, tool, number = key.split("/")
    what = CASES[load].title if part == "truth" else f"rate, chunks a reply: {load}, round {number}"
    return f"{tools[tool].title}, {what}"


def _quoted(step: Mapping[str, Any]) -> str:
    """The error as one line that cannot break the page."""
    words = " ".join(str(step["error"]).split())
    return "`" + words.replace("`", "'").replace("|", "/")[-300:] + "`"


def put(text: str, tables: str) -> str:
    """The page with the tables in their marked place."""
    pattern = rf"(<!-- {MARK}: [^>]*-->\n).*?(<!-- /{MARK} -->)"
    changed, count = re.subn(pattern, lambda m: f"{m[1]}\n{tables}\n{m[2]}", text, flags=re.S)
    if count != 1:
        raise SystemExit(f"the page has no place for {MARK}")
    return changed


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _head(results: Mapping[str, Any], tools: Mapping[str, Tool]) -> str:
    steps = list(results["steps"].values())
    if not steps:
        return "Nothing was measured."
    dates = sorted(step["date"] for step in steps)
    loads = [step["load_average"] for step in steps]
    versions = ", ".join(
        f"{tools[name].title.split(',')[0].removesuffix(' ' + version)} {version}"
        for name, version in results["versions"].items()
        if name != "ridgeline-2"
    )
    text = (
        f"`{results['command']}`, {dates[0]} to {dates[-1]}, {results['machine']}."
        f" {versions}. Load average before a measurement (the one before it included):"
        f" {min(loads):.1f} to {max(loads):.1f}, median {statistics.median(loads):.1f}."
        f" {results.get('note') or ''}"
    )
    return text.rstrip()


def _steps(results: Mapping[str, Any], part: str, load: str, tool: str) -> list[dict[str, Any]]:
    """The good measurements of a tool under a load."""
    beginning = f"{part}/{load}/{tool}/"
    found = results["steps"].items()
    return [s for key, s in found if key.startswith(beginning) and s["error"] is None]


def _failed(results: Mapping[str, Any], part: str, load: str, tool: str) -> bool:
    """Whether a tool was tried under a load and failed."""
    beginning = f"{part}/{load}/{tool}/"
    return any(
        step["error"] is not None
        for key, step in results["steps"].items()
        if key.startswith(beginning)
    )


def _middle(steps: list[dict[str, Any]], *path: str) -> float | None:
    values = []
    for step in steps:
        value: Any = step
        for name in path:
            value = None if value is None else value.get(name)
        if value is not None:
            values.append(float(value))
    return statistics.median(values) if values else None


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _ratio(value: float | None, base: float | None) -> str:
    return "-" if value is None or not base else f"{value / base:.3g}"


def _rates(results: Mapping[str, Any], tools: Mapping[str, Tool], load: str) -> str:
    rates = {name: _middle(_steps(results, "rate", load, name), "requests_per_s") for name in tools}
    rows = []
    for name, tool in tools.items():
        steps = _steps(results, "rate", load, name)
        if not steps:
            if _failed(results, "rate", load, name):
                rows.append([tool.title, "failed: see below", *["-"] * 7])
            continue
        rate = rates[name]
        spread = [step["requests_per_s"] for step in steps]
        busy = _middle(steps, "mock_busy")
        rows.append(
            [
                tool.title,
                f"{_shown(rate, ',.0f')} ({min(spread):,.0f} to {max(spread):,.0f})",
                _shown(None if rate is None else rate * WORKLOADS[load], ",.0f"),
                _ratio(rate, rates["aiperf"]),
                _ratio(rate, rates["wrk"]),
                _shown(None if busy is None else busy * 100, ".0f"),
                _shown(_middle(steps, "printed", "ttft_mean_ms"), ".2f"),
                _verdict(steps),
                str(len(steps)),
            ]
        )
    head = ["tool", "requests/s (range)", "chunks/s", "x AIPerf", "x wrk"]
    head += ["mock busy, % of its core", "mean TTFT it prints, ms", "its verdict", "n"]
    return _table(head, rows) if rows else ""


def _verdict(steps: list[dict[str, Any]]) -> str:
    said = [step["printed"]["verdict"] for step in steps]
    if all(words is None for words in said):
        return "has none"
    valid = sum(words == "valid" for words in said)
    return f"valid in {valid} of {len(said)}"


TRUTH = (
    ("ttft_mean_ms", "TTFT mean"),
    ("itl_mean_ms", "ITL mean"),
    ("itl_p95_ms", "ITL p95"),
    ("itl_max_ms", "longest gap"),
)


def _truths(results: Mapping[str, Any], tools: Mapping[str, Tool]) -> str:
    rows = []
    for name, case in CASES.items():
        title = case.title
        for short, tool in tools.items():
            if _failed(results, "truth", name, short):
                rows.append([title, tool.title, "failed: see below", *["-"] * len(TRUTH)])
                title = ""
            for step in _steps(results, "truth", name, short):
                cells = [
                    f"{_shown(step['printed'][key], '.2f')} / {_shown(step['truth'][key], '.2f')}"
                    for key, _ in TRUTH
                ]
                rows.append([title, tool.title, *cells, _word(step["printed"]["verdict"])])
                title = ""
    head = ["server", "tool", *(f"{words}, ms" for _, words in TRUTH), "its verdict"]
    return _table(head, rows) if rows else ""


def _word(verdict: str | None) -> str:
    return "has none" if verdict is None else verdict.partition(":")[0]
