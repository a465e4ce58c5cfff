"""The ``fedtern`` command and its subcommands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedtern import __version__
from fedtern.cli.bench import bench
from fedtern.cli.commands import Commands
from fedtern.cli.inspect import inspect_command
from fedtern.cli.terminal import report_errors
from fedtern.core.kernels import describe_kernels
from fedtern.report import write_report

app = Commands()


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedtern {__version__}, kernels: {describe_kernels()}")
        raise typer.Exit


@app.callback()
def _fedtern(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, help="Print the version.")
    ] = False,
) -> None:
    """Federated learning in a thousandth of the bandwidth."""


# Imported on first use: they need torch, which takes seconds to import.
for _name, _target in (
    ("run", "fedtern.cli.train:run"),
    ("compare", "fedtern.cli.train:compare"),
    ("tasks", "fedtern.cli.catalogue:tasks"),
    ("methods", "fedtern.cli.catalogue:methods"),
    ("split", "fedtern.cli.catalogue:split"),
    ("serve", "fedtern.cli.mqtt:serve_command"),
    ("join", "fedtern.cli.mqtt:join_command"),
    ("demo", "fedtern.cli.demo:app"),
):
    app.add_lazy(_name, _target, needs="torch", extra="torch")
app.add_lazy("reproduce", "fedtern_paper.cli.command:reproduce", needs="torch", extra="paper")
app.add_lazy("advise", "fedtern_paper.cli.advise:advise", needs="fedtern_paper", extra="paper")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.")],
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write an HTML page with tables and plots of one or more runs."""
    with report_errors():
        written = write_report(runs, out).resolve()
    typer.echo(json.dumps({"report": str(written)}) if as_json else f"report: {written}")


app.command("bench")(bench)
app.command("inspect")(inspect_command)
