"""The plots that are not lines: where the time went, and who holds which examples."""

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


def time_spent(groups: Sequence[Group]) -> Figure:
    """Seconds of each configuration, mean over its seeds, stacked by phase."""
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
    note = "All clients and the server on one machine; the mean over seeds."
    return Figure("time", "Where the time went", note, bars, layout, wide=True)


def _bars(names: list[str], spent: Sequence[Mapping[str, float]]) -> list[Spec]:
    unknown = dict.fromkeys(name for one in spent for name in one if name not in PHASES)
    colours = PHASES | dict(zip(unknown, cycle(UNKNOWN_PHASES), strict=False))
    return [
        {
            "type": "bar",
            "orientation": "h",
            "name": escape(phase, False),
            "y": names,
            "x": [round(one.get(phase, 0.0), 4) for one in spent],
            "customdata": [one.get(phase, 0.0) / (sum(one.values()) or 1) for one in spent],
            "marker": {"color": colour},
            "hovertemplate": "%{x:,.2f} s, %{customdata:.1%}<extra>%{fullData.name}</extra>",
        }
        for phase, colour in colours.items()
        if any(one.get(phase) for one in spent)
    ]


def splits(runs: Sequence[RecordedRun]) -> Figure | None:
    """Who holds what, each different split once; None where no run tells."""
    holders: dict[ClassCounts, list[RecordedRun]] = {}
    for run in runs:
        if run.split is not None and run.split.counts:
            holders.setdefault(run.split, []).append(run)
    if not holders:
        return None
    maps = [[_heat_map(split)] for split in holders]
    names = numbered([_holders(members) for members in holders.values()])
    choices = dict(zip(names, maps, strict=True))
    note = "Each column is a client, each row a class; the stronger the colour, the more examples."
    if len(runs) > 1 and len(maps) == 1:
        told = sum(map(len, holders.values()))
        note += f" The same in {f'all {told}' if told == len(runs) else told} runs."
    return Figure(
        "split",
        "Who holds which examples",
        note,
        maps[0],
        _map_layout(max(len(split.classes) for split in holders)),
        wide=True,
        choices=choices if len(maps) > 1 else {},
    )


def _map_layout(classes: int) -> Spec:
    names = {"type": "category", "autorange": "reversed", "automargin": True, "showgrid": False}
    return {
        "xaxis": {"title": {"text": "client"}, "showgrid": False},
        "yaxis": {"title": {"text": "class"}, **names},
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


def _holders(runs: Sequence[RecordedRun]) -> str:
    """Which runs share a split: by seed, since that is what a split is drawn from."""
    seeds = list(dict.fromkeys(format_value(run.config.get("seed")) for run in runs))
    settings = dict.fromkeys(_drawn_from(run) for run in runs)
    named = f"seed{'s' if len(seeds) > 1 else ''} {join_words(seeds)}"
    count = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
    return " · ".join([named, *(s for s in settings if s), count])


def _drawn_from(run: RecordedRun) -> str:
    environment = run.config.get("environment")
    if not isinstance(environment, dict):
        return ""
    told = {"clients": "clients", "classes_per_client": "classes each"}
    words = [f"{format_value(environment[k])} {told[k]}" for k in told if k in environment]
    return ", ".join(words).replace(" 1 classes", " 1 class")


def _mean_phases(group: Group) -> dict[str, float]:
    spent = [phases(run.last) for run in group.evaluated]
    names = dict.fromkeys(name for one in spent for name in one)
    return {name: sum(one.get(name, 0.0) for one in spent) / len(spent) for name in names}
