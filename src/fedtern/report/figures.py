"""The line plots, as specifications for ``charts.js``: a subset of those of plotly.js.

Specifications hold no colours for text and background: the page adds those, because it knows
whether the reader uses a light or a dark theme.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from fedtern.data.metric_spec import MetricSpec
from fedtern.report.formatting import format_value
from fedtern.report.groups import SERVER_BYTES, Curve, Group, curve
from fedtern.report.styles import style
from fedtern.runs.recorded_run import RecordedRun

Spec = dict[str, Any]

_ITERATIONS = {"title": {"text": "iterations"}, "rangemode": "tozero", "tickformat": ",~s"}
_TRANSFERRED = {"up": "uploaded", "down": "downloaded"}
_TRAFFIC_TITLES = {"up": "Upload traffic", "down": "Download traffic"}


@dataclass(frozen=True)
class Figure:
    """One plot with its title and a note.

    ``choices`` are alternative data for the same plot by name; the page shows a selector for them.
    """

    name: str
    title: str
    note: str
    data: list[Spec]
    layout: Spec
    wide: bool = False
    choices: dict[str, list[Spec]] = field(default_factory=dict)


def metric_by_iteration(groups: Sequence[Group], metric: MetricSpec) -> Figure:
    """Plot a metric of each configuration against training iterations."""
    return Figure(
        f"{_slug(metric)}-iterations",
        f"{capitalised(metric.name)} against iterations",
        _seeds_note(groups),
        _lines(groups, "iteration", metric.name, _hover(metric)),
        {"xaxis": _ITERATIONS, "yaxis": _metric_axis(metric), "hovermode": "x unified"},
        wide=True,
    )


def metric_by_bytes(groups: Sequence[Group], metric: MetricSpec, direction: str) -> Figure:
    """Plot a metric of each configuration against the traffic of one client.

    Args:
        groups: the configurations.
        metric: the metric.
        direction: "up" for uploads or "down" for downloads.

    """
    lines = _lines(
        groups,
        f"{direction}_bytes_mean",
        metric.name,
        f"{_hover(metric)} after %{{x:.3s}}B<br>%{{customdata:,}} iterations",
    )
    return Figure(
        f"{_slug(metric)}-{direction}",
        f"{capitalised(metric.name)} against bytes {_TRANSFERRED[direction]}",
        "Per participating client, summed over rounds. Logarithmic scale.",
        lines,
        {"xaxis": _bytes_axis(f"bytes {_TRANSFERRED[direction]}"), "yaxis": _metric_axis(metric)},
    )


def metric_by_server_bytes(groups: Sequence[Group], metric: MetricSpec) -> Figure:
    """Plot a metric of each configuration against the traffic of all clients."""
    return Figure(
        f"{_slug(metric)}-server",
        f"{capitalised(metric.name)} against bytes at the server",
        "Bytes of all clients, received and sent. Logarithmic scale.",
        _lines(
            groups,
            SERVER_BYTES,
            metric.name,
            f"{_hover(metric)} after %{{x:.3s}}B<br>%{{customdata:,}} iterations",
        ),
        {"xaxis": _bytes_axis("bytes at the server"), "yaxis": _metric_axis(metric)},
        wide=True,
    )


def traffic(groups: Sequence[Group], direction: str) -> Figure:
    """Plot the traffic of one client against training iterations.

    Args:
        groups: the configurations.
        direction: "up" for uploads or "down" for downloads.

    """
    key = f"{direction}_bytes_mean"
    hover = "%{y:.3s}B after %{x:,} iterations"
    return Figure(
        f"traffic-{direction}",
        _TRAFFIC_TITLES[direction],
        "Per participating client, summed over rounds; sizes of encoded messages.",
        [*_uncompressed(groups), *_lines(groups, "iteration", key, hover)],
        {"xaxis": _ITERATIONS, "yaxis": _bytes_axis(f"bytes {_TRANSFERRED[direction]}")},
    )


def _metric_axis(metric: MetricSpec) -> Spec:
    title: Spec = {"title": {"text": metric.name}}
    return {**title, "tickformat": ".0%"} if metric.is_share else title


def _hover(metric: MetricSpec) -> str:
    return "%{y:.1%}" if metric.is_share else f"{metric.name} %{{y:.4~g}}"


def _slug(metric: MetricSpec) -> str:
    return re.sub(r"\W+", "-", metric.name)


def capitalised(name: str) -> str:
    """Return a metric's name as a heading."""
    return name[:1].upper() + name[1:]


def _bytes_axis(title: str) -> Spec:
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
    return "Lines are means over seeds; bands extend from the worst seed to the best."


def _lines(groups: Sequence[Group], x: str, y: str, hover: str) -> list[Spec]:
    # Drawn in order: bands come first, so that lines are on top of them.
    bands = []
    lines = []
    for rank, group in enumerate(groups):
        mean = curve(group.evaluated, x, y)
        if len(group.evaluated) > 1 and mean.x:
            bands.append(_band(mean, group, rank))
        lines += [_seed_line(run, group, rank, x, y) for run in _longer_runs(group, mean, x, y)]
        lines.append(_mean_line(mean, group, rank, hover))
    return bands + lines


def _mean_line(mean: Curve, group: Group, rank: int, hover: str) -> Spec:
    line_style = style(rank)
    return {
        **_trace(group),
        "mode": "lines+markers",
        "x": _rounded(mean.x),
        "y": _rounded(mean.mean),
        **({} if mean.x == mean.iterations else {"customdata": _rounded(mean.iterations)}),
        "line": {"color": line_style.colour, "dash": line_style.dash, "width": 2.25},
        # A few markers make lines distinguishable without colours.
        "marker": {
            "symbol": line_style.symbol,
            "size": 8,
            "maxdisplayed": 9,
            "color": line_style.colour,
        },
        "hovertemplate": f"{hover}<extra>%{{fullData.name}}</extra>",
    }


def _band(mean: Curve, group: Group, rank: int) -> Spec:
    return {
        **_trace(group),
        "mode": "lines",
        "x": _rounded((*mean.x, *reversed(mean.x))),
        "y": _rounded((*mean.high, *reversed(mean.low))),
        "fill": "toself",
        "fillcolor": style(rank).fill,
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _seed_line(run: RecordedRun, group: Group, rank: int, x: str, y: str) -> Spec:
    points = curve([run], x, y)
    return {
        **_trace(group),
        "mode": "lines",
        "x": _rounded(points.x),
        "y": _rounded(points.mean),
        "line": {"color": style(rank).colour, "width": 1},
        "opacity": 0.6,
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _longer_runs(group: Group, mean: Curve, x: str, y: str) -> list[RecordedRun]:
    """Return the runs with more points than the mean, which ends with the shortest run."""
    return [run for run in group.evaluated if len(curve([run], x, y).x) > len(mean.x)]


def _trace(group: Group) -> Spec:
    # As in plotly.js, names are HTML.
    return {"type": "scatter", "name": escape(group.label, False), "legendgroup": group.label}


def _uncompressed(groups: Sequence[Group]) -> list[Spec]:
    """Return the traffic of uncompressed training, one line for each model size."""
    longest: dict[str, Curve] = {}
    for run in (run for group in groups for run in group.evaluated):
        points = curve([run], "iteration", "dense_bytes")
        model = format_value(run.config.get("parameters"))
        if points.x and (model not in longest or points.x[-1] > longest[model].x[-1]):
            longest[model] = points
    several = len(longest) > 1
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "uncompressed" + (f" ({escape(model, False)} parameters)" if several else ""),
            "legendgroup": f"dense {model}",
            "x": _rounded(points.x),
            "y": _rounded(points.mean),
            "line": {"color": "#888888", "dash": "dot", "width": 1.5},
            "hovertemplate": "%{y:.3s}B after %{x:,} iterations<extra>%{fullData.name}</extra>",
        }
        for model, points in longest.items()
    ]


def _rounded(values: Sequence[float]) -> list[float]:
    """Round to five significant digits, more than a screen can show, to keep the page small."""
    rounded = (float(f"{value:.5g}") for value in values)
    return [int(value) if value.is_integer() else value for value in rounded]
