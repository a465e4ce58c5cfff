"""What clients do between two messages: train on their own data, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedtern.core.layout import Vector
from fedtern.data import Split
from fedtern.data.hyperparameters import Sgd
from fedtern.federation.client_session import Job, Outcome
from fedtern.training.batches import Batches
from fedtern.training.examples import Examples
from fedtern.training.flat import FlatModel


def anywhere(client: int, round: int) -> Callable[[Vector], None] | None:
    """No restriction."""
    return None


class LocalTraining:
    """The clients' data, the model and how it is trained: everything but the weights.

    It is a ``Trainer`` that takes one client at a time, for any model. With ``observe``, it looks
    at each example by itself; ``restriction`` tells what a client's steps in a round go through.
    """

    together = 1

    @property
    def local(self) -> LocalTraining:
        """Itself: whoever trains has one, or is one."""
        return self

    def __init__(
        self,
        model: FlatModel,
        examples: tuple[Examples, Examples],
        split: Split,
        sgd: Sgd,
        *,
        batch_size: int,
        local_steps: int = 1,
        observe: bool = False,
        restriction: Callable[[int, int], Callable[[Vector], None] | None] = anywhere,
        seed: int = 0,
    ) -> None:
        self.model, self.sgd = model, sgd
        self.examples, self.test = examples
        self.split, self.seed = split, seed
        self.batch_size, self.local_steps = batch_size, local_steps
        self.observe, self.restriction = observe, restriction
        self._batches: dict[int, Batches] = {}

    def batches(
        self, job: Job
    ) -> Iterator[tuple[NDArray[np.int64], Callable[[], np.random.Generator]]]:
        """Which examples a client trains on in each step, with what augments them."""
        if job.client not in self._batches:
            indices = self.split.clients[job.client]
            self._batches[job.client] = Batches(indices, self.batch_size, self.seed, job.client)
        return self._batches[job.client].take(job.position, self.local_steps)

    def train(self, weights: Vector, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """What becomes of each job, in their order; all start from the same weights."""
        for job in jobs:
            self.model.load(weights)
            yield self.turn(job)

    def turn(
        self, job: Job, delta: Vector | None = None, velocity: Vector | None = None
    ) -> Outcome:
        """One job, from the weights that the model has; what comes of it may be given a place."""
        seed = np.random.SeedSequence(self.seed, spawn_key=(2, job.client, job.position))
        return self.model.train(
            (self._batch(*batch) for batch in self.batches(job)),
            self.sgd,
            job.velocity,
            seed=int(seed.generate_state(1)[0]),
            restrict=self.restriction(job.client, job.round),
            observe=self.observe,
            out=(delta, velocity),
        )

    def fill(self, jobs: Sequence[Job], places: Sequence[Outcome]) -> None:
        """Train from the weights that the model has, and write what becomes of each job."""
        for job, place in zip(jobs, places, strict=True):
            outcome = self.turn(job, place.delta, place.velocity)
            if place.moments is not None and outcome.moments is not None:
                place.moments[...] = outcome.moments

    def _batch(
        self, indices: NDArray[np.int64], rng: Callable[[], np.random.Generator]
    ) -> tuple[Tensor, Tensor]:
        return self.examples.batch(indices, rng)

    def evaluate(self, weights: Vector) -> tuple[float, float]:
        """Mean loss and accuracy over all test examples."""
        self.model.load(weights)
        return self.model.evaluate(self.test)

    def close(self) -> None:
        """Nothing to let go of."""
