"""The plots without lines: time by phase, and examples per client and class."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from html import escape
from itertools import cycle

from fedtern.report.figures import Figure, Spec
from fedtern.report.formatting import format_value, join_words
from fedtern.report.groups import Group, numbered
from fedtern.report.results import phases
from fedtern.report.styles import PHASES, UNKNOWN_PHASES
from fedtern.runs.recorded_run import ClassCounts, RecordedRun


def time_by_phase(groups: Sequence[Group]) -> Figure:
    """Plot the seconds of each configuration, mean over its seeds, stacked by phase."""
    shown = [group for group in groups if group.evaluated]
    wrapped = [textwrap.wrap(group.label, 22) or [group.label] for group in shown]
    names = ["<br>".join(escape(line, False) for line in label) for label in wrapped]
    lines = max(map(len, wrapped), default=1)
    layout = {
        "barmode": "stack",
        "legend": {"traceorder": "normal"},
        "xaxis": {"title": {"text": "seconds"}},
        "yaxis": {"autorange": "reversed", "automargin": True, "fixedrange": True},
        "height": 130 + len(shown) * max(46, 10 + 16 * lines),
    }
    bars = _bars(names, [_mean_phases(group) for group in shown])
    note = "Of all clients and the server. Mean over seeds. start: the first round of a process."
    return Figure("time", "Time by phase", note, bars, layout, wide=True)


def _bars(names: list[str], seconds: Sequence[Mapping[str, float]]) -> list[Spec]:
    """Return one trace for each phase; ``seconds`` are those of each named bar by phase."""
    unknown = dict.fromkeys(phase for spent in seconds for phase in spent if phase not in PHASES)
    colours = PHASES | dict(zip(unknown, cycle(UNKNOWN_PHASES), strict=False))
    return [
        {
            "type": "bar",
            "orientation": "h",
            "name": escape(phase, False),
            "y": names,
            "x": [round(spent.get(phase, 0.0), 4) for spent in seconds],
            "customdata": [spent.get(phase, 0.0) / (sum(spent.values()) or 1) for spent in seconds],
            "marker": {"color": colour},
            "hovertemplate": "%{x:,.2f} s, %{customdata:.1%}<extra>%{fullData.name}</extra>",
        }
        for phase, colour in colours.items()
        if any(spent.get(phase) for spent in seconds)
    ]


def _mean_phases(group: Group) -> dict[str, float]:
    seconds = [phases(run.last) for run in group.evaluated]
    names = dict.fromkeys(name for spent in seconds for name in spent)
    return {name: sum(spent.get(name, 0.0) for spent in seconds) / len(seconds) for name in names}


def examples_by_client(runs: Sequence[RecordedRun]) -> Figure | None:
    """Plot the number of examples per client and class, one heat map for each distinct split.

    Returns:
        The plot, or None if no run recorded its split.

    """
    runs_by_split: dict[ClassCounts, list[RecordedRun]] = {}
    for run in runs:
        if run.split is not None and run.split.counts:
            runs_by_split.setdefault(run.split, []).append(run)
    if not runs_by_split:
        return None
    maps = [[_heat_map(split)] for split in runs_by_split]
    names = numbered([_split_name(members) for members in runs_by_split.values()])
    choices = dict(zip(names, maps, strict=True))
    note = "Each column is a client, each row a class; a stronger colour means more examples."
    if len(runs) > 1 and len(maps) == 1:
        count = sum(map(len, runs_by_split.values()))
        note += f" The same in {f'all {count}' if count == len(runs) else count} runs."
    return Figure(
        "split",
        "Examples per client and class",
        note,
        maps[0],
        _map_layout(max(len(split.classes) for split in runs_by_split)),
        wide=True,
        choices=choices if len(maps) > 1 else {},
    )


def _map_layout(classes: int) -> Spec:
    category = {"type": "category", "autorange": "reversed", "automargin": True, "showgrid": False}
    return {
        "xaxis": {"title": {"text": "client"}, "showgrid": False},
        "yaxis": {"title": {"text": "class"}, **category},
        "height": 130 + min(24 * classes, 600),
    }


def _heat_map(split: ClassCounts) -> Spec:
    return {
        "type": "heatmap",
        "z": [list(column) for column in zip(*split.counts, strict=True)],
        "y": [escape(name, False) for name in split.classes],
        "hovertemplate": "client %{x}, class %{y}<br>%{z:,} examples<extra></extra>",
        "colorbar": {
            "thickness": 10,
            "outlinewidth": 0,
            "title": {"text": "examples", "side": "right"},
        },
        "xgap": 1 if len(split.counts) <= 100 else 0,
        "ygap": 1,
        "zmin": 0,
    }


def _split_name(runs: Sequence[RecordedRun]) -> str:
    """Name a split by its runs: their seeds, their environments and their number."""
    seeds = list(dict.fromkeys(format_value(run.config.get("seed")) for run in runs))
    environments = dict.fromkeys(_environment(run) for run in runs)
    seed_names = f"seed{'s' if len(seeds) > 1 else ''} {join_words(seeds)}"
    count = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
    return " · ".join([seed_names, *filter(None, environments), count])


def _environment(run: RecordedRun) -> str:
    environment = run.config.get("environment")
    if not isinstance(environment, dict):
        return ""
    units = {"clients": "clients", "classes_per_client": "classes each"}
    parts = [
        f"{format_value(environment[key])} {unit}"
        for key, unit in units.items()
        if key in environment
    ]
    return ", ".join(parts).replace(" 1 classes", " 1 class")
