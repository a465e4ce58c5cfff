"""Train clients in forked processes, as many at the same time as there are cores.

The parent writes requests to one pipe that all workers read; a free worker takes the next one. A
request has a fixed size below ``PIPE_BUF``, so that reads and writes of one are atomic. Requests
that belong together need more than one read, so there is only one worker then. Each worker replies
through its own pipe. Weights, velocities and deltas are in shared memory; pipes carry only numbers.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import selectors
import signal
import struct
import traceback
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from itertools import count, islice
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedtern.core.carried import NO_VALUES, Values
from fedtern.core.errors import FedternError
from fedtern.core.layout import Vector
from fedtern.federation.client_session import Blob, Job, Outcome, Scores
from fedtern.training.batched_mlp import BatchedMlpTraining
from fedtern.training.local_training import LocalTraining
from fedtern.training.objective import BatchScores
from fedtern.training.packing import Packing
from fedtern.transports.local.shared_vectors import SharedVectors

_TEST_CHUNK = 1000  # test examples in a forward pass
_REQUESTS_PER_WORKER = 2  # so that the next request is there when a worker has finished one
_VECTORS_PER_JOB = 4  # old velocity, delta, new velocity, moments
_VECTORS_PER_CLIENT = 3  # that stay in shared memory between rounds; others are copied
_SHARES_PER_WORKER = 8  # of the test examples, so that all workers end at about the same time


class JobBlobs(NamedTuple):
    """Views of a job's shared memory, for everything that is not a vector of the model's size.

    Attributes:
        carried: carried tensors after training.
        old_state: the client's state before training.
        state: the client's state after training.

    """

    carried: Blob
    old_state: Blob
    state: Blob


class SharedModel:
    """The model that jobs start from and the blobs of jobs, in shared memory.

    Args:
        local: the training, which determines the sizes.
        max_jobs: number of jobs that can have blobs at the same time.

    """

    def __init__(self, local: LocalTraining, max_jobs: int) -> None:
        self.weights = SharedVectors(local.model.layout.size, 1)[0]
        self.carried_packing = Packing.of(local.model.carried)
        # Evaluations also need the buffers that clients keep, as far as this process knows them.
        self.buffers_packing = Packing.of(
            {**local.model.carried, **local.model.buffer_arrays(local.model.local_buffers)}
        )
        self._buffers = _blob(SharedVectors(self.buffers_packing.nbytes // 4, 1)[0])
        self._sizes = (self.carried_packing.nbytes, *[local.state_packing.nbytes] * 2)
        self._pool = SharedVectors(sum(self._sizes) // 4, max_jobs) if any(self._sizes) else None

    def store(self, weights: Vector, buffers: Values) -> None:
        """Set the model that the next jobs start from."""
        self.weights[...] = weights
        views = self.buffers_packing.views(self._buffers)
        for name, array in buffers.items():
            views[name][...] = array

    def carried(self) -> dict[str, NDArray[Any]]:
        """Return views of the carried tensors that jobs start from."""
        views = self.buffers_packing.views(self._buffers)
        return {spec.name: views[spec.name] for spec in self.carried_packing.arrays}

    def buffers(self) -> dict[str, NDArray[Any]]:
        """Return views of the buffers of an evaluation."""
        return self.buffers_packing.views(self._buffers)

    def take(self) -> tuple[Vector | None, int]:
        """Return unused memory for a job's blobs and its index; None and -1 if none is needed."""
        if self._pool is None:
            return None, -1
        memory = self._pool.take()
        return memory, self._pool.index(memory)

    def blobs(self, index: int) -> JobBlobs | None:
        """Return the blobs at an index; None for -1."""
        if self._pool is None or index < 0:
            return None
        ends = np.cumsum(self._sizes)[:-1]
        return JobBlobs(*np.split(_blob(self._pool[index]), ends))


def _blob(vector: Vector) -> Blob:
    return vector.view(np.uint8)


# Requests and replies.


class Kind(IntEnum):
    """What a request asks for."""

    TRAIN = 0
    EVALUATE = 1
    STOP = 2


# kind, number, count, and nine arguments:
#   TRAIN: client, position, round, the indices of the shared vectors: old velocity, delta, new
#     velocity, moments (-1 for none), the index of the job's blobs (-1 for none), and whether the
#     client has a state;
#   EVALUATE: a share of the test examples, the number of shares.
_ARGUMENTS = 9
_REQUEST = struct.Struct(f"<{3 + _ARGUMENTS}q")


class ChunkResult(NamedTuple):
    """The evaluation of one chunk of test examples."""

    number: int
    scores: BatchScores


class _Reply(NamedTuple):
    """A worker's reply to requests that belong together; ``number`` is that of the first."""

    number: int
    num_requests: int
    result: list[ChunkResult] | Exception


def _pack(kind: Kind, number: int, count: int, arguments: Sequence[int]) -> bytes:
    padding = [0] * (_ARGUMENTS - len(arguments))
    return _REQUEST.pack(kind, number, count, *arguments, *padding)


# The worker's side.


class _RequestPipe(NamedTuple):
    read: int
    write: int


def work(
    training: LocalTraining | BatchedMlpTraining,
    model: SharedModel,
    vectors: SharedVectors,
    requests: _RequestPipe,
    replies: Connection,
    inherited: list[Connection],
    core: int | None,
) -> None:
    """Serve requests until one says stop or the parent has ended.

    Args:
        training: trains the jobs.
        model: the model to start from, in shared memory.
        vectors: the shared vectors of jobs.
        requests: descriptors of the pipe of requests.
        replies: the connection for replies.
        inherited: connections of the parent, to be closed in this process.
        core: the core to run on; None for any.

    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent decides
    # An open copy of the writing end would keep the pipe alive after the parent has ended.
    os.close(requests.write)
    for connection in inherited:
        connection.close()
    torch.set_num_threads(1)
    if core is not None:
        # The parent interrupts workers; without this, they would move to cores with cold caches.
        os.sched_setaffinity(0, {core})
    local = training.local
    local.model.share_memory(model.weights)
    while request := os.read(requests.read, _REQUEST.size):
        kind, number, count, *arguments = _REQUEST.unpack(request)
        if kind == Kind.STOP:
            return
        result: list[ChunkResult] | Exception = []
        try:
            if kind == Kind.TRAIN:
                more = _REQUEST.iter_unpack(_read(requests.read, (count - 1) * _REQUEST.size))
                jobs = [_job(model, vectors, *each) for each in (arguments, *(m[3:] for m in more))]
                wanted, outcomes = zip(*jobs, strict=True)
                training.train_into(wanted, outcomes, model.carried())
            else:
                local.model.load_buffers(model.buffers())
                result = evaluate_share(local, *arguments[:2])
        except Exception as error:
            result = _picklable(error, traceback.format_exc())
        try:
            replies.send(_Reply(number, count, result))
        except OSError:
            return  # the parent has ended


def _read(descriptor: int, size: int) -> bytes:
    """Read a number of bytes, in as many reads as it takes."""
    data = b""
    while len(data) < size and (part := os.read(descriptor, size - len(data))):
        data += part
    return data


def _job(
    model: SharedModel,
    vectors: SharedVectors,
    client: int,
    position: int,
    round: int,
    *indices: int,
) -> tuple[Job, Outcome]:
    """Return the job of a request, and the arrays for its outcome."""
    old_velocity, delta, velocity, moments, blobs_index, has_state = indices
    blobs = model.blobs(blobs_index)
    old_state = blobs.old_state if blobs is not None and has_state else None
    return (
        Job(client, position, round, _vector(vectors, old_velocity), old_state),
        Outcome(
            vectors[delta],
            _vector(vectors, velocity),
            _vector(vectors, moments),
            None if blobs is None else model.carried_packing.views(blobs.carried),
            blobs.state if blobs is not None and blobs.state.size else None,
        ),
    )


def _vector(vectors: SharedVectors, index: int) -> Vector | None:
    return None if index < 0 else vectors[index]


def evaluate_share(local: LocalTraining, share: int, shares: int) -> list[ChunkResult]:
    """Evaluate one of several shares of the test examples."""
    return [
        ChunkResult(number, local.model.evaluate_batch(*batch, number=number))
        for number, batch in zip(
            count(share, shares),
            local.test_examples.chunks(_TEST_CHUNK, share, shares),
            strict=False,
        )
    ]


def _picklable(error: Exception, trace: str) -> Exception:
    """Return the error, or one with its text if it cannot be pickled, with the trace as a note."""
    try:
        copy: Exception = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = FedternError(f"{type(error).__name__}: {error}")
    # A pickled error has no traceback, which is where a user finds the line of a model or loss.
    copy.add_note(
        f"Traceback in the worker process (workers=0 trains in this process, for a debugger):\n"
        f"{trace}"
    )
    return copy


# The parent's side.


@dataclass(frozen=True, eq=False)
class _Worker:
    process: BaseProcess
    replies: Connection


@dataclass(frozen=True, eq=False)
class _Buffers:
    """The shared vectors of a job; referenced here until a worker has replied."""

    outcome: Outcome
    old_velocity: Vector | None
    memory: Vector | None  # of the job's blobs


class _Finished(NamedTuple):
    """A request that a worker has finished."""

    number: int
    buffers: _Buffers | None
    chunks: list[ChunkResult]


class ParallelTraining:
    """A ``Trainer`` with forked processes, each with a copy of the model and one torch thread.

    The result is bit for bit that of ``training`` with one thread, for any number of workers. A
    trainer that trains clients together gets a single worker; its advantage is that the parent
    can do other work meanwhile.

    Args:
        training: trains the jobs in each worker.
        workers: number of processes.

    """

    def __init__(self, training: LocalTraining | BatchedMlpTraining, workers: int) -> None:
        self.local = training.local
        self.together = training.together
        if self.together > 1:
            workers = 1
        size = self.local.model.layout.size
        self._max_requests = _REQUESTS_PER_WORKER * workers
        self._model = SharedModel(self.local, self._max_requests * self.together)
        self._reserved = _VECTORS_PER_JOB * self._max_requests * self.together
        self._vectors = _shared_vectors(size, len(self.local.split), self._reserved)
        self._pending: dict[int, _Buffers | None] = {}  # by number of the request
        self._next_number = 0
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        pipe = _RequestPipe(*os.pipe())
        self._requests = pipe.write
        self._stop = weakref.finalize(
            self, _stop, os.getpid(), pipe.write, self._workers, self._selector
        )
        try:
            for core in _cores_for(workers):
                self._start_worker(training, pipe, core)
        finally:
            os.close(pipe.read)

    def _start_worker(
        self, training: LocalTraining | BatchedMlpTraining, requests: _RequestPipe, core: int | None
    ) -> None:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        inherited = [*(worker.replies for worker in self._workers), ours]
        process = context.Process(
            target=work,
            args=(training, self._model, self._vectors, requests, theirs, inherited, core),
            daemon=True,
        )
        process.start()
        theirs.close()
        worker = _Worker(process, ours)
        self._workers.append(worker)
        self._selector.register(ours, selectors.EVENT_READ, worker)

    def train(
        self, weights: Vector, jobs: Iterable[Job], carried: Values = NO_VALUES
    ) -> Iterator[Outcome]:
        """Return the outcomes of jobs, in order; all start from the same model.

        Workers start before this returns, so the caller can do other work before it asks for the
        first outcome.
        """
        self._drain()
        self._model.store(weights, carried)
        remaining = iter(jobs)
        first = self._next_number
        self._send_jobs(remaining)
        return self._outcomes(remaining, first)

    def _outcomes(self, remaining: Iterator[Job], number: int) -> Iterator[Outcome]:
        """Yield outcomes in the order of their requests, from a number on."""
        done: dict[int, Outcome] = {}
        while done or self._pending:
            while number in done:
                yield done.pop(number)
                number += 1
            finished = self._receive() if self._pending else []
            done |= {
                each.number: self._released(each.buffers.outcome)
                for each in finished
                if each.buffers is not None
            }
            # The last references to vectors that were copied: the next jobs may need them.
            del finished
            self._send_jobs(remaining)

    def _send_jobs(self, remaining: Iterator[Job]) -> None:
        """Send jobs until workers have enough requests or no job is left."""
        while len(self._pending) <= (self._max_requests - 1) * self.together:
            jobs = list(islice(remaining, self.together))
            if not jobs:
                return
            self._send(Kind.TRAIN, [self._request(job) for job in jobs])

    def _request(self, job: Job) -> tuple[_Buffers, tuple[int, ...]]:
        """Allocate the shared vectors of a job; return them with the request's arguments."""
        take = self._vectors.take
        momentum = bool(self.local.sgd.momentum)
        old_velocity = None
        if momentum and job.velocity is not None:
            old_velocity = self._vectors.adopt(job.velocity)
        moments = take() if self.local.example_moments else None
        memory, blobs_index = self._model.take()
        blobs = self._model.blobs(blobs_index)
        if blobs is not None and job.state is not None:
            blobs.old_state[...] = job.state
        velocity = take() if momentum else None
        outcome = Outcome(
            take(),
            velocity,
            moments,
            None if blobs is None else self._model.carried_packing.views(blobs.carried),
            None if blobs is None else blobs.state,
        )
        indices = [
            -1 if vector is None else self._vectors.index(vector)
            for vector in (old_velocity, outcome.delta, velocity, moments)
        ]
        arguments = (job.client, job.position, job.round, *indices, blobs_index)
        return _Buffers(outcome, old_velocity, memory), (*arguments, int(job.state is not None))

    def _released(self, outcome: Outcome) -> Outcome:
        """Return the outcome, copied out of shared memory if the next jobs need the vectors."""
        delta, velocity, moments, carried, state = outcome
        # Blobs are always copied: there are only as many as pending jobs.
        carried = {name: array.copy() for name, array in carried.items()} if carried else None
        state = state.copy() if state is not None and state.size else None
        if self._vectors.available >= self._reserved:
            return Outcome(delta, velocity, moments, carried, state)
        return Outcome(
            delta.copy(),
            None if velocity is None else velocity.copy(),
            None if moments is None else moments.copy(),
            carried,
            state,
        )

    def _drain(self) -> None:
        """Discard the results of pending requests, including errors."""
        while self._pending:
            self._receive(ignore_errors=True)

    def evaluate(self, weights: Vector, carried: Values = NO_VALUES) -> Scores:
        """Return mean loss and metrics over all test examples."""
        self._drain()
        self._model.store(weights, carried)
        num_examples = len(self.local.test_examples)
        shares = min(-(-num_examples // _TEST_CHUNK), _SHARES_PER_WORKER * len(self._workers))
        for share in range(shares):
            self._send(Kind.EVALUATE, [(None, (share, shares))])
        chunks: list[ChunkResult] = []
        while self._pending:
            for finished in self._receive():
                chunks += finished.chunks
        return self.local.model.objective.combine(
            [chunk.scores for chunk in sorted(chunks)], num_examples
        )

    def _send(
        self, kind: Kind, requests: Sequence[tuple[_Buffers | None, tuple[int, ...]]]
    ) -> None:
        """Send requests that one worker serves together."""
        if self._requests < 0:
            raise FedternError("This federation is closed; make a new one, or resume its run")
        first = self._next_number
        data = b"".join(
            _pack(kind, number, len(requests), arguments)
            for number, (_, arguments) in enumerate(requests, first)
        )
        # Before writing: an interrupt in between must not use a number twice.
        self._pending.update(enumerate((buffers for buffers, _ in requests), first))
        self._next_number += len(requests)
        try:
            os.write(self._requests, data)
        except OSError:  # no worker is left
            raise self._death(self._workers[0]) from None

    def _receive(self, *, ignore_errors: bool = False) -> list[_Finished]:
        """Wait for replies; return the finished requests, or raise the first error."""
        finished: list[_Finished] = []
        errors: list[Exception] = []
        for key, _ in self._selector.select():
            worker: _Worker = key.data
            try:
                reply: _Reply = worker.replies.recv()
                numbers = range(reply.number, reply.number + reply.num_requests)
                buffers = [self._pending.pop(number) for number in numbers]
            except (EOFError, OSError):
                raise self._death(worker) from None
            except BaseException:
                # Interrupted: the reply is lost, and waiting for it would never end.
                self.close()
                raise
            if isinstance(reply.result, Exception):
                errors.append(reply.result)
            else:
                finished += [
                    _Finished(number, held, reply.result)
                    for number, held in zip(numbers, buffers, strict=True)
                ]
        if errors and not ignore_errors:
            raise errors[0]
        return finished

    def _death(self, worker: _Worker) -> FedternError:
        worker.process.join(1)
        return FedternError(
            f"A worker process died (exit code {worker.process.exitcode}); the memory may be too"
            f" small for {len(self._workers)} workers: continue with --workers 0, in"
            " Python workers=0"
        )

    def close(self) -> None:
        """Stop the workers. They also stop when no reference to this object is left."""
        self._stop()
        self._requests = -1
        self._pending.clear()


def _stop(
    parent: int, requests: int, workers: Sequence[_Worker], selector: selectors.BaseSelector
) -> None:
    in_parent = os.getpid() == parent  # a forked copy of the parent must not stop the workers
    if in_parent:
        # Closing the pipe is not enough: forked processes may have a copy of it.
        with suppress(OSError):
            os.write(requests, len(workers) * _pack(Kind.STOP, 0, 0, ()))
    os.close(requests)
    selector.close()
    for worker in workers:
        worker.replies.close()
    if in_parent:
        for worker in workers:
            worker.process.join(5)
            if worker.process.is_alive():
                worker.process.kill()


def _cores_for(workers: int) -> list[int | None]:
    """Return a core for each worker if there are as many cores as workers, else None for each."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return [*cores] if len(cores) == workers else [None] * workers


def _shared_vectors(size: int, clients: int, reserved: int) -> SharedVectors:
    """Return shared vectors for all clients, or only for pending jobs if memory is limited.

    Some systems do not reserve more memory than they have.
    """
    try:
        return SharedVectors(size, _VECTORS_PER_CLIENT * clients + reserved)
    except OSError:
        return SharedVectors(size, reserved)
