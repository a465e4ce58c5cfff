"""Figures 4, 5 and 12: accuracy over two parameters of a method, on iid and non-iid data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedtern import Environment
from fedtern.report import format_fraction
from fedtern.runs import Experiment
from fedtern_paper.artefact import Table
from fedtern_paper.plot_style import add_title
from fedtern_paper.results import Results, Score, format_points, mean, spread
from fedtern_paper.settings import IID, NON_IID, Settings

PLACES = {
    IID: Environment(clients=5, participation=1.0),
    # With only one class for each of five clients, half of the classes would be missing.
    NON_IID: Environment(clients=5, participation=1.0, classes_per_client=2),
}
_CLIENTS_NOTE = "All 5 clients take part in each round; non-iid: two classes per client."


class Parameter(NamedTuple):
    """A parameter and its values, in the order of the picture."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class HeatMap:
    """Accuracy of a method for every pair of values of two parameters.

    Args:
        title: Title of the figure.
        rows: Parameter of the rows.
        columns: Parameter of the columns.
        method: Returns the method for a value of each parameter.
        minus: Returns a method whose accuracy is subtracted; None to subtract nothing.
        notes: Sentences below the table.

    """

    title: str
    rows: Parameter
    columns: Parameter
    method: Callable[[float, float], str]
    minus: Callable[[float, float], str] | None = None
    notes: tuple[str, ...] = ()

    def cells(self, settings: Settings) -> list[Experiment]:
        """Return the experiments: every pair of values in every place, with every seed."""
        return [
            cell
            for place in settings.choose_places(PLACES)
            for row in self.rows.values
            for column in self.columns.values
            for method in (self.method, self.minus)
            if method is not None
            for cell in settings.with_seeds(method(row, column), PLACES[place])
        ]

    def score(
        self, settings: Settings, results: Results, place: str, row: float, column: float
    ) -> Score:
        """Return the accuracies of the method for a pair of values."""
        return Score.of(results, settings.with_seeds(self.method(row, column), PLACES[place]))

    def numbers(
        self, settings: Settings, results: Results, place: str, row: float, column: float
    ) -> tuple[float, ...]:
        """Return the number of each seed: the final accuracy, or the difference of two."""
        if self.minus is None:
            return self.score(settings, results, place, row, column).final
        first = settings.with_seeds(self.method(row, column), PLACES[place])
        second = settings.with_seeds(self.minus(row, column), PLACES[place])
        runs = [
            (results.evaluations(a), results.evaluations(b))
            for a, b in zip(first, second, strict=True)
        ]
        return tuple(a[-1].accuracy - b[-1].accuracy for a, b in runs if a and b)

    def grid(self, settings: Settings, results: Results, place: str) -> list[list[float]]:
        """Return the numbers in per cent or points, averaged over seeds; nan where not run."""

        def number(row: float, column: float) -> float:
            average = mean(self.numbers(settings, results, place, row, column))
            return math.nan if average is None else 100 * average

        return [[number(row, column) for column in self.columns.values] for row in self.rows.values]


def _sparse(up: float, down: float) -> str:
    upload = f"topk:p_up={format_fraction(up)}"
    return f"{upload},p_down={format_fraction(down)}" if down < 1 else upload


def _ternary(up: float, down: float) -> str:
    return f"stc:p_up={format_fraction(up)},p_down={format_fraction(down)}"


def _delayed(local_steps: float, p: float) -> str:
    if p < 1:
        return f"{_ternary(p, p)},local_steps={local_steps:g}"
    return f"fedavg:local_steps={local_steps:g}" if local_steps > 1 else "sgd"


_RATES = (1 / 25, 1 / 100, 1 / 400)

FIGURE_4 = HeatMap(
    "Upload and download sparsity",
    Parameter("p up", _RATES),
    Parameter("p down", (1.0, *_RATES)),
    _sparse,
    notes=(
        "Final accuracy of top-k in per cent; p down = 1: downloads are not compressed. "
        + _CLIENTS_NOTE,
        "The paper trains VGG11* for 16,000 of 20,000 iterations (its text says 10,000), so runs"
        " here have four fifths of the task's iterations. It says that sparse downloads cost at"
        " most 3 % (caption) or 2 % (text).",
    ),
)
FIGURE_5 = HeatMap(
    "Sparse minus ternary updates",
    Parameter("p up", _RATES),
    Parameter("p down", _RATES),
    _sparse,
    _ternary,
    notes=(
        "Final accuracy of top-k minus that of STC, in points. Above zero, sparse updates without"
        " ternarisation are better. " + _CLIENTS_NOTE,
        "The paper prints no numbers here. It says that ternarisation has a very minor effect and"
        " sometimes helps.",
    ),
)
FIGURE_12 = HeatMap(
    "Sparsity and delay",
    Parameter("local steps", (1, 5, 25, 100)),
    Parameter("p", (1.0, 1 / 5, 1 / 25, 1 / 100, 1 / 400)),
    _delayed,
    notes=(
        "Final accuracy of STC with delay, in per cent; p = 1 is FedAvg, and with one local step"
        " uncompressed SGD. " + _CLIENTS_NOTE,
        "The paper trains VGG11* for 10,000 of 20,000 iterations, so runs here have half of the"
        " task's iterations. It prints no numbers here. It says that on iid data sparsity and"
        " delay perform alike, and that on non-iid data sparsity is better than a comparable"
        " delay.",
    ),
)


def table(heat_map: HeatMap, settings: Settings, results: Results) -> Table:
    """Return a row for each value of the first parameter, with a column for each of the second."""
    rows = heat_map.rows
    columns = heat_map.columns
    values: list[dict[str, Any]] = []
    shown: list[dict[str, str]] = []
    for place in settings.choose_places(PLACES):
        for row in rows.values:
            line = {"where": place, rows.name: format_fraction(row)}
            for column in columns.values:
                numbers = heat_map.numbers(settings, results, place, row, column)
                line[f"{columns.name} = {format_fraction(column)}"] = format_points(numbers)
                score = heat_map.score(settings, results, place, row, column)
                values.append({
                    "place": place,
                    rows.name.replace(" ", "_"): row,
                    columns.name.replace(" ", "_"): column,
                    "method": heat_map.method(row, column),
                    **score.columns(),
                    **_difference_columns(heat_map, numbers),
                })  # fmt: skip
            shown.append(line)
    several_seeds = ["± is the standard deviation over seeds."] if settings.seeds > 1 else []
    title = heat_map.title + (" (quick)" if settings.quick else "")
    return Table(title, values, shown, [*heat_map.notes, *several_seeds])


def _difference_columns(heat_map: HeatMap, numbers: tuple[float, ...]) -> dict[str, float | None]:
    if heat_map.minus is None:
        return {}
    return {"difference": mean(numbers), "difference_std": spread(numbers)}


def draw(heat_map: HeatMap, settings: Settings, results: Results, figure: Any) -> None:
    """Draw a panel for each place, with the numbers in its cells."""
    places = list(settings.choose_places(PLACES))
    rows = heat_map.rows
    columns = heat_map.columns
    grids = {place: heat_map.grid(settings, results, place) for place in places}
    known = [n for grid in grids.values() for line in grid for n in line if math.isfinite(n)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    colours = {"cmap": "viridis", "vmin": low, "vmax": max(high, low + 1e-9)}
    if heat_map.minus is not None:
        limit = max(abs(low), abs(high), 1e-9)
        colours = {"cmap": "RdBu", "vmin": -limit, "vmax": limit}
    figure.set_size_inches(1.8 + 4.1 * len(places), 4.3)
    panels = figure.subplots(1, len(places), squeeze=False)
    for place, axes in zip(places, panels.flat, strict=True):
        image = axes.imshow(grids[place], aspect="auto", **colours)
        for y, line in enumerate(grids[place]):
            for x, number in enumerate(line):
                if math.isfinite(number):
                    bright = sum(image.to_rgba(number)[:3]) > 1.6
                    axes.text(x, y, f"{number:z.1f}", ha="center", va="center",
                              color="black" if bright else "white")  # fmt: skip
        axes.set_xticks(range(len(columns.values)), list(map(format_fraction, columns.values)))
        axes.set_yticks(range(len(rows.values)), list(map(format_fraction, rows.values)))
        axes.set(xlabel=columns.name, ylabel=rows.name)
        axes.set_title(place, fontsize=10)
    unit = "points" if heat_map.minus else "accuracy in %"
    figure.colorbar(image, ax=list(panels.flat), label=unit, shrink=0.9)
    add_title(figure, heat_map.title, settings.note)
