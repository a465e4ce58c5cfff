"""A process that runs one experiment after another, and how it is talked to."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from fedtern.core.errors import HeldError, format_error
from fedtern.runs import Experiment, open_run
from fedtern.transports.local.federation import Federation

_NEWS_SECONDS = 0.2  # between two words about a cell's progress
_HELD_SECONDS = 2.0  # until it is tried again what another process runs
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Orders:
    """What holds for every cell of a grid."""

    out: Path
    data_dir: Path | None = None
    checkpoint_seconds: float = 30.0
    command: str = ""


@dataclass(frozen=True)
class Ended:
    """The last word about a cell; ``error`` says why it failed, if it did.

    One that is ``held`` was not begun: another process runs it.
    """

    error: str | None = None
    held: bool = False


class Worker:
    """A process of its own, seen from outside; ``cell`` is what it runs."""

    def __init__(self, orders: Orders) -> None:
        self.cell: Experiment | None = None
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(theirs, orders), daemon=True)
        with _alone():
            self._process.start()
        theirs.close()  # so that its end is seen here when the process ends

    def give(self, cell: Experiment) -> None:
        """Run this next."""
        self.cell = cell
        with suppress(OSError):  # it has died: the pipe says so to who listens
            self.pipe.send(cell)

    def stop(self) -> None:
        """Save, and leave."""
        with suppress(OSError):
            self.pipe.send(None)

    def hear(self) -> int | Ended | None:
        """How far the cell is, or that it has ended; None if the process has."""
        try:
            said: int | Ended = self.pipe.recv()
        except (EOFError, OSError):
            return None
        return said

    def exit_reason(self) -> str:
        """Why a process is no more that did not say so itself."""
        self._process.join()
        code = self._process.exitcode or 0
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return (
            f"its process ended with {how}; if memory ran out, use fewer workers: the same command"
            " goes on from the last checkpoint"
        )

    def leave(self) -> None:
        """Wait for an idle process to end, and end one that is not idle."""
        if self.cell is None:
            self.stop()
        else:
            self._process.terminate()
        self._process.join()
        self._process.close()
        self.pipe.close()


def work(pipe: Connection, orders: Orders) -> None:
    """Run cells until there are no more; what a worker's process does."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the parent
    torch.set_num_threads(1)
    while (cell := pipe.recv()) is not None:
        try:
            _run(cell, pipe, orders)
        except HeldError as error:
            pipe.poll(_HELD_SECONDS)  # or until there is something else to do
            pipe.send(Ended(format_error(error), held=True))
        except Exception as error:
            pipe.send(Ended(format_error(error)))
        else:
            pipe.send(Ended())


def _run(cell: Experiment, pipe: Connection, orders: Orders) -> None:
    said = 0.0

    def progress(federation: Federation) -> None:
        nonlocal said
        if time.monotonic() - said > _NEWS_SECONDS:
            said = time.monotonic()
            pipe.send(federation.iteration)

    rounds = open_run(cell, orders.out, command=orders.command).go(
        orders.data_dir,
        workers=0,  # this process is one of several already
        checkpoint_seconds=orders.checkpoint_seconds,
        stopped=pipe.poll,  # while a cell is run, all there is to hear is that it should end
        progress=progress,
    )
    if not pipe.poll():
        for _ in rounds:
            pass


def _end_with_parent() -> None:
    """Leave a run to who starts the grid again, as a kill would: at once."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _alone() -> Iterator[None]:
    """What starts in here has one thread, and no ears for the Ctrl-C that its parent hears."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    mask = getattr(signal, "pthread_sigmask", None)
    if mask:
        resource_tracker.ensure_running()  # or the first process to start would undo the mask
    ears = mask(signal.SIG_BLOCK, {signal.SIGINT}) if mask else None
    try:
        yield
    finally:
        if mask:
            mask(signal.SIG_SETMASK, ears)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
