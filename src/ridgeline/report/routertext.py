"""The sentence that says what a router costs."""

from ridgeline.experiment.routercost import RouterCost
from ridgeline.report import numbers

_NAMES = {
    "ttft_s.p50": "median TTFT", "ttft_s.p95": "p95 TTFT",
    "itl_s.p50": "median ITL", "itl_s.p95": "p95 ITL",
}  # fmt: skip


def router_text(cost: RouterCost) -> str:
    """One sentence: latencies in ms, the throughput in percent, each with its interval."""
    parts = []
    for metric, (delta, low, high) in cost.seconds.items():
        span = "" if low is None or high is None else f" ({low * 1e3:+.2f} to {high * 1e3:+.2f})"
        parts.append(f"{_NAMES[metric]} {delta * 1e3:+.2f} ms{span}")
    rate = cost.throughput
    if rate is not None and rate.delta is not None:
        span = ""
        if rate.low is not None and rate.high is not None:
            span = f" ({numbers.percent_range(rate.low, rate.high)})"
        parts.append(f"throughput {numbers.percent(rate.delta, signed=True)}{span}")
    pairs = "one pair" if cost.pairs == 1 else f"{cost.pairs} pairs"
    return (
        f"the router's own cost, {cost.experiment} behind {cost.router} against {cost.without} with"
        f" the client's own balancing ({pairs}): {', '.join(parts) or 'no figures'}"
    )
