"""Figures 4, 5 and 12: accuracy over two parameters of a method, iid and non-iid."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedtern.data.environment import Environment
from fedtern.report.formatting import format_fraction
from fedtern.runs import Experiment
from fedtern_paper.artefact import Table
from fedtern_paper.plot_style import head
from fedtern_paper.results import Results
from fedtern_paper.scores import Score, mean, points, spread
from fedtern_paper.settings import Settings
from fedtern_paper.verdicts import IID, NON_IID

PLACES = {
    IID: Environment(clients=5, participation=1.0),
    # With fewer than two classes for each of five clients, some classes would be nowhere.
    NON_IID: Environment(clients=5, participation=1.0, classes_per_client=2),
}
FIVE = "5 clients that all take part; non-iid: two classes for each."


@dataclass(frozen=True)
class HeatMap:
    """A method for every pair of values; with ``minus``, how much better it is than another.

    ``rows`` and ``columns`` are parameters with their values, in the order of the picture.
    """

    title: str
    rows: tuple[str, tuple[float, ...]]
    columns: tuple[str, tuple[float, ...]]
    method: Callable[[float, float], str]
    minus: Callable[[float, float], str] | None = None
    notes: tuple[str, ...] = ()

    def cells(self, settings: Settings) -> list[Experiment]:
        """Every pair in both places, with every seed."""
        return [
            cell
            for place in settings.choose_places(PLACES)
            for row in self.rows[1]
            for column in self.columns[1]
            for make in (self.method, self.minus)
            if make is not None
            for cell in settings.with_seeds(make(row, column), PLACES[place])
        ]

    def found(
        self, settings: Settings, results: Results, place: str, row: float, column: float
    ) -> tuple[Score, tuple[float, ...]]:
        """The runs of a pair, and what is shown of them: the last accuracies, or differences."""
        score = Score.of(results, settings.with_seeds(self.method(row, column), PLACES[place]))
        if self.minus is None:
            return score, score.final
        first = settings.with_seeds(self.method(row, column), PLACES[place])
        second = settings.with_seeds(self.minus(row, column), PLACES[place])
        pairs = [(results.rounds(a), results.rounds(b)) for a, b in zip(first, second, strict=True)]
        return score, tuple(a[-1].accuracy - b[-1].accuracy for a, b in pairs if a and b)


def _sparse(up: float, down: float) -> str:
    return f"topk:p_up={format_fraction(up)}" + (
        f",p_down={format_fraction(down)}" if down < 1 else ""
    )


def _ternary(up: float, down: float) -> str:
    return f"stc:p_up={format_fraction(up)},p_down={format_fraction(down)}"


def _delayed(local_steps: float, p: float) -> str:
    if p < 1:
        return f"{_ternary(p, p)},local_steps={local_steps:g}"
    return f"fedavg:local_steps={local_steps:g}" if local_steps > 1 else "sgd"


_RATES = (1 / 25, 1 / 100, 1 / 400)

FIGURE_4 = HeatMap(
    "Upload and download sparsity",
    ("p up", _RATES),
    ("p down", (1.0, *_RATES)),
    _sparse,
    notes=(
        "Final accuracy of top-k in per cent; p down = 1: downloads are not compressed. " + FIVE,
        "The paper trains VGG11* for 16,000 of 20,000 iterations (its text says 10,000), hence four"
        " fifths of a task's iterations. It says that download sparsity costs at most 3 %"
        " (caption), or two (text).",
    ),
)
FIGURE_5 = HeatMap(
    "Sparse minus ternary updates",
    ("p up", _RATES),
    ("p down", _RATES),
    _sparse,
    _ternary,
    notes=(
        "Final accuracy of top-k minus that of STC, in points; above zero, sparse updates without"
        " ternarisation are better. " + FIVE,
        "The paper prints no numbers here: ternarisation has a very minor effect, and sometimes"
        " helps.",
    ),
)
FIGURE_12 = HeatMap(
    "Sparsity and delay",
    ("local steps", (1, 5, 25, 100)),
    ("p", (1.0, 1 / 5, 1 / 25, 1 / 100, 1 / 400)),
    _delayed,
    notes=(
        "Final accuracy in per cent of STC with delay; p = 1 is FedAvg, and with one local step"
        " uncompressed SGD. " + FIVE,
        "The paper trains VGG11* for 10,000 of 20,000 iterations, hence half of a task's"
        " iterations. It prints no numbers here: on iid data sparsity and delay do alike, on"
        " non-iid data sparsity is better than a comparable delay.",
    ),
)


def table(heat: HeatMap, settings: Settings, results: Results) -> Table:
    """A row for each value of the first parameter, a column for each of the second."""
    (row_name, rows), (column_name, columns) = heat.rows, heat.columns
    values: list[dict[str, Any]] = []
    shown: list[dict[str, str]] = []
    for place in settings.choose_places(PLACES):
        for row in rows:
            line = {"where": place, row_name: format_fraction(row)}
            for column in columns:
                score, numbers = heat.found(settings, results, place, row, column)
                line[f"{column_name} = {format_fraction(column)}"] = points(numbers)
                values.append({
                    "place": place,
                    row_name.replace(" ", "_"): row,
                    column_name.replace(" ", "_"): column,
                    "method": heat.method(row, column),
                    **score.columns(),
                    **_difference(heat, numbers),
                })  # fmt: skip
            shown.append(line)
    several = ["± is the standard deviation over seeds."] if settings.seeds > 1 else []
    title = heat.title + (" (quick)" if settings.quick else "")
    return Table(title, values, shown, [*heat.notes, *several])


def _difference(heat: HeatMap, numbers: tuple[float, ...]) -> dict[str, float | None]:
    if heat.minus is None:
        return {}
    return {"difference": mean(numbers), "difference_std": spread(numbers)}


def draw(heat: HeatMap, settings: Settings, results: Results, figure: Any) -> None:
    """A panel for each place, its numbers written in."""
    places = list(settings.choose_places(PLACES))
    (row_name, rows), (column_name, columns) = heat.rows, heat.columns
    maps = {p: numbers(heat, settings, results, p) for p in places}
    known = [n for grid in maps.values() for line in grid for n in line if math.isfinite(n)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    colours = {"cmap": "viridis", "vmin": low, "vmax": max(high, low + 1e-9)}
    if heat.minus is not None:
        limit = max(abs(low), abs(high), 1e-9)
        colours = {"cmap": "RdBu", "vmin": -limit, "vmax": limit}
    figure.set_size_inches(1.8 + 4.1 * len(places), 4.3)
    grid = figure.subplots(1, len(places), squeeze=False)
    for place, axes in zip(places, grid.flat, strict=True):
        image = axes.imshow(maps[place], aspect="auto", **colours)
        for y, line in enumerate(maps[place]):
            for x, number in enumerate(line):
                if math.isfinite(number):
                    bright = sum(image.to_rgba(number)[:3]) > 1.6
                    axes.text(x, y, f"{number:z.1f}", ha="center", va="center",
                              color="black" if bright else "white")  # fmt: skip
        axes.set_xticks(range(len(columns)), list(map(format_fraction, columns)))
        axes.set_yticks(range(len(rows)), list(map(format_fraction, rows)))
        axes.set(xlabel=column_name, ylabel=row_name)
        axes.set_title(place, fontsize=10)
    unit = "points" if heat.minus else "accuracy in %"
    figure.colorbar(image, ax=list(grid.flat), label=unit, shrink=0.9)
    head(figure, heat.title, settings.note)


def numbers(heat: HeatMap, settings: Settings, results: Results, place: str) -> list[list[float]]:
    """Per cent or points, with nan where nothing has been run."""
    missing = float("nan")

    def number(row: float, column: float) -> float:
        average = mean(heat.found(settings, results, place, row, column)[1])
        return missing if average is None else 100 * average

    return [[number(row, column) for column in heat.columns[1]] for row in heat.rows[1]]
