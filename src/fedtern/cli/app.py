"""The ``fedtern`` command and its parts."""

from __future__ import annotations

from typing import Annotated

import typer

from fedtern import __version__
from fedtern.cli import catalogue, inspect, train

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)


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


app.command("run")(train.run)
app.command("compare")(train.compare)
app.command("report")(train.report)
app.command("tasks")(catalogue.tasks)
app.command("methods")(catalogue.methods)
app.command("split")(catalogue.split)
app.command("inspect")(inspect.inspect_command)
