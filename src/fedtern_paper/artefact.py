"""Tables and figures of the paper: the runs that they need, and what is made from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedtern.runs import Experiment
from fedtern_paper.results import Results
from fedtern_paper.settings import ALL_TASKS, Settings


@dataclass(frozen=True)
class Table:
    """Rows of a table, each as a mapping from column to cell.

    Args:
        title: Title of the table.
        values: Rows with exact values, for programs.
        shown: Rows with formatted values, for people.
        notes: Sentences below the table.

    """

    title: str
    values: Sequence[Mapping[str, Any]]
    shown: Sequence[Mapping[str, str]]
    notes: Sequence[str] = ()


ProgressCallback = Callable[[float], None]  # receives the completed fraction


@dataclass(frozen=True)
class Artefact:
    """A table or figure of the paper.

    Args:
        name: Name on the command line.
        about: Content in a few words.
        cells: Returns the experiments that the artefact needs.
        table: Makes the table from their results.
        draw: Fills an empty matplotlib figure; None if there is nothing to draw.
        restricted_by: Names of the settings that can restrict the artefact to a part.
        iteration_share: Fraction of the task's iterations for which the paper trains here.
        task: Default task. Only artefacts whose default is "all" can be made for all tasks.
        findings: Returns sentences on whether the paper's statements about this figure hold.
        prepare: Computes results that are slow and not runs, and reports its progress.

    """

    name: str
    about: str
    cells: Callable[[Settings], list[Experiment]]
    table: Callable[[Settings, Results], Table]
    draw: Callable[[Settings, Results, Any], None] | None = None
    restricted_by: tuple[str, ...] = ("methods",)
    iteration_share: float = 1.0
    task: str = Settings.task
    findings: Callable[[Settings, Results], list[str]] = lambda _settings, _results: []
    prepare: Callable[[Settings, Results, ProgressCallback], object] | None = None

    def adjust(self, settings: Settings) -> Settings:
        """Return the settings as they apply to this artefact.

        Raises:
            ValueError: A setting does not apply to this artefact.

        """
        for name, option in OPTIONS.items():
            if getattr(settings, name) and name not in self.restricted_by:
                possible = [OPTIONS[other] for other in self.restricted_by]
                raise ValueError(
                    f"{self.name} cannot be restricted by {option}, only by"
                    f" {' or '.join(possible) or 'its task'}"
                )
        if settings.task == ALL_TASKS and self.task != ALL_TASKS:
            raise ValueError(f"{self.name} shows one task; choose one instead of all")
        if settings.iterations is None and self.iteration_share != 1:
            iterations = round(self.iteration_share * settings.task_iterations)
            return replace(settings, iterations=iterations)
        return settings

    def has_results(self, settings: Settings, results: Results) -> bool:
        """Return whether any of its runs is finished, or it needs none.

        Without results, an artefact must not replace what an earlier command wrote.
        """
        cells = self.cells(settings)
        return not cells or any(results.run(cell) is not None for cell in cells)


OPTIONS = {
    "methods": "--method",
    "values": "--values",
    "places": "--place",
    "momentum": "--momentum",
}
"""Command-line option of each setting that can restrict an artefact."""
