"""What needs saying beside a single run's table of latencies; page and console print it."""

from ridgeline.domain.summary import Summary
from ridgeline.report import numbers


def remarks(summary: Summary) -> list[tuple[str, str]]:
    """(label, text) of each; a run of which nothing special is to be said has none."""
    found = (("plateau", _plateau(summary)), ("stalls", _stalls(summary)),
             ("before the window", _before(summary)))  # fmt: skip
    return [(label, text) for label, text in found if text]


def _plateau(summary: Summary) -> str:
    """Where throughput holds still, in a window that also has ramps."""
    held = summary.plateau
    if held is None:
        return ""
    whole = numbers.number(summary.throughput.output_tokens_per_s)
    return (
        f"{numbers.number(held.output_tokens_per_s)} output tokens/s from {held.from_s:.1f} s to"
        f" {held.to_s:.1f} s of the run (the whole window, ramps included: {whole})"
    )


def _stalls(summary: Summary) -> str:
    """How many readers saw their reply stop; nothing where none did."""
    share = summary.stalled_requests_share
    return f"requests with a gap > 500 ms: {numbers.percent(share)}" if share else ""


def _before(summary: Summary) -> str:
    """How the run began: the first wave's wait is in no figure of the window."""
    begun = summary.warmup_ttft_s
    if begun is None:
        return ""
    known = [
        f"{name} {numbers.duration(value)}"
        for name, value in (("mean", begun.mean), ("p50", begun.p50), ("p95", begun.p95))
        if value is not None
    ]
    return (
        f"TTFT {', '.join(known)} over {numbers.grouped(str(begun.n))} replies, in no figure above"
    )
