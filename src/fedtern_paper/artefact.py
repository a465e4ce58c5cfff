"""What a table or figure of the paper is: the runs it needs, and what it makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedtern.runs import Experiment
from fedtern_paper.results import Results
from fedtern_paper.settings import EVERY_TASK, Settings


@dataclass(frozen=True)
class Table:
    """Numbers as they are, and the same as people read them.

    ``values`` are rows for programs, ``shown`` rows for people; each maps a column to its cell.
    """

    title: str
    values: Sequence[Mapping[str, Any]]
    shown: Sequence[Mapping[str, str]]
    notes: Sequence[str] = ()


Moved = Callable[[float], None]  # takes the share that is done


@dataclass(frozen=True)
class Artefact:
    """A table or figure: ``cells`` are the runs it needs, the rest is made of their results.

    ``draw`` gets an empty matplotlib figure to fill; None where there is nothing to draw.
    ``findings`` says whether the runs show what the paper says of this figure alone. ``prepare``
    measures what takes long and is no run; it says how much of it is done.
    ``restricted_by`` names the settings that may leave a part of it out. ``share`` is that of a
    task's iterations which the paper trains for here. ``task`` is what it is made for unless
    something else is said; only what is made for every task at once may be asked to be again.
    """

    name: str
    about: str
    cells: Callable[[Settings], list[Experiment]]
    table: Callable[[Settings, Results], Table]
    draw: Callable[[Settings, Results, Any], None] | None = None
    restricted_by: tuple[str, ...] = ("methods",)
    share: float = 1.0
    task: str = Settings.task
    findings: Callable[[Settings, Results], list[str]] = lambda _settings, _results: []
    prepare: Callable[[Settings, Results, Moved], object] | None = None

    def adjust(self, settings: Settings) -> Settings:
        """The settings as they hold for this artefact; those that cannot hold are refused."""
        for name in OPTIONS:
            if getattr(settings, name) and name not in self.restricted_by:
                raise ValueError(
                    f"{self.name} cannot be restricted by {OPTIONS[name]}, only by"
                    f" {' or '.join(OPTIONS[n] for n in self.restricted_by) or 'its task'}"
                )
        if settings.task == EVERY_TASK and self.task != EVERY_TASK:
            raise ValueError(f"{self.name} is made for one task at a time, not for all")
        if settings.iterations is None and self.share != 1:
            return replace(settings, iterations=round(self.share * settings.own_iterations))
        return settings


OPTIONS = {"methods": "--method", "values": "--values", "places": "--place"}
OPTIONS |= {"momentum": "--momentum"}
