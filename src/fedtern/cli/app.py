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
from fedtern.cli.commands import Commands
from fedtern.cli.errors import report_errors
from fedtern.cli.inspect import inspect_command
from fedtern.report import write_report

app = Commands()


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

    app.command("run")(train.run)
    app.command("compare")(train.compare)
    app.command("reproduce")(reproduction.reproduce)
    app.command("tasks")(catalogue.tasks)
    app.command("methods")(catalogue.methods)
    app.command("split")(catalogue.split)
    app.command("serve")(mqtt.serve_command)
    app.command("join")(mqtt.join_command)
    app.add_typer(demo.app, name="demo")
else:
    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    training = "run compare reproduce tasks methods split serve join demo"
    for name in training.split():
        app.command(name, context_settings=anything)(_needs_torch)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Directories of runs.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write one page with the tables and plots of one or many runs."""
    with report_errors():
        written = write_report(runs, out).resolve()
    typer.echo(json.dumps({"report": str(written)}) if as_json else f"report: {written}")


app.command("bench")(bench)
app.command("advise")(advise)
app.command("inspect")(inspect_command)
