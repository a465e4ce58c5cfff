"""The runs of a grid that have come to their end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedtern.engines.local import Round
from fedtern.errors import StoreError
from fedtern.experiments import Experiment, Run, open_run


@dataclass(frozen=True)
class Results:
    """What is finished under ``out``."""

    out: Path

    def run(self, cell: Experiment) -> Run | None:
        """The run of a cell; None if it is not finished, or what is there is none."""
        try:
            run = open_run(cell, self.out)
            return run if run.finished() else None
        except (StoreError, ValueError):
            return None

    def rounds(self, cell: Experiment) -> list[Round]:
        """Every evaluation of a cell; none if it is not finished."""
        run = self.run(cell)
        return run.rounds() if run else []

    def reached(self, cell: Experiment) -> int:
        """The iteration of a cell's latest evaluation, finished or not; 0 if there is none."""
        try:
            rounds = open_run(cell, self.out).rounds()
        except (StoreError, ValueError):
            return 0
        return min(rounds[-1].iteration, cell.iterations) if rounds else 0

    def missing(self, cells: Iterable[Experiment]) -> list[Experiment]:
        """The cells that are still to be run or to be finished, each once."""
        each = {cell.digest: cell for cell in cells}
        return [cell for cell in each.values() if self.run(cell) is None]
