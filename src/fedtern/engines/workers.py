"""Clients in several processes: as many train at the same time as there are cores."""

from __future__ import annotations

import mmap
import multiprocessing
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import numpy as np

from fedtern.engines.worker import Chunks, Slot, work
from fedtern.errors import FedternError
from fedtern.layout import Vector
from fedtern.training.clients import Job, LocalTraining, Outcome

_AHEAD = 2  # jobs that a worker has: the next one is there when it has done the first


@dataclass(frozen=True, eq=False)
class _Worker:
    process: BaseProcess
    pipe: Connection
    slots: list[Slot]
    queue: deque[tuple[int, int]]  # numbers of the jobs it has, and their slots


class ParallelTraining:
    """A ``Trainer`` of forked processes, each with a copy of the model and one thread of torch.

    Data is shared with the parent, and so are weights, velocities and deltas: through a pipe go
    only numbers. The result is bit for bit that of ``LocalTraining`` with one thread, whatever the
    number of workers.
    """

    def __init__(self, local: LocalTraining, workers: int) -> None:
        self.local = local
        size = local.model.layout.size
        self._weights = _shared(size)
        context = multiprocessing.get_context("fork")
        self._workers: list[_Worker] = []
        for _ in range(workers):
            slots = [
                Slot(
                    _shared(size),
                    _shared(size if local.sgd.momentum else 0),
                    _shared(size if local.observe else 0),
                )
                for _ in range(_AHEAD)
            ]
            ours, theirs = context.Pipe()
            others = [worker.pipe for worker in self._workers] + [ours]
            arguments = (local, self._weights, slots, theirs, others)
            process = context.Process(target=work, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._workers.append(_Worker(process, ours, slots, deque()))

    def train(self, weights: Vector, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """What becomes of each job, in their order; all start from the same weights.

        They begin at once: whoever asks for the first outcome later can do something else first.
        """
        self._forget()
        self._weights[...] = weights
        waiting = enumerate(jobs)
        for slot in range(_AHEAD):
            for worker in self._workers:
                self._assign(worker, slot, waiting)
        return self._outcomes(waiting)

    def _outcomes(self, waiting: Iterator[tuple[int, Job]]) -> Iterator[Outcome]:
        done: dict[int, Outcome] = {}
        following = 0
        while done or any(worker.queue for worker in self._workers):
            while following in done:
                yield done.pop(following)
                following += 1
            busy = {worker.pipe: worker for worker in self._workers if worker.queue}
            for pipe in wait(list(busy)) if busy else []:
                worker = busy[pipe]  # type: ignore[index]
                number, slot = worker.queue.popleft()
                self._receive(worker)
                done[number] = self._outcome(worker.slots[slot])
                self._assign(worker, slot, waiting)

    def _assign(self, worker: _Worker, slot: int, waiting: Iterator[tuple[int, Job]]) -> None:
        if (found := next(waiting, None)) is None:
            return
        number, job = found
        if job.velocity is not None:
            worker.slots[slot].velocity[...] = job.velocity
        moving = job.velocity is not None
        self._send(worker, ("train", slot, job.client, job.position, job.round, moving))
        worker.queue.append((number, slot))

    def _outcome(self, slot: Slot) -> Outcome:
        return Outcome(
            slot.delta.copy(),
            slot.velocity.copy() if self.local.sgd.momentum else None,
            slot.moments.copy() if self.local.observe else None,
        )

    def _forget(self) -> None:
        """Wait for jobs whose outcome nobody has asked for."""
        for worker in self._workers:
            while worker.queue:
                worker.queue.popleft()
                with suppress(Exception):  # which nobody has asked for either
                    self._receive(worker)

    def evaluate(self, weights: Vector) -> tuple[float, float]:
        """Mean loss and accuracy over all test examples, of which each worker takes a share."""
        self._forget()
        self._weights[...] = weights
        for number, worker in enumerate(self._workers):
            self._send(worker, ("evaluate", number, len(self._workers)))
        answers = [self._answer(worker) for worker in self._workers]
        parts = [self._opened(answer) for answer in answers]
        # In the order of the chunks, as one process would have added them.
        found = sorted(
            (at, number, sums) for number, part in enumerate(parts) for at, *sums in part
        )
        loss = correct = 0.0
        for _, _, (its_loss, its_correct) in found:
            loss, correct = loss + its_loss, correct + its_correct
        return loss / len(self.local.test), correct / len(self.local.test)

    def _send(self, worker: _Worker, message: object) -> None:
        try:
            worker.pipe.send(message)
        except OSError:
            raise self._died(worker) from None

    def _receive(self, worker: _Worker) -> Chunks:
        return self._opened(self._answer(worker))

    def _answer(self, worker: _Worker) -> Chunks | Exception:
        try:
            found: Chunks | Exception = worker.pipe.recv()
        except (EOFError, OSError):
            raise self._died(worker) from None
        return found

    def _opened(self, answer: Chunks | Exception) -> Chunks:
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _died(self, worker: _Worker) -> FedternError:
        worker.process.join(1)
        code = worker.process.exitcode
        return FedternError(
            f"a worker process has died (exit code {code}): there may not be memory for"
            f" {len(self._workers)} of them; go on with --workers 0"
        )

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            with suppress(OSError):
                worker.pipe.send(("end",))  # closing is not enough: others may have a copy of it
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(5)
            if worker.process.is_alive():
                worker.process.kill()


def _shared(size: int) -> Vector:
    """Zeros that forked processes see each other write to."""
    return np.frombuffer(mmap.mmap(-1, max(4 * size, 1)), np.float32, size)
