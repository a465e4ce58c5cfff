"""What a process does that trains clients for another one."""

from __future__ import annotations

import pickle
import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from fedtern.errors import FedternError
from fedtern.layout import Vector
from fedtern.training.clients import Job, LocalTraining

Chunks = list[tuple[int, float, float]]  # numbers of test chunks, their losses, how many are right
_CHUNK = 1000  # test examples at a time


@dataclass(frozen=True, eq=False)
class Slot:
    """Memory that one worker shares with the parent: what goes in and comes out of a job."""

    delta: Vector
    velocity: Vector
    moments: Vector


def work(
    local: LocalTraining,
    weights: Vector,
    slots: list[Slot],
    pipe: Connection,
    others: list[Connection],
) -> None:
    """Answer what comes through the pipe until it is closed; ``others`` are closed first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    for other in others:  # or this process would keep them open after the parent has gone
        other.close()
    torch.set_num_threads(1)
    while True:
        try:
            kind, *rest = pipe.recv()
        except (EOFError, OSError):
            return
        if kind == "end":
            return
        try:
            if kind == "train":
                slot, *rest = rest
                _train(local, weights, slots[slot], *rest)
                pipe.send([])
            else:
                pipe.send(_evaluate(local, weights, *rest))
        except Exception as error:
            pipe.send(_portable(error))


def _train(
    local: LocalTraining,
    weights: Vector,
    slot: Slot,
    client: int,
    position: int,
    round: int,
    moving: bool,
) -> None:
    velocity = slot.velocity if moving else None
    outcome = local.turn(weights, Job(client, position, round), velocity, slot.delta)
    if outcome.velocity is not None and not moving:
        slot.velocity[...] = outcome.velocity  # else it is there already
    if outcome.moments is not None:
        slot.moments[...] = outcome.moments


def _evaluate(local: LocalTraining, weights: Vector, number: int, of: int) -> Chunks:
    local.model.load(weights)
    return [
        (at, *local.model.test(*batch))
        for at, batch in enumerate(local.test.chunks(_CHUNK, number, of))
    ]


def _portable(error: Exception) -> Exception:
    """The error itself, or what it says where it cannot be sent."""
    try:
        same: Exception = pickle.loads(pickle.dumps(error))
    except Exception:
        return FedternError(f"{type(error).__name__}: {error}")
    return same
