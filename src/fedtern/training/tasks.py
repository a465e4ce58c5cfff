"""What is learned, by which model, at which learning rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from fedtern.core.names import look_up
from fedtern.data import Dataset, load
from fedtern.data.hyperparameters import TASK_DEFAULTS, TaskDefaults
from fedtern.training.augment import Augment, CropFlip, Transform, pad
from fedtern.training.examples import Examples
from fedtern.training.models import RowLSTM, kws_cnn, logistic, mlp, vgg11s


@dataclass(frozen=True)
class Task:
    """A dataset, a model for it, and the constant hyper-parameters of SGD (Table II).

    ``dataset`` is the name of one of ``fedtern.data.DATASETS``, or a dataset itself. ``model`` is
    called with torch's generator seeded. ``iterations`` is how many a whole run has, over all
    rounds. ``augment`` changes training batches at random and ``transform`` all batches alike,
    both before they are standardised.
    """

    name: str
    dataset: str | Dataset
    model: Callable[[], nn.Module]
    learning_rate: float
    iterations: int
    momentum: float = 0.0
    weight_decay: float = 0.0
    augment: Augment | None = None
    transform: Transform | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty")
        _ = self.defaults  # raises if a hyperparameter is out of range

    @property
    def defaults(self) -> TaskDefaults:
        """Dataset name and hyperparameters, without the model."""
        return TaskDefaults(
            self.dataset if isinstance(self.dataset, str) else self.dataset.name,
            self.learning_rate,
            self.iterations,
            self.momentum,
            self.weight_decay,
        )

    def load(self, data_dir: str | Path | None = None) -> Dataset:
        """The task's dataset."""
        return load(self.dataset, data_dir) if isinstance(self.dataset, str) else self.dataset

    def build(self, seed: int) -> nn.Module:
        """A new model on the CPU, the same for the same seed; torch's generator stays as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.model()

    def examples(
        self, dataset: Dataset, device: torch.device | str = "cpu"
    ) -> tuple[Examples, Examples]:
        """What to train on and what to test on, as the task's model sees them."""
        if not dataset.test_labels.size:
            raise ValueError(
                f"dataset {dataset.name!r} has no test examples: hold some of its examples back, or"
                " nobody knows what a model has learned"
            )
        train = Examples.train(dataset, self.augment, self.transform, device)
        return train, Examples.test(dataset, self.transform, device)


def _built_in(
    name: str,
    model: Callable[[], nn.Module],
    augment: Augment | None = None,
    transform: Transform | None = None,
) -> Task:
    own = TASK_DEFAULTS[name]
    return Task(
        name,
        own.dataset,
        model,
        own.learning_rate,
        own.iterations,
        own.momentum,
        own.weight_decay,
        augment,
        transform,
    )


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        _built_in("logistic-digits", partial(logistic, 64)),
        _built_in("mlp-digits", partial(mlp, 64, 32)),
        _built_in("logistic-mnist", partial(logistic, 784)),
        _built_in("lstm-fashion", RowLSTM, transform=pad(32)),
        _built_in("cnn-kws", kws_cnn),
        _built_in("vgg11s-cifar10", vgg11s, augment=CropFlip()),
    )
}
"""The names the command line knows; the first is the default."""


def register_task(task: Task, *, replace: bool = False) -> Task:
    """Make a task known by its name, wherever a task is named, and return it."""
    if task.name in TASKS and not replace:
        raise ValueError(
            f"there is a task {task.name!r} already: choose another name or pass replace=True"
        )
    TASKS[task.name] = task
    # Experiments of this task take their defaults from here.
    TASK_DEFAULTS[task.name] = task.defaults
    return task


def get_task(name: str) -> Task:
    """Return the task of a name.

    Raises:
        ValueError: No task has this name; the message suggests similar names.

    >>> get_task("logistic-minst")
    Traceback (most recent call last):
    ...
    ValueError: Unknown task 'logistic-minst'. Did you mean 'logistic-mnist' or 'logistic-digits'?
    """
    return look_up(name, TASKS, "task")
