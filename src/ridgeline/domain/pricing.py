"""A summary under another price: what its costs are then, without any of its records."""

from collections.abc import Mapping
from dataclasses import replace

from ridgeline.domain.bands import bands_of
from ridgeline.domain.knobs import Configuration
from ridgeline.domain.metrics import cost
from ridgeline.domain.summary import Interval, Summary

_PER_MILLION = "cost.usd_per_million_output_tokens"


def repriced(
    summary: Summary, configuration: Configuration, errors: Mapping[str, float]
) -> Summary:
    """The summary at the configuration's price per GPU hour.

    Costs, their interval and bands follow from rates that are kept; all else stays as it is.
    `errors`: of a twin's figures, see RunFacts.
    """
    spent = cost(summary.throughput, configuration)
    intervals = {path: found for path, found in summary.intervals.items() if path != _PER_MILLION}
    tokens = summary.intervals.get("throughput.output_tokens_per_s")
    price = configuration.price_per_gpu_hour
    if price is not None and tokens is not None and tokens.low and tokens.high:
        usd = configuration.gpus * price / 3600 * 1e6
        intervals[_PER_MILLION] = Interval(usd / tokens.high, usd / tokens.low, tokens.n)
    priced = replace(summary, cost=spent, intervals=intervals)
    return replace(priced, bands=bands_of(priced, errors))
