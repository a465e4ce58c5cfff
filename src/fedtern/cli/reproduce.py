"""``fedtern reproduce``: the paper's tables and figures."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as RichTable

from fedtern.cli import options as o
from fedtern.cli.errors import one_sentence
from fedtern.cli.grid import GridWatch
from fedtern.cli.session import checkpoint_seconds, command_line, interruptible
from fedtern.errors import MissingExtraError
from fedtern.experiments import Experiment
from fedtern.names import look_up
from fedtern.report.words import listed as listing
from fedtern.reproduce import ARTEFACTS, Artefact, Results, Settings, Table, run_cells
from fedtern.reproduce.outputs import write_pictures, write_table


def reproduce(
    artefact: Annotated[str | None, typer.Argument(help="What to make: see --list.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="Say what there is, and end.")] = False,
    task: Annotated[str, typer.Option(help="What to learn.")] = "logistic-mnist",
    method: Annotated[
        list[str] | None,
        typer.Option(help="Only these methods, and what they are compared with; repeat it."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many runs of each cell, from seed 0.")] = 1,
    quick: Annotated[bool, typer.Option(help="A tenth of the iterations.")] = False,
    iterations: Annotated[
        int | None, typer.Option(help="Of each run. [default: the task's]")
    ] = None,
    out: o.Out = Path("runs"),
    results: Annotated[Path, typer.Option(help="Where tables and pictures go.")] = Path("results"),
    data_dir: o.DataDir = None,
    workers: Annotated[
        int | None, typer.Option(help="Runs at the same time. [default: one for each core]")
    ] = None,
    as_json: o.AsJson = False,
) -> None:
    """Make a table or figure of the paper; runs that are finished are not repeated."""
    if listed or artefact is None:
        _list(as_json)
        return
    with one_sentence():
        chosen = look_up(artefact, ARTEFACTS, "artefact")
        settings = Settings(task, seeds, iterations, quick, tuple(method or ()))
        cells, found = chosen.cells(settings), Results(out)
        failed = _run(cells, found, workers, data_dir, quiet=as_json)
        # Nothing at all is no reason to replace what an earlier command may have written.
        if any(found.run(cell) for cell in cells):
            made, written = _make(chosen, settings, found, results)
            _show(chosen, settings, made, written, as_json)
    _complain(cells, failed)


def _list(as_json: bool) -> None:
    rows = [
        {"artefact": each.name, "runs": len(each.cells(Settings())), "shows": each.about}
        for each in ARTEFACTS.values()
    ]
    if as_json:
        typer.echo(json.dumps({"artefacts": rows}))
        return
    table = RichTable(*rows[0], box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(str, row.values()))
    _console().print(table)


def _run(
    cells: Sequence[Experiment],
    found: Results,
    workers: int | None,
    data_dir: Path | None,
    *,
    quiet: bool,
) -> dict[str, str]:
    """Run what is missing and show how far it is; the errors of cells that failed."""
    missing = found.missing(cells)
    total = len({cell.digest for cell in cells})
    with interruptible() as interrupts, GridWatch(total, missing, found, quiet=quiet) as watch:
        failed = run_cells(
            missing,
            found.out,
            workers=workers,
            data_dir=data_dir,
            checkpoint_seconds=checkpoint_seconds(),
            command=command_line(),
            stopped=lambda: len(interrupts) > 0,
            watch=watch,
        )
    if interrupts:
        typer.echo("stopped; go on with the same command", err=True)
        raise typer.Exit(130)
    return failed


def _make(
    artefact: Artefact, settings: Settings, found: Results, directory: Path
) -> tuple[Table, list[Path]]:
    """Write what the runs amount to: the table, and pictures where they can be drawn."""
    directory.mkdir(parents=True, exist_ok=True)
    stem = directory / f"{artefact.name}-{settings.task}"
    try:
        pictures = write_pictures(artefact, settings, found, stem)
    except MissingExtraError as error:
        typer.echo(f"no picture: {error}", err=True)
        pictures = []
    made = artefact.table(settings, found)
    if absent := [cell.title for cell in found.missing(artefact.cells(settings))]:
        made = replace(
            made, notes=[f"Missing, because they failed: {listing(absent)}.", *made.notes]
        )
    lead = f"{settings.note}\n\n```sh\n{command_line()}\n```"
    return made, write_table(made, stem, lead=lead, pictures=pictures) + pictures


def _show(
    artefact: Artefact, settings: Settings, made: Table, written: list[Path], as_json: bool
) -> None:
    if as_json:
        files = [str(path) for path in written]
        # JSON has no infinity, which is how many times less nothing is.
        rows = [{k: None if v == math.inf else v for k, v in row.items()} for row in made.values]
        typer.echo(json.dumps({"artefact": artefact.name, "rows": rows, "files": files}))
        return
    typer.echo(f"{made.title}\n{settings.note}")
    if made.shown:
        table = RichTable(*made.shown[0], box=None, pad_edge=False)
        for column in table.columns[1:]:
            column.justify = "right"
        for row in made.shown:
            table.add_row(*row.values())
        _console().print(table)
    for note in made.notes:
        typer.echo(f"- {note}")
    typer.echo(f"written: {', '.join(map(str, written))}")


def _complain(cells: Sequence[Experiment], failed: dict[str, str]) -> None:
    """Say what failed, each reason once, and leave with exit code 1 if anything did."""
    titles: dict[str, list[str]] = {}
    for cell in {cell.digest: cell for cell in cells}.values():
        if cell.digest in failed:
            titles.setdefault(failed[cell.digest], []).append(cell.title)
    for sentence, which in titles.items():
        typer.echo(f"fedtern: {'; '.join(which)}: {sentence}", err=True)
    if failed:
        raise typer.Exit(1)


def _console() -> Console:
    # A pipe has no width of its own, and one line each is what a reader wants there.
    return Console(highlight=False, width=None if sys.stdout.isatty() else 160)
