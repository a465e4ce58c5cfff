"""What a process does that trains clients for another one."""

from __future__ import annotations

import os
import pickle
import signal
import struct
from multiprocessing.connection import Connection

import torch

from fedtern.engines.blocks import Blocks
from fedtern.errors import FedternError
from fedtern.layout import Vector
from fedtern.training.clients import Job, LocalTraining

Chunks = list[tuple[int, float, float]]  # numbers of test chunks, their losses, how many are right
CHUNK = 1000  # test examples at a time
TRAIN, EVALUATE, END = range(3)
ORDER_LENGTH = 9  # what, its number, and what it takes
ORDER = struct.Struct(f"<{ORDER_LENGTH}q")


def work(
    local: LocalTraining,
    weights: Vector,
    blocks: Blocks,
    orders: tuple[int, int],
    pipe: Connection,
    others: list[Connection],
    core: int | None,
) -> None:
    """Follow orders until there are no more; ``others`` are closed first.

    All workers read from one pipe, whoever is free takes the next order. An order is shorter than
    what the kernel reads and writes at once, so that nobody gets half of one.
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
    local.model.share(weights)
    while order := os.read(reading, ORDER.size):
        kind, number, *rest = ORDER.unpack(order)
        if kind == END:
            return
        answer: Chunks | Exception = []
        try:
            if kind == TRAIN:
                _train(local, blocks, *rest)
            else:
                answer = _evaluate(local, *rest[:2])
        except Exception as error:
            answer = _portable(error)
        try:
            pipe.send((number, answer))
        except OSError:
            return  # nobody is there to hear it


def _train(
    local: LocalTraining,
    blocks: Blocks,
    client: int,
    position: int,
    round: int,
    *places: int,
) -> None:
    before, *into = (None if place < 0 else blocks[place] for place in places)
    delta, velocity, moments = into
    outcome = local.turn(Job(client, position, round, before), delta, velocity)
    if moments is not None and outcome.moments is not None:
        moments[...] = outcome.moments


def _evaluate(local: LocalTraining, number: int, of: int) -> Chunks:
    return [
        (at, *local.model.test(*batch))
        for at, batch in enumerate(local.test.chunks(CHUNK, number, of))
    ]


def _portable(error: Exception) -> Exception:
    """The error itself, or what it says where it cannot be sent."""
    try:
        same: Exception = pickle.loads(pickle.dumps(error))
    except Exception:
        return FedternError(f"{type(error).__name__}: {error}")
    return same
