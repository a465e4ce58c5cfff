"""What a process does that trains clients for another one."""

from __future__ import annotations

import os
import pickle
import signal
import struct
from multiprocessing.connection import Connection

import torch

from fedtern.core.errors import FedternError
from fedtern.core.layout import Vector
from fedtern.federation.client_session import Job, Outcome
from fedtern.training.batched_mlp import StackTraining
from fedtern.training.local_training import LocalTraining
from fedtern.transports.local.shared_vectors import Blocks

Chunks = list[tuple[int, float, float]]  # numbers of test chunks, their losses, how many are right
CHUNK = 1000  # test examples at a time
TRAIN, EVALUATE, END = range(3)
ORDER_LENGTH = 10  # what, its number, how many are done together from this one on, what it takes
ORDER = struct.Struct(f"<{ORDER_LENGTH}q")


def work(
    training: LocalTraining | StackTraining,
    weights: Vector,
    blocks: Blocks,
    orders: tuple[int, int],
    pipe: Connection,
    others: list[Connection],
    core: int | None,
) -> None:
    """Follow orders until there are no more; ``others`` are closed first.

    All workers read from one pipe, whoever is free takes the next order. An order is shorter than
    what the kernel reads and writes at once, so that nobody gets half of one. Several that are
    done together are only ever given to a single worker.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    reading, writing = orders
    os.close(writing)  # or this process would keep it open after the parent has gone
    for other in others:
        other.close()
    torch.set_num_threads(1)
    if core is not None:
        # Or the parent's short turns would move workers about, and their caches would not follow.
        os.sched_setaffinity(0, {core})
    local = training.local
    local.model.share(weights)
    while order := os.read(reading, ORDER.size):
        kind, number, together, *rest = ORDER.unpack(order)
        if kind == END:
            return
        answer: Chunks | Exception = []
        try:
            if kind == TRAIN:
                more = ORDER.iter_unpack(_read(reading, (together - 1) * ORDER.size))
                turns = [_turn(blocks, *numbers) for numbers in (rest, *(o[3:] for o in more))]
                training.fill(*zip(*turns, strict=True))
            else:
                answer = _evaluate(local, *rest[:2])
        except Exception as error:
            answer = _portable(error)
        try:
            pipe.send((number, together, answer))
        except OSError:
            return  # nobody is there to hear it


def _read(reading: int, count: int) -> bytes:
    """So many bytes, however many of them there are at a time."""
    data = b""
    while len(data) < count and (part := os.read(reading, count - len(data))):
        data += part
    return data


def _turn(
    blocks: Blocks, client: int, position: int, round: int, before: int, delta: int, *others: int
) -> tuple[Job, Outcome]:
    """A job, and where to write what becomes of it."""
    old, velocity, moments = (None if at < 0 else blocks[at] for at in (before, *others))
    return Job(client, position, round, old), Outcome(blocks[delta], velocity, moments)


def _evaluate(local: LocalTraining, number: int, of: int) -> Chunks:
    """What one of several shares of a test comes to, each chunk with its number among all."""
    return [
        (number + at * of, *local.model.test(*batch))
        for at, batch in enumerate(local.test.chunks(CHUNK, number, of))
    ]


def _portable(error: Exception) -> Exception:
    """The error itself, or what it says where it cannot be sent."""
    try:
        same: Exception = pickle.loads(pickle.dumps(error))
    except Exception:
        return FedternError(f"{type(error).__name__}: {error}")
    return same
