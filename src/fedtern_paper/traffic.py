"""Bars of what is sent until a target is reached: Table IV, and the right half of Figure 11."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedtern.report.formatting import format_number
from fedtern_paper import table4
from fedtern_paper.paper import TRAFFIC
from fedtern_paper.plot_style import head, method_look, tidy
from fedtern_paper.results import Results
from fedtern_paper.scores import Score, mean
from fedtern_paper.settings import Settings


def draw(settings: Settings, results: Results, figure: Any) -> None:
    """Table IV as bars."""
    methods = table4.methods(settings)
    figure.set_size_inches(2.5 + 1.0 * len(methods), 4.6)
    draw_traffic(figure.add_subplot(), methods, settings, results)
    head(figure, "Table IV: traffic until the target", settings.note)


def draw_traffic(axes: Any, methods: Sequence[str], settings: Settings, results: Results) -> None:
    """Two bars for each method, megabytes up and down; stars are the paper's."""
    labels = []
    for place, method in enumerate(methods):
        there = table4.traffic(method, settings, results)
        score = Score.of(results, settings.with_seeds(method))
        some = table4.some_of(there, score) if there else ""
        labels.append(settings.label(method).replace(" ", "\n") + some.replace(" (", "\n("))
        colour = method_look(settings.experiment(method).method)["color"]
        up, down = ([r.up_bytes_mean for r in there], [r.down_bytes_mean for r in there])
        paper = TRAFFIC.get(method, {}).get(settings.task) or (None, None)
        for shift, amounts, alpha, star in ((-0.2, up, 1, paper[0]), (0.2, down, 0.45, paper[1])):
            if amount := mean(amounts):
                axes.bar(place + shift, amount / 1e6, 0.38, color=colour, alpha=alpha)
                # At the foot, where no star can be.
                _foot(
                    axes,
                    place + shift,
                    format_number(amount / 1e6),
                    "white" if alpha == 1 else "black",
                )
            if star:
                axes.plot(place + shift, star, "*", color="#444444", markeredgecolor="white",
                          markersize=11, zorder=5)  # fmt: skip
        if not there:
            _foot(axes, place, table4.absent(score), "black")
    axes.set_xticks(range(len(methods)), labels, fontsize=9)
    stars = "; stars: the paper's" if any(settings.task in t for t in TRAFFIC.values()) else ""
    axes.set(yscale="log", ylabel=f"MB {table4.until(settings, results)}")
    axes.set_xlabel(f"dark: up, pale: down{stars}")
    axes.set_xlim(-0.6, len(methods) - 0.4)  # whether or not there are bars at the ends
    if axes.patches or axes.lines:
        low, high = axes.get_ylim()
        axes.set_ylim(low / 4, high)  # room for the numbers
    else:
        axes.set_yticks([], minor=False)
        axes.set_yticks([], minor=True)
    tidy(axes)


def _foot(axes: Any, x: float, text: str, colour: str) -> None:
    axes.text(x, 0.02, text, ha="center", va="bottom", rotation=90, fontsize=8, color=colour,
              transform=axes.get_xaxis_transform())  # fmt: skip
