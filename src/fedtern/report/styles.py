"""Colours, dashes and markers that colour-blind readers can distinguish."""

from __future__ import annotations

from dataclasses import dataclass

# Okabe and Ito (2008), without black and yellow, which vanish on a dark or a light background.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross")
_DASHES = ("solid", "dash", "dot", "dashdot")

# Paul Tol's light scheme, made for areas. No colour of it is a line's colour.
PHASES = {
    "train": "#77AADD",
    "compress": "#EE8866",
    "encode": "#EEDD88",
    "decode": "#FFAABB",
    "aggregate": "#44BB99",
    "evaluate": "#AAAA00",
    "start": "#DDDDDD",
    "other": "#BBBBBB",
}
UNKNOWN_PHASES = ("#99DDFF", "#BBCC33", "#888888")


@dataclass(frozen=True)
class Style:
    """The appearance of one configuration in every plot."""

    colour: str
    fill: str
    dash: str
    symbol: str


def style(rank: int) -> Style:
    """Return the style of the configuration at a position in the legend.

    From the seventh on, colours repeat with another dash.

    >>> style(0).dash, style(6).dash, style(0).colour == style(6).colour
    ('solid', 'dash', True)
    """
    cycle, index = divmod(rank, len(_COLOURS))
    colour = _COLOURS[index]
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return Style(
        colour=colour,
        fill=f"rgba({red},{green},{blue},0.18)",
        dash=_DASHES[cycle % len(_DASHES)],
        symbol=_SYMBOLS[index],
    )
