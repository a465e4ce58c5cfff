"""Artefacts on the command line: choose, list, make and print them."""

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

from fedtern import MissingExtraError
from fedtern.cli import console
from fedtern.core.names import look_up
from fedtern.report import join_words, method_label
from fedtern.runs import Experiment, titles
from fedtern.transports.local import available_cores
from fedtern_paper.artefact import OPTIONS, Artefact, Table
from fedtern_paper.catalogue import ARTEFACTS
from fedtern_paper.judgements import verdicts
from fedtern_paper.outputs import write_pictures, write_table
from fedtern_paper.results import Results
from fedtern_paper.run_times import RunTimes
from fedtern_paper.settings import Settings

ALL = "all"
MAX_NAMED = 3  # failed runs in a message; the others are counted


@dataclass(frozen=True)
class MadeArtefact:
    """An artefact that has been written."""

    name: str
    note: str
    table: Table
    files: Sequence[Path]


def choose(name: str, settings: Settings, task: str | None) -> list[tuple[Artefact, Settings]]:
    """Return the artefacts of a name, each with the settings that apply to it.

    Args:
        name: Name of an artefact, or "all".
        settings: The user's settings.
        task: The task that the user asked for; None for the default task of the artefact.

    Raises:
        ValueError: The name is unknown, or a setting does not apply.

    """
    if name == ALL:
        for setting, option in OPTIONS.items():
            if getattr(settings, setting):
                raise ValueError(f"`all` cannot be restricted by {option}")
        return [(artefact, artefact.adjust(settings)) for artefact in ARTEFACTS.values()]
    artefact = look_up(name, ARTEFACTS, "artefact")
    return [(artefact, artefact.adjust(replace(settings, task=task or artefact.task)))]


def list_artefacts(
    name: str | None,
    settings: Settings,
    task: str | None,
    results: Results,
    workers: int | None,
    as_json: bool,
) -> None:
    """Print the number of runs of each artefact, how many are finished, and the time left.

    Args:
        name: List only this artefact.
        settings: The user's settings.
        task: The task that the user asked for, if any.
        results: The finished runs.
        workers: Number of runs at the same time; one per core if None.
        as_json: Whether to print one JSON object.

    Raises:
        ValueError: The named artefact cannot be made with these settings.

    """
    run_times = RunTimes.measured(results)
    rows: list[dict[str, Any]] = []
    for each in (*ARTEFACTS, ALL) if name is None else (name,):
        try:
            chosen = choose(each, settings, task)
            cells = {cell.digest: cell for a, its in chosen for cell in a.cells(its)}
        except ValueError as error:  # for example a restriction that does not apply to this one
            if name is not None:
                raise
            rows.append({"artefact": each, "shows": str(error)})
            continue
        missing = results.missing(cells.values())
        about = "all of these for one task; shared runs count once"
        if each != ALL:
            about = chosen[0][0].about
        rows.append({
            "artefact": each,
            "runs": len(cells),
            "done": len(cells) - len(missing),
            "seconds": _duration(list(cells.values()), run_times, workers),
            "seconds_left": _duration(missing, run_times, workers),
            "shows": about,
        })  # fmt: skip
    if as_json:
        typer.echo(json.dumps({"artefacts": rows, "task": settings.task}))
        return
    print_rows([_listed(row) for row in rows])
    typer.echo(
        f"for {task or f'{Settings.task} (fig13 to fig16: all four tasks)'},"
        f" {settings.seeds} seed{'s' if settings.seeds > 1 else ''}"
        f"{f', {settings.iterations:,} iterations' if settings.iterations is not None else ''}"
        f"{', quick' if settings.quick else ''};"
        f" runs under {results.out}; {run_times.source}"
    )


def _duration(cells: Sequence[Experiment], run_times: RunTimes, workers: int | None) -> int:
    """Return the expected seconds for some runs."""
    parallel = max(min(workers or available_cores(), len(cells)), 1)
    return math.ceil(sum(run_times.seconds(cell) for cell in cells) / parallel)


def _listed(row: Mapping[str, Any]) -> dict[str, str]:
    """Return a row for people."""
    numbers = dict.fromkeys(("runs", "done", "time", "left"), "–")
    if "runs" in row:
        numbers = {
            "runs": str(row["runs"]),
            "done": str(row["done"]),
            "time": _format_duration(row["seconds"]),
            "left": (
                "all" if row["runs"] and not row["done"] else _format_duration(row["seconds_left"])
            ),
        }
    return {"artefact": row["artefact"], **numbers, "shows": row["shows"]}


def _format_duration(seconds: float) -> str:
    """Format an approximate duration.

    >>> [_format_duration(seconds) for seconds in (0, 40, 4000, 400_000)]
    ['–', 'under 1 min', 'about 1.1 h', 'about 4.6 days']
    """
    if seconds < 60:
        return "under 1 min" if seconds > 0 else "–"
    for unit, name in ((86400, "days"), (3600, "h")):
        if seconds >= unit:
            return f"about {seconds / unit:.1f} {name}"
    return f"about {round(seconds / 60)} min"


def make(artefact: Artefact, settings: Settings, results: Results, directory: Path) -> MadeArtefact:
    """Write the table of an artefact, and its pictures if matplotlib is installed."""
    directory.mkdir(parents=True, exist_ok=True)
    stem = directory / f"{artefact.name}-{settings.task}"
    if artefact.prepare is not None:
        quiet = not sys.stderr.isatty()
        with Progress(console=Console(stderr=True), transient=True, disable=quiet) as bar:
            task = bar.add_task(artefact.name, total=1.0)
            artefact.prepare(settings, results, lambda share: bar.update(task, completed=share))
    try:
        pictures = write_pictures(artefact, settings, results, stem)
    except MissingExtraError as error:
        typer.echo(f"no picture: {error}", err=True)
        pictures = []
    cells = artefact.cells(settings)
    table = artefact.table(settings, results)
    notes = [
        *_missing_note(cells, results),
        *table.notes,
        *_longer_note(cells),
        *artefact.findings(settings, results),
        *verdicts(results, cells),
    ]
    note = settings.note if cells else settings.task
    command = settings.command(artefact.name)
    _report_replaced_page(stem.with_name(f"{stem.name}.md"), command)
    lead = f"{note}\n\n```sh\n{command}\n```"
    table = replace(table, notes=notes)
    files = write_table(table, stem, lead=lead, pictures=pictures) + pictures
    return MadeArtefact(artefact.name, note, table, files)


def _missing_note(cells: Sequence[Experiment], results: Results) -> list[str]:
    """Return a note on the runs that failed, if any did."""
    names = titles(cells)
    missing = [names[cell.digest] for cell in results.missing(cells)]
    if not missing:
        return []
    return [f"Missing, because the runs failed: {join_words(missing, most=MAX_NAMED)}."]


def _longer_note(cells: Sequence[Experiment]) -> list[str]:
    """Return a note on the runs that have more iterations than the page says, if any have."""
    longer: dict[tuple[str, str], int] = {}
    for cell in cells:
        if cell.last_iteration > cell.iterations:
            longer[cell.task, method_label(cell.method)] = cell.last_iteration
    several_tasks = len({cell.task for cell in cells}) > 1
    parts = [
        f"{label} ({task}) for {iterations:,}" if several_tasks else f"{label} for {iterations:,}"
        for (task, label), iterations in longer.items()
    ]
    if not parts:
        return []
    start = "Rounds are not split, so some runs are longer"
    return [f"{start}: {join_words(parts)} iterations."]


def _report_replaced_page(page: Path, command: str) -> None:
    """Print a message if a page is replaced that another command made."""
    text = page.read_text(errors="replace") if page.exists() else ""
    before = text.partition("```sh\n")[2].partition("\n```")[0]
    if before and before != command:
        typer.echo(
            f"fedtern: replaced {page}, which `{before}` had made; that command makes it again from"
            " its runs",
            err=True,
        )


def show(
    made: Sequence[MadeArtefact], as_json: bool, failed: Sequence[tuple[str, str]], *, alone: bool
) -> None:
    """Print artefacts; of several, only the names and files.

    Args:
        made: The artefacts.
        as_json: Whether to print one JSON object.
        failed: Title and error of each run that failed, for the JSON object.
        alone: Whether a single artefact was asked for.

    """
    if as_json:
        artefacts = [_to_json(each) for each in made]
        body = artefacts[0] if alone and artefacts else {"artefacts": artefacts}
        errors = [{"run": title, "error": message} for title, message in failed]
        typer.echo(json.dumps({**body, "failed": errors}))
        return
    for each in made:
        typer.echo(f"{each.table.title}\n{each.note}")
        if alone:
            print_rows(each.table.shown)
            for note in each.table.notes:
                typer.echo(f"- {note}")
        typer.echo(f"written: {', '.join(map(str, each.files))}")


def _to_json(made: MadeArtefact) -> dict[str, Any]:
    # JSON has no infinity, which is the compression of a method that sends nothing.
    rows = [
        {key: None if value == math.inf else value for key, value in row.items()}
        for row in made.table.values
    ]
    return {"artefact": made.name, "rows": rows, "files": [str(path) for path in made.files]}


def print_rows(rows: Sequence[Mapping[str, str]]) -> None:
    """Print rows of the same columns; numbers are aligned right."""
    if not rows:
        return
    table = RichTable(*rows[0], box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "left" if column.header in ("shows", "statement") else "right"
    for row in rows:
        table.add_row(*row.values())
    console(240).print(table)
