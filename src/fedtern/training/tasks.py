"""Tasks: a dataset, a model, a loss and metrics, and how clients train."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import mse_loss

from fedtern.core.dtypes import Overflow
from fedtern.core.names import look_up
from fedtern.core.template import Carry
from fedtern.data import Dataset, load
from fedtern.data.hyperparameters import TASK_DEFAULTS, Sgd, TaskDefaults
from fedtern.data.tables import TARGET_SCALE, TEST_VARIANCE
from fedtern.training.augment import Augment, CropFlip, Transform, pad
from fedtern.training.examples import Examples
from fedtern.training.flat import FlatModel
from fedtern.training.language_model import Transformer
from fedtern.training.models import RowLSTM, kws_cnn, logistic, mlp, vgg11s
from fedtern.training.objective import ACCURACY, Loss, Metric, Metrics, Objective
from fedtern.training.optimizers import OptimizerFactory, Schedule
from fedtern.training.plugins import add_imports, load_plugins
from fedtern.training.pretraining import adapted_transformer
from fedtern.training.resnet import resnet8
from fedtern.training.schedules import InverseDecay

_FUNCTIONS = {
    "optimizer": "lambda params: torch.optim.Adam(params, 1e-3)",
    "schedule": "torch_schedule(lambda optimizer: StepLR(optimizer, 100)) or lambda iteration: 1.0",
}


@dataclass(frozen=True)
class Task:
    """A dataset, a model for it, and constant hyperparameters of SGD (Table II).

    Args:
        name: name of the task.
        dataset: a dataset, or the name of a built-in one.
        model: makes a new model; called with torch's generator seeded.
        learning_rate: learning rate of SGD.
        iterations: local iterations of a whole run, over all rounds.
        momentum: momentum of SGD.
        weight_decay: weight decay of SGD.
        augment: random change to training batches, before they are standardised.
        transform: change to all batches, before they are standardised.
        loss: from a batch's outputs and targets to the batch's mean loss; by default cross-entropy.
        metrics: metrics of an evaluation, the primary one first: a list of ``Metric``, or functions
            by name, where higher values are better. By default accuracy; with another loss, the
            loss itself is the primary metric.
        optimizer: makes an optimiser of torch for a list of parameters, instead of SGD with the
            hyperparameters above. Each client keeps its own state of the optimiser.
        schedule: factor of the learning rate at each iteration, counted from 0.
        carry: how the server combines buffers, such as the statistics of batch normalisation:
            "average", "latest", or "local" to keep them on each client.
        trainable: patterns of the names of the parameters to train; others stay as they are.
        overflow: what to do with a weight that is too large for the dtype of its parameter:
            "refuse" or "saturate".

    Raises:
        ValueError: a hyperparameter is out of range, or a metric is invalid.

    >>> from fedtern.training import Metric
    >>> from torch.nn.functional import l1_loss, mse_loss
    >>> line = Dataset("line", [[0.0], [1.0]], [[1.0], [3.0]], [[2.0]], [[5.0]], num_classes=None)
    >>> task = Task("line", line, partial(nn.Linear, 1, 1), 0.1, 100, loss=mse_loss,
    ...             metrics=[Metric("mae", l1_loss, best="lower")])
    >>> task.objective.primary
    MetricSpec(name='mae', best='lower')
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
    loss: Loss | None = None
    metrics: Metrics | None = None
    optimizer: OptimizerFactory | None = None
    schedule: Schedule | None = None
    carry: Carry = "average"
    trainable: Sequence[str] = ("*",)
    overflow: Overflow = "refuse"

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty")
        _ = self.defaults  # raises if a hyperparameter is out of range
        _ = self.objective  # raises if a metric is invalid
        for field, example in _FUNCTIONS.items():
            value = getattr(self, field)
            if value is not None and not callable(value):
                # The text of an optimiser has many lines.
                given = type(value).__name__ if hasattr(value, "state_dict") else repr(value)
                raise ValueError(f"{field} must be a function, got {given}; write {example}")

    @property
    def objective(self) -> Objective:
        """Loss and metrics."""
        return Objective.of(self.loss, self.metrics)

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

    def check_sgd(self, sgd: Sgd) -> Sgd:
        """Return hyperparameters of SGD, unless the task has an optimiser that ignores them.

        Raises:
            ValueError: they are not the task's own, and the task has an optimiser.

        """
        own = Sgd(self.learning_rate, self.momentum, self.weight_decay)
        if self.optimizer is not None and sgd != own:
            raise ValueError(
                f"task {self.name!r} has its own optimiser, so that learning_rate, momentum and"
                " weight_decay have no effect; leave them out"
            )
        return sgd

    def load(self, data_dir: str | Path | None = None) -> Dataset:
        """Return the dataset; ``data_dir`` is the data directory of a built-in one."""
        return load(self.dataset, data_dir) if isinstance(self.dataset, str) else self.dataset

    def build(self, seed: int) -> nn.Module:
        """Return a new model on the CPU that depends only on the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.model()

    def flat_model(self, seed: int, device: torch.device | str = "cpu") -> FlatModel:
        """Return a new model, ready to be trained and evaluated.

        Raises:
            ValueError: the model is not supported.

        """
        return FlatModel(
            self.build(seed),
            device,
            objective=self.objective,
            carry=self.carry,
            trainable=self.trainable,
            overflow=self.overflow,
        )

    def examples(
        self, dataset: Dataset, device: torch.device | str = "cpu"
    ) -> tuple[Examples, Examples]:
        """Return training and test examples with the task's augmentation and transform.

        Raises:
            ValueError: the dataset has no test examples.

        """
        if not len(dataset.test_labels):
            raise ValueError(
                f"dataset {dataset.name!r} has no test examples; reserve some examples for testing"
            )
        train = Examples.train(dataset, self.augment, self.transform, device)
        return train, Examples.test(dataset, self.transform, device)


def _built_in(name: str, model: Callable[[], nn.Module], **options: Any) -> Task:
    """Return a task with the defaults of its name.

    Args:
        name: a key of ``TASK_DEFAULTS``.
        model: makes a new model.
        options: further arguments of ``Task``.

    """
    return Task(name, model=model, **asdict(TASK_DEFAULTS[name]), **options)


PERPLEXITY = Metric("perplexity", functional.cross_entropy, best="lower", transform=math.exp)
"""Exponential of the mean cross-entropy of a byte."""

RMSE = Metric("rmse", mse_loss, best="lower", transform=lambda mse: TARGET_SCALE * math.sqrt(mse))
"""Root of the mean squared error, in units of the progression of diabetes."""

R2 = Metric("r2", mse_loss, transform=lambda mse: 1 - mse / TEST_VARIANCE)
"""Coefficient of determination."""

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        _built_in("logistic-digits", partial(logistic, 64)),
        _built_in("mlp-digits", partial(mlp, 64, 32)),
        _built_in("logistic-mnist", partial(logistic, 784)),
        _built_in("mlp-fashion", partial(mlp, 784, 200, num_layers=2)),
        _built_in("lstm-fashion", RowLSTM, transform=pad(32)),
        _built_in("cnn-kws", kws_cnn),
        _built_in("vgg11s-cifar10", vgg11s, augment=CropFlip()),
        _built_in("resnet8-cifar10", resnet8, augment=CropFlip(), schedule=InverseDecay(1_000)),
        _built_in("transformer-text", Transformer, metrics=(PERPLEXITY, ACCURACY)),
        _built_in("lora-text", adapted_transformer, metrics=(PERPLEXITY, ACCURACY)),
        _built_in("mlp-regression", partial(mlp, 10, 32, 1), loss=mse_loss, metrics=(RMSE, R2)),
    )
}
"""Tasks by name; the command line uses the first one by default."""


_BUILT_IN = tuple(TASKS.values())


def is_built_in(task: Task) -> bool:
    """Return whether a task belongs to this package, so that its name identifies it."""
    return any(task is known for known in _BUILT_IN)


def register_task(task: Task, *, replace: bool = False) -> Task:
    """Add a task to ``TASKS``, so that functions and commands accept its name.

    Args:
        task: the task.
        replace: whether to replace a task of the same name.

    Returns:
        The task.

    Raises:
        ValueError: a task of this name exists, and ``replace`` is False.

    """
    if task.name in TASKS and not replace:
        raise ValueError(
            f"task {task.name!r} already exists; choose another name or pass replace=True"
        )
    TASKS[task.name] = task
    # Experiments of this task take their defaults from here.
    TASK_DEFAULTS[task.name] = task.defaults
    return task


def get_task(name: str) -> Task:
    """Return a task by its name; tasks of installed packages are imported if they are needed.

    Raises:
        ValueError: no task has this name; the message suggests similar names.

    >>> get_task("logistic-minst")
    Traceback (most recent call last):
    ...
    ValueError: Unknown task 'logistic-minst'. Did you mean 'logistic-mnist' or 'logistic-digits'?
    """
    if name not in TASKS:
        load_tasks()
    return look_up(name, TASKS, "task")


def load_tasks(imports: Sequence[str] | None = None) -> None:
    """Register the tasks of installed packages and of your own modules.

    Args:
        imports: names of modules or Python files with tasks. Processes that this one starts import
            them, too.

    Raises:
        ValueError: a module cannot be imported.

    """
    add_imports(imports or ())
    load_plugins(_register_once, lambda found: isinstance(found, Task))


def _register_once(task: Task) -> None:
    if TASKS.get(task.name) is not task:
        register_task(task)
