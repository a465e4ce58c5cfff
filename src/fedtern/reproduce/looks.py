"""The report's colours, dashes and shapes as matplotlib has them."""

from __future__ import annotations

from typing import Any

from fedtern.report.styles import style

_SYMBOLS = {"circle": "o", "square": "s", "diamond": "D"}
_SYMBOLS |= {"triangle-up": "^", "x": "X", "cross": "P"}
_DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}


def look(rank: int) -> dict[str, Any]:
    """How the rank-th method is drawn, as options of ``Axes.plot``.

    >>> look(1)
    {'color': '#D55E00', 'linestyle': '-', 'marker': 's'}
    """
    found = style(rank)
    # Points have no dashes: where colours begin again, shapes begin one further.
    symbol = _SYMBOLS[style(rank + rank // len(_SYMBOLS)).symbol]
    dash = _DASHES[found.dash]
    return {"color": found.colour, "linestyle": dash, "marker": symbol}
