"""What a table or figure of the paper is: the runs it needs, and what it makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedtern.environment import Environment
from fedtern.experiments import Experiment
from fedtern.reproduce.results import Results
from fedtern.training.tasks import get_task


@dataclass(frozen=True)
class Settings:
    """What a person chooses about an artefact; its cells follow from it.

    ``iterations`` is those of each run, or None for the task's; ``quick`` takes a tenth of them.
    ``methods`` restricts an artefact to some, as a person types them; none stands for all.
    """

    task: str = "logistic-mnist"
    seeds: int = 1
    iterations: int | None = None
    quick: bool = False
    methods: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        get_task(self.task)  # or there is none of that name
        if self.seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {self.seeds}")

    @property
    def planned(self) -> int:
        """The iterations of each run."""
        total = get_task(self.task).iterations if self.iterations is None else self.iterations
        return max(total // 10, 1) if self.quick and total > 0 else total

    @property
    def note(self) -> str:
        """What was run, in a line; a run cut short says so first.

        >>> Settings("logistic-digits", quick=True).note
        'quick: 100 iterations where the task has 1,000; logistic-digits, seed 0'
        """
        own = get_task(self.task).iterations
        seeds = "seed 0" if self.seeds == 1 else f"seeds 0 to {self.seeds - 1}"
        if self.planned == own:
            return f"{self.task}, {own:,} iterations, {seeds}"
        short = f"{self.planned:,} iterations where the task has {own:,}"
        return f"{'quick: ' if self.quick else ''}{short}; {self.task}, {seeds}"

    def experiment(
        self, method: str, environment: Environment | None = None, seed: int = 0
    ) -> Experiment:
        """One cell: the task with a method in an environment."""
        return Experiment.of(self.task, method, environment, iterations=self.planned, seed=seed)


@dataclass(frozen=True)
class Table:
    """Numbers as they are, and the same as people read them.

    ``values`` are rows for programs, ``shown`` rows for people; each maps a column to its cell.
    """

    title: str
    values: Sequence[Mapping[str, Any]]
    shown: Sequence[Mapping[str, str]]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Artefact:
    """A table or figure: ``cells`` are the runs it needs, the rest is made of their results.

    ``draw`` gets an empty matplotlib figure to fill; None where there is nothing to draw.
    """

    name: str
    about: str
    cells: Callable[[Settings], list[Experiment]]
    table: Callable[[Settings, Results], Table]
    draw: Callable[[Settings, Results, Any], None] | None = None
