"""What a person sees while a grid of runs trains."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import timedelta

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fedtern.cli.progress import summary
from fedtern.runs import Experiment, titles
from fedtern_paper import Results
from fedtern_paper.estimates import Pace

_HEARTBEAT = 60.0  # seconds without a word, where there is no bar


class GridWatch:
    """A live bar over all cells on a terminal; elsewhere a line for each that has ended."""

    def __init__(
        self, total: int, missing: Sequence[Experiment], results: Results, quiet: bool = False
    ) -> None:
        self.total, self.results, self.quiet = total, results, quiet
        self.ready = total - len(missing)
        pace = Pace.measured(results)
        # Time goes by what runs cost: an iteration of one may be a hundred of another.
        self._cost = {cell.digest: pace.seconds(cell) for cell in missing}
        self._share = {cell.digest: results.reached(cell) / cell.iterations for cell in missing}
        self._before = self._done()
        self._running: dict[str, str] = {}
        self._locked: set[str] = set()
        self._titles = titles(missing)
        self._begin = self._said = time.monotonic()
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
        self._task = self._bar.add_task("", total=sum(self._cost.values()), state=self._state())
        self._bar.update(self._task, completed=self._before)

    def __enter__(self) -> GridWatch:
        self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bar.stop()

    def started(self, cell: Experiment) -> None:
        """A worker was given a cell."""
        self._running[cell.digest] = self._titles[cell.digest]
        self._show()

    def progressed(self, cell: Experiment, iteration: int) -> None:
        """A cell has reached an iteration."""
        self._share[cell.digest] = min(iteration / cell.iterations, 1.0)
        self._show()
        if time.monotonic() - self._said > _HEARTBEAT:
            self._say(f"{self._state()}, {self._left()}")

    def locked(self, cell: Experiment) -> None:
        """Another process runs the cell."""
        self._running.pop(cell.digest, None)
        if cell.digest not in self._locked:
            self._locked.add(cell.digest)
            self._say(
                f"{self._titles[cell.digest]} is being run by another process: waiting for it"
            )
        self._show()

    def finished(self, cell: Experiment) -> None:
        """A cell has finished."""
        self._running.pop(cell.digest, None)
        if rounds := self.results.rounds(cell):
            self.ready += 1
            self._share[cell.digest] = 1.0
            self._say(
                f"{self.ready}/{self.total}  {self._titles[cell.digest]}: {summary(rounds[-1])}"
            )
        self._show()

    def stopped(self, cell: Experiment) -> None:
        """A cell was stopped."""
        self._running.pop(cell.digest, None)
        self._show()

    def failed(self, cell: Experiment, error: str) -> None:
        """A cell has failed with an error."""
        self._running.pop(cell.digest, None)
        self._say(f"{self._titles[cell.digest]} failed: {error}")
        self._show()

    def _state(self) -> str:
        running = f": {', '.join(self._running.values())}" if self._running else ""
        return f"{self.ready}/{self.total} runs{running}"

    def _left(self) -> str:
        """How long it will take from here, going by how long it took so far."""
        done, total = self._done(), sum(self._cost.values())
        if done <= self._before:
            return "time left unknown"
        seconds = (time.monotonic() - self._begin) * (total - done) / (done - self._before)
        return f"about {timedelta(seconds=round(seconds))} left"

    def _show(self) -> None:
        self._bar.update(self._task, completed=self._done(), state=self._state())

    def _done(self) -> float:
        return sum(cost * self._share[digest] for digest, cost in self._cost.items())

    def _say(self, line: str) -> None:
        self._said = time.monotonic()
        if self._live:
            self._bar.console.print(line, highlight=False, markup=False)
        elif not self.quiet:
            typer.echo(line, err=True)
