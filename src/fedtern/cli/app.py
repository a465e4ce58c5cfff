"""The ``fedtern`` command and its parts."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from fedtern import __version__
from fedtern.cli.advise import advise
from fedtern.cli.bench import bench
from fedtern.cli.commands import Command, Group
from fedtern.cli.errors import one_sentence
from fedtern.cli.inspect import inspect_command
from fedtern.report import write_report

app = typer.Typer(cls=Group, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedtern {__version__}")
        raise typer.Exit


@app.callback()
def _fedtern(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, help="Print the version.")
    ] = False,
) -> None:
    """Federated learning in a thousandth of the bandwidth."""


def _needs_torch(_context: typer.Context) -> None:
    """Not installed: pip install 'fedtern[torch]'."""
    typer.echo("fedtern: training needs torch: pip install 'fedtern[torch]'", err=True)
    raise typer.Exit(1)


if find_spec("torch") is not None:
    from fedtern.cli import catalogue, demo, mqtt, train
    from fedtern.cli import reproduce as reproduction

    app.command("run", cls=Command)(train.run)
    app.command("compare", cls=Command)(train.compare)
    app.command("reproduce", cls=Command)(reproduction.reproduce)
    app.command("tasks", cls=Command)(catalogue.tasks)
    app.command("methods", cls=Command)(catalogue.methods)
    app.command("split", cls=Command)(catalogue.split)
    app.command("serve", cls=Command)(mqtt.serve_command)
    app.command("join", cls=Command)(mqtt.join_command)
    app.add_typer(demo.app, name="demo")
else:
    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    for name in (
        "run",
        "compare",
        "reproduce",
        "tasks",
        "methods",
        "split",
        "serve",
        "join",
        "demo",
    ):
        app.command(name, cls=Command, context_settings=anything)(_needs_torch)


@app.command(cls=Command)
def report(
    runs: Annotated[list[Path], typer.Argument(help="Directories of runs.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write one page with the tables and plots of one or many runs."""
    with one_sentence():
        written = write_report(runs, out).resolve()
    typer.echo(json.dumps({"report": str(written)}) if as_json else f"report: {written}")


app.command("bench", cls=Command)(bench)
app.command("advise", cls=Command)(advise)
app.command("inspect", cls=Command)(inspect_command)
