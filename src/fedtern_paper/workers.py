"""A worker process that runs one experiment after another, and its messages.

The parent sends experiments, and None to request a stop. The worker answers each experiment with
any number of iterations (its progress) and one `CellResult`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from fedtern.core.errors import LockedError, format_error
from fedtern.runs import Experiment, open_run
from fedtern.transports.local import Federation, train_run

_PROGRESS_SECONDS = 0.2  # between two progress messages
_RETRY_SECONDS = 2.0  # until a cell that another process runs may be tried again
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class WorkerSettings:
    """Settings that all cells of a grid share."""

    out: Path
    data_dir: Path | None = None
    checkpoint_seconds: float = 30.0
    command: str = ""


class Outcome(Enum):
    """How a worker's attempt at a cell ended."""

    FINISHED = "finished"
    STOPPED = "stopped"  # on request, with a checkpoint, or before it began
    LOCKED = "locked"  # not begun: another process runs it
    FAILED = "failed"


@dataclass(frozen=True)
class CellResult:
    """A worker's last message about a cell; ``error`` says why it failed or is locked."""

    outcome: Outcome
    error: str = ""


class Worker:
    """Handle of a worker process; ``cell`` is the experiment it runs, None while it is idle."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.cell: Experiment | None = None
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(theirs, settings), daemon=True)
        with _single_thread_without_sigint():
            self._process.start()
        theirs.close()  # so that this side reads an end of file when the process ends

    def run(self, cell: Experiment) -> None:
        """Give an idle worker a cell."""
        self.cell = cell
        with suppress(OSError):  # the process has died: receive() will say so
            self.pipe.send(cell)

    def request_stop(self) -> None:
        """Ask the process to save its cell and exit."""
        with suppress(OSError):
            self.pipe.send(None)

    def receive(self) -> int | CellResult | None:
        """Return the iteration that the cell has reached, or its result; None if the process died.

        Blocks until there is a message.
        """
        try:
            message: int | CellResult = self.pipe.recv()
        except (EOFError, OSError):
            return None
        return message

    def exit_reason(self) -> str:
        """Return a sentence about why the process died."""
        self._process.join()
        code = self._process.exitcode or 0
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return (
            f"its process ended with {how}; if memory ran out, use fewer workers. The same command"
            " resumes from the last checkpoint"
        )

    def close(self) -> None:
        """Let an idle process exit, terminate a busy one, and wait for its end."""
        if self.cell is None:
            self.request_stop()
        else:
            self._process.terminate()
        self._process.join()
        self._process.close()
        self.pipe.close()


def work(pipe: Connection, settings: WorkerSettings) -> None:
    """Run the cells that arrive on a pipe until a stop is requested; a worker's main function."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the parent
    torch.set_num_threads(1)
    while (cell := pipe.recv()) is not None:
        try:
            result = CellResult(_run(cell, pipe, settings))
        except LockedError as error:
            pipe.poll(_RETRY_SECONDS)  # returns early if a stop is requested
            result = CellResult(Outcome.LOCKED, format_error(error))
        except Exception as error:
            result = CellResult(Outcome.FAILED, format_error(error))
        pipe.send(result)


def _run(cell: Experiment, pipe: Connection, settings: WorkerSettings) -> Outcome:
    """Run a cell until it finishes or a stop is requested."""
    # While a worker has a cell, its parent sends nothing but a request to stop.
    stop_requested = pipe.poll
    if stop_requested():
        return Outcome.STOPPED  # before it begins: nothing is written
    reported = 0.0

    def progress(federation: Federation) -> None:
        nonlocal reported
        if time.monotonic() - reported > _PROGRESS_SECONDS:
            reported = time.monotonic()
            pipe.send(federation.iteration)

    run = open_run(cell, settings.out, command=settings.command)
    for _ in train_run(
        run,
        settings.data_dir,
        workers=0,  # this process is one of several already
        checkpoint_seconds=settings.checkpoint_seconds,
        stopped=stop_requested,
        progress=progress,
    ):
        pass
    return Outcome.FINISHED if run.is_finished() else Outcome.STOPPED


def _exit_with_parent() -> None:
    """Exit at once when the parent process ends; the last checkpoint is what remains."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _single_thread_without_sigint() -> Iterator[None]:
    """Make processes that start in this context use one thread and block SIGINT."""
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    set_mask = getattr(signal, "pthread_sigmask", None)
    if set_mask:
        resource_tracker.ensure_running()  # or the first process to start would undo the mask
    mask = set_mask(signal.SIG_BLOCK, {signal.SIGINT}) if set_mask else None
    try:
        yield
    finally:
        if set_mask:
            set_mask(signal.SIG_SETMASK, mask)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
