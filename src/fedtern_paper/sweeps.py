"""Figures 6 to 9 and 13 to 16: one property of the environment varies, three methods compete."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from fedtern.data.environment import Environment
from fedtern.runs import Experiment
from fedtern_paper.results import Results
from fedtern_paper.scores import Score
from fedtern_paper.settings import Settings
from fedtern_paper.verdicts import IID, NON_IID

METHODS = ("stc", "fedavg:local_steps=400", "signsgd")
MOMENTUM = (0.0, 0.9)


@dataclass(frozen=True)
class Sweep:
    """What varies, over which values, and in which places; the runs of a figure follow.

    A place is an environment before anything varies. ``tick`` is what the axis says of a value.
    """

    name: str
    title: str
    axis: str
    values: tuple[float, ...]
    places: Mapping[str, Environment]
    vary: Callable[[Environment, float], Environment]
    tick: Callable[[float], str] = "{:g}".format
    logarithmic: bool = False

    def points(self, settings: Settings) -> Iterator[Point]:
        """Everything that is measured for one task."""
        for place, base in settings.choose_places(self.places).items():
            for value in settings.values or self.values:
                environment = self.vary(base, value)
                for method in settings.choose_methods(METHODS):
                    for momentum in settings.momentum or MOMENTUM:
                        yield Point(place, value, method, momentum, environment)


class Point(NamedTuple):
    """One method at one value in one place."""

    place: str
    value: float
    method: str
    momentum: float
    environment: Environment

    def cells(self, settings: Settings) -> list[Experiment]:
        """Its runs, one for each seed."""
        return settings.with_seeds(self.method, self.environment, self.momentum)

    def score(self, settings: Settings, results: Results) -> Score:
        """What its finished runs came to."""
        return Score.of(results, self.cells(settings))


def cells(sweep: Sweep, settings: Settings) -> list[Experiment]:
    """Every point for every task, with every seed."""
    return [
        cell for each in settings.each for point in sweep.points(each) for cell in point.cells(each)
    ]


def _whole(name: str, value: float, least: int = 1) -> int:
    if value != int(value) or value < least:
        raise ValueError(f"{name} must be whole numbers of at least {least}, got {value:g}")
    return int(value)


def _classes(place: Environment, value: float) -> Environment:
    return replace(place, classes_per_client=_whole("classes per client", value))


def _batch(place: Environment, value: float) -> Environment:
    return replace(place, batch_size=_whole("batch sizes", value))


def _participation(place: Environment, value: float) -> Environment:
    """Five clients of ever more: it is their share that varies."""
    clients = _whole("numbers of clients", value, _FIVE)
    return replace(place, clients=clients, participation=_FIVE / clients)


def _balance(place: Environment, value: float) -> Environment:
    if not 0 < value <= 1:
        raise ValueError(f"values of gamma must be in (0, 1], got {value:g}")
    return replace(place, gamma=value)


_FIVE = 5
_TEN_OF_TEN = Environment(clients=10, participation=1.0)
_BATCHES_OF_40 = Environment(batch_size=40)

CLASSES = Sweep(
    "classes",
    "Classes for each client",
    "classes for each client",
    (1, 2, 3, 5, 10),
    {"10/10": _TEN_OF_TEN, "10/100": Environment()},
    _classes,
)
BATCH = Sweep(
    "batch",
    "Batch size",
    "batch size (10 of 10 clients)",
    (1, 4, 10, 20, 40),
    {NON_IID: replace(_TEN_OF_TEN, classes_per_client=2), IID: _TEN_OF_TEN},
    _batch,
    logarithmic=True,
)
PARTICIPATION = Sweep(
    "participation",
    "Participation",
    "clients that take part, of all",
    (5, 10, 25, 50, 100, 200, 400),
    {NON_IID: replace(_BATCHES_OF_40, classes_per_client=2), IID: _BATCHES_OF_40},
    _participation,
    tick="5/{:g}".format,
    logarithmic=True,
)
BALANCE = Sweep(
    "balance",
    "Balancedness",
    "γ (1: all clients hold the same number of examples)",
    (0.9, 0.925, 0.95, 0.975, 1.0),
    {"5/200": Environment(clients=200, participation=5 / 200)},
    _balance,
)

PLACES = {
    "10/10": "10 of 10 clients",
    "10/100": "10 of 100 clients",
    "5/200": "5 of 200 clients",
    NON_IID: "2 classes for each client",
    IID: "iid data",
}
"""What a panel is called."""
