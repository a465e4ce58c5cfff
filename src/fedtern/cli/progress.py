"""Progress and results of a run in words."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fedtern.data.metric_spec import MetricSpec
from fedtern.report.formatting import format_bytes
from fedtern.runs import Evaluation
from fedtern.runs.metrics import START

if TYPE_CHECKING:  # it needs torch
    from fedtern.transports.local.federation import Federation

_SECONDS_BETWEEN_LINES = 2.0


def against(dense: float, nbytes: float) -> str:
    """Return bytes as a fraction of those of uncompressed training."""
    return f"1/{dense / nbytes:,.0f}" if nbytes else "none"


def against_dense(evaluation: Evaluation) -> tuple[str, str]:
    """Return the bytes up and down per client as fractions of those of uncompressed training."""
    dense = evaluation.dense_bytes
    return against(dense, evaluation.up_bytes_mean), against(dense, evaluation.down_bytes_mean)


def training_seconds(evaluation: Evaluation) -> float:
    """Return the seconds of a run, without the start of its process."""
    return sum(spent for phase, spent in evaluation.seconds.items() if phase != START)


def speed(evaluation: Evaluation) -> str:
    """Return the rounds per second, without the time for evaluations and for the start."""
    seconds = training_seconds(evaluation) - evaluation.seconds["evaluate"]
    return f"{evaluation.round / seconds:.1f} rounds/s" if seconds else "n/a"


def qualities(evaluations: Sequence[Evaluation]) -> str:
    """Return the mean of the primary metric, with the standard deviation if there are several."""
    name = evaluations[0].primary[0]
    values = [each.primary[1] for each in evaluations]
    mean = MetricSpec(name).format(fmean(values))
    if len(values) == 1:
        return mean
    if MetricSpec(name).is_share:
        return f"{mean} ± {100 * stdev(values):.2f}"
    return f"{mean} ± {stdev(values):.2g}"


def quality(evaluation: Evaluation, digits: int = 2) -> str:
    """Return the value of the primary metric."""
    name, value = evaluation.primary
    return MetricSpec(name).format(value, digits)


def summary(evaluation: Evaluation) -> str:
    """Return primary metric, loss and traffic in one line; ``fedtern.runs.units`` has the units."""
    up, down = against_dense(evaluation)
    name, _ = evaluation.primary
    metric = "" if name == "loss" else f"{name} {quality(evaluation)}  "
    return (
        f"{metric}loss {evaluation.loss:.4f}"
        f"  per client: up {format_bytes(evaluation.up_bytes_mean)} ({up}),"
        f" down {format_bytes(evaluation.down_bytes_mean)} ({down})"
        f"  server: {format_bytes(evaluation.up_bytes + evaluation.down_bytes)}"
        f"{privacy(evaluation)}"
    )


def privacy(evaluation: Evaluation) -> str:
    """Return epsilon and delta; empty without differential privacy."""
    spent = evaluation.privacy
    return f"  epsilon {spent['epsilon']:.3g} (delta {spent['delta']:g})" if spent else ""


def short_summary(evaluation: Evaluation) -> str:
    """Return the primary metric and traffic in a line that fits next to a progress bar."""
    up, down = against_dense(evaluation)
    return (
        f"{quality(evaluation, 1)}  per client: up {format_bytes(evaluation.up_bytes_mean)} {up},"
        f" down {format_bytes(evaluation.down_bytes_mean)} {down}"
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
            TextColumn("{task.fields[state]}{task.fields[privacy]}"),
            console=Console(stderr=True),
            disable=not self._live,
        )
        self._task = self._bar.add_task(label, total=total, state="", privacy="")

    def __enter__(self) -> RunProgress:
        self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bar.stop()

    def round_finished(self, federation: Federation) -> None:
        """Advance the bar after a round, and show the privacy loss."""
        spent = federation.privacy_spent
        self._bar.update(
            self._task,
            completed=min(federation.iteration, self.total),
            privacy="" if spent is None else f"  {spent}",
        )

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
