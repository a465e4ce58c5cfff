"""Artefacts as the command line has them: chosen, listed, written and shown."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table as RichTable

from fedtern.cli.terminal import console
from fedtern.core.errors import MissingExtraError
from fedtern.core.names import look_up
from fedtern.report.formatting import join_words, method_label
from fedtern.runs import Experiment, titles
from fedtern.transports.local.trainers import cores
from fedtern_paper import ARTEFACTS, Artefact, Results, Settings, Table
from fedtern_paper.artefact import OPTIONS
from fedtern_paper.estimates import Pace
from fedtern_paper.outputs import write_pictures, write_table
from fedtern_paper.scoreboard import verdicts

ALL = "all"
NAMED = 3  # runs that failed; the rest is counted

Chosen = list[tuple[Artefact, Settings]]


@dataclass(frozen=True)
class Made:
    """An artefact that has been written."""

    name: str
    note: str
    table: Table
    files: Sequence[Path]


def choose(name: str, settings: Settings, task: str | None) -> Chosen:
    """The artefacts that a name stands for, each with the settings that hold for it.

    ``task`` is what was asked for: where nothing was, an artefact may have a task of its own.
    """
    if name == ALL:
        for setting, option in OPTIONS.items():
            if getattr(settings, setting):
                raise ValueError(f"all artefacts together cannot be restricted by {option}")
        return [(each, each.adjust(settings)) for each in ARTEFACTS.values()]
    one = look_up(name, ARTEFACTS, "artefact")
    return [(one, one.adjust(replace(settings, task=task or one.task)))]


def list_artefacts(
    artefact: str | None,
    settings: Settings,
    task: str | None,
    found: Results,
    workers: int | None,
    as_json: bool,
) -> None:
    """Say of every artefact how many runs it takes, how many are done, and how long the rest is.

    Of one that is named, say that alone, or why it cannot be made as asked for.
    """
    pace = Pace.measured(found)
    rows: list[dict[str, Any]] = []
    for name in (*ARTEFACTS, ALL) if artefact is None else (artefact,):
        try:
            chosen = choose(name, settings, task)
            every = {c.digest: c for each, its in chosen for c in each.cells(its)}
        except ValueError as error:  # such as a restriction that this one does not know
            if artefact is not None:
                raise
            rows.append({"artefact": name, "shows": str(error)})
            continue
        missing = found.missing(every.values())
        whole, left = (
            math.ceil(sum(map(pace.seconds, cells)) / max(min(workers or cores(), len(cells)), 1))
            for cells in (list(every.values()), missing)
        )
        about = chosen[0][0].about if name != ALL else "everything for one task, shared runs once"
        rows.append({
            "artefact": name, "runs": len(every), "done": len(every) - len(missing),
            "seconds": whole, "seconds_left": left, "shows": about,
        })  # fmt: skip
    if as_json:
        typer.echo(json.dumps({"artefacts": rows, "task": settings.task}))
        return
    print_rows([_listed(row) for row in rows])
    short = f", {settings.iterations:,} iterations" if settings.iterations is not None else ""
    typer.echo(
        f"for {task or f'{Settings.task} (fig13 to fig16: all four tasks)'},"
        f" {settings.seeds} seed{'s'[: settings.seeds > 1]}{short}{', quick' * settings.quick};"
        f" runs under {found.out}; {pace.source}"
    )


def _listed(row: Mapping[str, Any]) -> dict[str, str]:
    """A row for people; of an artefact that cannot be made as asked for, why not."""
    numbers = dict.fromkeys(("runs", "done", "time", "left"), "–")
    if "runs" in row:
        numbers = {
            "runs": str(row["runs"]),
            "done": str(row["done"]),
            "time": _about(row["seconds"]),
            "left": "all" if row["runs"] and not row["done"] else _about(row["seconds_left"]),
        }
    return {"artefact": row["artefact"], **numbers, "shows": row["shows"]}


def _about(seconds: float) -> str:
    """A time that nobody should take for exact.

    >>> _about(0), _about(40), _about(4000), _about(400_000)
    ('–', 'under 1 min', 'about 1.1 h', 'about 4.6 days')
    """
    if seconds < 60:
        return "under 1 min" if seconds > 0 else "–"
    for unit, name in ((86400, "days"), (3600, "h")):
        if seconds >= unit:
            return f"about {seconds / unit:.1f} {name}"
    return f"about {round(seconds / 60)} min"


def make(artefact: Artefact, settings: Settings, found: Results, directory: Path) -> Made:
    """Write what the runs amount to: the table, and pictures where they can be drawn."""
    directory.mkdir(parents=True, exist_ok=True)
    stem = directory / f"{artefact.name}-{settings.task}"
    if artefact.prepare is not None:
        quiet = not sys.stderr.isatty()
        with Progress(console=Console(stderr=True), transient=True, disable=quiet) as bar:
            task = bar.add_task(artefact.name, total=1.0)
            artefact.prepare(settings, found, lambda share: bar.update(task, completed=share))
    try:
        pictures = write_pictures(artefact, settings, found, stem)
    except MissingExtraError as error:
        typer.echo(f"no picture: {error}", err=True)
        pictures = []
    table, cells = artefact.table(settings, found), artefact.cells(settings)
    judged = [*artefact.findings(settings, found), *verdicts(found, cells)]
    table = replace(table, notes=[*table.notes, *_longer(cells), *judged])
    names = titles(cells)
    if absent := [names[cell.digest] for cell in found.missing(cells)]:
        which = f"Missing, because they failed: {join_words(absent, most=NAMED)}."
        table = replace(table, notes=[which, *table.notes])
    note, command = settings.note if cells else settings.task, settings.command(artefact.name)
    _say_what_is_replaced(stem.with_name(f"{stem.name}.md"), command)
    lead = f"{note}\n\n```sh\n{command}\n```"
    files = write_table(table, stem, lead=lead, pictures=pictures) + pictures
    return Made(artefact.name, note, table, files)


def _longer(cells: Sequence[Experiment]) -> list[str]:
    """What was trained for longer than the page says, if anything was."""
    told = {}
    for cell in cells:
        if cell.last_iteration > cell.iterations:
            told[cell.task, method_label(cell.method)] = f"{cell.last_iteration:,}"
    tasks = len({cell.task for cell in cells})
    each = [f"{label}{f' ({task})' * (tasks > 1)} for {n}" for (task, label), n in told.items()]
    some = "A round is never split, so that some are trained for longer"
    return [f"{some}: {join_words(each)} iterations."] if each else []


def _say_what_is_replaced(page: Path, command: str) -> None:
    """A first look is no secret when it takes the place of a longer one."""
    text = page.read_text(errors="replace") if page.exists() else ""
    before = text.partition("```sh\n")[2].partition("\n```")[0]
    if before and before != command:
        typer.echo(
            f"fedtern: {page} was made by `{before}`; that command makes it again, from its runs",
            err=True,
        )


def show(
    made: Sequence[Made], as_json: bool, failed: Sequence[tuple[str, str]], *, alone: bool
) -> None:
    """Print what was made; several together are named with their files only.

    ``failed`` has runs with their errors, for programs: people are told otherwise.
    """
    if as_json:
        objects = [_plain(each) for each in made]
        told = objects[0] if alone and objects else {"artefacts": objects}
        errors = [{"run": title, "error": sentence} for title, sentence in failed]
        typer.echo(json.dumps({**told, "failed": errors}))
        return
    for each in made:
        typer.echo(f"{each.table.title}\n{each.note}")
        if alone:
            print_rows(each.table.shown)
            for note in each.table.notes:
                typer.echo(f"- {note}")
        typer.echo(f"written: {', '.join(map(str, each.files))}")


def _plain(made: Made) -> dict[str, Any]:
    # JSON has no infinity, which is how many times less nothing is.
    rows = [{k: None if v == math.inf else v for k, v in row.items()} for row in made.table.values]
    return {"artefact": made.name, "rows": rows, "files": list(map(str, made.files))}


def print_rows(rows: Sequence[Mapping[str, str]]) -> None:
    """Rows of the same columns, numbers to the right."""
    if not rows:
        return
    table = RichTable(*rows[0], box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "left" if column.header in ("shows", "statement") else "right"
    for row in rows:
        table.add_row(*row.values())
    console(240).print(table)
