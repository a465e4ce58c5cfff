"""Output on the terminal: tables and errors."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TextIO

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


def spinner(shown: Console, text: str) -> AbstractContextManager[Any]:
    """Return a context that shows a spinner below the output of a console.

    Lines that are printed or logged meanwhile appear above it; see ``CurrentStderrHandler``.
    Without a terminal for both standard streams, the context does nothing: rich would write
    to one of them what belongs to the other.
    """
    both = shown.is_terminal and sys.stderr.isatty()
    return shown.status(text) if both else nullcontext()


class CurrentStderrHandler(logging.StreamHandler[TextIO]):
    """Logs to ``sys.stderr`` as it is when a record is logged.

    The handler of the standard library keeps the stream of the time when it was created. Its lines
    would break a spinner, which replaces ``sys.stderr`` while it is shown.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record to the current ``sys.stderr``."""
        self.stream = sys.stderr
        super().emit(record)


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
