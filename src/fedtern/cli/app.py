"""The ``fedtern`` command and its subcommands."""

from __future__ import annotations

from typing import Annotated

import typer

from fedtern.cli.commands import Commands
from fedtern.core.version import describe_version

app = Commands(completion=True)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(describe_version())
        raise typer.Exit


@app.callback()
def _fedtern(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, help="Print the version.")
    ] = False,
) -> None:
    """Federated learning in a thousandth of the bandwidth."""


# Imported when they run: most need torch, which takes seconds to import.
for _name, _target, _summary in (
    ("run", "fedtern.cli.train:run", "Train a federation and save the run."),
    ("compare", "fedtern.cli.train:compare", "Train the same federation with several methods."),
    (
        "tune",
        "fedtern.cli.tune:tune",
        "Find the parameters of a method that need the fewest bytes.",
    ),
    ("tasks", "fedtern.cli.catalogue:tasks", "List the built-in tasks and your own."),
    (
        "methods",
        "fedtern.cli.catalogue:methods",
        "List methods, or describe one and its publication.",
    ),
    ("split", "fedtern.cli.catalogue:split", "Show how the data is split among clients."),
    ("serve", "fedtern.cli.mqtt:serve_command", "Serve a federation over an MQTT broker."),
    ("join", "fedtern.cli.mqtt:join_command", "Join a federation as one of its clients."),
    ("demo", "fedtern.cli.demo:app", "Run a demonstration."),
):
    app.add_lazy(_name, _target, _summary, needs="torch", extra="torch")
app.add_lazy(
    "reproduce",
    "fedtern_paper.cli.command:reproduce",
    "Make a table or figure of the paper.",
    needs="torch",
    extra="paper",
)
app.add_lazy(
    "advise",
    "fedtern_paper.cli.advise:advise",
    "Recommend a method for a federation.",
    needs="fedtern_paper",
    extra="paper",
)
app.add_lazy(
    "report",
    "fedtern.cli.report:report",
    "Write an HTML page with tables and plots of one or more runs.",
)
app.add_lazy(
    "watch",
    "fedtern.cli.watch:watch",
    "Show runs and federations on a live page in the browser.",
)
app.add_lazy(
    "bench", "fedtern.cli.bench:bench", "Compare the speed and size of this package with others."
)
app.add_lazy(
    "store", "fedtern.cli.store:app", "Check the directory of a server or a client for damage."
)
app.add_lazy(
    "inspect", "fedtern.cli.inspect:inspect_command", "Show the parts of a message and their sizes."
)
