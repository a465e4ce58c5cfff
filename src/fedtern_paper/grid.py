"""Run a grid of experiments in parallel, each in the directory that its digest names."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Protocol

from fedtern.core.errors import format_error
from fedtern.runs import Experiment
from fedtern.training import get_task
from fedtern.transports.local import available_cores
from fedtern_paper.results import Results
from fedtern_paper.workers import CellResult, Outcome, Worker, WorkerSettings

_POLL_SECONDS = 0.2  # between two checks for a request to stop


class GridObserver(Protocol):
    """Receives the events of a grid while it runs.

    Every ``started`` is followed by exactly one of ``locked``, ``finished``, ``stopped`` and
    ``failed``.
    """

    def started(self, cell: Experiment) -> None:
        """A worker was given a cell."""

    def progressed(self, cell: Experiment, iteration: int) -> None:
        """A cell has reached an iteration."""

    def locked(self, cell: Experiment) -> None:
        """Another process runs the cell; it is tried again later."""

    def finished(self, cell: Experiment) -> None:
        """A cell has finished."""

    def stopped(self, cell: Experiment) -> None:
        """A cell was stopped; its checkpoint holds the iterations that were run, if any."""

    def failed(self, cell: Experiment, error: str) -> None:
        """A cell has failed with an error."""


class NullObserver:
    """Observer that ignores every event."""

    def started(self, cell: Experiment) -> None:
        """Ignore the event."""

    def progressed(self, cell: Experiment, iteration: int) -> None:
        """Ignore the event."""

    def locked(self, cell: Experiment) -> None:
        """Ignore the event."""

    def finished(self, cell: Experiment) -> None:
        """Ignore the event."""

    def stopped(self, cell: Experiment) -> None:
        """Ignore the event."""

    def failed(self, cell: Experiment, error: str) -> None:
        """Ignore the event."""


def run_cells(
    cells: Sequence[Experiment],
    out: Path,
    *,
    workers: int | None = None,
    data_dir: Path | None = None,
    checkpoint_seconds: float = 30.0,
    command: str = "",
    stopped: Callable[[], bool] = lambda: False,
    observer: GridObserver | None = None,
) -> dict[str, str]:
    """Run the unfinished cells of a grid.

    Finished cells are skipped and interrupted ones resume from their checkpoint. A failing cell
    does not stop the others. A cell that another process runs is retried after the other cells.

    Args:
        cells: The experiments to run. Duplicates are run once.
        out: Directory that holds one run directory per cell.
        workers: Number of worker processes, each with one thread; one per core if None.
        data_dir: Directory of the datasets.
        checkpoint_seconds: Seconds between two checkpoints of a cell.
        command: Command line to record in the run directories.
        stopped: Called repeatedly; once it returns True, running cells are saved and no other
            cell is started.
        observer: Receives the events of the grid.

    Returns:
        The error message of each cell that failed, by the cell's digest.

    Raises:
        ValueError: ``workers`` is less than 1.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    waiting, failed = _with_data(Results(out).missing(cells), data_dir)
    settings = WorkerSettings(out.resolve(), data_dir, checkpoint_seconds, command)
    pool = _Pool(settings, waiting, observer or NullObserver(), stopped)
    try:
        pool.run(min(workers or available_cores(), len(waiting)))
    finally:
        pool.close()
    return failed | pool.failed


def _with_data(
    cells: Sequence[Experiment], data_dir: Path | None
) -> tuple[deque[Experiment], dict[str, str]]:
    """Return the cells whose data can be loaded, and the errors of the others by digest.

    Missing data is downloaded here, once, because parallel downloads by workers would conflict.
    """
    errors: dict[str, str] = {}
    for cell in {cell.task: cell for cell in cells}.values():
        try:
            get_task(cell.task).load(data_dir)
        except Exception as error:
            errors[cell.task] = format_error(error)
    failed = {cell.digest: errors[cell.task] for cell in cells if cell.task in errors}
    return deque(cell for cell in cells if cell.task not in errors), failed


class _Pool:
    """Worker processes, the queue of cells, and the errors of failed cells."""

    def __init__(
        self,
        settings: WorkerSettings,
        waiting: deque[Experiment],
        observer: GridObserver,
        stop_requested: Callable[[], bool],
    ) -> None:
        self.failed: dict[str, str] = {}
        self._settings = settings
        self._waiting = waiting
        self._observer = observer
        self._stop_requested = stop_requested
        self._workers: list[Worker] = []
        self._stopping = False

    def run(self, num_workers: int) -> None:
        """Start the workers and return once no worker has a cell."""
        for _ in range(num_workers):
            self._start_worker()
        while any(worker.cell is not None for worker in self._workers):
            self._check_stop()
            by_pipe = {worker.pipe: worker for worker in self._workers}
            for pipe in wait(list(by_pipe), _POLL_SECONDS):
                self._receive(by_pipe[pipe])  # type: ignore[index]

    def close(self) -> None:
        """End all worker processes, including those that still run a cell."""
        for worker in self._workers:
            worker.close()
        self._workers.clear()

    def _check_stop(self) -> None:
        """On a request to stop, empty the queue and tell every worker to save and exit."""
        if not self._stopping and self._stop_requested():
            self._stopping = True
            self._waiting.clear()
            for worker in self._workers:
                worker.request_stop()

    def _start_worker(self) -> None:
        """Start a worker for the next cell, if there is one."""
        self._check_stop()
        if self._waiting:
            worker = Worker(self._settings)
            self._workers.append(worker)
            self._assign(worker)

    def _assign(self, worker: Worker) -> None:
        """Give an idle worker the next cell, if there is one."""
        # An observer may have requested the stop a moment ago: no cell may start after that.
        self._check_stop()
        if self._waiting:
            cell = self._waiting.popleft()
            self._observer.started(cell)
            worker.run(cell)

    def _receive(self, worker: Worker) -> None:
        """Handle one message of a worker, or its end."""
        message = worker.receive()
        cell = worker.cell
        if message is None:
            self._remove(worker)
            return
        assert cell is not None, "idle workers send nothing"
        if isinstance(message, int):
            self._observer.progressed(cell, message)
        else:
            worker.cell = None
            self._report(cell, message)
            self._assign(worker)

    def _remove(self, worker: Worker) -> None:
        """Remove a worker whose process has ended, and start another if cells are waiting."""
        cell = worker.cell
        worker.cell = None
        if cell is not None:
            self._report(cell, CellResult(Outcome.FAILED, worker.exit_reason()))
        self._workers.remove(worker)
        worker.close()
        self._start_worker()

    def _report(self, cell: Experiment, result: CellResult) -> None:
        match result.outcome:
            case Outcome.FINISHED:
                self._observer.finished(cell)
            case Outcome.STOPPED:
                self._observer.stopped(cell)
            case Outcome.LOCKED:
                if not self._stopping:
                    self._waiting.append(cell)
                self._observer.locked(cell)
            case Outcome.FAILED:
                self.failed[cell.digest] = result.error
                self._observer.failed(cell, result.error)
