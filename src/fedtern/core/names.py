"""Look up entries by name, with suggestions for misspelled names."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")


def look_up(name: str, table: Mapping[str, T], kind: str) -> T:
    """Return the entry of a table by name.

    Args:
        name: the name.
        table: entries by name.
        kind: what the entries are, for the error message.

    Raises:
        ValueError: no entry has this name; the message suggests the nearest ones.

    >>> look_up("mnits", {"mnist": 1, "digits": 2}, "dataset")
    Traceback (most recent call last):
    ...
    ValueError: Unknown dataset 'mnits'. Did you mean 'mnist'?
    """
    if name in table:
        return table[name]
    near = get_close_matches(name, table)
    hint = f"Available: {', '.join(table)}."
    if near:
        hint = f"Did you mean {' or '.join(map(repr, near))}?"
    raise ValueError(f"Unknown {kind} {name!r}. {hint}")


__all__ = ["look_up"]
