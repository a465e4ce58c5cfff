"""Clients in several processes: as many train at the same time as there are cores."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from fedtern.engines.blocks import Blocks
from fedtern.engines.worker import CHUNK, END, EVALUATE, ORDER, TRAIN, Chunks, work
from fedtern.errors import FedternError
from fedtern.layout import Vector
from fedtern.training.clients import Job, LocalTraining
from fedtern.training.flat import Outcome

_AHEAD = 2  # jobs for each worker: the next one is there when it has done the first
_HELD = 8  # vectors for each client, at the most: what it remembers, and a job's outcome
_SHARES = 8  # of a test for each worker, so that all end at about the same time


@dataclass(frozen=True, eq=False)
class _Worker:
    process: BaseProcess
    pipe: Connection


class ParallelTraining:
    """A ``Trainer`` of forked processes, each with a copy of the model and one thread of torch.

    Data is shared with the parent, and so are weights, velocities and deltas, which stay where
    they are for as long as anybody wants them: through pipes go only numbers. The result is bit for
    bit that of ``LocalTraining`` with one thread, whatever the number of workers.
    """

    def __init__(self, local: LocalTraining, workers: int) -> None:
        self.local = local
        size = local.model.layout.size
        self._weights = Blocks(size, 1)[0]
        self._ahead = _AHEAD * workers
        self._blocks = Blocks(size, _HELD * len(local.split) + 3 * self._ahead)
        self._given: dict[int, Outcome] = {}  # by the jobs' numbers: where they will come to
        self._jobs = 0
        reading, self._orders = os.pipe()
        context = multiprocessing.get_context("fork")
        self._workers: list[_Worker] = []
        for _ in range(workers):
            ours, theirs = context.Pipe()
            others = [worker.pipe for worker in self._workers] + [ours]
            orders = (reading, self._orders)
            arguments = (local, self._weights, self._blocks, orders, theirs, others)
            process = context.Process(target=work, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._workers.append(_Worker(process, ours))
        os.close(reading)

    def train(self, weights: Vector, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """What becomes of each job, in their order; all start from the same weights.

        They begin at once: whoever asks for the first outcome later can do something else first.
        """
        self._forget()
        self._weights[...] = weights
        waiting = iter(jobs)
        first = self._jobs
        for _ in range(self._ahead):
            self._give(waiting)
        return self._outcomes(waiting, first)

    def _outcomes(self, waiting: Iterator[Job], following: int) -> Iterator[Outcome]:
        done: dict[int, Outcome] = {}
        while done or self._given:
            while following in done:
                yield done.pop(following)
                following += 1
            for number, answer in self._hear() if self._given else []:
                done[number] = self._given.pop(number)
                _opened(answer)
                self._give(waiting)

    def _give(self, waiting: Iterator[Job]) -> None:
        if (job := next(waiting, None)) is None:
            return
        outcome = Outcome(
            self._blocks.take(),
            self._blocks.adopt(job.velocity) if self.local.sgd.momentum else None,
            self._blocks.take() if self.local.observe else None,
        )
        places = (0 if vector is None else self._blocks.number(vector) for vector in outcome)
        moving = job.velocity is not None
        self._order(TRAIN, self._jobs, job.client, job.position, job.round, moving, *places)
        self._given[self._jobs] = outcome
        self._jobs += 1

    def _forget(self) -> None:
        """Wait for jobs whose outcome nobody has asked for."""
        while self._given:
            for number, _ in self._hear():
                del self._given[number]

    def evaluate(self, weights: Vector) -> tuple[float, float]:
        """Mean loss and accuracy over all test examples; who is free takes the next share."""
        self._forget()
        self._weights[...] = weights
        shares = min(-(-len(self.local.test) // CHUNK), _SHARES * len(self._workers))
        for share in range(shares):
            self._order(EVALUATE, share, shares)
        answers: list[tuple[int, Chunks | Exception]] = []
        while len(answers) < shares:
            answers += self._hear()
        chunks = [(at, share, *sums) for share, told in answers for at, *sums in _opened(told)]
        loss = correct = 0.0
        # In the order of the chunks, as one process would have added them.
        for _, _, its_loss, its_correct in sorted(chunks):
            loss, correct = loss + its_loss, correct + its_correct
        return loss / len(self.local.test), correct / len(self.local.test)

    def _order(self, kind: int, *numbers: int) -> None:
        rest = [0] * (8 - len(numbers))
        try:
            os.write(self._orders, ORDER.pack(kind, *numbers, *rest))
        except OSError:  # there is nobody left to read it
            raise self._died(self._workers[0]) from None

    def _hear(self) -> list[tuple[int, Chunks | Exception]]:
        """What workers have to say, once one has."""
        by_pipe = {worker.pipe: worker for worker in self._workers}
        found = []
        for pipe in wait(list(by_pipe)):
            worker = by_pipe[pipe]  # type: ignore[index]
            try:
                found.append(worker.pipe.recv())
            except (EOFError, OSError):
                raise self._died(worker) from None
        return found

    def _died(self, worker: _Worker) -> FedternError:
        worker.process.join(1)
        code = worker.process.exitcode
        return FedternError(
            f"a worker process has died (exit code {code}): there may not be memory for"
            f" {len(self._workers)} of them; go on with --workers 0"
        )

    def close(self) -> None:
        """End the processes."""
        with suppress(OSError):  # closing is not enough: others may have a copy of the pipe
            os.write(self._orders, len(self._workers) * ORDER.pack(END, *[0] * 8))
            os.close(self._orders)
        self._orders = -1
        for worker in self._workers:
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(5)
            if worker.process.is_alive():
                worker.process.kill()


def _opened(answer: Chunks | Exception) -> Chunks:
    if isinstance(answer, Exception):
        raise answer
    return answer
