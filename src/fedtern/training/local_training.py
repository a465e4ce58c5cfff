"""Local training: clients train one after the other on their own data."""

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

_MODEL_STREAM = 2  # of random numbers; Batches uses 0 and 1


def unrestricted(_client: int, _round: int) -> Callable[[Vector], None] | None:
    """Return None: no restriction of SGD steps."""
    return None


class LocalTraining:
    """A ``Trainer`` for any model, which trains one client at a time.

    Args:
        model: the model to train.
        examples: training and test examples.
        split: the training examples of each client.
        sgd: hyperparameters.
        batch_size: number of examples in a step.
        local_steps: number of steps in a round.
        example_moments: whether to compute the second moments of the examples' gradients.
        restriction: returns a function that changes the direction of each step of a client in a
            round, or None.
        seed: seed of all randomness in training.

    """

    together = 1

    def __init__(
        self,
        model: FlatModel,
        examples: tuple[Examples, Examples],
        split: Split,
        sgd: Sgd,
        *,
        batch_size: int,
        local_steps: int = 1,
        example_moments: bool = False,
        restriction: Callable[[int, int], Callable[[Vector], None] | None] = unrestricted,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.train_examples, self.test_examples = examples
        self.split = split
        self.sgd = sgd
        self.batch_size = batch_size
        self.local_steps = local_steps
        self.example_moments = example_moments
        self.restriction = restriction
        self.seed = seed
        self._batches: dict[int, Batches] = {}

    @property
    def local(self) -> LocalTraining:
        """This object; trainers that wrap a ``LocalTraining`` have the same attribute."""
        return self

    def batches(
        self, job: Job
    ) -> Iterator[tuple[NDArray[np.int64], Callable[[], np.random.Generator]]]:
        """Yield the examples of each step of a job, and a function that makes a generator.

        The generator is for the augmentation of these examples.
        """
        if job.client not in self._batches:
            indices = self.split.clients[job.client]
            self._batches[job.client] = Batches(indices, self.batch_size, self.seed, job.client)
        return self._batches[job.client].take(job.position, self.local_steps)

    def train(self, weights: Vector, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Yield the outcome of each job, in order; all start from the same weights."""
        for job in jobs:
            self.model.load(weights)
            yield self.train_one(job)

    def train_one(
        self, job: Job, delta: Vector | None = None, velocity: Vector | None = None
    ) -> Outcome:
        """Do one job, starting from the model's weights.

        Args:
            job: the job.
            delta: array for the change of the weights; None allocates one.
            velocity: array for the new velocity; None allocates one.

        """
        key = (_MODEL_STREAM, job.client, job.position)
        seed = np.random.SeedSequence(self.seed, spawn_key=key)
        return self.model.train(
            (self._batch(*batch) for batch in self.batches(job)),
            self.sgd,
            job.velocity,
            seed=int(seed.generate_state(1)[0]),
            restrict=self.restriction(job.client, job.round),
            example_moments=self.example_moments,
            out=(delta, velocity),
        )

    def train_into(self, jobs: Sequence[Job], outcomes: Sequence[Outcome]) -> None:
        """Do jobs, starting from the model's weights, and write into the outcomes' arrays."""
        for job, target in zip(jobs, outcomes, strict=True):
            outcome = self.train_one(job, target.delta, target.velocity)
            if target.moments is not None and outcome.moments is not None:
                target.moments[...] = outcome.moments

    def _batch(
        self, indices: NDArray[np.int64], rng: Callable[[], np.random.Generator]
    ) -> tuple[Tensor, Tensor]:
        return self.train_examples.batch(indices, rng)

    def evaluate(self, weights: Vector) -> tuple[float, float]:
        """Return mean loss and accuracy over all test examples."""
        self.model.load(weights)
        return self.model.evaluate(self.test_examples)

    def close(self) -> None:
        """Do nothing: there are no resources to release."""
