"""Numbers as a person types them."""

from __future__ import annotations

import math
from fractions import Fraction


def number(text: str) -> float:
    """A finite number, or a fraction like 1/400.

    >>> number("1/400"), number("2e-4")
    (0.0025, 0.0002)
    """
    try:
        # Only where there is a fraction: that of an exponent has as many digits as it says.
        found = float(Fraction(text)) if "/" in text else float(text)
    except (ValueError, ZeroDivisionError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"expected a number or a fraction like 1/400, got {text!r}")
    return found
