"""Estimated cost of each method, scaled from the recorded runs nearest to a situation."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedtern.advice.records import Point, Record
from fedtern.advice.situation import Situation
from fedtern.core.analytic import analytic_bits
from fedtern.core.layout import Layout
from fedtern.core.methods import make_method
from fedtern.data.environment import Environment
from fedtern.report.formatting import format_iterations

MAX_DISTANCE = 1.0
"""Recorded runs at a greater distance are too different from a situation to decide."""

_NUM_CLASSES = Environment.classes_per_client  # of all recorded tasks
_OVERHEAD_BYTES = 32  # of a message, at most; independent of the model (see docs/format.md)


@dataclass(frozen=True)
class RecordGroup:
    """Comparable records: of one task, environment, number of iterations and learning rate."""

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
    def description(self) -> str:
        """Task, environment and number of iterations in a few words."""
        place = self.environment
        first = self.records[0]
        return (
            f"{first.task}, {place.cohort_size} of {place.clients} clients,"
            f" {_describe_data(place)}, batch size {place.batch_size},"
            f" {format_iterations(first.iterations, first.own_iterations)} iterations"
        )

    @property
    def cut_short(self) -> bool:
        """Whether the runs have fewer iterations than the task."""
        return self.records[0].iterations < self.records[0].own_iterations

    def uncertainty(self, compared: Collection[str]) -> float:
        """Return a penalty for short runs and for methods that are missing from the group.

        Args:
            compared: Names of the methods that a complete group has.

        """
        first = self.records[0]
        missing = set(compared) - {record.method["name"] for record in self.records}
        shortness = math.log(first.own_iterations / first.iterations) if self.cut_short else 0.0
        return 0.5 * len(missing) + 0.7 * shortness

    def distance(self, situation: Situation) -> float:
        """Return how different a situation is: 0 if equal, 1 for a factor of e in the classes."""
        place = self.environment
        ratios = (
            (1.0, situation.classes / situation.of_classes, _num_classes(place) / _NUM_CLASSES),
            (0.7, situation.batch_size, place.batch_size),
            (0.5, situation.participation, place.participation),
            (0.2, situation.clients, place.clients),
            (0.15, situation.parameters, self.records[0].parameters),
        )
        uneven = place.gamma != 1 or place.split != "classes" or place.public > 0
        # Methods differ most in whether they cope with non-iid data.
        other_kind = (_num_classes(place) < _NUM_CLASSES) != situation.non_iid
        distance = sum(weight * abs(math.log(a / b)) for weight, a, b in ratios)
        return 0.3 * uneven + 0.5 * other_kind + distance


def _describe_data(place: Environment) -> str:
    """Return what each client holds, in words."""
    if place.split == "dirichlet":
        return f"dirichlet data (concentration {place.concentration:g})"
    if place.split != "classes":
        return f"{place.split} data"
    classes = "class" if place.classes_per_client == 1 else "classes"
    return f"{place.classes_per_client} {classes} per client"


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


@dataclass(frozen=True)
class Estimate:
    """Estimated cost of a recorded method until the target.

    ``reached`` is None if the recorded run did not reach the target; the costs are then those of
    the whole run. ``up`` and ``down`` are bytes per participating client, summed over rounds.
    """

    record: Record
    target: float
    reached: Point | None
    rounds: float
    up: float
    down: float
    seconds: float


def group_records(records: Iterable[Record]) -> list[RecordGroup]:
    """Group records that can be compared with each other."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        key = (
            record.task,
            record.environment,
            record.iterations,
            record.learning_rate,
            record.weight_decay,
        )
        groups.setdefault(key, []).append(record)
    return [RecordGroup(tuple(group)) for group in groups.values()]


def nearest_group(
    situation: Situation, records: Iterable[Record], compared: Collection[str]
) -> RecordGroup | None:
    """Return the group nearest to a situation among those with at least two methods.

    Args:
        situation: The federation.
        records: Recorded runs.
        compared: Names of methods; groups without them are chosen last.

    """
    candidates = [
        group
        for group in group_records(records)
        if len({record.method["name"] for record in group.records}) > 1
    ]

    def rank(group: RecordGroup) -> tuple[bool, float, int]:
        distance = group.distance(situation)
        # Of equally good groups, the one with the most records.
        return (
            distance > MAX_DISTANCE,
            distance + group.uncertainty(compared),
            -len(group.records),
        )

    return min(candidates, key=rank, default=None)


def estimate_costs(situation: Situation, group: RecordGroup) -> list[Estimate]:
    """Estimate the cost of every record of a group; fastest first, unsuccessful ones last."""
    target = group.best - situation.within
    estimates = [_estimate_cost(situation, record, target) for record in group.records]
    return sorted(estimates, key=_rank)


def _rank(estimate: Estimate) -> tuple[float, float]:
    if not estimate.reached:
        return math.inf, -estimate.record.best
    return estimate.seconds, estimate.up + estimate.down


def _estimate_cost(situation: Situation, record: Record, target: float) -> Estimate:
    reached = record.reaching(target)
    point = reached or record.points[-1]
    method = make_method(record.method)
    rounds = point.iteration / method.local_steps
    recorded = Layout.flat(record.parameters)
    wanted = Layout.flat(situation.parameters)
    up = _rescale(
        point.up,
        rounds,
        analytic_bits(method.up, recorded) / 8,
        analytic_bits(method.up, wanted) / 8,
    )

    def download_bytes(layout: Layout, participation: float) -> float:
        """Return the bytes of one download; it is never larger than the model."""
        rounds_away = max(round(1 / participation), 1)
        return min(analytic_bits(method.down, layout, rounds_away) / 8, 4 * layout.size)

    before = download_bytes(recorded, record.environment.participation)
    after = download_bytes(wanted, situation.participation)
    down = _rescale(point.down, rounds, before, after)
    if before < 4 * record.parameters:  # the recorded downloads are smaller than the model
        down = min(down, rounds * (4 * situation.parameters + _OVERHEAD_BYTES))
    transfer = 8 * (up / situation.up + down / situation.down)
    seconds = rounds * situation.latency + transfer + point.iteration * situation.step
    return Estimate(record, target, reached, rounds, up, down, seconds)


def _rescale(total: float, rounds: float, before: float, after: float) -> float:
    """Rescale recorded bytes to another message size; the overhead of messages stays the same.

    Args:
        total: Recorded bytes of all messages.
        rounds: Number of messages.
        before: Bytes of a recorded message by the method's formula.
        after: Bytes of a message by the formula in the new situation.

    """
    overhead = min(max(total - rounds * before, 0), rounds * _OVERHEAD_BYTES)
    return overhead + (total - overhead) * after / before


def best_momentum_each(estimates: Sequence[Estimate]) -> list[Estimate]:
    """Return the first estimate of each method with its parameters, whatever the momentum."""
    first: dict[str, Estimate] = {}
    for estimate in estimates:
        key = repr(sorted(estimate.record.method.items(), key=str))
        first.setdefault(key, estimate)
    return list(first.values())
