"""Errors that a person can mend, on the screen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from fedtern.errors import FedternError


@contextmanager
def one_sentence() -> Iterator[None]:
    """Print errors that a person can mend as a sentence, and leave with exit code 1."""
    try:
        yield
    except FedternError as error:
        sentence = str(error)
    except OSError as error:
        sentence = f"{error.filename or 'the disk'}: {error.strerror or error}"
    except ValueError as error:
        sentence = str(error)
    else:
        return
    typer.echo(f"fedtern: {sentence}", err=True)
    raise typer.Exit(1)
