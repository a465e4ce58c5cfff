"""What every command that trains does around it: Ctrl-C, checkpoints, the line that was typed."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import typer

_CHECKPOINTS = "FEDTERN_CHECKPOINT_SECONDS"  # the environment variable


def command_line() -> str:
    """The command as it was typed."""
    return shlex.join(["fedtern", *sys.argv[1:]])


def checkpoint_seconds() -> float:
    """The time between two checkpoints of a run."""
    given = os.environ.get(_CHECKPOINTS, "30")
    with suppress(ValueError):
        if (seconds := float(given)) >= 0:
            return seconds
    raise ValueError(f"{_CHECKPOINTS} must be a number of seconds of at least 0, got {given!r}")


@contextmanager
def interruptible() -> Iterator[list[int]]:
    """Let a first Ctrl-C end the round, not the program; a second one does."""
    caught: list[int] = []

    def catch(number: int, _frame: object) -> None:
        caught.append(number)
        if len(caught) > 1:
            raise KeyboardInterrupt
        typer.echo("ending this round; Ctrl-C again stops at once", err=True)

    before = signal.signal(signal.SIGINT, catch)
    try:
        yield caught
    finally:
        signal.signal(signal.SIGINT, before)
