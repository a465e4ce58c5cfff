"""Colours, dashes and shapes that the colour-blind can tell apart too."""

from __future__ import annotations

from dataclasses import dataclass

# Okabe and Ito (2008), without the black and the yellow that vanish on dark or light paper.
_LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross")
_DASHES = ("solid", "dash", "dot", "dashdot")

# Paul Tol's light scheme, made for areas: nothing here means the same as a line's colour.
PHASES = {
    "train": "#77AADD",
    "compress": "#EE8866",
    "encode": "#EEDD88",
    "decode": "#FFAABB",
    "aggregate": "#44BB99",
    "evaluate": "#AAAA00",
    "other": "#BBBBBB",
}
UNKNOWN_PHASES = ("#99DDFF", "#BBCC33", "#888888")


@dataclass(frozen=True)
class Style:
    """How one configuration looks in every plot."""

    colour: str
    fill: str
    dash: str
    symbol: str


def style(rank: int) -> Style:
    """The look of the rank-th configuration; with more than six, dashes tell them apart.

    >>> style(0).dash, style(6).dash, style(0).colour == style(6).colour
    ('solid', 'dash', True)
    """
    cycle, place = divmod(rank, len(_LINES))
    colour = _LINES[place]
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return Style(
        colour,
        f"rgba({red},{green},{blue},0.18)",
        _DASHES[cycle % len(_DASHES)],
        _SYMBOLS[place],
    )
