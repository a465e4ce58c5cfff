"""Choose how the clients of a simulation are trained: in this process or in several."""

from __future__ import annotations

import multiprocessing
import os
import sys
from dataclasses import replace

from fedtern.core.protocol import Terms, Uplink
from fedtern.data import Split
from fedtern.data.environment import Environment
from fedtern.data.hyperparameters import Sgd
from fedtern.federation.client_session import Trainer
from fedtern.training.batched_mlp import BatchedMlpTraining
from fedtern.training.examples import Examples
from fedtern.training.flat import FlatModel
from fedtern.training.local_training import LocalTraining
from fedtern.training.optimizers import OptimizerFactory, Schedule
from fedtern.transports.local.workers import ParallelTraining

# Below this number of parameters, a message to another process takes longer than a step.
_SMALL = 20_000
# From this number of parameters on, batched training in a worker needs too much shared memory.
_LARGE = 100_000


def make_local_training(
    model: FlatModel,
    examples: tuple[Examples, Examples],
    split: Split,
    terms: Terms,
    environment: Environment,
    sgd: Sgd,
    seed: int,
    *,
    optimizer: OptimizerFactory | None = None,
    schedule: Schedule | None = None,
) -> LocalTraining:
    """Return the training of single clients in a federation, for any transport.

    Args:
        model: the model.
        examples: training and test examples.
        split: the training examples of each client.
        terms: the federation's method and layout.
        environment: gives the batch size.
        sgd: hyperparameters. The momentum is ignored if the method's feedback rule has its own.
        seed: seed of the experiment.
        optimizer: makes an optimiser of torch, which replaces SGD.
        schedule: factor of the learning rate at each iteration.

    Raises:
        ValueError: the method needs SGD, or the optimiser's state cannot be kept for each client.

    """
    method = terms.method
    if optimizer is not None and (
        method.up.feedback.uses_moments or terms.subspace_compressor is not None
    ):
        raise ValueError(
            f"method {method.name!r} changes the steps of SGD and does not work with another"
            " optimiser; leave optimizer out, or choose another method"
        )
    momentum_in_feedback = method.momentum == "feedback"
    return LocalTraining(
        model,
        examples,
        split,
        replace(sgd, momentum=0.0) if momentum_in_feedback else sgd,
        batch_size=environment.batch_size,
        local_steps=method.local_steps,
        example_moments=method.up.feedback.uses_moments,
        restriction=lambda client, round: Uplink(client, terms, seed).restriction(round),
        optimizer=optimizer,
        schedule=schedule,
        seed=seed,
    )


def require_shared_buffers(model: FlatModel, engine: str) -> None:
    """Raise if clients keep buffers of their own, which the server of an engine cannot evaluate.

    Raises:
        ValueError: the model's buffers stay on the clients.

    """
    if model.local_buffers:
        raise ValueError(
            f'engine {engine!r} does not support carry="local": its server has no values of'
            f" {model.local_buffers[0]!r} to evaluate the model with; use the local engine, or"
            ' carry="average"'
        )


def require_no_local_buffers(model: FlatModel) -> None:
    """Raise if the evaluated model would contain buffers of clients without noise.

    Raises:
        ValueError: the model's buffers stay on the clients.

    """
    if model.local_buffers:
        raise ValueError(
            "differential privacy does not support buffers on the clients such as"
            f" {model.local_buffers[0]!r}: the saved model contains their mean without noise; use a"
            " model without them, for example with GroupNorm in the place of BatchNorm"
        )


def choose_trainer(local: LocalTraining, workers: int | None = None) -> Trainer:
    """Return the fastest trainer for a model.

    ``BatchedMlpTraining`` and ``LocalTraining`` round differently. The choice between them depends
    only on the model, so that an experiment gives the same bytes for any number of workers.

    Args:
        local: the training of single clients.
        workers: number of processes; None chooses the number of cores where that is faster. It is
            ignored where processes cannot be forked.

    Raises:
        ValueError: ``workers`` is negative.

    """
    if workers is not None and workers < 0:
        raise ValueError(f"workers must not be negative, got {workers}")
    training = BatchedMlpTraining(local) if BatchedMlpTraining.supports(local) else local
    batched = training.together > 1
    size = local.model.layout.size
    if not _can_fork(local) or (batched and size >= _LARGE):
        return training
    if workers is None:
        workers = available_cores() if batched or size >= _SMALL else 0
    return ParallelTraining(training, workers) if workers > 1 else training


def _can_fork(local: LocalTraining) -> bool:
    """Return whether forked processes can train this model with the data of this process."""
    daemon = multiprocessing.current_process().daemon  # daemons must not have children
    return sys.platform == "linux" and local.model.flat.device.type == "cpu" and not daemon


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
