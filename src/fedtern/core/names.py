"""Looking things up by the name a person typed."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")


def look_up(name: str, table: Mapping[str, T], kind: str) -> T:
    """The entry of this name; a name that is not there gets the nearest ones suggested.

    >>> look_up("mnits", {"mnist": 1, "digits": 2}, "dataset")
    Traceback (most recent call last):
    ...
    ValueError: there is no dataset 'mnits'; did you mean mnist?
    """
    if name in table:
        return table[name]
    near = get_close_matches(name, table)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(table)}"
    raise ValueError(f"there is no {kind} {name!r}; {hint}")
