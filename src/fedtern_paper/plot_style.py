"""The report's colours, dashes and markers as options of matplotlib, and common plot elements."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from fedtern.report import style

_MARKERS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "x": "X",
    "cross": "P",
}
_DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}


def rank_style(rank: int) -> dict[str, Any]:
    """Return the style of the rank-th method, as options of ``Axes.plot``.

    >>> rank_style(1)
    {'color': '#D55E00', 'linestyle': '-', 'marker': 's'}
    """
    line = style(rank)
    # Single points have no dashes: once the colours repeat, shift the markers by one.
    marker = _MARKERS[style(rank + rank // len(_MARKERS)).symbol]
    return {"color": line.colour, "linestyle": _DASHES[line.dash], "marker": marker}


_METHOD_STYLES = {
    "stc": {"color": "#0072B2", "marker": "o"},
    "topk": {"color": "#0072B2", "marker": "o"},
    "fedavg": {"color": "#D55E00", "marker": "s"},
    "signsgd": {"color": "#009E73", "marker": "D"},
    "sgd": {"color": "#000000", "marker": "X"},
}


def method_style(method: Mapping[str, Any], variant: int = 0) -> dict[str, Any]:
    """Return the style of a method in plots of few methods: the paper's colours.

    Args:
        method: Name and parameters of the method.
        variant: Index among the variants of the method; they share a colour and differ in dashes.

    >>> method_style({"name": "fedavg", "local_steps": 25}, 1)
    {'color': '#D55E00', 'marker': 's', 'linestyle': '--'}
    """
    dash = list(_DASHES.values())[variant % len(_DASHES)]
    other = {key: value for key, value in rank_style(3 + variant).items() if key != "linestyle"}
    return {**_METHOD_STYLES.get(method["name"], other), "linestyle": dash}


def add_title(figure: Any, title: str, note: str) -> None:
    """Add a title above all panels, and below it a note, wrapped to the width of the figure."""
    characters = int(12 * figure.get_figwidth())
    figure.suptitle("\n".join([title, *textwrap.wrap(note, characters)]), fontsize=11)


def tidy(axes: Any) -> None:
    """Draw a light grid and remove the box around it."""
    axes.set_axisbelow(True)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def legend_below(figure: Any, panels: Any, columns: int = 3, last: str = "") -> None:
    """Add one legend for all panels below them, with each label once and ``last`` at the end."""
    handles: dict[str, Any] = {}
    for axes in panels.flat:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if last in handles:
        handles[last] = handles.pop(last)
    if handles:
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside lower center",
            ncols=columns,
            fontsize=9,
            columnspacing=1.4,
            handletextpad=0.6,
            frameon=False,
        )
