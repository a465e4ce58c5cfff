"""Many runs, side by side, each in the directory that its digest names."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Protocol

from fedtern.core.errors import format_error
from fedtern.runs import Experiment
from fedtern.transports.local.trainers import cores
from fedtern_paper.results import Results
from fedtern_paper.workers import Ended, Orders, Worker

_PATIENCE = 0.2  # seconds until a wish to stop is heard


class Watch(Protocol):
    """Somebody who wants to know how far a grid is."""

    def started(self, cell: Experiment) -> None:
        """A worker has been given a cell."""

    def moved(self, cell: Experiment, iteration: int) -> None:
        """A cell has come so far."""

    def held(self, cell: Experiment) -> None:
        """Another process runs a cell: it will be looked at again."""

    def ended(self, cell: Experiment, error: str | None) -> None:
        """A cell is finished, was stopped, or failed with an error in a sentence."""


class NullObserver:
    """A watch that looks away."""

    def started(self, cell: Experiment) -> None:
        """Look away."""

    def moved(self, cell: Experiment, iteration: int) -> None:
        """Look away."""

    def held(self, cell: Experiment) -> None:
        """Look away."""

    def ended(self, cell: Experiment, error: str | None) -> None:
        """Look away."""


def run_cells(
    cells: Sequence[Experiment],
    out: Path,
    *,
    workers: int | None = None,
    data_dir: Path | None = None,
    checkpoint_seconds: float = 30.0,
    command: str = "",
    stopped: Callable[[], bool] = lambda: False,
    watch: Watch | None = None,
) -> dict[str, str]:
    """Run what is missing of a grid; the errors of cells that failed, by their digests.

    Finished runs are not repeated, started ones go on. Each of the ``workers`` processes (one for
    each core, if None) has one thread and one cell at a time. When ``stopped`` says so, cells are
    saved where they are. A cell that fails does not stop the others; one that another process runs
    is waited for when the rest is done.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    seen = watch or NullObserver()
    waiting, failed = _with_data(Results(out).missing(cells), data_dir)
    crew = _Pool(Orders(out.resolve(), data_dir, checkpoint_seconds, command), waiting, seen)
    try:
        crew.hire(min(workers or cores(), len(waiting)))
        while crew.busy:
            crew.listen(stopped())
    finally:
        crew.dismiss()
    return failed | crew.failed


def _with_data(
    cells: Sequence[Experiment], data_dir: Path | None
) -> tuple[deque[Experiment], dict[str, str]]:
    """The cells whose data is there, and the errors of the others.

    What has to be downloaded is, here and once, before workers get in each other's way.
    """
    errors: dict[str, str] = {}
    for cell in {cell.task: cell for cell in cells}.values():
        try:
            cell.make_task().load(data_dir)
        except Exception as error:
            errors[cell.task] = format_error(error)
    failed = {cell.digest: errors[cell.task] for cell in cells if cell.task in errors}
    return deque(cell for cell in cells if cell.task not in errors), failed


class _Pool:
    """Workers, the cells that wait for one, and what went wrong."""

    def __init__(self, orders: Orders, waiting: deque[Experiment], watch: Watch) -> None:
        self.orders, self.waiting, self.watch = orders, waiting, watch
        self.failed: dict[str, str] = {}
        self._workers: list[Worker] = []
        self._stopping = False

    @property
    def busy(self) -> bool:
        """Whether anybody has anything to do."""
        return any(worker.cell is not None for worker in self._workers)

    def hire(self, number: int) -> None:
        """Start so many workers and give each a cell."""
        for _ in range(number):
            worker = Worker(self.orders)
            self._workers.append(worker)
            self._give(worker)

    def listen(self, stop: bool) -> None:
        """Hear what workers say, for a moment; tell them to stop if they should."""
        if stop and not self._stopping:
            self._stopping = True
            self.waiting.clear()
            for worker in self._workers:
                worker.stop()
        by_pipe = {worker.pipe: worker for worker in self._workers}
        for pipe in wait(list(by_pipe), _PATIENCE):
            self._hear(by_pipe[pipe])  # type: ignore[index]

    def dismiss(self) -> None:
        """Let everybody go: those that are idle leave by themselves, the others at once."""
        for worker in self._workers:
            worker.leave()
        self._workers.clear()

    def _hear(self, worker: Worker) -> None:
        said = worker.hear()
        if worker.cell is None:
            if said is None:
                self._workers.remove(worker)
                worker.leave()
        elif isinstance(said, int):
            self.watch.moved(worker.cell, said)
        else:
            self._settle(worker, worker.cell, said)

    def _settle(self, worker: Worker, cell: Experiment, said: Ended | None) -> None:
        """A cell is over, because its worker says so or is no more."""
        worker.cell = None
        if said and said.held:
            self.watch.held(cell)
            self.waiting += () if self._stopping else (cell,)
        else:
            error = said.error if said else worker.exit_reason()
            if error is not None:
                self.failed[cell.digest] = error
            self.watch.ended(cell, error)
        if said:
            self._give(worker)
            return
        self._workers.remove(worker)
        worker.leave()
        if self.waiting:
            self.hire(1)

    def _give(self, worker: Worker) -> None:
        if self.waiting:
            cell = self.waiting.popleft()
            self.watch.started(cell)
            worker.give(cell)
