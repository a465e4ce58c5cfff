"""The plots, as plotly.js takes them: plain values without colours of text or background.

The page adds those, because it alone knows whether it is read in the light or in the dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from fedtern.report.formatting import format_value
from fedtern.report.groups import Curve, Group, curve
from fedtern.report.styles import style
from fedtern.runs.recorded_run import RecordedRun

Spec = dict[str, Any]

_ITERATIONS = {"title": {"text": "iterations"}, "rangemode": "tozero", "tickformat": ",~s"}
_ACCURACY = {"title": {"text": "accuracy"}, "tickformat": ".0%"}
_DIRECTIONS = {"up": "sent up", "down": "sent down"}


@dataclass(frozen=True)
class Figure:
    """One plot and the words around it; ``choices`` are other states of it, by name."""

    name: str
    title: str
    note: str
    data: list[Spec]
    layout: Spec
    wide: bool = False
    choices: dict[str, list[Spec]] = field(default_factory=dict)


def accuracy_by_iteration(groups: Sequence[Group]) -> Figure:
    """How accurate the model is after so much training."""
    return Figure(
        "accuracy-iterations",
        "Accuracy against iterations",
        _seeds_note(groups),
        _lines(groups, "iteration", "accuracy", "%{y:.1%}"),
        {"xaxis": _ITERATIONS, "yaxis": _ACCURACY, "hovermode": "x unified"},
        wide=True,
    )


def accuracy_by_bytes(groups: Sequence[Group], direction: str) -> Figure:
    """How accurate the model is after so much traffic of one client."""
    shown = _lines(
        groups,
        f"{direction}_bytes_mean",
        "accuracy",
        "%{y:.1%} after %{x:.3s}B<br>%{customdata:,} iterations",
    )
    return Figure(
        f"accuracy-{direction}",
        f"Accuracy against bytes {_DIRECTIONS[direction]}",
        "The mean over each round's clients, summed. Logarithmic: each step to the right is ten"
        " times the traffic.",
        shown,
        {"xaxis": _bytes(f"bytes {_DIRECTIONS[direction]}"), "yaxis": _ACCURACY},
    )


def traffic(groups: Sequence[Group], direction: str) -> Figure:
    """How much one client has sent or received after so much training."""
    key, label = f"{direction}_bytes_mean", "%{y:.3s}B after %{x:,} iterations"
    return Figure(
        f"traffic-{direction}",
        f"Traffic {direction}",
        f"The mean of what each round's clients {_DIRECTIONS[direction]}, summed; real bytes.",
        [*_dense(groups), *_lines(groups, "iteration", key, label)],
        {"xaxis": _ITERATIONS, "yaxis": _bytes(f"bytes {_DIRECTIONS[direction]}")},
    )


def _bytes(title: str) -> Spec:
    return {
        "title": {"text": title},
        "type": "log",
        "ticksuffix": "B",
        "exponentformat": "SI",
        "minor": {"showgrid": False},
        "dtick": 1,
    }


def _seeds_note(groups: Sequence[Group]) -> str:
    if all(len(group.evaluated) < 2 for group in groups):
        return "Each line is one run."
    return "Lines are means over seeds, bands reach from the worst seed to the best."


def _lines(groups: Sequence[Group], x: str, y: str, hover: str) -> list[Spec]:
    # Bands first: what is drawn later lies on top.
    bands, lines = [], []
    for rank, group in enumerate(groups):
        mean = curve(group.evaluated, x, y)
        if len(group.evaluated) > 1 and mean.x:
            bands.append(_band(mean, group, rank))
        lines += [_seed_line(run, group, rank, x, y) for run in _ahead(group, mean, x, y)]
        lines.append(_mean_line(mean, group, rank, hover))
    return bands + lines


def _mean_line(mean: Curve, group: Group, rank: int, hover: str) -> Spec:
    look = style(rank)
    return {
        **_of(group),
        "mode": "lines+markers",
        "x": _short(mean.x),
        "y": _short(mean.mean),
        "customdata": _short(mean.iterations),
        "line": {"color": look.colour, "dash": look.dash, "width": 2.25},
        # Shapes as well as colours, and few of them, so that lines can be told apart in grey.
        "marker": {"symbol": look.symbol, "size": 8, "maxdisplayed": 9, "color": look.colour},
        "hovertemplate": f"{hover}<extra>%{{fullData.name}}</extra>",
    }


def _band(mean: Curve, group: Group, rank: int) -> Spec:
    return {
        **_of(group),
        "mode": "lines",
        "x": _short((*mean.x, *reversed(mean.x))),
        "y": _short((*mean.high, *reversed(mean.low))),
        "fill": "toself",
        "fillcolor": style(rank).fill,
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _seed_line(run: RecordedRun, group: Group, rank: int, x: str, y: str) -> Spec:
    own = curve([run], x, y)
    return {
        **_of(group),
        "mode": "lines",
        "x": _short(own.x),
        "y": _short(own.mean),
        "line": {"color": style(rank).colour, "width": 1},
        "opacity": 0.6,
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _ahead(group: Group, mean: Curve, x: str, y: str) -> list[RecordedRun]:
    """Runs with points that the mean cannot have, because another seed is not there yet."""
    return [run for run in group.evaluated if len(curve([run], x, y).x) > len(mean.x)]


def _of(group: Group) -> Spec:
    # plotly.js reads some HTML in names; a name is never meant as such.
    return {"type": "scatter", "name": escape(group.label, False), "legendgroup": group.label}


def _dense(groups: Sequence[Group]) -> list[Spec]:
    """What no compression at all would have cost, once for each size of model."""
    longest: dict[str, Curve] = {}
    for run in (run for group in groups for run in group.evaluated):
        found = curve([run], "iteration", "dense_bytes")
        model = format_value(run.config.get("parameters"))
        if found.x and (model not in longest or found.x[-1] > longest[model].x[-1]):
            longest[model] = found
    several = len(longest) > 1
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "everything, uncompressed" + (f" ({escape(model, False)})" if several else ""),
            "legendgroup": f"dense {model}",
            "x": _short(found.x),
            "y": _short(found.mean),
            "line": {"color": "#888888", "dash": "dot", "width": 1.5},
            "hovertemplate": "%{y:.3s}B after %{x:,} iterations<extra>%{fullData.name}</extra>",
        }
        for model, found in longest.items()
    ]


def _short(values: Sequence[float]) -> list[float]:
    """Six digits are more than a screen can show."""
    return [float(f"{value:.6g}") for value in values]
