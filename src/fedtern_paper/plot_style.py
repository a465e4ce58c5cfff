"""The report's colours, dashes and shapes as matplotlib has them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
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


_FAMILIES = {
    "stc": {"color": "#0072B2", "marker": "o"},
    "topk": {"color": "#0072B2", "marker": "o"},
    "fedavg": {"color": "#D55E00", "marker": "s"},
    "signsgd": {"color": "#009E73", "marker": "D"},
    "sgd": {"color": "#000000", "marker": "X"},
}


def method_look(method: Mapping[str, Any], variant: int = 0) -> dict[str, Any]:
    """How a method is drawn wherever few are compared: in the paper's colours.

    Several of a kind have the same colour; dashes tell the ``variant`` apart.

    >>> method_look({"name": "fedavg", "local_steps": 25}, 1)
    {'color': '#D55E00', 'marker': 's', 'linestyle': '--'}
    """
    dash = list(_DASHES.values())[variant % len(_DASHES)]
    other = {key: value for key, value in look(3 + variant).items() if key != "linestyle"}
    return {**_FAMILIES.get(method["name"], other), "linestyle": dash}


def head(figure: Any, title: str, note: str) -> None:
    """A title over all panels, and under it a note in as many lines as it takes."""
    characters = int(12 * figure.get_figwidth())
    figure.suptitle("\n".join([title, *textwrap.wrap(note, characters)]), fontsize=11)


def tidy(axes: Any) -> None:
    """A light grid, and no box around it."""
    axes.set_axisbelow(True)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def legend_below(figure: Any, panels: Any, columns: int = 3, last: str = "") -> None:
    """One legend for all panels, under them, each label once, one of them at the end."""
    found: dict[str, Any] = {}
    for axes in panels.flat:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if last in found:
        found[last] = found.pop(last)
    if found:
        figure.legend(
            list(found.values()),
            list(found),
            loc="outside lower center",
            ncols=columns,
            fontsize=9,
            columnspacing=1.4,
            handletextpad=0.6,
            frameon=False,
        )
