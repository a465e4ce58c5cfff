"""The runs of a grid that have come to their end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedtern.core.errors import StoreError
from fedtern.runs import LOCAL_ENGINE, Evaluation, Experiment, RunDirectory, open_run, reopen_run

if TYPE_CHECKING:
    from fedtern_paper.artefact import Artefact
    from fedtern_paper.settings import Settings


@dataclass(frozen=True)
class Results:
    """What is finished under ``out``, and where the data is that it was made from."""

    out: Path
    data_dir: Path | None = None

    def run(self, cell: Experiment) -> RunDirectory | None:
        """The run of a cell; None if it is not finished, or what is there is none."""
        try:
            run = open_run(cell, self.out)
            return run if run.is_finished() else None
        except (StoreError, ValueError):
            return None

    def rounds(self, cell: Experiment) -> list[Evaluation]:
        """Every evaluation of a cell; none if it is not finished."""
        run = self.run(cell)
        return run.complete_evaluations() if run else []

    def reached(self, cell: Experiment) -> int:
        """The iteration of a cell's latest evaluation, finished or not; 0 if there is none."""
        try:
            rounds = open_run(cell, self.out).evaluations()
        except (StoreError, ValueError):
            return 0
        return min(rounds[-1].iteration, cell.iterations) if rounds else 0

    def missing(self, cells: Iterable[Experiment]) -> list[Experiment]:
        """The cells that are still to be run or to be finished, each once."""
        each = {cell.digest: cell for cell in cells}
        return [cell for cell in each.values() if self.run(cell) is None]

    def any(self, artefact: Artefact, settings: Settings) -> bool:
        """Whether there is anything to make an artefact of.

        Nothing at all is no reason to replace what an earlier command may have written.
        """
        cells = artefact.cells(settings)
        return not cells or any(self.run(cell) is not None for cell in cells)

    def recorded(
        self, damaged: Callable[[StoreError], None] = lambda _: None
    ) -> Iterator[tuple[Experiment, list[Evaluation]]]:
        """Everything that was simulated to its end, whoever asked for it.

        What is no run is passed over, and so are runs of other engines: over a network, others may
        take part than the experiment says. Of finished runs that cannot be read, ``damaged`` hears.
        """
        for path in sorted(self.out.glob("*/config.json")):
            try:
                run = reopen_run(path.parent)
                if not run.is_finished() or run.engine != LOCAL_ENGINE:
                    continue
            except (StoreError, ValueError):
                continue
            try:
                yield run.experiment, run.complete_evaluations()
            except StoreError as error:
                damaged(error)
