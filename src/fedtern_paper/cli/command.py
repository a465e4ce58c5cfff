"""The command ``fedtern reproduce``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedtern.cli import (
    AsJson,
    DataDir,
    Out,
    checkpoint_seconds,
    command_line,
    interruptible,
    parse_numbers,
    report_errors,
)
from fedtern.report import join_words
from fedtern.runs import Experiment, titles
from fedtern_paper.cli.artefacts import MAX_NAMED, choose, list_artefacts, make, show
from fedtern_paper.cli.check import check_claims
from fedtern_paper.cli.progress import GridProgress
from fedtern_paper.grid import run_cells
from fedtern_paper.results import Results
from fedtern_paper.settings import Settings


def reproduce(
    artefact: Annotated[
        str | None, typer.Argument(help="A table or figure (see --list), or `all`.")
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="List tables and figures, their runs and the time left.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Test the paper's claims on finished runs.")
    ] = False,
    task: Annotated[
        str | None,
        typer.Option(help="Task to train. [default: logistic-mnist; for fig13 to fig16 all]"),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Only this method and its baseline; repeatable."),
    ] = None,
    values: Annotated[
        str, typer.Option(help="Only these values of what a figure varies, like 1,2,10.")
    ] = "",
    place: Annotated[
        list[str] | None, typer.Option(help="Only this panel, like 10/100 or iid; repeatable.")
    ] = None,
    momentum: Annotated[str, typer.Option(help="Only this momentum, like 0 or 0,0.9.")] = "",
    seeds: Annotated[int, typer.Option(help="Number of seeds, starting at 0.")] = 1,
    quick: Annotated[bool, typer.Option(help="Run a tenth of the iterations.")] = False,
    iterations: Annotated[
        int | None, typer.Option(help="Iterations of each run. [default: the task's]")
    ] = None,
    out: Out = Path("runs"),
    results: Annotated[Path, typer.Option(help="Directory for tables and pictures.")] = Path(
        "results"
    ),
    data_dir: DataDir = None,
    workers: Annotated[
        int | None, typer.Option(help="Runs at the same time. [default: one per core]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a table or figure of the paper.

    Finished runs are not repeated.
    """
    finished = Results(out, data_dir)
    with report_errors():
        if check:
            if artefact is not None:
                raise ValueError(
                    f"--check tests the paper's claims on all finished runs; remove {artefact}, or"
                    " select a task with --task"
                )
            check_claims(finished, results, task, as_json)
            return
        settings = Settings(
            task=task or Settings.task,
            seeds=seeds,
            iterations=iterations,
            quick=quick,
            methods=tuple(method or ()),
            values=parse_numbers(values),
            places=tuple(place or ()),
            momentum=parse_numbers(momentum),
        )
        if listed or artefact is None:
            list_artefacts(artefact, settings, task, finished, workers, as_json)
            return
        chosen = choose(artefact, settings, task)
        for option, path in (("--out", out), ("--results", results)):
            if path.exists() and not path.is_dir():  # checked now, not after days of training
                raise ValueError(f"{option} must be a directory, but {path} is a file")
        # One seed of all cells first, so that there is something to see early.
        cells = [cell for each, its in chosen for cell in each.cells(its)]
        failed = _run(sorted(cells, key=lambda cell: cell.seed), finished, workers, quiet=as_json)
        made = [
            make(each, its, finished, results)
            for each, its in chosen
            if each.has_results(its, finished)
        ]
        show(made, as_json, failed, alone=len(chosen) == 1)
    _report_failures(failed)


def _run(
    cells: Sequence[Experiment], results: Results, workers: int | None, *, quiet: bool
) -> list[tuple[str, str]]:
    """Run the missing cells, show the progress, and return title and error of those that failed."""
    missing = results.missing(cells)
    total = len({cell.digest for cell in cells})
    progress = GridProgress(total, missing, results, quiet=quiet)
    with interruptible() as interrupts, progress:
        failed = run_cells(
            missing,
            results.out,
            workers=workers,
            data_dir=results.data_dir,
            checkpoint_seconds=checkpoint_seconds(),
            command=command_line(),
            stopped=lambda: len(interrupts) > 0,
            observer=progress,
        )
    if interrupts:
        typer.echo("stopped; the same command resumes", err=True)
        raise typer.Exit(130)
    return [(title, failed[digest]) for digest, title in titles(cells).items() if digest in failed]


def _report_failures(failed: Sequence[tuple[str, str]]) -> None:
    """Print each error once, with the runs that it stopped, and exit with code 1 if there are."""
    by_error: dict[str, list[str]] = {}
    for title, error in failed:
        by_error.setdefault(error, []).append(title)
    for error, failed_titles in by_error.items():
        typer.echo(f"fedtern: {join_words(failed_titles, most=MAX_NAMED)}: {error}", err=True)
    if failed:
        raise typer.Exit(1)
