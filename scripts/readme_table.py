"""Write the demo's tables into README.md: python scripts/readme_table.py runs/demo README.md

The README shows what `make demo` found, not what somebody typed.
"""

import re
import sys
from pathlib import Path

from ridgeline.report.load import load_report
from ridgeline.report.model import ExperimentRow, StudyReport

PUBLISHED = {
    "ttft_p95_ms": "p95 TTFT {:,.0f} ms",
    "itl_p95_ms": "p95 ITL {:g} ms",
    "chunks_per_s": "{:,.0f} chunks/s",
}


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows]]


def number(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else format(value, form) + unit


def milliseconds(value: float | None, form: str) -> str:
    return number(None if value is None else value * 1e3, form, " ms")


def against(row: ExperimentRow, report: StudyReport) -> str:
    if row.name == report.baseline:
        return "baseline"
    found = row.against_baseline.get("cost.usd_per_million_output_tokens")
    if found is None or found.delta is None or found.low is None or found.high is None:
        return ""
    return f"{found.delta:+.1%} ({found.low:+.1%} to {found.high:+.1%})"


def published(row: ExperimentRow) -> str:
    return ", ".join(f.format(row.published[k]) for k, f in PUBLISHED.items() if k in row.published)


def experiments(report: StudyReport) -> list[str]:
    head = [
        "experiment",
        "p95 TTFT",
        "p95 ITL",
        "output tokens/s",
        "$/Mtok",
        "$/Mtok against",
        "published",
    ]
    rows = [
        [
            row.name,
            milliseconds(row.summary.ttft_s.p95, ",.0f"),
            milliseconds(row.summary.itl_s.p95, ".2f"),
            number(row.summary.throughput.output_tokens_per_s, ",.0f"),
            number(row.summary.cost.usd_per_million_output_tokens, ".3f"),
            against(row, report),
            published(row),
        ]
        for row in report.rows
        if row.summary is not None
    ]  # fmt: skip
    return table(head, rows)


def findings(report: StudyReport) -> list[str]:
    rows = [[f.claim, f.published or "", f"**{f.mark}**", f.ours] for f in report.findings]
    return table(["finding", "published", "the twin", "ratio on the twin"], rows)


def put(text: str, name: str, lines: list[str]) -> str:
    pattern = rf"(<!-- {name}: [^>]*-->\n).*?(<!-- /{name} -->)"
    body = "\n".join(["", *lines, "", ""])
    changed, count = re.subn(pattern, lambda m: m[1] + body + m[2], text, flags=re.S)
    if count != 1:
        sys.exit(f"README has no place for {name}")
    return changed


def main() -> None:
    report = load_report(Path(sys.argv[1]))
    readme = Path(sys.argv[2])
    text = put(readme.read_text(), "demo-table", experiments(report))
    readme.write_text(put(text, "findings-table", findings(report)))


main()
