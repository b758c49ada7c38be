"""Numbers as people read them: three significant figures, thin spaces, ms below 10 s.

Every function returns plain text (never markup); None gives "not measured".
"""

import math

from ridgeline.domain.numerals import MINUS, THIN, grouped, significant

__all__ = ["MINUS", "NOT_MEASURED", "THIN", "grouped", "significant"]

NOT_MEASURED = "not measured"
FINEST_S = 1e-9  # the clocks' own step: less than that is what rounding left of 0


def number(value: float | None) -> str:
    """A plain number, or "not measured"."""
    if value is None or math.isnan(value):
        return NOT_MEASURED
    return significant(value)


def duration(value_s: float | None) -> str:
    """A latency with its unit: ms below 10 s, s from there."""
    if value_s is None or math.isnan(value_s):
        return NOT_MEASURED
    if math.isinf(value_s):
        return "∞"
    if abs(value_s) < FINEST_S:
        return "0 ms"
    if abs(value_s) < 10:
        # 9.9996 s would print as 10 000 ms.
        if abs(value_s) < 9.995:
            return f"{significant(value_s * 1e3)} ms"
        value_s = 10.0
    return f"{significant(value_s)} s"


def duration_range(low_s: float, high_s: float) -> str:
    """An interval of a latency in the unit that its upper end asks for: "1 680–1 770 ms"."""
    if math.isinf(high_s):
        return f"{duration(low_s)} to ∞"
    if high_s < 9.995:
        return f"{significant(low_s * 1e3)}–{significant(high_s * 1e3)} ms"
    return f"{significant(low_s)}–{significant(high_s)} s"


def number_range(low: float, high: float) -> str:
    """An interval of a non-negative number."""
    return f"{significant(low)}–{significant(high)}"


def dollars(value: float | None) -> str:
    """USD."""
    if value is None or math.isnan(value):
        return NOT_MEASURED
    return f"${significant(value)}"


def share(value: float | None) -> str:
    """A share as a number between 0 and 1, two decimals at least: "0.50", "0.0012", "0"."""
    if value is None or math.isnan(value):
        return NOT_MEASURED
    if value in (0, 1):
        return str(int(value))
    return f"{value:.2f}" if value >= 0.1 else significant(value, 2)


def percent(value: float | None, *, signed: bool = False) -> str:
    """A share as per cent: whole from 10 %, one decimal below; `signed` writes + and −."""
    if value is None or math.isnan(value):
        return NOT_MEASURED
    text = percent_figure(value)
    if signed and not text.startswith(MINUS) and text.strip("0.") != "":
        text = f"+{text}"
    return f"{text} %"


def percent_figure(value: float, *, fine: bool = False) -> str:
    """`percent` without its unit; `fine` keeps the decimal from 10 % on too."""
    hundred = value * 100
    if math.isinf(hundred):
        return significant(hundred)
    if abs(hundred) < 9.95 or fine:
        text = f"{hundred:.1f}"
        return grouped("0" if text in ("0.0", "-0.0") else text)
    return grouped(f"{hundred:.0f}")


def percent_range(low: float, high: float) -> str:
    """An interval of a relative difference: "22 to 31 %"; a narrow one keeps a decimal."""
    ends = percent_figure(low), percent_figure(high)
    if ends[0] == ends[1] and low != high:
        ends = percent_figure(low, fine=True), percent_figure(high, fine=True)
    return f"{ends[0]} to {ends[1]} %"


def percent_between(
    value: float, low: float, high: float, *, signed: bool = False
) -> tuple[str, str]:
    """A relative difference and its interval, in as many decimals as keep it inside of it.

    "44 %" beside "43.5 to 43.9 %" would lie outside of its own interval.
    """
    ends = percent_range(low, high)
    fine = ends != f"{percent_figure(low)} to {percent_figure(high)} %"
    if not fine:
        return percent(value, signed=signed), ends
    text = percent_figure(value, fine=True)
    plus = "+" if signed and not text.startswith(MINUS) and text != "0" else ""
    return f"{plus}{text} %", ends


def si(value: float, unit: str) -> str:
    """A large figure with an SI prefix: 3.35e12, "B/s" -> "3.35 TB/s"."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{significant(value / factor)} {prefix}{unit}"
    return f"{significant(value)} {unit}"
