"""Clients in several processes: as many train at the same time as there are cores."""

from __future__ import annotations

import multiprocessing
import os
import selectors
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from fedtern.core.errors import FedternError
from fedtern.core.layout import Vector
from fedtern.federation.client_session import Job, Outcome
from fedtern.training.batched_mlp import StackTraining
from fedtern.training.local_training import LocalTraining
from fedtern.transports.local.shared_vectors import Blocks
from fedtern.transports.local.worker import (
    CHUNK,
    END,
    EVALUATE,
    ORDER,
    ORDER_LENGTH,
    TRAIN,
    Chunks,
    work,
)

_AHEAD = 2  # orders for each worker: the next one is there when it has done the first
_FOR_A_JOB = 4  # vectors: the velocity before and after, delta, moments
_HELD = 3  # vectors that a client may be remembered by; more are kept elsewhere
_SHARES = 8  # of a test for each worker, so that all end at about the same time


_Held = tuple[Outcome, Vector | None] | None  # where a job writes, and what it reads


@dataclass(frozen=True, eq=False)
class _Worker:
    process: BaseProcess
    pipe: Connection


class ParallelTraining:
    """A ``Trainer`` of forked processes, each with a copy of the model and one thread of torch.

    Data is shared with the parent, and so are weights, velocities and deltas, which stay where
    they are for as long as anybody wants them: through pipes go only numbers. The result is bit for
    bit that of ``training`` with one thread, whatever the number of workers. Clients of small
    models train together, in a single worker: what it is good for is that the parent need not wait.
    """

    def __init__(self, training: LocalTraining | StackTraining, workers: int) -> None:
        self.local = local = training.local
        self.together = training.together
        workers = 1 if self.together > 1 else workers
        size = local.model.layout.size
        self._weights = Blocks(size, 1)[0]
        self._ahead = _AHEAD * workers
        self._spares = _FOR_A_JOB * self._ahead * self.together
        self._blocks = _reserve(size, len(local.split), self._spares)
        self._given: dict[int, _Held] = {}  # by the orders' numbers: what must stay where it is
        self._number = 0
        reading, self._orders = os.pipe()
        context = multiprocessing.get_context("fork")
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        parts = (os.getpid(), self._orders, self._workers, self._selector)
        self._end = weakref.finalize(self, _end, *parts)
        try:
            for core in _cores_for(workers):
                ours, theirs = context.Pipe()
                others = [worker.pipe for worker in self._workers] + [ours]
                orders = (reading, self._orders)
                arguments = (training, self._weights, self._blocks, orders, theirs, others, core)
                process = context.Process(target=work, args=arguments, daemon=True)
                process.start()
                theirs.close()
                self._workers.append(_Worker(process, ours))
                self._selector.register(ours, selectors.EVENT_READ, self._workers[-1])
        finally:
            os.close(reading)

    def train(self, weights: Vector, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """What becomes of each job, in their order; all start from the same weights.

        They begin at once: whoever asks for the first outcome later can do something else first.
        """
        self._forget()
        self._weights[...] = weights
        waiting = iter(jobs)
        first = self._number
        self._keep_busy(waiting)
        return self._outcomes(waiting, first)

    def _outcomes(self, waiting: Iterator[Job], following: int) -> Iterator[Outcome]:
        done: dict[int, Outcome] = {}
        while done or self._given:
            while following in done:
                yield done.pop(following)
                following += 1
            heard = self._hear() if self._given else []
            done |= {number: self._spare(held[0]) for number, held, _ in heard if held is not None}
            del heard  # and with it the vectors that have been copied, for there may be few
            self._keep_busy(waiting)

    def _keep_busy(self, waiting: Iterator[Job]) -> None:
        """Give orders until there are as many as there may be, or no more jobs."""
        while len(self._given) <= (self._ahead - 1) * self.together and self._give(waiting):
            pass

    def _give(self, waiting: Iterator[Job]) -> bool:
        """Have more jobs done; False where there are none."""
        moves, take = bool(self.local.sgd.momentum), self._blocks.take
        turns = []
        for job in islice(waiting, self.together):
            before = None if job.velocity is None or not moves else self._blocks.adopt(job.velocity)
            observed = take() if self.local.observe else None
            outcome = Outcome(take(), take() if moves else None, observed)
            places = [-1 if v is None else self._blocks.number(v) for v in (before, *outcome)]
            turns.append(((outcome, before), (job.client, job.position, job.round, *places)))
        if turns:
            self._order(TRAIN, turns)
        return bool(turns)

    def _spare(self, outcome: Outcome) -> Outcome:
        """An outcome where it is, or elsewhere if its place is needed for another."""
        if self._blocks.left >= self._spares:
            return outcome
        delta, *others = outcome
        return Outcome(delta.copy(), *(None if v is None else v.copy() for v in others))

    def _forget(self) -> None:
        """Wait for what nobody has waited for."""
        while self._given:
            self._hear(careless=True)

    def evaluate(self, weights: Vector) -> tuple[float, float]:
        """Mean loss and accuracy over all test examples; who is free takes the next share."""
        self._forget()
        self._weights[...] = weights
        shares = min(-(-len(self.local.test) // CHUNK), _SHARES * len(self._workers))
        for share in range(shares):
            self._order(EVALUATE, [(None, (share, shares))])
        chunks: Chunks = []
        while self._given:
            chunks += [chunk for _, _, told in self._hear() for chunk in told]
        loss = correct = 0.0
        # In the order of the chunks, as one process would have added them.
        for _, its_loss, its_correct in sorted(chunks):
            loss, correct = loss + its_loss, correct + its_correct
        return loss / len(self.local.test), correct / len(self.local.test)

    def _order(self, kind: int, turns: Sequence[tuple[_Held, tuple[int, ...]]]) -> None:
        """Have something done together."""
        if self._orders < 0:
            raise FedternError("this federation has been closed: make another, or resume its run")
        given, data = dict(enumerate((held for held, _ in turns), self._number)), b""
        for number, (_, numbers) in zip(given, turns, strict=True):
            rest = [0] * (ORDER_LENGTH - 3 - len(numbers))
            data += ORDER.pack(kind, number, len(turns), *numbers, *rest)
        # Before it is written: whoever is interrupted in between must not give a number twice.
        self._given |= given
        self._number += len(turns)
        try:
            os.write(self._orders, data)
        except OSError:  # there is nobody left to read it
            raise self._died(self._workers[0]) from None

    def _hear(self, *, careless: bool = False) -> list[tuple[int, _Held, Chunks]]:
        """What workers have to say, once one has; if it is an error, it is raised or forgotten."""
        found: list[tuple[int, _Held, Chunks]] = []
        errors: list[Exception] = []
        for key, _ in self._selector.select():
            worker: _Worker = key.data
            try:
                first, together, answer = worker.pipe.recv()
                numbers = range(first, first + together)
                done = [(number, self._given.pop(number)) for number in numbers]
            except (EOFError, OSError):
                raise self._died(worker) from None
            except BaseException:  # interrupted: who waited for this answer would wait for ever
                self.close()
                raise
            if isinstance(answer, Exception):
                errors.append(answer)
            else:
                found += [(number, held, answer) for number, held in done]
        if errors and not careless:
            raise errors[0]
        return found

    def _died(self, worker: _Worker) -> FedternError:
        worker.process.join(1)
        code = worker.process.exitcode
        return FedternError(
            f"a worker process has died (exit code {code}): there may not be memory for"
            f" {len(self._workers)} of them; go on with --workers 0"
        )

    def close(self) -> None:
        """End the processes, which would also end when nobody holds this any more."""
        self._end()
        self._orders = -1
        self._given.clear()


def _end(
    parent: int, orders: int, workers: Sequence[_Worker], selector: selectors.BaseSelector
) -> None:
    ours = os.getpid() == parent  # or somebody has forked, and it is not for a copy to end them
    if ours:
        with suppress(OSError):  # closing is not enough: others may have a copy of the pipe
            os.write(orders, len(workers) * ORDER.pack(END, *[0] * (ORDER_LENGTH - 1)))
    os.close(orders)
    selector.close()
    for worker in workers:
        worker.pipe.close()
    for worker in workers if ours else ():
        worker.process.join(5)
        if worker.process.is_alive():
            worker.process.kill()


def _cores_for(workers: int) -> list[int | None]:
    """A core for each worker, where there is exactly one for each."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return [*cores] if len(cores) == workers else [None] * workers


def _reserve(size: int, clients: int, least: int) -> Blocks:
    """Room for what every client will remember, or for what is in work if there is none for that.

    Some systems promise no more memory than they have.
    """
    try:
        return Blocks(size, _HELD * clients + least)
    except OSError:
        return Blocks(size, least)
