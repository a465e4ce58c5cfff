"""``fedtern store``: examine directories that keep the state of a server or a client."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedtern.cli.commands import Commands
from fedtern.cli.terminal import report_errors
from fedtern.store.check import examine_store
from fedtern.store.files import Lock
from fedtern.store.log import DAMAGE_ADVICE

app = Commands()


@app.callback()
def _store() -> None:
    """Check the directory of a server or a client for damage."""


@app.command("check")
def check(
    directory: Annotated[Path, typer.Argument(help="Directory of a server or a client.")],
) -> None:
    """Check a store for damage, without changing it.

    The exit status is 1 if recorded data is lost, and 0 otherwise.
    """
    with report_errors():
        if not directory.is_dir():
            raise typer.BadParameter(f"{directory} is not a directory")
        lock = Lock(directory)  # a running process changes the files
        try:
            found = examine_store(directory)
        finally:
            lock.close()
    for name, fact in found.facts.items():
        typer.echo(f"{name}: {fact}")
    for note in found.notes:
        typer.echo(f"note: {note}")
    for sentence in found.damage:
        typer.echo(f"damaged: {sentence}")
    if found.damage:
        typer.echo(f"To continue: {DAMAGE_ADVICE}.")
        raise typer.Exit(1)
    typer.echo("no acknowledged data is lost")
