"""Local training: clients train one after the other on their own data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedtern.core.carried import NO_VALUES, Values, combine_carried
from fedtern.core.layout import Carried, Layout, Vector
from fedtern.data import Split
from fedtern.data.hyperparameters import Sgd
from fedtern.federation.client_session import Blob, Job, Outcome, Scores
from fedtern.training.batches import Batches
from fedtern.training.examples import Examples
from fedtern.training.flat import FlatModel, name_of
from fedtern.training.optimizers import OptimizerFactory, Schedule, check_factor
from fedtern.training.packing import Packing

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
        optimizer: makes an optimiser of torch, which replaces SGD; its state is kept for each
            client.
        schedule: factor of the learning rate at each iteration; see ``factors``.
        seed: seed of all randomness in training.

    Raises:
        ValueError: the state of the optimiser cannot be kept for each client.

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
        optimizer: OptimizerFactory | None = None,
        schedule: Schedule | None = None,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.train_examples, self.test_examples = examples
        self.split = split
        # An optimiser keeps its momentum, if it has any, in its own state.
        self.sgd = sgd if optimizer is None else replace(sgd, momentum=0.0)
        self.batch_size = batch_size
        self.local_steps = local_steps
        self.example_moments = example_moments
        self.restriction = restriction
        self.optimizer = None if optimizer is None else model.make_optimizer(optimizer)
        self.schedule = schedule
        self.seed = seed
        self._initial_buffers = model.buffer_arrays(model.local_buffers)
        self._buffers_packing = Packing.of(self._initial_buffers)
        optimizer_packing = Packing() if self.optimizer is None else self.optimizer.packing
        # State of each client between its rounds, without the velocity.
        self.state_packing = self._buffers_packing + optimizer_packing
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

    def factors(self, job: Job) -> Iterator[float]:
        """Yield the factor of the learning rate in each step of a job.

        All clients of a round have the same factors: the iteration is that of a client that takes
        part in every round.
        """
        first = job.round * self.local_steps
        return (check_factor(self.schedule, i) for i in range(first, first + self.local_steps))

    def train(
        self, weights: Vector, jobs: Iterable[Job], carried: Values = NO_VALUES
    ) -> Iterator[Outcome]:
        """Yield the outcome of each job, in order; all start from the same model."""
        for job in jobs:
            self.model.load(weights)
            yield self.train_one(job, carried)

    def train_one(
        self,
        job: Job,
        carried: Values = NO_VALUES,
        delta: Vector | None = None,
        velocity: Vector | None = None,
        state: Blob | None = None,
    ) -> Outcome:
        """Do one job, starting from the model's weights.

        Args:
            job: the job.
            carried: the carried tensors to start from.
            delta: array for the change of the weights; None allocates one.
            velocity: array for the new velocity; None allocates one.
            state: array for the client's new state; None allocates one.

        """
        kept = {} if job.state is None else self.state_packing.views(job.state)
        self.model.load_buffers(carried)
        self.model.load_buffers(
            {name: kept.get(name, array) for name, array in self._initial_buffers.items()}
        )
        key = (_MODEL_STREAM, job.client, job.position)
        seed = np.random.SeedSequence(self.seed, spawn_key=key)
        model_seed = int(seed.generate_state(1)[0])
        batches = (self._batch(*batch) for batch in self.batches(job))
        factors = self.factors(job)
        if self.optimizer is not None:
            self.optimizer.restore(
                {spec.name: kept[spec.name] for spec in self.optimizer.packing.arrays}
                if kept
                else {}
            )
            outcome = self.model.train_with(
                self.optimizer, batches, seed=model_seed, factors=factors, delta=delta
            )
        else:
            outcome = self.model.train(
                batches,
                self.sgd,
                job.velocity,
                seed=model_seed,
                factors=factors,
                restrict=self.restriction(job.client, job.round),
                example_moments=self.example_moments,
                out=(delta, velocity),
            )
        return outcome._replace(state=self._pack_state(state))

    def _pack_state(self, out: Blob | None) -> Blob | None:
        """Return what the client keeps after a job; None if it keeps nothing."""
        if not self.state_packing.arrays:
            return None
        arrays = self.model.buffer_arrays(self.model.local_buffers)
        if self.optimizer is not None:
            arrays |= self.optimizer.state()
        return self.state_packing.pack(arrays, out)

    def train_into(
        self, jobs: Sequence[Job], outcomes: Sequence[Outcome], carried: Values = NO_VALUES
    ) -> None:
        """Do jobs, starting from the model's weights, and write into the outcomes' arrays."""
        for job, target in zip(jobs, outcomes, strict=True):
            outcome = self.train_one(job, carried, target.delta, target.velocity, target.state)
            if target.moments is not None and outcome.moments is not None:
                target.moments[...] = outcome.moments
            for name, array in (target.carried or {}).items():
                array[...] = (outcome.carried or {})[name]

    def mean_buffers(self, states: Iterable[Blob]) -> dict[str, NDArray[Any]]:
        """Return the mean of the tensors that clients keep, for an evaluation.

        Args:
            states: the states of the clients that have trained.

        """
        tensors = [
            Carried(spec.name, spec.shape, name_of(self.model.module.get_buffer(spec.name).dtype))
            for spec in self._buffers_packing.arrays
        ]
        if not tensors:
            return {}
        values = [self.state_packing.views(state) for state in states]
        if not values:
            return dict(self._initial_buffers)
        layout = Layout((), (), tuple(tensors))
        shares = [1 / len(values)] * len(values)
        return combine_carried(values, shares, 0, self._initial_buffers, layout)

    def _batch(
        self, indices: NDArray[np.int64], rng: Callable[[], np.random.Generator]
    ) -> tuple[Tensor, Tensor]:
        return self.train_examples.batch(indices, rng)

    def evaluate(self, weights: Vector, carried: Values = NO_VALUES) -> Scores:
        """Return mean loss and metrics over all test examples."""
        self.model.load(weights)
        self.model.load_buffers(carried)
        return self.model.evaluate(self.test_examples)

    def close(self) -> None:
        """Do nothing: there are no resources to release."""
