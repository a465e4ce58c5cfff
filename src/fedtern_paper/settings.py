"""What a person chooses about a table or figure of the paper."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from fedtern.core.names import look_up
from fedtern.core.numbers import shortest
from fedtern.data.environment import Environment
from fedtern.data.hyperparameters import task_defaults
from fedtern.report.formatting import method_label
from fedtern.runs import Experiment

PAPER_TASKS = ("vgg11s-cifar10", "cnn-kws", "lstm-fashion", "logistic-mnist")
EVERY_TASK = "all"

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """What a person chooses about an artefact; its cells follow from it.

    ``task`` is one of them, or "all" for the paper's four where an artefact shows several.
    ``iterations`` is those of each run, or None for the task's; ``quick`` takes a tenth of them.
    ``methods`` restricts an artefact to some, as a person types them; none stands for all. So do
    ``values`` (of what a sweep varies), ``places`` (its environments) and ``momentum``.
    """

    task: str = "logistic-mnist"
    seeds: int = 1
    iterations: int | None = None
    quick: bool = False
    methods: tuple[str, ...] = ()
    values: tuple[float, ...] = ()
    places: tuple[str, ...] = ()
    momentum: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.task != EVERY_TASK:
            task_defaults(self.task)  # or there is none of that name
        if self.seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {self.seeds}")

    @property
    def each(self) -> list[Settings]:
        """The same for every single task."""
        tasks = PAPER_TASKS if self.task == EVERY_TASK else (self.task,)
        return [replace(self, task=task) for task in tasks]

    @property
    def own_iterations(self) -> int:
        """The iterations that the task has."""
        return task_defaults(self.task).iterations

    @property
    def planned(self) -> int:
        """The iterations of each run."""
        total = self.own_iterations if self.iterations is None else self.iterations
        return max(total // 10, 1) if self.quick and total > 0 else total

    @property
    def note(self) -> str:
        """What was run, in a line; a run cut short says so first.

        >>> Settings("logistic-digits", quick=True).note
        'quick: 100 iterations where the task has 1,000; logistic-digits, seed 0'
        """
        seeds = "seed 0" if self.seeds == 1 else f"seeds 0 to {self.seeds - 1}"
        if self.task == EVERY_TASK:
            return f"{'; '.join(each.note for each in self.each)}"
        if self.planned == self.own_iterations:
            return f"{self.task}, {self.planned:,} iterations, {seeds}"
        short = f"{self.planned:,} iterations where the task has {self.own_iterations:,}"
        return f"{'quick: ' if self.quick else ''}{short}; {self.task}, {seeds}"

    def command(self, artefact: str) -> str:
        """The line that makes an artefact with these settings.

        >>> Settings("cnn-kws", iterations=2000, values=(1, 0.5), places=("10/100",)).command("x")
        'fedtern reproduce x --task cnn-kws --iterations 2000 --values 1,0.5 --place 10/100'
        """
        words = ["fedtern", "reproduce", artefact, "--task", self.task]
        words += ["--seeds", str(self.seeds)] if self.seeds > 1 else []
        words += ["--quick"] if self.quick else []
        words += [] if self.iterations is None else ["--iterations", str(self.iterations)]
        for option, given in (("--values", self.values), ("--momentum", self.momentum)):
            words += [option, ",".join(map(shortest, given))] if given else []
        for option, names in (("--method", self.methods), ("--place", self.places)):
            words += [word for name in names for word in (option, name)]
        return shlex.join(words)

    def experiment(
        self,
        method: str,
        environment: Environment | None = None,
        seed: int = 0,
        momentum: float | None = None,
    ) -> Experiment:
        """One cell: the task with a method in an environment."""
        return Experiment.of(
            self.task,
            method,
            environment,
            iterations=self.planned,
            momentum=momentum,
            seed=seed,
        )

    def with_seeds(
        self, method: str, environment: Environment | None = None, momentum: float | None = None
    ) -> list[Experiment]:
        """One cell with every seed."""
        every = range(self.seeds)
        return [self.experiment(method, environment, seed, momentum) for seed in every]

    def label(self, method: str) -> str:
        """A method as people write it."""
        return method_label(self.experiment(method).method)

    def choose_methods(self, every: Sequence[str], always: Sequence[str] = ()) -> list[str]:
        """Those of an artefact's methods that were asked for, and others as they were typed.

        >>> Settings(methods=("stc",)).choose_methods(["stc", "stc:p_up=1/25", "sgd"], ["sgd"])
        ['sgd', 'stc', 'stc:p_up=1/25']
        """
        asked = [
            row
            for name in self.methods
            for row in ([row for row in every if row.partition(":")[0] == name] or [name])
        ]
        return list(dict.fromkeys([*always, *(asked if self.methods else every)]))

    def choose_places(self, every: Mapping[str, T]) -> dict[str, T]:
        """Those of an artefact's environments that were asked for."""
        return {name: look_up(name, every, "place") for name in self.places or every}
