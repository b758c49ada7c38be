"""Write the demo's tables into README.md: python scripts/readme_table.py runs/demo README.md

The README shows what `make demo` found, not what somebody typed.
"""

import re
import sys
from pathlib import Path

from ridgeline.report.load import load_report
from ridgeline.report.model import StudyReport


def cell(value: float | None, form: str, scale: float = 1.0) -> str:
    return "" if value is None else format(value * scale, form)


def experiments(report: StudyReport) -> list[str]:
    lines = [
        "| experiment | p95 TTFT | p95 ITL | output tokens/s | $/Mtok | $/Mtok against the baseline | published |",
        "|---|---:|---:|---:|---:|---|---|",
    ]
    for row in report.rows:
        s = row.summary
        if s is None:
            continue
        difference = row.against_baseline.get("cost.usd_per_million_output_tokens")
        against = (
            "baseline"
            if row.name == report.baseline
            else ""
            if difference is None
            else f"{difference.delta:+.1%} ({difference.low:+.1%} to {difference.high:+.1%})"
        )
        published = row.published
        told = [
            text
            for key, text in (
                ("ttft_p95_ms", "p95 TTFT {:,.0f} ms"),
                ("itl_p95_ms", "p95 ITL {:g} ms"),
                ("chunks_per_s", "{:,.0f} chunks/s"),
            )
            if (value := published.get(key)) is not None
            for text in [text.format(value)]
        ]
        lines.append(
            f"| {row.name} | {cell(s.ttft_s.p95, ',.0f', 1e3)} ms | {cell(s.itl_s.p95, '.2f', 1e3)} ms"
            f" | {cell(s.throughput.output_tokens_per_s, ',.0f')}"
            f" | {cell(s.cost.usd_per_million_output_tokens, '.3f')} | {against} | {', '.join(told)} |"
        )
    return lines


def findings(report: StudyReport) -> list[str]:
    lines = ["| finding | published | the twin | ratio on the twin |", "|---|---|---|---|"]
    lines += [f"| {f.claim} | {f.published or ''} | **{f.mark}** | {f.ours} |" for f in report.findings]
    return lines


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
