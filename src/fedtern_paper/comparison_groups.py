"""Groups of finished runs that can be compared: they differ in method, momentum and seed only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, NamedTuple

from fedtern import Environment
from fedtern.data import TASK_DEFAULTS
from fedtern.report import format_number, method_label
from fedtern.runs import Evaluation, Experiment, complete_method, parse_method
from fedtern_paper import sweeps
from fedtern_paper.results import format_percent
from fedtern_paper.table4 import first_reaching, task_target

METHODS: Mapping[str, Mapping[str, Any]] = {
    name: complete_method(parse_method(text))
    for name, text in zip(("STC", "FedAvg", "signSGD"), sweeps.METHODS, strict=True)
}
"""The three methods of the paper's comparisons."""

MethodPredicate = Callable[[Mapping[str, Any]], bool]
FinishedRuns = Iterable[tuple[Experiment, list[Evaluation]]]


def is_stc(method: Mapping[str, Any]) -> bool:
    """Return whether a method is STC without delay, with any sparsity, as the paper compares it."""
    return bool(method["name"] == "stc" and method["local_steps"] == 1)


def is_fedavg(method: Mapping[str, Any]) -> bool:
    """Return whether a method is FedAvg, with any delay."""
    return bool(method["name"] == "fedavg")


def is_baseline(method: Mapping[str, Any]) -> bool:
    """Return whether a method is one of the paper's other methods: SGD or signSGD."""
    return method["name"] in ("sgd", "signsgd")


def format_seeds(number: int) -> str:
    """Format the number of seeds that a mean is over.

    >>> format_seeds(1), format_seeds(3)
    ('1 seed', '3 seeds')
    """
    return f"{number} seed" if number == 1 else f"{number} seeds"


class GroupKey(NamedTuple):
    """What the runs of a group have in common."""

    task: str
    environment: Environment
    iterations: int
    learning_rate: float
    weight_decay: float

    @property
    def task_iterations(self) -> int:
        """Default iterations of the task; of an unknown task, those of the runs."""
        defaults = TASK_DEFAULTS.get(self.task)
        return self.iterations if defaults is None else defaults.iterations


class Accuracy(NamedTuple):
    """Best accuracy of a method with a momentum, by seed."""

    by_seed: Mapping[int, float]
    momentum: float

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return fmean(self.by_seed.values())

    def only(self, seeds: Iterable[int]) -> Accuracy:
        """Return the same for some of the seeds."""
        return self._replace(by_seed={seed: self.by_seed[seed] for seed in seeds})

    def __str__(self) -> str:
        values = tuple(self.by_seed.values())
        return f"{format_percent(values)} (m={self.momentum:g}, {format_seeds(len(values))})"


class CostToTarget(NamedTuple):
    """Cost of a method until the target, by seed."""

    by_seed: Mapping[int, float]
    label: str

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return fmean(self.by_seed.values())

    def only(self, seeds: Iterable[int]) -> CostToTarget:
        """Return the same for some of the seeds."""
        return self._replace(by_seed={seed: self.by_seed[seed] for seed in seeds})

    def __str__(self) -> str:
        return f"{format_number(self.mean)} ({self.label}, {format_seeds(len(self.by_seed))})"


@dataclass(frozen=True)
class ComparisonGroup:
    """All finished runs with a key."""

    key: GroupKey
    runs: list[tuple[Experiment, list[Evaluation]]] = field(default_factory=list)

    def accuracy(self, method: Mapping[str, Any], momentum: float) -> Accuracy | None:
        """Return the best accuracies of a method with a momentum; None if it was not run."""
        by_seed = {
            cell.seed: max(e.accuracy for e in evaluations)
            for cell, evaluations in self.runs
            if cell.method == method and cell.momentum == momentum
        }
        return Accuracy(by_seed, momentum) if by_seed else None

    def seeds(self, method: Mapping[str, Any]) -> set[int]:
        """Return the seeds with which a method was run, with any momentum."""
        return {cell.seed for cell, _ in self.runs if cell.method == method}

    def best_accuracy(
        self, method: Mapping[str, Any], seeds: Iterable[int] | None = None
    ) -> Accuracy | None:
        """Return the accuracies of a method with the better momentum, as the paper compares.

        Args:
            method: Name and parameters of the method.
            seeds: Seeds to consider; all if None. Seeds that are not compared must not decide
                which momentum is.

        """
        considered = self.seeds(method) if seeds is None else set(seeds)
        momenta = {
            cell.momentum
            for cell, _ in self.runs
            if cell.method == method and cell.seed in considered
        }
        candidates = [
            found.only(found.by_seed.keys() & considered)
            for momentum in sorted(momenta)
            if (found := self.accuracy(method, momentum)) is not None
        ]
        return max(candidates, key=lambda accuracy: accuracy.mean, default=None)

    @property
    def target(self) -> float:
        """Target accuracy of Table IV."""
        dense = self.best_accuracy({"name": "sgd"})
        return task_target(self.key.task, dense.mean if dense else None)

    def contains(self, predicate: MethodPredicate) -> bool:
        """Return whether any method of a kind was run."""
        return any(predicate(cell.method) for cell, _ in self.runs)

    def lowest_cost(
        self, predicate: MethodPredicate, cost: Callable[[Evaluation], float]
    ) -> CostToTarget | None:
        """Return the lowest cost to the target among methods of a kind.

        Only methods that reached the target with all of their seeds count.
        """
        at_target: dict[str, dict[int, Evaluation | None]] = {}
        for cell, evaluations in self.runs:
            if predicate(cell.method):
                label = f"{method_label(cell.method)}, m={cell.momentum:g}"
                seeds = at_target.setdefault(label, {})
                seeds[cell.seed] = first_reaching(evaluations, self.target)
        candidates = [
            CostToTarget({seed: cost(found) for seed, found in seeds.items() if found}, label)
            for label, seeds in at_target.items()
            if None not in seeds.values()
        ]
        return min(candidates, key=lambda candidate: candidate.mean, default=None)

    @property
    def description(self) -> str:
        """The environment in the paper's notation."""
        place = self.key.environment
        classes = place.classes_per_client
        data = place.split
        if place.split == "classes":
            data = f"{classes} class" if classes == 1 else f"{classes} classes"
        parts = [f"{place.cohort_size}/{place.clients} clients", data, f"batch {place.batch_size}"]
        if place.gamma != Environment.gamma:
            parts.append(f"γ={place.gamma:g}")
        if place.public:
            parts.append(f"{100 * place.public:g} % public")
        return ", ".join(parts)


Groups = Mapping[GroupKey, ComparisonGroup]


def group_runs(finished: FinishedRuns) -> dict[GroupKey, ComparisonGroup]:
    """Group finished runs; those at another learning rate than the task's are left out."""
    # Runs that differ only in how often they are evaluated count once, with the most evaluations.
    unique: dict[str, tuple[Experiment, list[Evaluation]]] = {}
    for cell, evaluations in sorted(finished, key=lambda run: len(run[1])):
        unique[replace(cell, evaluate_every=1).digest] = cell, evaluations
    groups: dict[GroupKey, ComparisonGroup] = {}
    for cell, evaluations in unique.values():
        if not cell.uses_task_rates:
            continue
        key = GroupKey(
            cell.task, cell.environment, cell.iterations, cell.learning_rate, cell.weight_decay
        )
        groups.setdefault(key, ComparisonGroup(key)).runs.append((cell, evaluations))
    return groups
