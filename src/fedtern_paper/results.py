"""Finished runs of a grid, and the accuracies that they reached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from fedtern import StoreError
from fedtern.runs import LOCAL_ENGINE, Evaluation, Experiment, RunDirectory, open_run, reopen_run


@dataclass(frozen=True)
class Results:
    """Finished runs below ``out``, and the directory of the datasets."""

    out: Path
    data_dir: Path | None = None

    def run(self, cell: Experiment) -> RunDirectory | None:
        """Return the run of a cell; None if it is not finished or cannot be read."""
        try:
            run = open_run(cell, self.out)
            return run if run.is_finished() else None
        except (StoreError, ValueError):
            return None

    def evaluations(self, cell: Experiment) -> list[Evaluation]:
        """Return all evaluations of a cell; [] if it is not finished."""
        run = self.run(cell)
        return run.complete_evaluations() if run else []

    def last_iteration(self, cell: Experiment) -> int:
        """Return the iteration of the latest evaluation, also of an unfinished run; 0 if none."""
        try:
            evaluations = open_run(cell, self.out).evaluations()
        except (StoreError, ValueError):
            return 0
        return min(evaluations[-1].iteration, cell.iterations) if evaluations else 0

    def missing(self, cells: Iterable[Experiment]) -> list[Experiment]:
        """Return the cells without a finished run, each once."""
        by_digest = {cell.digest: cell for cell in cells}
        return [cell for cell in by_digest.values() if self.run(cell) is None]

    def finished_runs(
        self, on_damage: Callable[[StoreError], None] = lambda _error: None
    ) -> Iterator[tuple[Experiment, list[Evaluation]]]:
        """Return all finished runs of the local engine, whichever command made them.

        Runs of other engines are skipped: over a network, other clients may take part than the
        experiment says. So are runs with differential privacy.

        Args:
            on_damage: Called with an error for each finished run that cannot be read.

        """
        for path in sorted(self.out.glob("*/config.json")):
            try:
                run = reopen_run(path.parent)
                if not run.is_finished() or run.engine != LOCAL_ENGINE:
                    continue
                if run.experiment.privacy is not None:
                    continue  # the paper has no noise
            except (StoreError, ValueError):
                continue
            try:
                yield run.experiment, run.complete_evaluations()
            except StoreError as error:
                on_damage(error)


def mean(values: Sequence[float]) -> float | None:
    """Return the mean; None of no values."""
    return fmean(values) if values else None


def spread(values: Sequence[float]) -> float | None:
    """Return the standard deviation; None of fewer than two values."""
    return stdev(values) if len(values) > 1 else None


def format_percent(values: Sequence[float]) -> str:
    """Format the mean and standard deviation of fractions in per cent.

    >>> format_percent([0.9, 0.92]), format_percent([])
    ('91.0 ± 1.4 %', '–')
    """
    return f"{format_points(values)} %" if values else "–"


def format_points(values: Sequence[float]) -> str:
    """Format like ``format_percent``, without the sign.

    >>> format_points([0.912])
    '91.2'
    """
    if not values:
        return "–"
    deviation = spread(values)
    plus_minus = "" if deviation is None else f" ± {100 * deviation:.1f}"
    return f"{100 * fmean(values):z.1f}{plus_minus}"  # z: no minus sign before a zero


@dataclass(frozen=True)
class Score:
    """Best and final accuracy of each seed.

    The paper shows the "maximum accuracy achieved", in some captions the "final" one.
    """

    best: tuple[float, ...] = ()
    final: tuple[float, ...] = ()

    @classmethod
    def of(cls, results: Results, cells: Sequence[Experiment]) -> Score:
        """Return the accuracies of the finished runs among some cells."""
        runs = [results.evaluations(cell) for cell in cells]
        curves = [[e.accuracy for e in evaluations] for evaluations in runs if evaluations]
        return cls(tuple(max(curve) for curve in curves), tuple(curve[-1] for curve in curves))

    @property
    def value(self) -> float | None:
        """Best accuracy, averaged over seeds: the value that is drawn and compared."""
        return mean(self.best)

    @property
    def shown(self) -> str:
        """Best and, in brackets, final accuracy in per cent.

        >>> Score((0.9,), (0.875,)).shown
        '90.0 (87.5)'
        """
        return f"{format_points(self.best)} ({format_points(self.final)})" if self.best else "–"

    def columns(self) -> dict[str, float | int | None]:
        """Return both accuracies with their standard deviations, for programs."""
        return {
            "accuracy": mean(self.best),
            "accuracy_std": spread(self.best),
            "final_accuracy": mean(self.final),
            "final_accuracy_std": spread(self.final),
            "seeds": len(self.best),
        }
