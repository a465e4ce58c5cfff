"""The plots that are not lines: where the time went, and who holds which examples."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape

from fedtern.report.figures import Figure, Spec
from fedtern.report.groups import Group
from fedtern.report.results import phases
from fedtern.report.runs import Run, Split
from fedtern.report.styles import PHASES, UNKNOWN_PHASES
from fedtern.report.words import listed, plain


def time_spent(groups: Sequence[Group]) -> Figure:
    """Seconds of each configuration, mean over its seeds, stacked by phase."""
    shown = [group for group in groups if group.evaluated]
    spent = [_mean_phases(group) for group in shown]
    unknown = [name for one in spent for name in one if name not in PHASES]
    colours = PHASES | dict(zip(dict.fromkeys(unknown), 3 * UNKNOWN_PHASES, strict=False))
    names = ["<br>".join(escape(line, False) for line in _wrap(group.label)) for group in shown]
    bars: list[Spec] = [
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
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": "seconds"}},
        "yaxis": {"autorange": "reversed", "automargin": True, "fixedrange": True},
        "height": 150 + 46 * len(shown),
    }
    note = "All clients and the server on one machine; the mean over seeds."
    return Figure("time", "Where the time went", note, bars, layout, wide=True)


def splits(runs: Sequence[Run]) -> Figure | None:
    """Who holds what, each different split once; None where no run tells."""
    holders: dict[Split, list[Run]] = {}
    for run in runs:
        if run.split is not None and run.split.counts:
            holders.setdefault(run.split, []).append(run)
    if not holders:
        return None
    maps = {_holders(members): [_heat_map(split)] for split, members in holders.items()}
    first = next(iter(holders))
    layout = {
        "xaxis": {"title": {"text": "client"}, "showgrid": False},
        "yaxis": {
            "title": {"text": "class"},
            "type": "category",
            "autorange": "reversed",
            "automargin": True,
            "showgrid": False,
        },
        "height": 130 + min(24 * len(first.classes), 600),
    }
    many = "Each column is a client, each row a class; the darker, the more examples."
    alike = "" if len(maps) > 1 else f" The same for {_holders(next(iter(holders.values())))}."
    shown = next(iter(maps.values()))
    choices = maps if len(maps) > 1 else {}
    return Figure("split", "Who holds which examples", many + alike, shown, layout, True, choices)


def _heat_map(split: Split) -> Spec:
    return {
        "type": "heatmap",
        "z": [list(column) for column in zip(*split.counts, strict=True)],
        "y": [escape(name, False) for name in split.classes],
        "hovertemplate": "client %{x}, class %{y}<br>%{z:,} examples<extra></extra>",
        "colorbar": {"thickness": 10, "outlinewidth": 0, "title": {"text": "examples"}},
        "xgap": 1 if len(split.counts) <= 100 else 0,
        "ygap": 1,
        "zmin": 0,
    }


def _holders(runs: Sequence[Run]) -> str:
    """Which runs share a split: by seed, since that is what a split is drawn from."""
    seeds = list(dict.fromkeys(plain(run.config.get("seed")) for run in runs))
    settings = dict.fromkeys(_drawn_from(run) for run in runs)
    named = f"seed{'s' if len(seeds) > 1 else ''} {listed(seeds)}"
    count = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
    return " · ".join([named, *(s for s in settings if s), count])


def _drawn_from(run: Run) -> str:
    environment = run.config.get("environment")
    if not isinstance(environment, dict):
        return ""
    told = {"clients": "clients", "classes_per_client": "classes per client"}
    return ", ".join(f"{plain(environment[k])} {told[k]}" for k in told if k in environment)


def _mean_phases(group: Group) -> dict[str, float]:
    spent = [phases(run.last) for run in group.evaluated]
    names = dict.fromkeys(name for one in spent for name in one)
    return {name: sum(one.get(name, 0.0) for one in spent) / len(spent) for name in names}


def _wrap(label: str) -> list[str]:
    return textwrap.wrap(label, 18) or [label]
