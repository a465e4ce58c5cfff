"""Cells: recorded runs that can be compared, and the cell nearest to a situation."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from fedtern.advice.records import Record
from fedtern.advice.situation import Situation
from fedtern.data.environment import Environment
from fedtern.report.formatting import format_iterations, join_words

NEAR = 2.0
"""The largest factor between a near cell and a situation: about the spacing of recorded values."""

_NUM_CLASSES = Environment.classes_per_client  # of all recorded tasks
_EQUAL_AMOUNTS = "equal numbers"


@dataclass(frozen=True)
class Difference:
    """A property of a cell beside that of a situation.

    Args:
        name: Name of the property.
        recorded: Value of the cell, as text.
        yours: Value of the situation, as text.
        factor: The larger value divided by the smaller one; for words, 1 or infinite.
        decisive: Whether only cells within a factor of ``NEAR`` decide.

    """

    name: str
    recorded: str
    yours: str
    factor: float
    decisive: bool = False

    @property
    def too_large(self) -> bool:
        """Whether the cell must not decide."""
        return self.decisive and self.factor > NEAR

    def __str__(self) -> str:
        """Return both values, and whether they are too far apart."""
        limit = "another kind" if self.factor == math.inf else f"more than a factor of {NEAR:g}"
        note = f" ({limit})" if self.too_large else ""
        return f"{self.name}: recorded: {self.recorded}, yours: {self.yours}{note}"


@dataclass(frozen=True)
class Cell:
    """Records of one task, environment, number of iterations, learning rate and weight decay."""

    records: tuple[Record, ...]

    @property
    def environment(self) -> Environment:
        """Environment of all records."""
        return self.records[0].environment

    @property
    def best(self) -> float:
        """Highest accuracy of any record."""
        return max(record.best for record in self.records)

    @property
    def methods(self) -> frozenset[str]:
        """Names of the recorded methods."""
        return frozenset(str(record.method["name"]) for record in self.records)

    @property
    def description(self) -> str:
        """Task, environment and number of iterations in a few words."""
        place = self.environment
        first = self.records[0]
        return (
            f"{first.task}, {place.cohort_size} of {place.clients} clients,"
            f" {_describe_data(place)}, batch size {place.batch_size},"
            f" {format_iterations(first.iterations, first.own_iterations)} iterations"
        )

    def gaps(self, compared: Collection[str]) -> tuple[str, ...]:
        """Return what the cell lacks: iterations, or runs of the methods that lessons compare."""
        first = self.records[0]
        missing = sorted(set(compared) - self.methods)
        found = []
        if first.iterations < first.own_iterations:
            iterations = format_iterations(first.iterations, first.own_iterations)
            found.append(f"the recorded runs were cut short: {iterations} iterations")
        if missing:
            found.append(f"there are no recorded runs of {join_words(missing)}")
        return tuple(found)

    def compare(self, situation: Situation) -> tuple[Difference, ...]:
        """Return all properties beside those of a situation.

        Those that the lessons name are decisive: the data, the batch size and the participation.
        The order is that in which ``nearest_cell`` compares near cells. It starts with the number
        of parameters, on which bytes depend most.
        """
        place = self.environment
        recorded_share = _num_classes(place) / _NUM_CLASSES
        share = situation.classes / situation.of_classes
        classes = f"{situation.classes} of {situation.of_classes}"
        parameters = self.records[0].parameters
        return (
            _compare_words("data", _kind(recorded_share < 1), _kind(situation.non_iid), True),
            _compare_numbers("parameters", parameters, situation.parameters),
            Difference(
                "classes per client",
                _describe_share(place),
                classes,
                _factor(recorded_share, share),
                decisive=True,
            ),
            _compare_numbers("batch size", place.batch_size, situation.batch_size, True),
            _compare_numbers("participation", place.participation, situation.participation, True),
            _compare_numbers("clients", place.clients, situation.clients),
            _compare_words("examples per client", _describe_amounts(place), _EQUAL_AMOUNTS),
        )

    def is_near(self, situation: Situation) -> bool:
        """Return whether the cell may decide: no lesson distinguishes it from the situation."""
        return not any(difference.too_large for difference in self.compare(situation))


def _factor(a: float, b: float) -> float:
    return max(a / b, b / a)


def _compare_numbers(
    name: str, recorded: float, yours: float, decisive: bool = False
) -> Difference:
    texts = [
        f"{value:,}" if isinstance(value, int) else f"{value:.4g}" for value in (recorded, yours)
    ]
    return Difference(name, texts[0], texts[1], _factor(recorded, yours), decisive)


def _compare_words(name: str, recorded: str, yours: str, decisive: bool = False) -> Difference:
    return Difference(name, recorded, yours, 1.0 if recorded == yours else math.inf, decisive)


def _kind(non_iid: bool) -> str:
    return "non-iid" if non_iid else "iid"


def _describe_amounts(place: Environment) -> str:
    """Return how the examples are distributed, in words."""
    found = _EQUAL_AMOUNTS if place.gamma == 1 else f"unequal numbers (gamma {place.gamma:g})"
    return f"{found}, {place.public:.0%} public" if place.public else found


def _describe_data(place: Environment) -> str:
    """Return what each client holds, in words."""
    if place.split == "dirichlet":
        return f"dirichlet data (concentration {place.concentration:g})"
    if place.split != "classes":
        return f"{place.split} data"
    classes = "class" if place.classes_per_client == 1 else "classes"
    return f"{place.classes_per_client} {classes} per client"


def _describe_share(place: Environment) -> str:
    if place.split == "classes":
        return f"{place.classes_per_client} of {_NUM_CLASSES}"
    return _describe_data(place)


def _num_classes(place: Environment) -> float:
    """Return the number of classes per client, or an equivalent number for other splits.

    For a Dirichlet mixture it is one over the probability that two examples of a client have the
    same class.

    >>> mixtures = [Environment(split="dirichlet", concentration=c) for c in (0.05, 1, 1000)]
    >>> [round(_num_classes(mixture), 1) for mixture in mixtures]
    [1.0, 1.8, 9.9]
    """
    if place.split == "dirichlet":
        return _NUM_CLASSES * (place.concentration + 1) / (place.concentration + _NUM_CLASSES)
    return place.classes_per_client if place.split == "classes" else _NUM_CLASSES


def group_records(records: Iterable[Record]) -> list[Cell]:
    """Group records that can be compared with each other."""
    cells: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        key = (
            record.task,
            record.environment,
            record.iterations,
            record.learning_rate,
            record.weight_decay,
        )
        cells.setdefault(key, []).append(record)
    return [Cell(tuple(cell)) for cell in cells.values()]


def nearest_cell(
    situation: Situation, records: Iterable[Record], compared: Collection[str]
) -> Cell | None:
    """Return the cell nearest to a situation, of those with at least two methods.

    Near cells come first, then cells without gaps, then the smaller difference in the first
    property of ``Cell.compare`` in which cells differ, then the cell with the most records.

    Args:
        situation: The federation.
        records: Recorded runs.
        compared: Names of the methods that a cell without gaps has.

    """

    def rank(cell: Cell) -> tuple[int, bool, list[float], int]:
        differences = cell.compare(situation)
        return (
            sum(difference.too_large for difference in differences),
            bool(cell.gaps(compared)),
            [difference.factor for difference in differences],
            -len(cell.records),
        )

    cells = [cell for cell in group_records(records) if len(cell.methods) > 1]
    return min(cells, key=rank, default=None)
