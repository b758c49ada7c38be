"""What needs saying beside a single run's table of latencies; page and console print it."""

from ridgeline.domain.arrivalcheck import ArrivalFigures
from ridgeline.domain.summary import Summary
from ridgeline.report import numbers

MOVED_S = 0.05  # a window shorter by less than this is as long as was asked for


def remarks(summary: Summary) -> list[tuple[str, str]]:
    """(label, text) of each; a run of which nothing special is to be said has none."""
    found = (
        ("plateau", _plateau(summary)),
        ("stalls", _stalls(summary)),
        ("arrivals", _arrivals(summary.arrivals)),
        ("before the window", _before(summary)),
        ("window", _window(summary)),
    )
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


def _window(summary: Summary) -> str:
    """How long was measured, where an automatic warm-up moved the start."""
    warmup = summary.warmup
    if warmup is None or warmup.offered.seconds - summary.window_s < MOVED_S:
        return ""
    asked = numbers.duration(warmup.offered.seconds)
    return (
        f"{numbers.duration(summary.window_s)} measured, not {asked}:"
        " the warm-up ended later than it had seemed to"
    )


def _arrivals(found: ArrivalFigures | None) -> str:
    """Did the requests of an open loop leave by the law that was asked for?"""
    if found is None:
        return ""
    parts = [
        f"{numbers.number(found.achieved_per_s)} requests/s left,"
        f" {numbers.number(found.asked_per_s)} were meant"
    ]
    if found.gap_cv is not None:
        parts.append(f"variation of gaps {found.gap_cv:.2f}")
    if found.dispersion is not None:
        parts.append(f"dispersion of counts {found.dispersion:.2f}")
    if found.autocorrelation:
        worst = max(found.autocorrelation, key=abs)
        parts.append(f"largest autocorrelation of gaps {worst:+.3f}")
    if found.burst_skew_max_s is not None:
        parts.append(f"longest burst took {numbers.duration(found.burst_skew_max_s)} to leave")
    return "; ".join(parts)
