"""``simulate``: anybody's model and data in a federation, in one call."""

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
from fedtern.training.flat import FlatModel
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
    """Train a federation, and say where it stands at every evaluation.

    ``model`` is a module, with the ``Dataset`` to train it on as ``data``; or the name of a task,
    with the directory that its dataset is in. What is sent is sparse ternary compression unless
    ``method`` says otherwise, who takes part with which data the paper's base configuration unless
    ``environment`` does. ``iterations`` are those of a client that always takes part; the model is
    tested every ``evaluate_every`` of them, by default fifty times. Residuals and momentum past
    ``memory_bytes`` are kept on disk. Clients train in so many ``workers`` at the same time, by
    default as many as there are cores where that is faster, each with one thread of torch. A module
    that is handed in stays as it is: what it became are the ``weights`` of what is returned.

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
    total = int(_given(iterations, task.iterations))
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
            _given(learning_rate, task.learning_rate),
            _given(momentum, task.momentum),
            _given(weight_decay, task.weight_decay),
        ),
        seed=seed,
        device=device,
        memory_bytes=memory_bytes,
        workers=workers,
    )
    return Simulation(federation, total, evaluate_every or max(total // 50, 1))


class Simulation(Iterator[Evaluation]):
    """A federation that trains for as long as somebody asks where it stands."""

    def __init__(self, federation: Federation, iterations: int, evaluate_every: int) -> None:
        self._federation = federation
        self._rounds = _played(federation, iterations, evaluate_every)

    def __next__(self) -> Evaluation:
        """Train until the next evaluation."""
        return next(self._rounds)

    @property
    def weights(self) -> dict[str, Vector]:
        """Copies of the model's parameters as they are now, by name."""
        server = self._federation.server
        return server.terms.layout.unflatten(server.weights.copy())

    def close(self) -> None:
        """End the processes that train, if nobody is to ask again."""
        self._rounds.close()
        self._federation.close()  # which rounds that nobody has asked for have not begun to guard


def _played(
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
    """A federation at its first round; ``split`` saves dealing once more what has been dealt."""
    return make(
        FlatModel(task.build(seed), device),
        task.examples(dataset, device),
        environment.split_dataset(dataset, seed) if split is None else split,
        method,
        environment,
        sgd,
        seed=seed,
        memory_bytes=memory_bytes,
        spill_directory=spill_directory,
        workers=workers,
    )


def _check_kinds(method: object, environment: object) -> None:
    """Refuse what only looks like a method or an environment."""
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
        raise ValueError(f"task {name!r} has a dataset of its own: pass its directory, or a module")
    if not isinstance(data, str | PathLike | None):
        raise ValueError(
            f"data of task {name!r} must be the directory of its dataset, got {data!r}: pass what"
            " else there is by its name, like method=..."
        )
    for argument, given in (("augment", augment), ("transform", transform)):
        if given is not None:
            raise ValueError(
                f"{argument} is for a module and its Dataset, task {name!r} says itself what is"
                f" done to its examples: leave out {given!r}"
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
        raise ValueError("a model of your own needs a Dataset as data: Dataset(name, inputs, ...)")
    if iterations is None or learning_rate is None:
        raise ValueError("a model of your own needs iterations and learning_rate")
    task = Task(
        "own", data, lambda: model, learning_rate, iterations, augment=augment, transform=transform
    )
    return task, data


def _given(value: float | None, default: float) -> float:
    return default if value is None else value
