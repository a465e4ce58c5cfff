"""Progress of a grid of runs on the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import timedelta

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fedtern.cli import summary
from fedtern.runs import Experiment, titles
from fedtern_paper.results import Results
from fedtern_paper.run_times import RunTimes

_HEARTBEAT_SECONDS = 60.0  # between two lines without a terminal, even if no run has ended


class GridProgress:
    """Observer of a grid: a live bar on a terminal, otherwise a line for each run that has ended.

    Args:
        total: Number of cells, including finished ones.
        missing: Cells that are not finished.
        results: The finished runs.
        quiet: Whether to print nothing.

    """

    def __init__(
        self, total: int, missing: Sequence[Experiment], results: Results, quiet: bool = False
    ) -> None:
        self.total = total
        self.results = results
        self.quiet = quiet
        self.ready = total - len(missing)
        run_times = RunTimes.measured(results)
        # Progress is measured in seconds: one iteration can cost as much as a hundred others.
        self._seconds = {cell.digest: run_times.seconds(cell) for cell in missing}
        self._fraction = {
            cell.digest: results.last_iteration(cell) / cell.iterations for cell in missing
        }
        self._done_before = self._done()
        self._running: dict[str, str] = {}
        self._locked: set[str] = set()
        self._titles = titles(missing)
        self._start = time.monotonic()
        self._last_line = self._start
        self._live = sys.stderr.isatty() and not quiet
        self._bar = Progress(
            TextColumn("{task.percentage:>3.0f}%"),
            BarColumn(bar_width=10),
            TimeRemainingColumn(),
            TextColumn("{task.fields[state]}"),
            console=Console(stderr=True),
            disable=not (self._live and missing),
            speed_estimate_period=600,
        )
        self._task = self._bar.add_task("", total=sum(self._seconds.values()), state=self._state())
        self._bar.update(self._task, completed=self._done_before)

    def __enter__(self) -> GridProgress:
        self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bar.stop()

    def started(self, cell: Experiment) -> None:
        """A worker was given a cell."""
        self._running[cell.digest] = self._titles[cell.digest]
        self._update()

    def progressed(self, cell: Experiment, iteration: int) -> None:
        """A cell has reached an iteration."""
        self._fraction[cell.digest] = min(iteration / cell.iterations, 1.0)
        self._update()
        if time.monotonic() - self._last_line > _HEARTBEAT_SECONDS:
            self._print(f"{self._state()}, {self._time_left()}")

    def locked(self, cell: Experiment) -> None:
        """Another process runs the cell."""
        self._running.pop(cell.digest, None)
        if cell.digest not in self._locked:
            self._locked.add(cell.digest)
            self._print(
                f"{self._titles[cell.digest]} is being run by another process: waiting for it"
            )
        self._update()

    def finished(self, cell: Experiment) -> None:
        """A cell has finished."""
        self._running.pop(cell.digest, None)
        if evaluations := self.results.evaluations(cell):
            self.ready += 1
            self._fraction[cell.digest] = 1.0
            title = self._titles[cell.digest]
            self._print(f"{self.ready}/{self.total}  {title}: {summary(evaluations[-1])}")
        self._update()

    def stopped(self, cell: Experiment) -> None:
        """A cell was stopped."""
        self._running.pop(cell.digest, None)
        self._update()

    def failed(self, cell: Experiment, error: str) -> None:
        """A cell has failed with an error."""
        self._running.pop(cell.digest, None)
        self._print(f"{self._titles[cell.digest]} failed: {error}")
        self._update()

    def _state(self) -> str:
        running = f": {', '.join(self._running.values())}" if self._running else ""
        return f"{self.ready}/{self.total} runs{running}"

    def _time_left(self) -> str:
        """Return the time left, from the progress since the start of this command."""
        done = self._done()
        if done <= self._done_before:
            return "time left unknown"
        elapsed = time.monotonic() - self._start
        left = sum(self._seconds.values()) - done
        seconds = elapsed * left / (done - self._done_before)
        return f"about {timedelta(seconds=round(seconds))} left"

    def _update(self) -> None:
        self._bar.update(self._task, completed=self._done(), state=self._state())

    def _done(self) -> float:
        """Return the seconds of work that are done."""
        return sum(seconds * self._fraction[digest] for digest, seconds in self._seconds.items())

    def _print(self, line: str) -> None:
        self._last_line = time.monotonic()
        if self._live:
            self._bar.console.print(line, highlight=False, markup=False)
        elif not self.quiet:
            typer.echo(line, err=True)
