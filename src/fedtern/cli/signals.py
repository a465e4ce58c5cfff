"""Ctrl-C and SIGTERM in commands that run for long."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import typer


@contextmanager
def interruptible() -> Iterator[list[int]]:
    """Handle Ctrl-C: the first one is recorded, the second one raises KeyboardInterrupt.

    Yields:
        The signals received so far. A command that trains stops after the round in which the list
        is no longer empty.

    """
    received: list[int] = []

    def handle(number: int, _frame: object) -> None:
        received.append(number)
        if len(received) > 1:
            raise KeyboardInterrupt
        typer.echo("stopping after this round; press Ctrl-C again to stop at once", err=True)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield received
    finally:
        signal.signal(signal.SIGINT, before)


def run_until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end; Ctrl-C and SIGTERM cancel it.

    Raises:
        typer.Exit: A signal cancelled it; the exit code is 130.

    """

    async def cancellable() -> None:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        await task

    try:
        asyncio.run(cancellable())
    except asyncio.CancelledError:
        typer.echo("stopped", err=True)
        raise typer.Exit(130) from None
