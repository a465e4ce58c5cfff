"""Finished runs, gathered by where they were made: what is compared with what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, NamedTuple

from fedtern.data.environment import Environment
from fedtern.data.hyperparameters import TASK_DEFAULTS
from fedtern.report.formatting import format_number, method_label
from fedtern.runs import Evaluation, Experiment, complete_method, parse_method
from fedtern_paper import sweeps
from fedtern_paper.scores import percent
from fedtern_paper.table4 import goal, reached

METHODS: Mapping[str, Mapping[str, Any]] = {
    name: complete_method(parse_method(text))
    for name, text in zip(("STC", "FedAvg", "signSGD"), sweeps.METHODS, strict=True)
}
"""The three methods of the paper's comparisons."""

Kind = Callable[[Mapping[str, Any]], bool]


def often(method: Mapping[str, Any]) -> bool:
    """Whether it is STC as the paper compares it: without delay, at whatever sparsity."""
    return bool(method["name"] == "stc" and method["local_steps"] == 1)


def seldom(method: Mapping[str, Any]) -> bool:
    """Whether it is FedAvg, at whatever delay."""
    return bool(method["name"] == "fedavg")


def usual(method: Mapping[str, Any]) -> bool:
    """Whether it is one of the paper's other methods: uncompressed, or signs."""
    return method["name"] in ("sgd", "signsgd")


def in_seeds(number: int) -> str:
    """How many runs a figure is the mean of.

    >>> in_seeds(1), in_seeds(3)
    ('1 seed', '3 seeds')
    """
    return f"{number} seed{'s' * (number != 1)}"


class Key(NamedTuple):
    """What runs have in common that differ in method, momentum and seed only."""

    task: str
    environment: Environment
    iterations: int
    learning_rate: float
    weight_decay: float

    @property
    def own_iterations(self) -> int:
        """The iterations that the task has; for a task of one's own, those of the run."""
        own = TASK_DEFAULTS.get(self.task)
        return self.iterations if own is None else own.iterations


class Standing(NamedTuple):
    """A method in a scene: the highest accuracy of each seed, and the momentum that gave them."""

    best: Mapping[int, float]
    momentum: float

    @property
    def accuracy(self) -> float:
        """That of its seeds on average."""
        return fmean(self.best.values())

    def only(self, seeds: Iterable[int]) -> Standing:
        """The same with some of the seeds."""
        return self._replace(best={seed: self.best[seed] for seed in seeds})

    @property
    def words(self) -> str:
        """The accuracy for a reader."""
        best = tuple(self.best.values())
        return f"{percent(best)} (m={self.momentum:g}, {in_seeds(len(best))})"


class Arrival(NamedTuple):
    """What a method took to reach the target with each seed, and which it was."""

    amounts: Mapping[int, float]
    label: str

    @property
    def amount(self) -> float:
        """That of its seeds on average."""
        return fmean(self.amounts.values())

    def only(self, seeds: Iterable[int]) -> Arrival:
        """The same with some of the seeds."""
        return self._replace(amounts={seed: self.amounts[seed] for seed in seeds})

    @property
    def words(self) -> str:
        """The amount for a reader."""
        return f"{format_number(self.amount)} ({self.label}, {in_seeds(len(self.amounts))})"


@dataclass(frozen=True)
class Scene:
    """An environment with everything that was run in it."""

    key: Key
    runs: list[tuple[Experiment, list[Evaluation]]] = field(default_factory=list)

    def standing(self, method: Mapping[str, Any], momentum: float) -> Standing | None:
        """How a method did with a momentum."""
        best = {
            cell.seed: max(r.accuracy for r in rounds)
            for cell, rounds in self.runs
            if cell.method == method and cell.momentum == momentum
        }
        return Standing(best, momentum) if best else None

    def seeds(self, method: Mapping[str, Any]) -> set[int]:
        """Those that a method was run with, whatever the momentum."""
        return {cell.seed for cell, _ in self.runs if cell.method == method}

    def better(
        self, method: Mapping[str, Any], seeds: Iterable[int] | None = None
    ) -> Standing | None:
        """How a method did with the momentum that suits it better, as the paper compares.

        With ``seeds``, by these only: one that is not compared must not choose what is.
        """
        known = self.seeds(method) if seeds is None else set(seeds)
        momenta = {c.momentum for c, _ in self.runs if c.method == method and c.seed in known}
        every = [
            found.only(found.best.keys() & known)
            for momentum in sorted(momenta)
            if (found := self.standing(method, momentum)) is not None
        ]
        return max(every, key=lambda s: s.accuracy, default=None)

    @property
    def target(self) -> float:
        """The accuracy of Table IV."""
        dense = self.better({"name": "sgd"})
        return goal(self.key.task, dense.accuracy if dense else None)

    def ran(self, kind: Kind) -> bool:
        """Whether any method of a kind was run."""
        return any(kind(cell.method) for cell, _ in self.runs)

    def cheapest(self, kind: Kind, amount: Callable[[Evaluation], float]) -> Arrival | None:
        """The least that any method of a kind took to the target with each of its seeds, if any."""
        found: dict[str, dict[int, Evaluation | None]] = {}
        for cell, rounds in self.runs:
            if kind(cell.method):
                label = f"{method_label(cell.method)}, m={cell.momentum:g}"
                found.setdefault(label, {})[cell.seed] = reached(rounds, self.target)
        every = [
            Arrival({seed: amount(there) for seed, there in seeds.items() if there}, label)
            for label, seeds in found.items()
            if None not in seeds.values()
        ]
        return min(every, key=lambda arrival: arrival.amount, default=None)

    @property
    def words(self) -> str:
        """The environment in the paper's notation, and what else is not usual."""
        place, base = self.key.environment, Environment()
        held = place.classes_per_client
        data = f"{held} class{'es' * (held != 1)}" if place.split == "classes" else place.split
        parts = [f"{place.cohort_size}/{place.clients} clients", data, f"batch {place.batch_size}"]
        parts += [f"γ={place.gamma:g}"] if place.gamma != base.gamma else []
        parts += [f"{100 * place.public:g} % public"] if place.public else []
        return ", ".join(parts)


def gather(recorded: Iterable[tuple[Experiment, list[Evaluation]]]) -> dict[Key, Scene]:
    """Finished runs by their scenes; at other learning rates than the task's they are no part."""
    # What was run twice, and tested more and less often, is there once.
    once: dict[str, tuple[Experiment, list[Evaluation]]] = {}
    for cell, rounds in sorted(recorded, key=lambda run: len(run[1])):
        once[replace(cell, evaluate_every=1).digest] = cell, rounds
    scenes: dict[Key, Scene] = {}
    for cell, rounds in once.values():
        if not cell.uses_task_rates:
            continue
        key = Key(
            cell.task, cell.environment, cell.iterations, cell.learning_rate, cell.weight_decay
        )
        scenes.setdefault(key, Scene(key)).runs.append((cell, rounds))
    return scenes
