"""``fedtern tune``."""

from __future__ import annotations

import json
import shlex
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from fedtern.cli.options import (
    Task,
    TuningOptions,
    checkpoint_seconds,
    command_line,
    complete_method_name,
    with_options,
)
from fedtern.cli.progress import RunProgress
from fedtern.cli.signals import interruptible
from fedtern.cli.terminal import console, report_errors, report_fallback
from fedtern.core.numbers import format_parameter
from fedtern.report import format_bytes

if TYPE_CHECKING:  # needs torch
    from fedtern.tuning import Candidate, Tuning


@with_options(TuningOptions)
def tune(
    options: TuningOptions,
    task: Task = "logistic-digits",
    method: Annotated[
        str,
        typer.Option(
            help="Method with fixed parameters, for example stc:scope=tensor.",
            autocompletion=complete_method_name,
        ),
    ] = "stc",
) -> None:
    """Find the parameters of a method that need the fewest bytes.

    Combinations of --local-steps, --p-up and --p-down train for a short time; the best third
    continues for three times as many iterations, and so on. The same command continues a search.
    """
    report_fallback()
    with report_errors():
        from fedtern.tuning import TuningStopped, search

        plan = options.plan(task, method)
        with interruptible() as signals:
            try:
                found = search(
                    plan,
                    options.data_dir,
                    options.out,
                    device=options.device,
                    memory_bytes=options.memory_bytes,
                    workers=options.workers,
                    threads=options.threads,
                    checkpoint_seconds=checkpoint_seconds(),
                    command=command_line(),
                    stopped=lambda: len(signals) > 0,
                    progress=partial(RunProgress, quiet=options.as_json),
                )
            except TuningStopped as stopped:
                typer.echo(str(stopped), err=True)
                raise typer.Exit(130) from None
    command = shlex.join(options.run_command(task, found.best.experiment))
    if options.as_json:
        typer.echo(json.dumps({**found.to_json(), "command": command}, allow_nan=False))
        return
    _print_table(found)
    for sentence in found.findings():
        typer.echo(f"- {sentence}")
    typer.echo(f"--method {found.method}")
    typer.echo(f"train it in full: {command}")


def _print_table(found: Tuning) -> None:
    from rich.table import Table

    names = list(found.plan.searched)
    goal = found.metric.format(found.target)
    columns = (*names, f"best {found.metric.name}", "iterations", "up", "down", f"until {goal}")
    table = Table(*columns, "dropped", box=None, pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"  # on a narrow terminal, rather than to lose digits
    for column in table.columns[:-1]:
        column.justify = "right"
    for candidate in found.candidates:
        method = candidate.experiment.method
        best = found.metric.value_of_quality(candidate.curve.best)
        table.add_row(
            *(format_parameter(method[name]) for name in names),
            found.metric.format(best),
            f"{candidate.evaluation.iteration:,}",
            format_bytes(candidate.evaluation.up_bytes_mean),
            format_bytes(candidate.evaluation.down_bytes_mean),
            _cost(candidate),
            _reason(found, candidate),
        )
    console(140).print(table)
    cost = found.plan.cost.describe()
    typer.echo(f"up and down: per participating client, summed over rounds; until: {cost}")


def _cost(candidate: Candidate) -> str:
    """Return the cost until the target, or how many seeds have reached it."""
    if candidate.cost is not None:
        return format_bytes(candidate.cost)
    reached = [cost for cost in candidate.costs if cost is not None]
    return f"{len(reached)} of {len(candidate.costs)} seeds" if reached else "not reached"


def _reason(found: Tuning, candidate: Candidate) -> str:
    """Return why a candidate was dropped; empty if it was not."""
    if candidate.rung is not None:
        return f"rung {candidate.rung}"
    return "too expensive" if found.is_too_expensive(candidate) else ""
