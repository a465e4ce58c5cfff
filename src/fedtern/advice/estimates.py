"""What each method would cost, going by the recorded runs that are nearest to a situation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedtern.advice import paper_thresholds
from fedtern.advice.lessons import COMPARED
from fedtern.advice.records import Point, Record
from fedtern.advice.situation import Situation
from fedtern.core.analytic import bits
from fedtern.core.layout import Layout
from fedtern.core.methods import make_method
from fedtern.data.environment import Environment
from fedtern.report.formatting import format_iterations

_ALL = Environment.classes_per_client  # that there are in the paper's tasks
FAR = 1.0  # from here on the recorded runs say little about a situation
_AROUND = 32  # bytes of a message, at most, that do not grow with the model: see docs/format.md


@dataclass(frozen=True)
class Scene:
    """Records of one task in one environment at one rate: they can be compared with each other."""

    records: tuple[Record, ...]

    @property
    def environment(self) -> Environment:
        """Where they were made."""
        return self.records[0].environment

    @property
    def best(self) -> float:
        """The highest accuracy of all."""
        return max(record.best for record in self.records)

    @property
    def name(self) -> str:
        """The scene in a few words."""
        e, first = self.environment, self.records[0]
        return (
            f"{first.task}, {e.cohort_size} of {e.clients} clients, {_data(e)},"
            f" batches of {e.batch_size},"
            f" {format_iterations(first.iterations, first.own_iterations)} iterations"
        )

    @property
    def short(self) -> bool:
        """Whether the runs ended before the task would have them end."""
        return self.records[0].iterations < self.records[0].own_iterations

    @property
    def doubt(self) -> float:
        """How much less it can tell than full runs of both methods that the lessons compare."""
        first, names = self.records[0], {record.method["name"] for record in self.records}
        absent = len(COMPARED - names)
        return 0.5 * absent + (0.7 * math.log(first.own_iterations / first.iterations) * self.short)

    def distance(self, situation: Situation) -> float:
        """How unlike a situation it is: 0 is the same, 1 is a factor of e in what matters most."""
        e = self.environment
        apart = (
            (1.0, situation.classes / situation.of_classes, _classes(e) / _ALL),
            (0.7, situation.batch_size, e.batch_size),
            (0.5, situation.participation, e.participation),
            (0.2, situation.clients, e.clients),
            (0.15, situation.parameters, self.records[0].parameters),
        )
        unevenly = 0.3 if e.gamma != 1 or e.split != "classes" or e.public else 0.0
        # What half of the lessons are about: whether clients differ at all.
        otherwise = 0.5 * (paper_thresholds.non_iid(_classes(e), _ALL) != situation.skewed)
        return unevenly + otherwise + sum(w * abs(math.log(a / b)) for w, a, b in apart)


def _data(e: Environment) -> str:
    """What each client holds."""
    if e.split == "dirichlet":
        return f"dirichlet data (concentration {e.concentration:g})"
    if e.split != "classes":
        return f"{e.split} data"
    return f"{e.classes_per_client} class{'es' * (e.classes_per_client > 1)} each"


def _classes(e: Environment) -> float:
    """How many classes a client holds, or as many as would tell clients apart as much.

    Of a mixture, one over the chance that two examples of a client are of one class, on average.

    >>> mixtures = [Environment(split="dirichlet", concentration=c) for c in (0.05, 1, 1000)]
    >>> [round(_classes(mixture), 1) for mixture in mixtures]
    [1.0, 1.8, 9.9]
    """
    if e.split == "dirichlet":
        return _ALL * (e.concentration + 1) / (e.concentration + _ALL)
    return e.classes_per_client if e.split == "classes" else _ALL


@dataclass(frozen=True)
class Estimate:
    """What a recorded method would take to get to the target, if it got there."""

    record: Record
    target: float
    reached: Point | None
    rounds: float
    up: float  # bytes that a client's place in the cohort sends, in all
    down: float
    seconds: float


def scenes(records: Iterable[Record]) -> list[Scene]:
    """The records by what they can be compared with."""
    found: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        rates = record.learning_rate, record.weight_decay
        where = record.task, record.environment, record.iterations, *rates
        found.setdefault(where, []).append(record)
    return [Scene(tuple(group)) for group in found.values()]


def nearest(situation: Situation, records: Iterable[Record]) -> Scene | None:
    """The scene most like a situation, among those with a method and something to compare it to."""
    several = [s for s in scenes(records) if len({r.method["name"] for r in s.records}) > 1]

    def worse(scene: Scene) -> tuple[bool, float, int]:
        distance = scene.distance(situation)
        # Of equally good ones that with the most to choose from.
        return distance > FAR, distance + scene.doubt, -len(scene.records)

    return min(several, key=worse, default=None)


def estimate(situation: Situation, scene: Scene) -> list[Estimate]:
    """Every method of a scene, the quickest first, those that do not get there last."""
    target = scene.best - situation.within
    found = [_estimate(situation, record, target) for record in scene.records]
    return sorted(found, key=_worth)


def _worth(found: Estimate) -> tuple[float, float]:
    if not found.reached:
        return math.inf, -found.record.best
    return found.seconds, found.up + found.down


def _estimate(situation: Situation, record: Record, target: float) -> Estimate:
    reached = record.reaching(target)
    point = reached or record.points[-1]
    method = make_method(record.method)
    rounds = point.iteration / method.local_steps
    sizes = Layout.flat(record.parameters), Layout.flat(situation.parameters)
    up = _scaled(point.up, rounds, *(bits(method.up, size) / 8 for size in sizes))
    away = record.environment.participation, situation.participation
    before, after = (
        min(bits(method.down, size, max(round(1 / share), 1)) / 8, 4 * size.size)
        for size, share in zip(sizes, away, strict=True)
    )
    down = _scaled(point.down, rounds, before, after)
    if before < 4 * record.parameters:  # what was recorded is parts of a model; never more than one
        down = min(down, rounds * (4 * situation.parameters + _AROUND))
    sending = 8 * (up / situation.up + down / situation.down)
    seconds = rounds * situation.latency + sending + point.iteration * situation.step
    return Estimate(record, target, reached, rounds, up, down, seconds)


def _scaled(total: float, rounds: float, before: float, after: float) -> float:
    """What recorded messages would take where each takes other bytes by its publication's formula.

    What is around a message stays as it is: for a small model, that is most of it.
    """
    around = min(max(total - rounds * before, 0), rounds * _AROUND)
    return around + (total - around) * after / before


def shown(estimates: Sequence[Estimate]) -> list[Estimate]:
    """One estimate for each method and its parameters: with momentum or without, as is better."""
    best: dict[str, Estimate] = {}
    for found in estimates:  # which are in their order
        best.setdefault(repr(sorted(found.record.method.items(), key=str)), found)
    return list(best.values())
