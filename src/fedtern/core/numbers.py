"""Numbers as a person types and reads them."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any


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


def one_over(value: Any) -> str:
    """A share as one over a whole number, as ``number`` reads it; nothing if it is not one.

    >>> one_over(0.0025), one_over(1 / 3), one_over(0.3), one_over(1e-320)
    ('1/400', '1/3', '', '')
    """
    if isinstance(value, float) and 1e-9 < value < 1:  # below, an exponent is easier to read
        whole = round(1 / value)
        if 1 / whole == value:
            return f"1/{whole}"
    return ""


def shortest(value: float) -> str:
    """A number as short as it can be without becoming another one.

    >>> shortest(0.9), shortest(2.0), shortest(1 / 3)
    ('0.9', '2', '0.3333333333333333')
    """
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))


def typed(value: Any) -> str:
    """A parameter's value as a person would type it, and as it is read back without a change.

    >>> typed(0.0025), typed(0.0), typed(True), typed(None), typed("tensor")
    ('1/400', '0', 'true', 'none', 'tensor')
    """
    if isinstance(value, float):
        return one_over(value) or shortest(value)
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


__all__ = ["number", "one_over", "shortest", "typed"]
