"""Progress and results of a run in words."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fedtern.data.metric_spec import MetricSpec
from fedtern.runs import Evaluation

if TYPE_CHECKING:  # it needs torch
    from fedtern.transports.local.federation import Federation

_SECONDS_BETWEEN_LINES = 2.0


def against_dense(evaluation: Evaluation) -> tuple[str, str]:
    """Return the bytes up and down as fractions of those of uncompressed training."""

    def fraction(nbytes: float) -> str:
        return f"1/{evaluation.dense_bytes / nbytes:,.0f}" if nbytes else "none"

    return fraction(evaluation.up_bytes_mean), fraction(evaluation.down_bytes_mean)


def speed(evaluation: Evaluation) -> str:
    """Return the rounds per second, without the time for evaluations."""
    seconds = sum(evaluation.seconds.values()) - evaluation.seconds["evaluate"]
    return f"{evaluation.round / seconds:.1f} rounds/s" if seconds else "n/a"


def quality(evaluation: Evaluation, digits: int = 2) -> str:
    """Return the value of the primary metric."""
    name, value = evaluation.primary
    return MetricSpec(name).format(value, digits)


def summary(evaluation: Evaluation) -> str:
    """Return primary metric, loss and traffic in one line."""
    up, down = against_dense(evaluation)
    name, _ = evaluation.primary
    metric = "" if name == "loss" else f"{name} {quality(evaluation)}  "
    return (
        f"{metric}loss {evaluation.loss:.4f}"
        f"  up {evaluation.up_bytes_mean / 1e6:.3f} MB ({up})"
        f"  down {evaluation.down_bytes_mean / 1e6:.3f} MB ({down})"
    )


def short_summary(evaluation: Evaluation) -> str:
    """Return the primary metric and traffic in a line that fits next to a progress bar."""
    up, down = against_dense(evaluation)
    return (
        f"{quality(evaluation, 1)}  up {evaluation.up_bytes_mean / 1e6:.3g} MB {up}"
        f"  down {evaluation.down_bytes_mean / 1e6:.3g} MB {down}"
    )


class RunProgress:
    """Shows the progress of a run: a live bar on a terminal, plain lines elsewhere.

    Args:
        label: Name of the run.
        total: Local iterations of the run.
        quiet: Show nothing.

    """

    def __init__(self, label: str, total: int, quiet: bool = False) -> None:
        self.label = label
        self.total = total
        self.quiet = quiet
        self._last_line = 0.0  # time of the last plain line
        self._live = sys.stderr.isatty() and not quiet
        self._bar = Progress(
            TextColumn("{task.percentage:>3.0f}%"),
            BarColumn(bar_width=10),
            TimeRemainingColumn(),
            TextColumn("{task.fields[state]}"),
            console=Console(stderr=True),
            disable=not self._live,
        )
        self._task = self._bar.add_task(label, total=total, state="")

    def __enter__(self) -> RunProgress:
        self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bar.stop()

    def round_finished(self, federation: Federation) -> None:
        """Advance the bar after a round."""
        self._bar.update(self._task, completed=min(federation.iteration, self.total))

    def evaluated(self, evaluation: Evaluation) -> None:
        """Show an evaluation; plain lines are printed at most every two seconds."""
        self._bar.update(self._task, state=f"{self.label}  {short_summary(evaluation)}")
        if self._live or self.quiet:
            return
        last = evaluation.iteration >= self.total
        if last or time.monotonic() - self._last_line > _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            iterations = f"{evaluation.iteration:,}/{self.total:,}"
            typer.echo(f"{self.label}: {iterations}  {summary(evaluation)}", err=True)
