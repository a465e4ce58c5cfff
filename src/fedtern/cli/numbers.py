"""Numbers as a person types them."""

from __future__ import annotations

from fractions import Fraction

import typer


def rate(text: str | float) -> float:
    """A number, or a fraction like 1/400."""
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError, OverflowError):
        raise typer.BadParameter(
            f"expected a number or a fraction like 1/400, got {text}"
        ) from None


def numbers(text: str) -> tuple[float, ...]:
    """Numbers with commas between them, each once.

    >>> numbers("1, 2,1/4,2"), numbers("")
    ((1.0, 2.0, 0.25), ())
    """
    parts = (part.strip() for part in text.split(","))
    try:
        return tuple(dict.fromkeys(float(Fraction(part)) for part in parts if part))
    except (ValueError, ZeroDivisionError, OverflowError):
        raise ValueError(f"expected numbers like 1,2,10, got {text!r}") from None
