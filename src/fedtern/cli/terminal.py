"""Output on the terminal: tables and errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from fedtern.core.errors import FedternError, format_error

if TYPE_CHECKING:
    from rich.console import Console


def console(width: int) -> Console:
    """Return a console on standard output.

    Args:
        width: Columns where standard output is no terminal. A pipe has no width of its own, and
            the default of rich would truncate tables there.

    """
    from rich.console import Console  # slow to import; errors are printed without it

    return Console(highlight=False, width=None if sys.stdout.isatty() else width)


def report_fallback() -> None:
    """Print to standard error if the compiled kernels are not installed."""
    from fedtern.core.kernels import describe_kernels, is_fallback  # imports NumPy

    if is_fallback():
        typer.echo(
            f"kernels: {describe_kernels()}; to compile them, install a C compiler and then fedtern"
            " again",
            err=True,
        )


@contextmanager
def report_errors() -> Iterator[None]:
    """Print errors that the user can correct in one line, and exit with code 1.

    Other exceptions are bugs and keep their traceback.

    Raises:
        typer.Exit: An error was printed, or the reader of standard output has closed it.

    """
    try:
        yield
    except BrokenPipeError:
        # Python would report the closed pipe again when it flushes standard output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except (FedternError, OSError, ValueError) as error:
        typer.echo(f"fedtern: {format_error(error)}", err=True)
        raise typer.Exit(1) from None
