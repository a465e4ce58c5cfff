"""Who trains the clients of a simulation: this process, or several."""

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
from fedtern.training.batched_mlp import StackTraining
from fedtern.training.examples import Examples
from fedtern.training.flat import FlatModel
from fedtern.training.local_training import LocalTraining
from fedtern.transports.local.workers import ParallelTraining

_SMALL = 20_000  # parameters below which a message to another process takes longer than a step
_LARGE = 100_000  # parameters from which on a cohort's vectors take more memory than time is saved


def prepare(
    model: FlatModel,
    examples: tuple[Examples, Examples],
    split: Split,
    terms: Terms,
    environment: Environment,
    sgd: Sgd,
    seed: int,
) -> LocalTraining:
    """How clients train under a federation's terms, on whichever engine."""
    method = terms.method
    own = method.momentum == "feedback"  # training then has none of its own
    return LocalTraining(
        model,
        examples,
        split,
        replace(sgd, momentum=0.0) if own else sgd,
        batch_size=environment.batch_size,
        local_steps=method.local_steps,
        observe=method.up.feedback.observes,
        restriction=lambda i, t: Uplink(i, terms, seed).restriction(t),
        seed=seed,
    )


def choose_trainer(local: LocalTraining, workers: int | None = None) -> Trainer:
    """The fastest trainer for a model; ``workers`` is a number of processes, by default of cores.

    Where they cannot be forked, there is only this one.

    What a stack of linear layers computes is the same up to rounding only: it is chosen by the
    model alone, so that an experiment gives the same bytes whatever ``workers`` is.
    """
    if workers is not None and workers < 0:
        raise ValueError(f"workers must not be negative, got {workers}")
    training = StackTraining(local) if StackTraining.suits(local) else local
    size, together = local.model.layout.size, training.together > 1
    if not _can_fork(local) or (together and size >= _LARGE):
        return training
    if workers is None:
        workers = cores() if together or size >= _SMALL else 0
    return ParallelTraining(training, workers) if workers > 1 else training


def _can_fork(local: LocalTraining) -> bool:
    """Whether other processes can train this model, with data that they share with this one."""
    alone = multiprocessing.current_process().daemon  # one of somebody's pool has no children
    return sys.platform == "linux" and local.model.flat.device.type == "cpu" and not alone


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
