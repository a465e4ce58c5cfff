"""Simulate a federation with one call."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from os import PathLike
from pathlib import Path

import torch
from torch import nn

from fedtern.core.layout import Vector
from fedtern.core.methods import METHODS, Method, stc
from fedtern.data import Dataset, Split
from fedtern.data.environment import Environment
from fedtern.data.hyperparameters import Sgd
from fedtern.runs import Evaluation
from fedtern.training.augment import Augment, Transform
from fedtern.training.tasks import Task, get_task
from fedtern.transports.local.federation import Federation, evaluations


def simulate(
    model: nn.Module | str,
    data: Dataset | str | Path | None = None,
    method: Method | None = None,
    *,
    environment: Environment | None = None,
    iterations: int | None = None,
    learning_rate: float | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    augment: Augment | None = None,
    transform: Transform | None = None,
    evaluate_every: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    memory_bytes: int | None = None,
    workers: int | None = None,
) -> Simulation:
    """Simulate a federation; iterate over the result to train it.

    Args:
        model: a module, which stays unchanged, or the name of a task.
        data: the ``Dataset`` of a module, or the data directory of a task.
        method: the compression method; by default ``stc()``.
        environment: clients and their data; by default the paper's base configuration.
        iterations: local iterations of a client that participates in every round; by default the
            task's. Required for a module.
        learning_rate: learning rate of SGD; by default the task's. Required for a module.
        momentum: momentum of SGD; by default the task's, or 0 for a module.
        weight_decay: weight decay of SGD; by default the task's, or 0 for a module.
        augment: random change to training batches; only for a module.
        transform: change to all batches; only for a module.
        evaluate_every: iterations between two evaluations; by default there are 50 evaluations.
        seed: seed of all randomness.
        device: torch device to train on.
        memory_bytes: memory for the clients' residuals and momentum; beyond it, they are on disk.
        workers: number of processes that train clients; by default the number of cores, if that
            is faster than one process.

    Returns:
        An iterator over evaluations. Its ``weights`` are those of the trained model.

    Raises:
        ValueError: an argument is invalid.

    >>> simulation = simulate("logistic-digits", iterations=40, evaluate_every=20)
    >>> rounds = list(simulation)
    >>> [r.iteration for r in rounds], rounds[-1].loss < rounds[0].loss
    ([20, 40], True)
    >>> {name: weight.shape for name, weight in simulation.weights.items()}
    {'1.weight': (10, 64), '1.bias': (10,)}

    """
    _check_kinds(method, environment)
    if isinstance(model, str):
        task, dataset = _named_task(model, data, augment, transform)
    else:
        task, dataset = _own_task(model, data, iterations, learning_rate, augment, transform)
    total = int(_or_default(iterations, task.iterations))
    if total < 1 or (evaluate_every is not None and evaluate_every < 1):
        raise ValueError(
            f"iterations and evaluate_every must be at least 1, got {total} and {evaluate_every}"
        )
    federation = federate(
        task,
        dataset,
        method or stc(),
        environment or Environment(),
        Sgd(
            _or_default(learning_rate, task.learning_rate),
            _or_default(momentum, task.momentum),
            _or_default(weight_decay, task.weight_decay),
        ),
        seed=seed,
        device=device,
        memory_bytes=memory_bytes,
        workers=workers,
    )
    return Simulation(federation, total, evaluate_every or max(total // 50, 1))


class Simulation(Iterator[Evaluation]):
    """Iterator over the evaluations of a federation, which trains between them."""

    def __init__(self, federation: Federation, iterations: int, evaluate_every: int) -> None:
        self._federation = federation
        self._evaluations = _train(federation, iterations, evaluate_every)

    def __next__(self) -> Evaluation:
        """Train until the next evaluation and return it."""
        return next(self._evaluations)

    @property
    def weights(self) -> dict[str, Vector]:
        """Copies of the model's current parameters by name."""
        server = self._federation.server
        return server.terms.layout.unflatten(server.weights.copy())

    def close(self) -> None:
        """Stop training and its worker processes."""
        self._evaluations.close()
        # A generator that was never started does not run its ``with`` block.
        self._federation.close()


def _train(
    federation: Federation, iterations: int, evaluate_every: int
) -> Generator[Evaluation, None, None]:
    with closing(federation):
        yield from evaluations(federation, iterations, evaluate_every)


def federate(
    task: Task,
    dataset: Dataset,
    method: Method,
    environment: Environment,
    sgd: Sgd,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    split: Split | None = None,
    memory_bytes: int | None = None,
    spill_directory: Path | None = None,
    workers: int | None = None,
    make: Callable[..., Federation] = Federation,
) -> Federation:
    """Make the federation of a task, before its first round.

    Args:
        task: gives the model and its examples.
        dataset: the dataset.
        method: the compression method.
        environment: clients and their data.
        sgd: hyperparameters.
        seed: seed of all randomness.
        device: torch device to train on.
        split: the split of the dataset, if it was made already.
        memory_bytes: memory for the clients' residuals and momentum; beyond it, they are on disk.
        spill_directory: directory of the file on disk.
        workers: number of processes that train clients; None chooses it.
        make: the class of the federation.

    """
    return make(
        task.flat_model(seed, device),
        task.examples(dataset, device),
        environment.split_dataset(dataset, seed) if split is None else split,
        method,
        environment,
        sgd,
        seed=seed,
        memory_bytes=memory_bytes,
        spill_directory=spill_directory,
        workers=workers,
        optimizer=task.optimizer,
        schedule=task.schedule,
    )


def _check_kinds(method: object, environment: object) -> None:
    """Raise if an argument has the wrong type; names of methods are a common mistake."""
    if not isinstance(method, Method | None):
        known = isinstance(method, str) and method in METHODS
        example = f"METHODS[{method!r}]()" if known else "stc()"
        raise ValueError(f"method must be a method such as fedtern.{example}, got {method!r}")
    if not isinstance(environment, Environment | None):
        raise ValueError(f"environment must be a fedtern.Environment, got {environment!r}")


def _named_task(
    name: str,
    data: Dataset | str | Path | None,
    augment: Augment | None,
    transform: Transform | None,
) -> tuple[Task, Dataset]:
    task = get_task(name)
    if isinstance(data, Dataset):
        raise ValueError(
            f"task {name!r} has its own dataset; pass the data directory, or a module and a Dataset"
        )
    if not isinstance(data, str | PathLike | None):
        raise ValueError(
            f"data of task {name!r} must be a data directory, got {data!r}; pass other arguments by"
            " name, for example method=..."
        )
    for argument, value in (("augment", augment), ("transform", transform)):
        if value is not None:
            raise ValueError(
                f"{argument} must not be set for task {name!r}, which has its own; leave it out, or"
                " pass a module and a Dataset"
            )
    return task, task.load(data)


def _own_task(
    model: nn.Module,
    data: Dataset | str | Path | None,
    iterations: int | None,
    learning_rate: float | None,
    augment: Augment | None,
    transform: Transform | None,
) -> tuple[Task, Dataset]:
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a module or the name of a task, got {model!r}")
    if not isinstance(data, Dataset):
        raise ValueError("a module needs a Dataset as data, for example Dataset(name, inputs, ...)")
    if iterations is None or learning_rate is None:
        raise ValueError("a module needs iterations and learning_rate")
    task = Task(
        "own", data, lambda: model, learning_rate, iterations, augment=augment, transform=transform
    )
    return task, data


def _or_default(value: float | None, default: float) -> float:
    return default if value is None else value
