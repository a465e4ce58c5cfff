"""One client's part of a round, the same on every transport: train, upload, remember.

Transports differ in how a message travels. They share this module for everything that a client's
training remembers between its rounds: the position in the data, the momentum, and the state of the
optimiser and of tensors that stay on the client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedtern.core.carried import NO_VALUES, Values
from fedtern.core.errors import DecodeError, LocalProtocolError
from fedtern.core.layout import Vector
from fedtern.core.methods import Method
from fedtern.core.protocol import Sent
from fedtern.core.snapshot import Snapshot
from fedtern.core.updates import Update
from fedtern.federation.interfaces import ClientLike

Blob = NDArray[np.uint8]
"""Bytes that only the trainer understands, such as the state of an optimiser."""


@dataclass(frozen=True, eq=False)
class Job:
    """The training of one client in one round.

    Args:
        client: the client whose data to train on.
        position: the number of batches that it has trained on before.
        round: the round to train for.
        velocity: the momentum to continue with; None for a client that has none yet.
        state: the trainer's own state of the client; None for a client that has none yet.

    """

    client: int
    position: int
    round: int = 0
    velocity: Vector | None = None
    state: Blob | None = None


class Outcome(NamedTuple):
    """The result of a job.

    Attributes:
        delta: the change of the weights.
        velocity: the momentum to continue with; None if training uses none.
        moments: squares of each example's contributions; None if the method does not need them.
        carried: values of all carried tensors after training; None if the model has none.
        state: the trainer's own state of the client; None if it needs none.

    """

    delta: Vector
    velocity: Vector | None
    moments: Vector | None
    carried: Values | None = None
    state: Blob | None = None


class Scores(NamedTuple):
    """The quality of a model.

    Attributes:
        loss: mean loss over all test examples.
        metrics: the task's metrics by name, the primary one first.

    """

    loss: float
    metrics: dict[str, float]


class Trainer(Protocol):
    """Trains clients and evaluates models.

    Attributes:
        together: the number of jobs that it works on at the same time.

    """

    together: int

    def train(
        self, weights: Vector, jobs: Iterable[Job], carried: Values = NO_VALUES
    ) -> Iterator[Outcome]:
        """Yield the outcome of each job, in order; all start from the same model.

        Args:
            weights: the weights to start from.
            jobs: the jobs.
            carried: the carried tensors to start from.

        """
        ...

    def evaluate(self, weights: Vector, carried: Values = NO_VALUES) -> Scores:
        """Return mean loss and metrics over all test examples."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


class ClientSession:
    """A client's training between its uploads: position in the data and momentum.

    Call ``job``, train, make the upload, then ``commit``. Nothing changes before ``commit``: a job
    that led to no upload is simply given out again.

    Args:
        client_id: the client's id.
        method: the federation's method.
        position: the number of batches that the client has trained on.
        velocity: the client's momentum.
        state: the trainer's own state of the client.

    """

    def __init__(
        self,
        client_id: int,
        method: Method,
        position: int = 0,
        velocity: Vector | None = None,
        state: Blob | None = None,
    ) -> None:
        self.client_id = client_id
        self.position = position
        self.velocity = velocity
        self.state = state
        self.committed_round = -1
        self._method = method

    def job(self, round: int) -> Job:
        """Return the training that the client has to do for a round."""
        return Job(self.client_id, self.position, round, self.velocity, self.state)

    def train(self, client: ClientLike, trainer: Trainer) -> Outcome:
        """Train from the client's model."""
        jobs = [self.job(client.round)]
        (outcome,) = trainer.train(client.weights.copy(), jobs, client.carried)
        return outcome

    def commit(self, outcome: Outcome, sent: Sent) -> None:
        """Remember a job whose outcome is in an upload.

        Args:
            outcome: the outcome of the last job.
            sent: the upload that was made of it.

        """
        self._commit(outcome, sent.round, sent.update)

    def _commit(self, outcome: Outcome, round: int, update: Update) -> None:
        if outcome.velocity is not None:
            self._method.mask_momentum(outcome.velocity, update)
        self.velocity = outcome.velocity
        self.state = outcome.state
        self.position += self._method.local_steps
        self.committed_round = round

    def recover(self, client: ClientLike, trainer: Trainer) -> bool:
        """Catch up with a client whose pending upload this session does not know of.

        The process was killed after the upload was stored and before ``commit`` was. Training is
        deterministic: the same job leads to the same state again.

        Returns:
            Whether there was anything to recover.

        """
        if client.pending is None or self.committed_round >= client.round:
            return False
        update = client.pending_update()
        if update is None:
            raise LocalProtocolError(f"client {client.client_id} lost its pending upload")
        self._commit(self.train(client, trainer), client.round, update)
        return True

    def snapshot(self) -> Snapshot:
        """Return the whole state, for ``restore``."""
        kept = {"velocity": self.velocity, "state": self.state}
        arrays: dict[str, Any] = {name: kept[name] for name in kept if kept[name] is not None}
        meta = {
            "client": self.client_id,
            "position": self.position,
            "round": self.committed_round,
        }
        return Snapshot(arrays, meta)

    def restore(self, snapshot: Snapshot) -> None:
        """Become the session that ``snapshot`` was taken of.

        Raises:
            DecodeError: the snapshot is not one of this client's session.

        """
        try:
            snapshot.check_meta({"client": self.client_id})
            position = int(snapshot.meta["position"])
            committed_round = int(snapshot.meta["round"])
        except (KeyError, TypeError, ValueError) as error:
            raise DecodeError(f"not a snapshot of this client's training: {error}") from error
        velocity = snapshot.arrays.get("velocity")
        state = snapshot.arrays.get("state")
        self.position = position
        self.committed_round = committed_round
        self.velocity = None if velocity is None else velocity.copy()
        self.state = None if state is None else state.copy()
