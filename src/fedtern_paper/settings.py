"""User settings of a table or figure: task, seeds, iterations and restrictions."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from fedtern import Environment
from fedtern.core.names import look_up
from fedtern.core.numbers import format_shortest
from fedtern.data import task_defaults
from fedtern.report import method_label
from fedtern.runs import Experiment
from fedtern_paper.published import LOGISTIC, PAPER_TASKS

ALL_TASKS = "all"
IID = "iid"
NON_IID = "non-iid"

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """User settings of an artefact; they determine its runs.

    Args:
        task: Name of a task, or "all" for the paper's four tasks.
        seeds: Number of runs per cell, with the seeds 0, 1, ...
        iterations: Iterations of each run; the task's if None.
        quick: Whether to run a tenth of the iterations.
        methods: Restrict the artefact to these methods, as typed by the user; () for all.
        values: Restrict a sweep to these values; () for all.
        places: Restrict the artefact to these environments, by name; () for all.
        momentum: Restrict the artefact to these values of momentum; () for all.

    Raises:
        ValueError: The task is unknown, or ``seeds`` is less than 1.

    """

    task: str = LOGISTIC
    seeds: int = 1
    iterations: int | None = None
    quick: bool = False
    methods: tuple[str, ...] = ()
    values: tuple[float, ...] = ()
    places: tuple[str, ...] = ()
    momentum: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.task != ALL_TASKS:
            task_defaults(self.task)  # raises if the task is unknown
        if self.seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {self.seeds}")

    @property
    def per_task(self) -> list[Settings]:
        """The same settings for each single task."""
        tasks = PAPER_TASKS if self.task == ALL_TASKS else (self.task,)
        return [replace(self, task=task) for task in tasks]

    @property
    def task_iterations(self) -> int:
        """Default number of iterations of the task."""
        return task_defaults(self.task).iterations

    @property
    def run_iterations(self) -> int:
        """Number of iterations of each run."""
        total = self.task_iterations if self.iterations is None else self.iterations
        return max(total // 10, 1) if self.quick and total > 0 else total

    @property
    def note(self) -> str:
        """Task, iterations and seeds in a line; shortened runs are mentioned first.

        >>> Settings("logistic-digits", quick=True).note
        'quick: 100 iterations where the task has 1,000; logistic-digits, seed 0'
        """
        if self.task == ALL_TASKS:
            return "; ".join(settings.note for settings in self.per_task)
        seeds = "seed 0" if self.seeds == 1 else f"seeds 0 to {self.seeds - 1}"
        if self.run_iterations == self.task_iterations:
            return f"{self.task}, {self.run_iterations:,} iterations, {seeds}"
        quick = "quick: " if self.quick else ""
        short = f"{self.run_iterations:,} iterations where the task has {self.task_iterations:,}"
        return f"{quick}{short}; {self.task}, {seeds}"

    def command(self, artefact: str) -> str:
        """Return the command that makes an artefact with these settings.

        >>> Settings("cnn-kws", iterations=2000, values=(1, 0.5), places=("10/100",)).command("x")
        'fedtern reproduce x --task cnn-kws --iterations 2000 --values 1,0.5 --place 10/100'
        """
        words = ["fedtern", "reproduce", artefact, "--task", self.task]
        if self.seeds > 1:
            words += ["--seeds", str(self.seeds)]
        if self.quick:
            words += ["--quick"]
        if self.iterations is not None:
            words += ["--iterations", str(self.iterations)]
        for option, numbers in (("--values", self.values), ("--momentum", self.momentum)):
            if numbers:
                words += [option, ",".join(map(format_shortest, numbers))]
        for option, names in (("--method", self.methods), ("--place", self.places)):
            for name in names:
                words += [option, name]
        return shlex.join(words)

    def experiment(
        self,
        method: str,
        environment: Environment | None = None,
        seed: int = 0,
        momentum: float | None = None,
    ) -> Experiment:
        """Return one cell: the experiment with a method in an environment."""
        return Experiment.of(
            self.task,
            method,
            environment,
            iterations=self.run_iterations,
            momentum=momentum,
            seed=seed,
        )

    def with_seeds(
        self, method: str, environment: Environment | None = None, momentum: float | None = None
    ) -> list[Experiment]:
        """Return one cell for each seed."""
        seeds = range(self.seeds)
        return [self.experiment(method, environment, seed, momentum) for seed in seeds]

    def label(self, method: str) -> str:
        """Return a readable label for a method."""
        return method_label(self.experiment(method).method)

    def choose_methods(self, available: Sequence[str], always: Sequence[str] = ()) -> list[str]:
        """Return the methods of an artefact that the user asked for.

        The name of a method selects all of its variants. Other methods are added as typed.

        Args:
            available: Methods of the artefact.
            always: Methods that are always included, first.

        >>> Settings(methods=("stc",)).choose_methods(["stc", "stc:p_up=1/25", "sgd"], ["sgd"])
        ['sgd', 'stc', 'stc:p_up=1/25']
        """
        chosen: list[str] = []
        for wanted in self.methods:
            variants = [method for method in available if method.partition(":")[0] == wanted]
            chosen += variants or [wanted]
        return list(dict.fromkeys([*always, *(chosen if self.methods else available)]))

    def choose_places(self, available: Mapping[str, T]) -> dict[str, T]:
        """Return the environments of an artefact that the user asked for."""
        return {name: look_up(name, available, "place") for name in self.places or available}
