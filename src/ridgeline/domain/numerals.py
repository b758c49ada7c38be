"""Plain numbers as every text of Ridgeline writes them: thousands apart by a thin space.

One rule for all floors; `report.numbers` adds units and words.
"""

import math

THIN = "\u2009"
MINUS = "\u2212"


def grouped(text: str) -> str:
    """Insert thin spaces between thousands of a plain decimal number."""
    sign, digits = (MINUS, text[1:]) if text.startswith("-") else ("", text)
    whole, dot, rest = digits.partition(".")
    parts = []
    while len(whole) > 3:
        parts.append(whole[-3:])
        whole = whole[:-3]
    parts.append(whole)
    return sign + THIN.join(reversed(parts)) + dot + rest


def counted(value: float) -> str:
    """A whole number, every digit of it: 16 384."""
    return grouped(f"{value:.0f}")


def significant(value: float, figures: int = 3) -> str:
    """A number with that many significant figures, never in exponent notation."""
    if value == 0:
        return "0"
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    magnitude = math.floor(math.log10(abs(value)))
    rounded = round(value, figures - 1 - magnitude)
    # 999.6 becomes 1000: the magnitude after rounding decides the decimals.
    magnitude = math.floor(math.log10(abs(rounded)))
    return grouped(f"{rounded:.{max(0, figures - 1 - magnitude)}f}")
