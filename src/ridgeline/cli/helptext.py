"""`--help` of a verb: options under headings where there are many, ranges in words, an example."""

import re
from typing import Any

from typer.core import TyperCommand

BEYOND = 1e15  # an upper end that is only the machine's
MANY = 30  # options, from which on they stand under headings
# Heading -> options, as the verbs that measure a URL take them; what is in none comes first.
GROUPS: dict[str, tuple[str, ...]] = {
    "Load": (
        "--users", "--rate", "--load", "--start", "--most", "--process", "--burstiness",
        "--user-steps", "--rate-steps", "--think-time", "--think-time-law", "--ramp",
        "--max-concurrency", "--trace", "--trace-format", "--trace-speed", "--trace-from",
        "--trace-to", "--turns", "--turn-think-time", "--class", "--seed",
    ),
    "How long": (
        "--duration", "--requests", "--warmup", "--warmup-limit", "--minutes", "--resolution",
        "--grace",
    ),
    "Prompts and replies": (
        "--prompt-tokens", "--output-tokens", "--spread", "--ignore-eos", "--prompt-file",
        "--prompt-format", "--history", "--unsalted", "--images", "--temperature", "--top-p",
        "--top-k", "--sampling-seed", "--stop", "--extra-body", "--header", "--salt",
        "--token-ids",
    ),
    "Several servers": ("--url", "--routing"),
    "Client": (
        "--workers", "--connect-timeout", "--first-token-timeout", "--chunk-timeout", "--timeout",
        "--calibrate", "--no-calibration",
    ),
    "Targets and cost": ("--slo", "--gpu", "--gpus", "--price-per-gpu-hour"),
    "Results": ("--json", "--export-vllm", "--out", "--quiet"),
}  # fmt: skip
_BOTH = re.compile(r"(\d+(?:\.\d+)?)<=x<=(\d+(?:\.\d+)?)")
_LEAST = re.compile(r"x>=(\d+(?:\.\d+)?)")


class Verb(TyperCommand):
    """A verb whose help a stranger can read at 80 columns."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then options, under headings where there are MANY of them."""
        arguments: list[tuple[str, tuple[str, str]]] = []
        options: list[tuple[str, tuple[str, str]]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                row = (record[0], in_words(record[1]))
                own = arguments if parameter.param_type_name == "argument" else options
                own.append((parameter.opts[0], row))
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl([row for _, row in arguments])
        for title, rows in _grouped(options):
            with formatter.section(title):
                formatter.write_dl(rows)


def in_words(text: str) -> str:
    """A range of values as it is read: 1<=x<=10 is "1 to 10", x>=1 "at least 1"."""

    def both(found: re.Match[str]) -> str:
        if float(found[2]) >= BEYOND:
            return f"at least {found[1]}"
        return f"{found[1]} to {found[2]}"

    return _LEAST.sub(r"at least \1", _BOTH.sub(both, text))


def _grouped(
    options: list[tuple[str, tuple[str, str]]],
) -> list[tuple[str, list[tuple[str, str]]]]:
    """(heading, rows) in the order of GROUPS; options that no heading names stand first."""
    if len(options) < MANY:
        return [("Options", [row for _, row in options])]
    of = {name: title for title, names in GROUPS.items() for name in names}
    found: dict[str, list[tuple[str, str]]] = {"Options": [], **{title: [] for title in GROUPS}}
    for name, row in options:
        found[of.get(name, "Options")].append(row)
    return [(title, rows) for title, rows in found.items() if rows]
