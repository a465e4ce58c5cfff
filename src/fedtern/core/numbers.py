"""Parse and format numbers for people."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any


def parse_number(text: str) -> float:
    """Parse a finite number, or a fraction like 1/400.

    >>> parse_number("1/400"), parse_number("2e-4")
    (0.0025, 0.0002)

    Raises:
        ValueError: the text is neither.

    """
    try:
        # Only with a slash: Fraction("1e999999999") would compute a billion digits.
        found = float(Fraction(text)) if "/" in text else float(text)
    except (ValueError, ZeroDivisionError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"expected a number or a fraction like 1/400, got {text!r}")
    return found


def format_reciprocal(value: Any) -> str:
    """Format a number as one over a whole number; return "" if it is not one.

    >>> format_reciprocal(0.0025), format_reciprocal(1 / 3), format_reciprocal(0.3)
    ('1/400', '1/3', '')
    >>> format_reciprocal(1e-320)
    ''
    """
    if isinstance(value, float) and 1e-9 < value < 1:  # smaller ones are easier to read as 1e-10
        whole = round(1 / value)
        if 1 / whole == value:
            return f"1/{whole}"
    return ""


def format_shortest(value: float) -> str:
    """Format a number with as few digits as possible, so that it is read back unchanged.

    >>> format_shortest(0.9), format_shortest(2.0), format_shortest(1 / 3)
    ('0.9', '2', '0.3333333333333333')
    """
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))


def format_parameter(value: Any) -> str:
    """Format a parameter's value as it is written on the command line.

    >>> [format_parameter(value) for value in (0.0025, 0.0, True, None, "tensor")]
    ['1/400', '0', 'true', 'none', 'tensor']
    """
    if isinstance(value, float):
        return format_reciprocal(value) or format_shortest(value)
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)


__all__ = ["format_parameter", "format_reciprocal", "format_shortest", "parse_number"]
