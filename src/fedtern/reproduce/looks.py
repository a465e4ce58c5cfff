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
    dash, symbol = _DASHES[found.dash], _SYMBOLS[found.symbol]
    return {"color": found.colour, "linestyle": dash, "marker": symbol}
