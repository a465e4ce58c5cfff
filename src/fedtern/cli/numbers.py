"""Numbers on the command line."""

from __future__ import annotations

import typer

from fedtern.core.numbers import number


def rate(text: str | float) -> float:
    """A number, or a fraction like 1/400."""
    try:
        return number(str(text))
    except ValueError as error:  # of which typer would not say what is wrong
        raise typer.BadParameter(str(error)) from None


def parse_numbers(text: str) -> tuple[float, ...]:
    """Parse numbers separated by commas; duplicates are removed.

    >>> parse_numbers("1, 2,1/4,2"), parse_numbers("")
    ((1.0, 2.0, 0.25), ())
    """
    parts = (part.strip() for part in text.split(","))
    try:
        return tuple(dict.fromkeys(number(part) for part in parts if part))
    except ValueError:
        raise ValueError(f"expected numbers like 1,2,10, got {text!r}") from None
