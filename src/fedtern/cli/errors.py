"""Errors that a person can mend, on the screen."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from fedtern.core.errors import FedternError, format_error


@contextmanager
def report_errors() -> Iterator[None]:
    """Print errors that a person can mend as a sentence, and leave with exit code 1."""
    try:
        yield
    except BrokenPipeError:  # who read what is printed has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except (FedternError, OSError, ValueError) as error:
        typer.echo(f"fedtern: {format_error(error)}", err=True)
        raise typer.Exit(1) from None
