"""``fedtern reproduce``: the paper's tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedtern.cli import options as o
from fedtern.cli.errors import report_errors
from fedtern.cli.numbers import numbers
from fedtern.cli.signals import checkpoint_seconds, command_line, interruptible
from fedtern.report.formatting import join_words
from fedtern.runs import Experiment, titles
from fedtern_paper import Results, Settings, run_cells
from fedtern_paper.cli.artefacts import NAMED, choose, list_artefacts, make, show
from fedtern_paper.cli.check import show_claims
from fedtern_paper.cli.progress import GridWatch


def reproduce(
    artefact: Annotated[
        str | None, typer.Argument(help="What to make: see --list, or `all` of it.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Say what there is, and end.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Hold finished runs against what the paper says.")
    ] = False,
    task: Annotated[
        str | None,
        typer.Option(help="What to learn. [default: logistic-mnist; for fig13 to fig16 all]"),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Only these methods, and what they are compared with; repeat it."),
    ] = None,
    values: Annotated[
        str, typer.Option(help="Only these values of what a figure varies, like 1,2,10.")
    ] = "",
    place: Annotated[
        list[str] | None, typer.Option(help="Only this panel, like 10/100 or iid; repeat it.")
    ] = None,
    momentum: Annotated[str, typer.Option(help="Only with this momentum, like 0 or 0,0.9.")] = "",
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
    found = Results(out, data_dir)
    with report_errors():
        if check:
            if artefact is not None:
                raise ValueError(
                    f"--check holds every finished run against the paper: leave out {artefact}, or"
                    " say --task"
                )
            show_claims(found, results, task, as_json)
            return
        settings = Settings(
            task or Settings.task,
            seeds,
            iterations,
            quick,
            tuple(method or ()),
            numbers(values),
            tuple(place or ()),
            numbers(momentum),
        )
        if listed or artefact is None:
            list_artefacts(artefact, settings, task, found, workers, as_json)
            return
        chosen = choose(artefact, settings, task)
        for option, where in (("--out", out), ("--results", results)):
            if where.exists() and not where.is_dir():  # said before days of training, not after
                raise ValueError(f"{option} must be a directory, and {where} is a file")
        # All cells with one seed first: there is something to see early.
        cells = sorted((c for each, its in chosen for c in each.cells(its)), key=lambda c: c.seed)
        failed = _run(cells, found, workers, quiet=as_json)
        made = [make(each, its, found, results) for each, its in chosen if found.any(each, its)]
        show(made, as_json, failed, alone=len(chosen) == 1)
    _complain(failed)


def _run(
    cells: Sequence[Experiment], found: Results, workers: int | None, *, quiet: bool
) -> list[tuple[str, str]]:
    """Run what is missing and show how far it is; what failed, each run with its error."""
    missing = found.missing(cells)
    total = len({cell.digest for cell in cells})
    with interruptible() as interrupts, GridWatch(total, missing, found, quiet=quiet) as watch:
        failed = run_cells(
            missing,
            found.out,
            workers=workers,
            data_dir=found.data_dir,
            checkpoint_seconds=checkpoint_seconds(),
            command=command_line(),
            stopped=lambda: len(interrupts) > 0,
            observer=watch,
        )
    if interrupts:
        typer.echo("stopped; go on with the same command", err=True)
        raise typer.Exit(130)
    return [(title, failed[digest]) for digest, title in titles(cells).items() if digest in failed]


def _complain(failed: Sequence[tuple[str, str]]) -> None:
    """Say what failed, each reason once, and leave with exit code 1 if anything did."""
    reasons: dict[str, list[str]] = {}
    for title, sentence in failed:
        reasons.setdefault(sentence, []).append(title)
    for sentence, which in reasons.items():
        typer.echo(f"fedtern: {join_words(which, most=NAMED)}: {sentence}", err=True)
    if failed:
        raise typer.Exit(1)
